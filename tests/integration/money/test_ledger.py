"""The ledger's arithmetic: prices, the three accountings, gaps, repeats, slices, owned hardware, closed hours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Row, delete, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.store.ledger import Accounting, CostBy, CostQuery, CostReport, account, account_again, cost_report
from app.store.tables.documents import devices, gpu_types, nodes
from solvers.domain.codec import to_plain
from solvers.domain.device import PriceKind, PriceRow
from tests.integration.money.telemetry import T0, Fleet, Holding, after, make_gpu_type

pytestmark = pytest.mark.integration

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


@pytest.mark.parametrize(
    ("memory_gib", "usd_per_gib_s", "expected"),
    [(32, 0.191, ("343.8", "3667.2")), (16, 0.024, ("43.2", "230.4"))],
    ids=["V100", "T4"],
)
def test_hetsev_accounting_of_used_and_whole_memory(
    session: Session, fleet: Fleet, memory_gib: int, usd_per_gib_s: float, expected: tuple[str, str]
) -> None:
    """The paper's normalised prices per GB·s, with GB = 1024 MiB: 3 GB for 600 s, and the whole device."""
    fleet.gpu_type("gpu", memory_gib * 1024, price(round(usd_per_gib_s * memory_gib * 3600, 6)))
    fleet.node("n1")
    fleet.device("g1", gpu_type="gpu", memory_mib=memory_gib * 1024, billed=(T0, after(600)))
    report_minutes(fleet, 10, [Holding(replica="vision/a#0", uuid="g1", share_pct_sm=100, memory_mib_used=3072)])
    account(session, after(700))
    assert_sums(session)
    totals = text("SELECT sum(usd_memory), sum(usd_whole) FROM ledger WHERE kind = 'replica'")
    assert session.execute(totals).one() == tuple(map(Decimal, expected))


def test_three_accountings_of_a_shared_device(session: Session, fleet: Fleet) -> None:
    """$3.60 an hour is 6 cents a minute: memory by use, SMs by share, the whole GPU by share among its holders."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    small = Holding(replica="vision/a#0", uuid="g1", share_pct_sm=30, memory_mib_used=4096, energy_j=150.0)
    large = Holding(replica="vision/b#0", uuid="g1", share_pct_sm=60, memory_mib_used=2048, energy_j=250.0)
    report_minutes(fleet, 1, [small, large])
    account(session, after(80))
    assert_sums(session)
    rows = ledger(session)
    a, b, idle = only(rows, subject="vision/a#0"), only(rows, subject="vision/b#0"), only(rows, kind="idle")
    assert (a.usd_memory, b.usd_memory, idle.usd_memory) == (Decimal("0.015"), Decimal("0.0075"), Decimal("0.0375"))
    assert (a.usd_share, b.usd_share, idle.usd_share) == (Decimal("0.018"), Decimal("0.036"), Decimal("0.006"))
    assert (a.usd_whole, b.usd_whole, idle.usd_whole) == (Decimal("0.02"), Decimal("0.04"), Decimal(0))
    assert (a.energy_j, b.energy_j, idle.energy_j) == (1800, 3000, 1200)
    assert (a.seconds, a.share_pct_sm_seconds, idle.share_pct_sm_seconds) == (60, 1800, 600)
    assert (a.kind, a.project, a.workload, a.node_id, a.gpu_type) == ("replica", "vision", "vision/a", "n1", "t4")


def test_whole_gpu_goes_to_the_one_holder_alone_and_idles_when_nobody_holds(session: Session, fleet: Fleet) -> None:
    """Ten seconds of a, ten of a and b, forty of nobody."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    a = Holding(replica="vision/a#0", uuid="g1", share_pct_sm=20)
    b = Holding(replica="train/b#0", uuid="g1", share_pct_sm=60, kind="job")
    for nth in range(1, 13):
        fleet.report("n1", after(5 * nth), {"g1": 500.0}, [a] if nth <= 2 else [a, b] if nth <= 4 else [])
    fleet.write()
    account(session, after(80))
    assert_sums(session)
    rows = ledger(session)
    assert only(rows, kind="replica").usd_whole == Decimal("0.0125")
    assert only(rows, kind="job").usd_whole == Decimal("0.0075")
    assert only(rows, kind="idle").usd_whole == Decimal("0.04")
    assert only(rows, kind="idle").seconds == 40


