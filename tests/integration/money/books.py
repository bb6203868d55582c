"""Reading what was accounted, and the sentence that must always hold: every accounting sums to the bill."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from solvers.domain.device import PriceKind, PriceRow
from tests.integration.money.telemetry import T0, Fleet, Holding, after

ON_DEMAND = PriceKind.ON_DEMAND
FULL = Holding(replica="p/a#0", uuid="g1", share_pct_sm=100, memory_mib_used=16384, energy_j=500.0)
"""Holds all of g1."""


def price(usd_per_h: float, kind: PriceKind = ON_DEMAND, region: str = "default") -> PriceRow:
    """A price row."""
    return PriceRow(kind=kind, usd_per_h=usd_per_h, region=region)


def ledger(session: Session, minute: datetime = T0) -> Sequence[Row[Any]]:
    """The rows of a minute, by device, kind and holder."""
    return session.execute(
        text("SELECT * FROM ledger WHERE minute = :minute ORDER BY device_uuid, kind, subject"), {"minute": minute}
    ).all()


def only(rows: Sequence[Row[Any]], **wanted: str) -> Row[Any]:
    """The one row with these values."""
    found = [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]
    assert len(found) == 1, found
    return found[0]


def assert_sums(session: Session) -> None:
    """Every device and minute: each accounting sums to the bill exactly."""
    found = session.execute(
        text("""
            SELECT b.minute, b.device_uuid, b.usd, b.usd_energy, sum(l.usd_memory) AS memory, sum(l.usd_share) AS share,
                sum(l.usd_whole) AS whole, sum(l.usd_energy) AS energy, sum(l.seconds) AS seconds
            FROM device_bills b LEFT JOIN ledger l USING (minute, device_uuid) GROUP BY 1, 2, 3, 4""")
    ).all()
    assert found
    for row in found:
        assert row.memory == row.share == row.whole == row.usd, row
        assert row.energy == row.usd_energy, row


def report_minutes(fleet: Fleet, minutes: int, holdings: Sequence[Holding], *, start: datetime = T0) -> None:
    """Twelve reports a minute from n1 about every device held, 100 W each."""
    uuids = sorted({holding.uuid for holding in holdings}) or ["g1"]
    for nth in range(1, 12 * minutes + 1):
        fleet.report("n1", after(5 * nth, start), dict.fromkeys(uuids, 500.0), holdings)
    fleet.write()
