"""Cost reports: every grouping sums to the bill, and a project sees its own costs only."""

from __future__ import annotations

from decimal import Decimal

import pytest
from sqlalchemy.orm import Session

from app.store.ledger import Accounting, CostBy, CostQuery, CostReport, account, cost_report
from tests.integration.money.books import price
from tests.integration.money.telemetry import T0, Fleet, Holding, after

pytestmark = pytest.mark.integration


@pytest.fixture
def spent(session: Session, fleet: Fleet) -> Session:
    """Two projects on one device for two minutes around the top of an hour, another device idle."""
    start = after(3540)
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(start, after(3660)))
    fleet.device("g2", billed=(start, after(3660)))
    holdings = [
        Holding(replica="vision/a#0", uuid="g1", share_pct_sm=50),
        Holding(replica="speech/b#0", uuid="g1", share_pct_sm=25),
    ]
    for nth in range(1, 25):
        fleet.report("n1", after(5 * nth, start), {"g1": 500.0, "g2": 100.0}, holdings)
    fleet.write()
    account(session, after(3700))
    return session


def _report(session: Session, by: CostBy, project: str | None = None) -> CostReport:
    query = CostQuery(by=by, accounting=Accounting.SHARE, start=after(600), end=after(3700), project=project)
    return cost_report(session, query)


def test_cost_report_groups_and_sums_to_the_bill(spent: Session) -> None:
    """Every grouping has the same total: $0.24 for four device-minutes."""
    for by in CostBy:
        assert _report(spent, by).usd == Decimal("0.24"), by
    by_service = _report(spent, CostBy.SERVICE)
    assert (by_service.start, by_service.end) == (T0, after(7200))
    assert [(row.key, row.usd) for row in by_service.rows] == [
        ("(idle)", Decimal("0.15")),
        ("vision/a", Decimal("0.06")),
        ("speech/b", Decimal("0.03")),
    ]
    assert [(row.key, row.usd, row.usd_idle) for row in _report(spent, CostBy.HOUR).rows] == [
        ("2026-03-02T10:00Z", Decimal("0.12"), Decimal("0.075")),
        ("2026-03-02T11:00Z", Decimal("0.12"), Decimal("0.075")),
    ]


def test_cost_report_of_a_project_shows_its_own_costs_only(spent: Session) -> None:
    """No idle, no neighbour."""
    report = _report(spent, CostBy.DEVICE, project="speech")
    assert [(row.key, row.usd, row.usd_idle) for row in report.rows] == [("g1", Decimal("0.03"), Decimal(0))]
    assert report.rows[0].share_gpu_h == pytest.approx(Decimal(2) / 60 / 4)