def test_amounts_that_do_not_divide_leave_the_cut_to_the_largest_holder(session: Session, fleet: Fleet) -> None:
    """A full device has no idle row; three thirds of a cent still make the cent."""
    fleet.gpu_type("t4", 16383, price(1.0))
    fleet.node("n1")
    fleet.device("g1", memory_mib=16383)
    thirds = [
        Holding(replica=f"p/{name}#0", uuid="g1", share_pct_sm=share, memory_mib_used=5461, energy_j=500 / 3)
        for name, share in (("a", 33), ("b", 34), ("c", 33))
    ]
    report_minutes(fleet, 1, thirds)
    account(session, after(80))
    assert_sums(session)
    assert {row.kind for row in ledger(session)} == {"replica"}
    assert sum(row.usd_whole for row in ledger(session)) == Decimal("0.016666666667")


def test_time_without_telemetry_is_unobserved(session: Session, fleet: Fleet) -> None:
    """Half a minute of silence costs half a minute, in every accounting, and belongs to nobody."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    fleet.device("silent")
    for nth in range(1, 7):
        fleet.report("n1", after(5 * nth), {"g1": 500.0}, [Holding(replica="p/a#0", uuid="g1", share_pct_sm=100)])
    fleet.write()
    account(session, after(80))
    assert_sums(session)
    lost = only(ledger(session), device_uuid="g1", kind="unobserved")
    assert (lost.seconds, lost.usd_memory, lost.usd_share, lost.usd_whole) == (30, *[Decimal("0.03")] * 3)
    assert only(ledger(session), device_uuid="silent").kind == "unobserved"


def test_timers_that_disagree_by_milliseconds_leave_no_gap(session: Session, fleet: Fleet) -> None:
    """Reports that follow each other are contiguous; where one is missing, its time is unobserved."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    for nth in range(1, 121):
        wobble_s = 0.04 * (nth % 3 - 1)
        if nth in (70, 71):
            fleet.lose_report()
        else:
            fleet.report("n1", after(nth + wobble_s), {"g1": 500.0}, [FULL], interval_s=1.0)
    fleet.write()
    account(session, after(150))
    assert_sums(session)
    assert only(ledger(session)).seconds == 60
    lost = only(ledger(session, after(60)), kind="unobserved")
    assert 1.9 < lost.seconds < 2.1


def test_repeats_and_overlaps_cannot_overbill(session: Session, fleet: Fleet) -> None:
    """Two boots reporting the same seconds, a duplicate, and claims beyond the device: 60 s and 100 % at most."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    greedy = [
        Holding(replica=f"p/{name}#0", uuid="g1", share_pct_sm=90, memory_mib_used=16000, energy_j=400) for name in "ab"
    ]
    for nth in range(1, 13):
        fleet.report("n1", after(5 * nth), {"g1": 500.0}, greedy)
        fleet.report("n1", after(5 * nth + 1), {"g1": 500.0}, greedy, boot_id="boot-2")
        fleet.report("n1", after(5 * nth), {"g1": 500.0}, greedy)
    fleet.write()
    account(session, after(80))
    assert_sums(session)
    rows = ledger(session)
    assert {row.kind for row in rows} == {"replica"}
    assert all(row.seconds == 60 for row in rows)
    assert sum(row.share_pct_sm_seconds for row in rows) == 6000
    assert sum(row.memory_mib_seconds for row in rows) == 16384 * 60
    assert sum(row.energy_j for row in rows) <= 6100


def test_a_device_is_billed_from_and_until(session: Session, fleet: Fleet) -> None:
    """From second 15 of one minute to second 30 of the next."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(after(15), after(90)))
    report_minutes(fleet, 3, [FULL])
    account(session, after(200))
    assert_sums(session)
    bills = session.execute(text("SELECT minute, seconds, usd FROM device_bills ORDER BY minute")).all()
    assert [tuple(row) for row in bills] == [(T0, 45, Decimal("0.045")), (after(60), 30, Decimal("0.03"))]
    assert only(ledger(session)).seconds == 45


def test_price_comes_from_kind_and_region_else_default_else_none(session: Session, fleet: Fleet) -> None:
    """A type without a matching row costs nothing, and the bill says that no price was found."""
    fleet.gpu_type(
        "t4", 16384, price(1.2), price(1.8, region="eu"), price(0.6, kind=PriceKind.SPOT), price(9.0, region="us")
    )
    for node, kind, region in (
        ("n-eu", ON_DEMAND, "eu"),
        ("n-asia", ON_DEMAND, "asia"),
        ("n-spot", PriceKind.SPOT, "eu"),
        ("n-reserved", PriceKind.RESERVED, "eu"),
    ):
        fleet.node(node, price_kind=kind, region=region)
        fleet.device(f"g-{node}", node=node)
    account(session, after(80))
    assert_sums(session)
    bills = session.execute(text("SELECT node_id, list_usd_per_h, price_usd_per_h, price_kind FROM device_bills"))
    assert {row.node_id: (row.list_usd_per_h, row.price_usd_per_h, row.price_kind) for row in bills} == {
        "n-eu": (Decimal("1.8"), Decimal("1.8"), "on_demand"),
        "n-asia": (Decimal("1.2"), Decimal("1.2"), "on_demand"),
        "n-spot": (Decimal("0.6"), Decimal("0.6"), "spot"),
        "n-reserved": (None, 0, "reserved"),
    }


