"""What a device costs: from when until when, at which price; slices, owned hardware, new prices, devices that go."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import delete, text, update
from sqlalchemy.orm import Session

from app import kinds
from app.store.ledger import account
from app.store.nodes import note_device
from app.store.tables import TABLES, devices
from solvers.domain.codec import to_plain
from solvers.domain.device import PriceKind
from solvers.domain.ids import NodeId, PolicyName
from solvers.domain.policy import Policy, Pool
from tests.integration.money.books import FULL, ON_DEMAND, assert_sums, ledger, only, price, report_minutes
from tests.integration.money.telemetry import T0, Fleet, Holding, account_again, after, make_gpu_type

pytestmark = pytest.mark.integration


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


@pytest.mark.parametrize(
    ("whole", "halves", "paid_s"),
    [
        pytest.param([(0, 30)], (30, 60), 30, id="cut"),
        pytest.param([(40, 60)], (0, 40), 20, id="put back"),
        pytest.param([(0, 20), (50, 60)], (20, 50), 30, id="cut and put back"),
        pytest.param([(0, 45)], (30, 60), 30, id="listed beside its slices for a while"),
    ],
)
def test_a_gpu_is_paid_whole_for_the_part_of_a_minute_before_and_after_its_slices(
    session: Session, fleet: Fleet, whole: list[tuple[int, int]], halves: tuple[int, int], paid_s: int
) -> None:
    fleet.gpu_type("a100", 81920, price(3.6))
    fleet.node("n1")
    fleet.device("whole", gpu_type="a100", memory_mib=81920, billed=(after(whole[0][0]), after(whole[0][1])))
    for begun, ended in whole[1:]:
        session.execute(update(devices).values(billed_from=after(begun), billed_until=None))
        session.execute(update(devices).values(billed_until=after(ended)))
    for uuid in ("half-1", "half-2"):
        billed = (after(halves[0]), after(halves[1]))
        fleet.device(uuid, gpu_type="a100", memory_mib=40960, parent="whole", billed=billed)
    account(session, after(80))
    assert_sums(session)
    bills = session.execute(text("SELECT device_uuid, usd FROM device_bills")).all()
    half = Decimal(halves[1] - halves[0]) / 2000
    assert {row[0]: row[1] for row in bills} == {"whole": Decimal(paid_s) / 1000, "half-1": half, "half-2": half}


def test_energy_is_paid_beside_the_price_whoever_owns_the_gpu(session: Session, fleet: Fleet) -> None:
    """6 kJ a minute at $0.36 per kWh and PUE 1.5: 0.0009 dollars, two thirds of the first one's the replica's."""
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
    cents = [("g1", Decimal("0.01"), Decimal("0.0009")), ("g2", Decimal("0.06"), Decimal("0.0009"))]
    assert [tuple(row) for row in bills] == cents
    assert only(ledger(session), subject="p/a#0").usd_energy == pytest.approx(Decimal("0.0006"), abs=Decimal("1e-9"))


def test_energy_costs_what_the_policy_of_the_device_says_for_the_hour(session: Session, fleet: Fleet) -> None:
    """Ten o'clock at $0.30 and 400 g of carbon at $50 a tonne, PUE 2; outside the pool $0.10 all day, PUE 1.2."""
    by_hour = tuple(0.3 if hour == T0.hour else 9.9 for hour in range(24))
    carbon: dict[str, Any] = {"carbon_g_per_kwh": 400.0, "carbon_usd_per_t": 50.0}
    fleet.policy(0.1, 1.2)
    pooled: dict[str, Any] = {"name": "pooled", "pool": Pool(nodes=(NodeId("n2"),))}
    fleet.policy(7.7, 2.0, energy_usd_per_kwh_by_hour=by_hour, **carbon, **pooled)
    fleet.gpu_type("t4", 16384, price(3.6))
    for node, uuid in (("n1", "g1"), ("n2", "g2")):
        fleet.node(node)
        fleet.device(uuid, node=node)
        for nth in range(1, 13):
            fleet.report(node, after(5 * nth), {uuid: 3000.0})
    fleet.write()
    account(session, after(80))
    bills = session.execute(text("SELECT policy, usd_per_kwh, usd_energy FROM device_bills ORDER BY device_uuid")).all()
    assert [tuple(row) for row in bills] == [
        ("default", Decimal("0.12"), Decimal("0.0012")),
        ("pooled", Decimal("0.64"), Decimal("0.0064")),
    ]


def test_a_minute_keeps_the_price_of_its_energy(session: Session, fleet: Fleet) -> None:
    """As that of its GPU: what a policy says later counts from then on, or on request."""
    fleet.policy(0.36, 1.5)
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(T0, after(60)))
    report_minutes(fleet, 1, [FULL])
    account(session, after(80))
    dearer = to_plain(Policy(name=PolicyName("default"), energy_usd_per_kwh=0.72, power_usage_effectiveness=1.5))
    session.execute(update(TABLES[kinds.POLICY]).values(spec=dearer))
    paid = text("SELECT usd_energy FROM device_bills")
    account_again(session, T0, after(60))
    assert session.execute(paid).scalar_one() == Decimal("0.0009")
    account_again(session, T0, after(60), reprice=True)
    assert session.execute(paid).scalar_one() == Decimal("0.0018")
    assert_sums(session)


