"""How a device's minute is split: the three accountings, gaps, overlaps and repeats."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from app.store.ledger import account
from solvers.domain.device import DeviceMode
from tests.integration.money.books import FULL, assert_sums, ledger, only, price, report_minutes
from tests.integration.money.telemetry import T0, Fleet, Holding, after

pytestmark = pytest.mark.integration

TIME_SLICED = DeviceMode.TIME_SLICED


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
    fleet.device("g1", gpu_type="gpu", memory_mib=memory_gib * 1024, billed=(T0, after(600)), mode=TIME_SLICED)
    report_minutes(fleet, 10, [Holding(replica="vision/a#0", uuid="g1", share_pct_sm=100, memory_mib_used=3072)])
    account(session, after(700))
    assert_sums(session)
    totals = text("SELECT sum(usd_memory), sum(usd_whole) FROM ledger WHERE kind = 'replica'")
    assert session.execute(totals).one() == tuple(map(Decimal, expected))


def test_a_whole_share_pays_for_all_the_memory_unless_in_time_slices(session: Session, fleet: Fleet) -> None:
    """As planned: nobody else can be there. Memory used is told as it is, and in time slices paid so."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    fleet.device("g2", mode=TIME_SLICED)
    alone = [Holding(replica=f"p/{uuid}#0", uuid=uuid, share_pct_sm=100, memory_mib_used=4096) for uuid in ("g1", "g2")]
    report_minutes(fleet, 1, alone)
    account(session, after(80))
    assert_sums(session)
    rows = ledger(session)
    assert only(rows, subject="p/g1#0").usd_memory == Decimal("0.06")
    assert only(rows, subject="p/g2#0").usd_memory == Decimal("0.015")
    assert {row.memory_mib_seconds for row in rows if row.subject} == {4096 * 60}
    idle = only(rows, device_uuid="g1", kind="idle")
    assert (idle.usd_memory, idle.memory_mib_seconds) == (0, 12288 * 60)


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


def after_one_then_both_then_nobody(session: Session, fleet: Fleet, a: Holding, b: Holding) -> Sequence[Row[Any]]:
    """The ledger of a minute: ten seconds of a, ten of a and b, forty of nobody."""
    for nth in range(1, 13):
        fleet.report("n1", after(5 * nth), {"g1": 500.0}, [a] if nth <= 2 else [a, b] if nth <= 4 else [])
    fleet.write()
    account(session, after(80))
    assert_sums(session)
    return ledger(session)


def test_whole_gpu_goes_to_the_one_holder_alone_and_idles_when_nobody_holds(session: Session, fleet: Fleet) -> None:
    """Ten seconds of a, ten of a and b, forty of nobody."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    a = Holding(replica="vision/a#0", uuid="g1", share_pct_sm=20)
    b = Holding(replica="train/b#0", uuid="g1", share_pct_sm=60, kind="job")
    rows = after_one_then_both_then_nobody(session, fleet, a, b)
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


def test_who_overlap_while_they_change_over_pay_for_that_moment_alone(session: Session, fleet: Fleet) -> None:
    """Ten seconds of a, ten of a and b with all SMs each, forty of nobody: what was claimed twice hides no idleness."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    a, b = (Holding(replica=f"p/{name}#0", uuid="g1", share_pct_sm=100, memory_mib_used=4096) for name in "ab")
    rows = after_one_then_both_then_nobody(session, fleet, a, b)
    paid = {row.subject: (row.usd_share, row.usd_memory, row.usd_whole, row.share_pct_sm_seconds) for row in rows}
    assert paid["p/a#0"] == (*[Decimal("0.015")] * 3, 1500)
    assert paid["p/b#0"] == (*[Decimal("0.005")] * 3, 500)
    assert paid[""] == (*[Decimal("0.04")] * 3, 4000)
    assert [row.memory_mib_seconds for row in rows if row.subject] == [4096 * 20, 4096 * 10]
