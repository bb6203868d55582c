"""Whatever agents report, however late,
often or absurd: every accounting of every device and minute sums to its bill."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.store.engine import Database
from app.store.ledger import account
from solvers.domain.device import PriceKind, PriceRow
from tests.integration.money.telemetry import T0, Fleet, Holding, account_again, after

pytestmark = pytest.mark.integration

MINUTES = 4
UUIDS = ("whole", "slice-1", "slice-2", "free", "owned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One report as an agent may send it, with delays and repeats."""

    ended_s: float
    interval_s: float
    late_s: float
    boot: int
    repeats: int
    energies_j: dict[str, float]
    holdings: list[Holding]


seconds = st.floats(0, 60 * MINUTES).map(lambda value: round(value, 3))
amounts = st.floats(0, 1e5).map(lambda value: round(value, 4))
holdings = st.builds(
    Holding,
    replica=st.sampled_from(["p/a#0", "p/a#1", "q/b#0"]),
    uuid=st.sampled_from(UUIDS),
    share_pct_sm=st.sampled_from([0, 1, 7, 33, 50, 100, 130]),
    memory_mib_used=st.sampled_from([0.0, 0.1, 1000.0 / 3, 4096.0, 16384.0, 1e6]),
    memory_mib_limit=st.sampled_from([0, 2048, 1_000_000]),
    held_s=st.none() | st.floats(0, 80).map(lambda value: round(value, 3)),
    kind=st.sampled_from(["service", "job", "task"]),
    energy_j=amounts,
)
reports = st.builds(
    Told,
    ended_s=seconds,
    interval_s=st.sampled_from([0.0, 0.001, 1.0, 5.0, 5.0001, 17.3, 70.0, 4000.0]),
    late_s=st.sampled_from([0.0, 0.0, 0.2, 7.0, 45.0]),
    boot=st.integers(1, 2),
    repeats=st.sampled_from([1, 1, 2]),
    energies_j=st.dictionaries(st.sampled_from(UUIDS), amounts, max_size=5),
    holdings=st.lists(holdings, max_size=6),
)
prices = st.sampled_from([0.0, 0.01, 0.35, 1.0, 3.06, 7.77777, 98.32])
windows = st.lists(st.tuples(seconds, st.none() | seconds), min_size=len(UUIDS), max_size=len(UUIDS))


def build(session: Session, price_usd_per_h: float, billed: list[tuple[float, float | None]], told: list[Told]) -> None:
    """A fleet of a whole GPU with two slices, one without any price, an owned one; and what was said about them."""
    fleet = Fleet(session)
    fleet.gpu_type("a100", 40960, PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=price_usd_per_h))
    fleet.gpu_type("t4", 16384, PriceRow(kind=PriceKind.OWNED, usd_per_h=price_usd_per_h))
    fleet.node("n1")
    fleet.node("n2", price_kind=PriceKind.OWNED)
    shapes = {
        "whole": ("n1", "a100", 40960, None),
        "slice-1": ("n1", "a100", 5120, "whole"),
        "slice-2": ("n1", "a100", 19968, "whole"),
        "free": ("n1", "t4", 16384, None),
        "owned": ("n2", "t4", 16384, None),
    }
    for uuid, (start_s, until_s) in zip(UUIDS, billed, strict=True):
        node, gpu_type, memory_mib, parent = shapes[uuid]
        window = (after(start_s), None if until_s is None else after(max(start_s, until_s)))
        fleet.device(uuid, node=node, gpu_type=gpu_type, memory_mib=memory_mib, billed=window, parent=parent)
    for report in told:
        for node in ("n1", "n2"):
            for _ in range(report.repeats):
                fleet.report(
                    node,
                    after(report.ended_s + report.late_s),
                    report.energies_j,
                    report.holdings,
                    interval_s=report.interval_s,
                    observed_at=after(report.ended_s),
                    boot_id=f"boot-{report.boot}",
                )
    fleet.write()


def check(session: Session) -> int:
    """Sums, bounds and seconds of every device and minute; answers how many there are."""
    assert not session.execute(text("SELECT * FROM ledger_check WHERE difference_usd <> 0")).all()
    found = session.execute(
        text("""
            SELECT b.device_uuid, b.usd, b.usd_energy, b.price_usd_per_h, b.seconds, b.observed_s, b.memory_mib,
                b.energy_j, sum(l.usd_memory) AS memory, sum(l.usd_share) AS share, sum(l.usd_whole) AS whole,
                sum(l.usd_energy) AS energy, sum(l.share_pct_sm_seconds) AS share_s,
                sum(l.memory_mib_seconds) AS memory_s, sum(l.energy_j) AS joules,
                coalesce(sum(l.seconds) FILTER (WHERE l.kind = 'unobserved'), 0) AS unobserved_s,
                coalesce(max(l.seconds) FILTER (WHERE l.subject <> ''), 0) AS held_s_max,
                min(least(l.usd_memory, l.usd_share, l.usd_whole, l.usd_energy, l.seconds, l.share_pct_sm_seconds,
                    l.memory_mib_seconds, l.energy_j)) AS least
            FROM device_bills b LEFT JOIN ledger l USING (minute, device_uuid)
            GROUP BY b.minute, b.device_uuid""")
    ).all()
    for row in found:
        assert row.memory == row.share == row.whole == row.usd, row
        assert row.energy == row.usd_energy, row
        assert row.least >= 0, row
        assert 0 < row.seconds <= 60, row
        assert abs(row.usd - row.price_usd_per_h * row.seconds / 3600) < Decimal("1e-12"), row
        assert row.observed_s + row.unobserved_s == row.seconds, row
        assert row.held_s_max <= row.observed_s, row
        assert abs(row.share_s - 100 * row.seconds) < Decimal("0.001"), row
        assert abs(row.memory_s - row.memory_mib * row.seconds) < Decimal("0.001"), row
        assert abs(row.joules - row.energy_j) < Decimal("0.02"), row
    return len(found)


EXAMPLES = {"embedded_server": 100, "debian_server": 25}
"""The statements are the same on both, and so are the examples: the second server is asked whether it reckons alike."""


def test_every_accounting_sums_to_the_bill(money: Database, request: pytest.FixtureRequest) -> None:
    """Gaps, restarts, overlaps, repeats, impossible claims, slices, no price,
    billing that starts and stops mid-minute."""

    @settings(max_examples=EXAMPLES[request.node.callspec.params["server"]])
    @given(price_usd_per_h=prices, billed=windows, told=st.lists(reports, max_size=14))
    def judge(price_usd_per_h: float, billed: list[tuple[float, float | None]], told: list[Told]) -> None:
        sums_to_the_bill(money, price_usd_per_h, billed, told)

    judge()


def sums_to_the_bill(
    money: Database, price_usd_per_h: float, billed: list[tuple[float, float | None]], told: list[Told]
) -> None:
    with money.transaction() as session:
        build(session, price_usd_per_h, billed, told)
        end = T0 + timedelta(minutes=MINUTES, seconds=90)
        account(session, end)
        assert (check(session) > 0) == any(until_s is None or until_s > start_s for start_s, until_s in billed)
        statement = text("SELECT * FROM ledger ORDER BY minute, device_uuid, kind, subject")
        before = session.execute(statement).all()
        account_again(session, T0, T0 + timedelta(minutes=MINUTES))
        assert session.execute(statement).all() == before
        session.rollback()