def test_slices_cost_their_memory_and_the_cut_gpu_no_more_than_a_whole_one(session: Session, fleet: Fleet) -> None:
    """A quarter and a half of an 80 GiB GPU at $4; the parent keeps the last quarter."""
    fleet.gpu_type("a100", 81920, price(4.0))
    fleet.node("n1")
    fleet.device("whole", gpu_type="a100", memory_mib=81920)
    fleet.device("half", gpu_type="a100", memory_mib=40960, parent="whole")
    fleet.device("quarter", gpu_type="a100", memory_mib=20480, parent="whole")
    account(session, after(80))
    assert_sums(session)
    bills = session.execute(text("SELECT device_uuid, price_usd_per_h FROM device_bills")).all()
    assert {row[0]: row[1] for row in bills} == {"half": 2, "quarter": 1, "whole": 1}


def test_owned_hardware_pays_its_energy_beside_its_price(session: Session, fleet: Fleet) -> None:
    """6 kJ a minute at $0.36 per kWh and PUE 1.5: 0.0009 dollars, two thirds of it the replica's."""
    fleet.policy(0.36, 1.5)
    fleet.gpu_type("t4", 16384, price(0.6, kind=PriceKind.OWNED), price(3.6))
    fleet.node("n1", price_kind=PriceKind.OWNED)
    fleet.node("n2")
    fleet.device("g1")
    fleet.device("g2", node="n2")
    holding = Holding(replica="p/a#0", uuid="g1", share_pct_sm=100, memory_mib_used=16384, energy_j=1000 / 3)
    report_minutes(fleet, 1, [holding])
    for nth in range(1, 13):
        fleet.report("n2", after(5 * nth), {"g2": 500.0})
    fleet.write()
    account(session, after(80))
    assert_sums(session)
    bills = session.execute(text("SELECT device_uuid, usd, usd_energy FROM device_bills ORDER BY 1")).all()
    assert [tuple(row) for row in bills] == [("g1", Decimal("0.01"), Decimal("0.0009")), ("g2", Decimal("0.06"), 0)]
    assert only(ledger(session), subject="p/a#0").usd_energy == pytest.approx(Decimal("0.0006"), abs=Decimal("1e-9"))


def test_reports_resent_after_an_outage_land_where_they_were_measured(session: Session, fleet: Fleet) -> None:
    """A node cut off for two minutes sends its buffer at once; its clock is 100 s ahead all the while."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    for nth in range(1, 13):
        fleet.report("n1", after(5 * nth), {"g1": 500.0}, [FULL], observed_at=after(5 * nth + 100))
    fleet.write()
    assert account(session, after(205)).minutes_late == 0
    assert [only(ledger(session, after(60 * nth))).kind for nth in (1, 2)] == ["unobserved"] * 2
    for nth in range(13, 37):
        fleet.report("n1", after(206), {"g1": 500.0}, [FULL], observed_at=after(5 * nth + 100))
    fleet.write()
    done = account(session, after(265))
    assert (done.minutes_late, done.minutes_new, done.accounted_until) == (2, 1, after(240))
    assert [only(ledger(session, after(60 * nth))).kind for nth in (0, 1, 2)] == ["replica"] * 3
    assert only(ledger(session, after(180))).kind == "unobserved"
    assert_sums(session)
    energy = session.execute(text("SELECT sum(energy_j) FROM device_minutes WHERE device_uuid = 'g1'")).scalar_one()
    assert energy == pytest.approx(36 * 500.0)


def test_a_report_committed_after_accounting_looked_is_not_lost(session: Session, fleet: Fleet) -> None:
    """Its arrival time lies before the last run, but it became visible only afterwards."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    report_minutes(fleet, 1, [FULL])
    assert account(session, after(142)).accounted_until == after(120)
    assert only(ledger(session, after(60))).kind == "unobserved"
    fleet.report("n1", after(138), {"g1": 6000.0}, [FULL], interval_s=30, observed_at=after(120))
    fleet.write()
    assert account(session, after(150)).minutes_late == 1
    assert only(ledger(session, after(60)), kind="replica").seconds == 30
    assert account(session, after(165)).minutes_late == 0