def test_a_minute_keeps_the_price_it_was_billed_at(session: Session, fleet: Fleet) -> None:
    """A new price counts from the next minute; old minutes take it only on request."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    account(session, after(80))
    dearer = to_plain(make_gpu_type("t4", 16384, [price(7.2)]))
    session.execute(update(TABLES[kinds.GPU_TYPE]).values(spec=dearer))
    account_again(session, T0, after(60))
    account(session, after(140))
    bills = text("SELECT usd FROM device_bills ORDER BY minute")
    assert session.execute(bills).scalars().all() == [Decimal("0.06"), Decimal("0.12")]
    account_again(session, T0, after(60), reprice=True)
    assert session.execute(bills).scalars().all() == [Decimal("0.12"), Decimal("0.12")]
    assert_sums(session)


@pytest.mark.parametrize("table", [TABLES[kinds.DEVICE], TABLES[kinds.NODE]], ids=["device", "node"])
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


def _now(session: Session) -> datetime:
    """The beginning of the minute in which the database is."""
    found = session.execute(text("SELECT date_trunc('minute', now())")).scalar_one()
    assert isinstance(found, datetime)
    return found


def _seconds(session: Session) -> list[tuple[str, float]]:
    """What was billed, by node."""
    found = session.execute(text("SELECT node_id, sum(seconds) FROM device_bills GROUP BY 1 ORDER BY 1")).all()
    return [(row.node_id, float(row.sum)) for row in found]


@pytest.mark.parametrize("accounted", [False, True], ids=["unaccounted", "accounted"])
def test_a_device_that_comes_back_still_owes_its_time_before(session: Session, fleet: Fleet, accounted: bool) -> None:
    """Gone for ten minutes; a late report makes a minute of before anew, and nothing of it goes."""
    now = _now(session)
    start = now - timedelta(minutes=20)
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(start, now - timedelta(minutes=10)))
    if accounted:
        account(session, now + timedelta(seconds=20))
        assert _seconds(session) == [("n1", 600)]
    note_device(session, "g1", driver_version="", capabilities={})
    note_device(session, "g1", driver_version="", capabilities={})
    account(session, now + timedelta(minutes=1, seconds=20), minutes_max=60)
    account_again(session, start, now)
    ((_, seconds),) = _seconds(session)
    assert 600 < seconds <= 660
    usd = session.execute(text("SELECT sum(usd) FROM device_bills")).scalar_one()
    assert float(usd) == pytest.approx(seconds / 1000)
    assert_sums(session)


def test_a_device_that_leaves_and_comes_back_within_a_minute_owes_both_parts(session: Session, fleet: Fleet) -> None:
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(T0, after(130)))
    session.execute(update(devices).values(billed_from=after(150), billed_until=None))
    session.execute(update(devices).values(billed_until=after(160)))
    session.execute(update(devices).values(billed_from=after(175), billed_until=None))
    report_minutes(fleet, 4, [FULL])
    account(session, after(260))
    seconds = session.execute(text("SELECT seconds FROM device_bills ORDER BY minute")).scalars().all()
    assert seconds == [60, 60, 10 + 10 + 5, 60]
    assert_sums(session)


def test_a_device_that_moves_owes_each_node_its_own_time_at_its_own_price(session: Session, fleet: Fleet) -> None:
    """From a node on demand to one of a pool that is billed as spot, and back, a minute each time: reports of before
    still count.
    """
    now = _now(session)
    start = now - timedelta(minutes=20)
    fleet.policy(0.0, 1.0)
    pooled: dict[str, Any] = {"name": "pooled", "pool": Pool(nodes=(NodeId("n2"),)), "price_kind": PriceKind.SPOT}
    fleet.policy(0.0, 1.0, **pooled)
    fleet.gpu_type("t4", 16384, price(3.6), price(1.2, kind=PriceKind.SPOT))
    for node in ("n1", "n2"):
        fleet.node(node)
    fleet.device("g1", billed=(start, None))
    report_minutes(fleet, 10, [FULL], start=start)
    account(session, start + timedelta(minutes=5, seconds=20))
    for node, minutes in (("n2", 10), ("n1", 15)):
        moved_at = start + timedelta(minutes=minutes)
        session.execute(update(devices).values(billed_until=moved_at))
        session.execute(update(devices).values(node_id=node))
        session.execute(update(devices).values(billed_from=moved_at + timedelta(minutes=1), billed_until=None))
    for _ in range(2):
        account(session, now + timedelta(seconds=20))
        account_again(session, start, now)
        assert _seconds(session) == [("n1", 600 + 240), ("n2", 240)]
        bills = text("SELECT policy, node_id, price_usd_per_h FROM device_bills GROUP BY 1, 2, 3 ORDER BY 2")
        told = [("default", "n1", Decimal("3.6")), ("pooled", "n2", Decimal("1.2"))]
        assert [tuple(row) for row in session.execute(bills)] == told
        held = session.execute(text("SELECT kind, sum(seconds) FROM ledger GROUP BY 1 ORDER BY 1")).all()
        assert [tuple(row) for row in held] == [("replica", 600), ("unobserved", 480)]
        assert_sums(session)


def test_a_device_that_moves_is_billed_on_its_new_node_from_now(session: Session, fleet: Fleet) -> None:
    fleet.gpu_type("t4", 16384, price(3.6))
    for node in ("n1", "n2"):
        fleet.node(node)
    fleet.device("g1", billed=(T0, None))
    session.execute(update(devices).values(node_id="n2"))
    begun = session.execute(text("SELECT billed_from = now() AND billed_until IS NULL FROM devices")).scalar_one()
    assert begun
    kept = session.execute(text("SELECT node_id, billed_from, billed_until = now() FROM retired_devices")).all()
    assert [tuple(row) for row in kept] == [("n1", T0, True)]
