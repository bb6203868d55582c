"""Replicas keep their slots: unchanged ones their own, then same device, then any standing slot, then a new one. Who
hands capacity over to another device goes there by name, so that it serves until that one is ready.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import GpuTypeName, ReplicaId
from solvers.domain.plan import Assignment
from solvers.planners.base import Budget, PlannerSpec, PlanRequest
from solvers.planners.seating import Placed, Settled, seat_of
from solvers.planners.writer import Lack, SequentialAnswer, replica_of, unplaced_of, write_answer
from solvers.problems.choice import Option
from solvers.problems.fleet import open_fleet
from solvers.problems.needs import needs_of
from tests import builders

PICTURE = builders.lab([builders.service()])
FLEET = open_fleet(PICTURE, {})
(NEED,) = needs_of(PICTURE, builders.everything_movable(PICTURE))
OPTION = Option(
    device_class=0,
    gpu_type=GpuTypeName("t4"),
    batch=4,
    share_pct=30,
    memory_mib=1024,
    latency_ms=50.0,
    capacity_rps=40.0,
    power_w=10.0,
    usd_per_h=0.1,
    weight_usd_per_h=0.1,
    batch_min=1,
    batch_max=4,
    clock_mhz_sm=1590,
)
SPEC = PlannerSpec(name="any", version="1", knobs=())


def stands(ordinal: int, device: int) -> Assignment:
    return builders.assignment(f"demo/vision#{ordinal}", FLEET.devices[device])


def names(placed: list[Placed], standing: list[Assignment]) -> dict[str, int]:
    picture = replace(PICTURE, target=builders.target(standing))
    movable = builders.everything_movable(picture)
    request = PlanRequest(snapshot=picture, movable=movable, budget=Budget(), seed=1)
    settled = Settled(need=NEED, fleet=FLEET, placed=placed)
    plan = write_answer(request, SPEC, SequentialAnswer(settled=(settled,), pinned=()))
    return {item.replica.rpartition("#")[2]: FLEET.index[item.device] for item in plan.assignments}


def on(device: int) -> Placed:
    return Placed(seat=seat_of(NEED, OPTION, device), option=OPTION)


def kept(ordinal: int, device: int) -> Placed:
    return replace(on(device), standing=stands(ordinal, device))


def test_new_replicas_take_the_lowest_free_slots() -> None:
    assert names([on(2), on(0)], []) == {"0": 0, "1": 2}


def test_unchanged_replicas_keep_theirs() -> None:
    assert names([kept(5, 3), on(0)], [stands(5, 3)]) == {"5": 3, "0": 0}


def test_a_changed_replica_on_the_same_device_keeps_its_slot() -> None:
    assert names([on(1), on(0)], [stands(7, 0), stands(8, 4)]) == {"7": 0, "8": 1}


def test_a_moved_replica_takes_a_standing_slot_before_a_new_one() -> None:
    assert names([on(0), on(1), on(2)], [stands(9, 5)]) == {"9": 0, "0": 1, "1": 2}


def test_who_carries_less_while_another_starts_elsewhere_leaves_for_it() -> None:
    assert OPTION.capacity_rps < stands(3, 0).capacity_rps
    assert names([on(0), on(2)], [stands(3, 0)]) == {"3": 2, "0": 0}
    roomy = Placed(seat=seat_of(NEED, OPTION, 0), option=replace(OPTION, capacity_rps=60.0))
    assert names([roomy, on(2)], [stands(3, 0)]) == {"3": 0, "0": 2}


def test_no_more_hand_over_than_start_elsewhere() -> None:
    smaller = Placed(seat=seat_of(NEED, OPTION, 1), option=replace(OPTION, capacity_rps=10.0))
    assert names([on(0), smaller, on(2)], [stands(3, 0), stands(4, 1)]) == {"3": 0, "4": 2, "0": 1}


@pytest.mark.parametrize(("latency_ms", "stated_ms"), [(131.32283, 131.32284), (131.3218, 131.322), (131.4, 131.4)])
def test_a_latency_is_not_rounded_over_the_limit_that_it_keeps(latency_ms: float, stated_ms: float) -> None:
    need = replace(NEED, limit_ms=131.32284)
    item = replica_of(need, replace(OPTION, latency_ms=latency_ms), FLEET.devices[0].id).named(
        ReplicaId("demo/vision#0")
    )
    assert item.latency_ms_planned == stated_ms


def test_a_type_whose_devices_are_full_is_not_told_to_have_none() -> None:
    none, full = (
        Reason(code=code, subject="a100") for code in (ReasonCode.NO_DEVICE_OF_TYPE, ReasonCode.NO_SHARE_LEFT)
    )
    absent = Reason(code=ReasonCode.NO_DEVICE_OF_TYPE, subject="t4")
    told = unplaced_of(NEED, Lack(rate_rps=1.0), (none, full, absent)).reasons
    assert told == (full, absent)


def test_of_refusals_that_differ_in_numbers_the_least_is_told() -> None:
    """A planner tries larger replicas first: that not even the least had a place says it of all."""

    def refusal(code: ReasonCode, share_pct: float, power_w: float) -> Reason:
        facts = (Fact(name="share_pct_sm", value=share_pct), Fact(name="power_w", value=power_w))
        return Reason(code=code, subject="t4", facts=facts)

    blockers = [refusal(ReasonCode.POWER_CAP, share, 2.0 * share) for share in (80.0, 10.0, 40.0)]
    other = refusal(ReasonCode.NO_SHARE_LEFT, 100.0, 1.0)
    alternatives = [replace(item, code=ReasonCode.REJECTED_ALTERNATIVE) for item in blockers]
    told = unplaced_of(NEED, Lack(rate_rps=1.0), (*blockers, other)).reasons
    assert told == (blockers[1], other)
    settled = Settled(need=NEED, fleet=FLEET, blockers=[*blockers, other, *alternatives])
    assert SequentialAnswer(settled=(), pinned=()).explain(settled) == (blockers[1], other, *alternatives)