def test_accounting_again_changes_nothing(session: Session, fleet: Fleet) -> None:
    """Not a row, not a digit, whether the hour is open or closed; and only on request once it is closed."""
    fleet.gpu_type("t4", 16384, price(1.0))
    fleet.node("n1")
    fleet.device("g1", billed=(T0, after(600)))
    report_minutes(fleet, 10, [Holding(replica="p/a#0", uuid="g1", share_pct_sm=37, energy_j=71.0)])
    done = account(session, after(700))
    assert (done.accounted_until, done.behind) == (after(660), False)
    before = _everything(session)
    assert len(before["ledger"]) == 20
    account(session, after(700))
    account_again(session, T0, after(600))
    assert _everything(session) == before

    done = account(session, after(3600 + 900 + 60), minutes_max=600)
    assert done.closed_until == after(3600)
    hours = session.execute(text("SELECT sum(usd_share) FROM ledger_hours")).scalar_one()
    assert hours == session.execute(text("SELECT sum(usd) FROM device_bills")).scalar_one()
    with pytest.raises(OperationalError, match="is closed"), session.begin_nested():
        session.execute(text("SELECT headroom_account_minutes(:a, :b)"), {"a": T0, "b": after(60)})
    account_again(session, T0, after(60))
    assert session.execute(text("SELECT sum(usd_share) FROM ledger_hours")).scalar_one() == hours
    after_all = _everything(session)
    assert after_all["ledger"][:20] == before["ledger"]


def _everything(session: Session) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: [tuple(row) for row in session.execute(text(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4"))]
        for table in ("ledger", "device_bills", "device_minutes", "service_minutes", "device_hours", "service_hours")
    }


def test_a_minute_keeps_the_price_it_was_billed_at(session: Session, fleet: Fleet) -> None:
    """A new price counts from the next minute; old minutes take it only on request."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    account(session, after(80))
    dearer = to_plain(make_gpu_type("t4", 16384, [price(7.2)]))
    session.execute(update(gpu_types).values(spec=dearer))
    account_again(session, T0, after(60))
    account(session, after(140))
    bills = text("SELECT usd FROM device_bills ORDER BY minute")
    assert session.execute(bills).scalars().all() == [Decimal("0.06"), Decimal("0.12")]
    account_again(session, T0, after(60), reprice=True)
    assert session.execute(bills).scalars().all() == [Decimal("0.12"), Decimal("0.12")]
    assert_sums(session)


@pytest.mark.parametrize("table", [devices, nodes], ids=["device", "node"])
def test_a_deleted_device_still_owes_its_last_minutes(session: Session, fleet: Fleet, table: Any) -> None:
    """Deleting a node or a device between the minute and its accounting does not lose the money."""
    now = session.execute(text("SELECT date_trunc('minute', now())")).scalar_one()
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(now - timedelta(minutes=2), None))
    session.execute(delete(table))
    account(session, now + timedelta(minutes=3))
    billed = session.execute(text("SELECT sum(usd), sum(seconds) FROM device_bills")).one()
    assert 120 <= billed[1] < 180
    assert billed[0] == pytest.approx(billed[1] / 1000)
    assert_sums(session)


def test_the_minute_at_midnight_belongs_to_both_days(session: Session, fleet: Fleet) -> None:
    """Reports received just after midnight UTC count in the last minute of the day before, in another partition."""
    midnight = datetime(2026, 3, 3, tzinfo=T0.tzinfo)
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(midnight - timedelta(minutes=2), midnight + timedelta(minutes=2)))
    full = [Holding(replica="p/a#0", uuid="g1", share_pct_sm=100, memory_mib_used=16384, energy_j=1000, completed=10)]
    for nth in range(25):
        fleet.report("n1", midnight + timedelta(seconds=10 * nth - 117), {"g1": 1000.0}, full, interval_s=10)
    fleet.write()
    account(session, midnight + timedelta(minutes=3))
    assert_sums(session)
    rows = session.execute(text("SELECT minute, kind, seconds FROM ledger ORDER BY 1, 2")).all()
    assert [(row.kind, row.seconds) for row in rows] == [("replica", 60)] * 4
    parts = session.execute(text("SELECT DISTINCT tableoid::regclass::text FROM ledger ORDER BY 1")).scalars().all()
    assert parts == ["ledger_p20260302", "ledger_p20260303"]
    answered = session.execute(text("SELECT sum(completed) FROM service_minutes")).scalar_one()
    assert answered == pytest.approx(250 - 10 * 0.3)


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
