"""Reports are accounted the same as rows of reports, and as the rows of samples that releases before wrote."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from itertools import cycle
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from agents.wire import Report
from app.store.ledger import account
from tests.integration.money.books import assert_sums, price
from tests.integration.money.telemetry import Fleet, Holding, after
from tests.integration.store.samples import put_rows, put_samples

pytestmark = pytest.mark.integration

Store = Callable[[Session, Report, datetime], None]
SEED = 5
NODES, GPUS, MINUTES = ("n1", "n2", "n3"), 2, 9
EXACT = ("ledger", "device_bills")
SUMMED = ("device_minutes", "service_minutes")


def _tell(session: Session, store: Store) -> None:
    """Minutes of nodes that lose reports, send them late or twice, and start anew; accounted as they go by."""
    draws, fleet = random.Random(SEED), Fleet(session, store)
    fleet.gpu_type("t4", 16384, price(3.6))
    for node in NODES:
        fleet.node(node)
        for gpu in range(GPUS):
            fleet.device(f"{node}-{gpu}", node=node, billed=(after(draws.uniform(0, 70)), None))
    for tick in range(1, 12 * MINUTES):
        for node in NODES:
            at = 5 * tick + draws.uniform(-0.05, 0.05)
            late_s = draws.choice((0.1, 0.1, 0.1, 0.2, draws.uniform(0, 130)))
            if draws.random() < 0.05:
                fleet.lose_report()
                continue
            energies = {f"{node}-{gpu}": draws.uniform(100, 350) for gpu in range(GPUS)}
            holdings = [_holding(draws, node, gpu, slot) for gpu in range(GPUS) for slot in range(draws.randrange(4))]
            for _ in range(draws.choice((1, 1, 1, 2))):
                fleet.report(
                    node, after(at + late_s), energies, holdings, observed_at=after(at), boot_id=f"boot-{tick // 60}"
                )
        if tick % 12 == 0:
            fleet.write()
            account(session, after(5 * tick + 25))
    fleet.write()
    account(session, after(60 * MINUTES + 100), minutes_max=60)


def _holding(draws: random.Random, node: str, gpu: int, slot: int) -> Holding:
    return Holding(
        replica=f"p{slot}/{node}#{gpu}",
        uuid=f"{node}-{gpu}",
        share_pct_sm=draws.choice((20, 50, 100)),
        memory_mib_used=draws.uniform(500, 6000),
        held_s=draws.choice((None, None, draws.uniform(0, 5))),
        kind=draws.choice(("service", "service", "job")),
        energy_j=draws.uniform(0, 100),
        completed=float(draws.randrange(400)),
        latency_ms_p99=draws.choice((None, draws.uniform(5, 50))),
    )


def _accounts(session: Session, store: Store) -> dict[str, list[tuple[Any, ...]]]:
    with session.begin_nested() as story:
        _tell(session, store)
        assert_sums(session)
        tables = {
            table: [tuple(row) for row in session.execute(text(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4"))]
            for table in (*EXACT, *SUMMED)
        }
        story.rollback()
    return tables


def test_rows_of_reports_and_rows_of_samples_make_the_same_accounts(session: Session) -> None:
    both = cycle((put_samples, put_rows))

    def store_by_turns(session: Session, said: Report, received_at: datetime) -> None:
        next(both)(session, said, received_at)

    found, *others = (_accounts(session, store) for store in (put_samples, put_rows, store_by_turns))
    assert len(found["ledger"]) > 100
    for other in others:
        # Bills are made of exact sums; roll-ups are sums in floating point, whose order nobody promised.
        assert {table: other[table] for table in EXACT} == {table: found[table] for table in EXACT}
        for table in SUMMED:
            for row, before in zip(other[table], found[table], strict=True):
                assert [pytest.approx(value, rel=1e-12) if isinstance(value, float) else value for value in before] == [
                    *row
                ]
