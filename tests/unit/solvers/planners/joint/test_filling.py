"""Who can always use more gets what is spare on devices in use, after everybody's declared rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.cycle.cycle import run_cycle
from solvers.cycle.ports import CycleOrder
from solvers.cycle.record import Lane
from solvers.domain.device import PowerCap, PowerScope
from solvers.domain.evidence import FindingCode
from solvers.domain.ids import CycleId, WorkloadId
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import SloScope
from solvers.engines.deadline import Deadline
from solvers.models.worth import worth_of
from solvers.planners import registry
from solvers.planners.joint import spare
from solvers.planners.joint.reading.formulation import read
from solvers.planners.joint.seat.seats import Held, Seats
from solvers.planners.joint.spare import fill
from solvers.planners.joint.write import Batches, Member
from solvers.problems.joint import JointProblem
from solvers.problems.needs import UTILISATION_OPEN
from solvers.problems.patterns import Pattern
from solvers.verify.checks import verify
from solvers.verify.picture import is_fatal
from tests import builders
from tests.memory import World
from tests.unit.solvers.planners.joint.seat.floors import floor, held, pattern, problem, workload

MORE = frozenset({WorkloadId("demo/w0"), WorkloadId("demo/w1")})
PLENTY = Deadline(3600.0)


def seated(
    of: JointProblem, *contents: tuple[tuple[int, int], ...], stands: dict[int, list[Held]] | None = None
) -> Seats:
    seats = Seats(floor(of, stands))
    for device, members_of in enumerate(contents):
        seats.put(device, pattern(of, *members_of))
    return seats


def two(rate_rps: float = 20.0, **changes: object) -> JointProblem:
    return problem(
        2, (2,), workloads=tuple(workload(number, rate_rps, per_device_max=4, **changes) for number in (0, 1))
    )


def test_spare_share_goes_to_who_can_use_more() -> None:
    seats = seated(two(), ((0, 20),), ((1, 20),))
    assert fill(seats, MORE, PLENTY, {})
    assert float(seats.served_rps.sum()) == pytest.approx(200.0)
    assert all(sum(item.shares_pct) == 100 for item in seats.patterns if item is not None)
    assert not fill(seats, MORE, PLENTY, {})


def test_nobody_falls_below_what_is_declared() -> None:
    seats = seated(two(60.0), ((0, 60),), ((1, 60),))
    fill(seats, MORE, PLENTY, {})
    assert (seats.served_rps >= 60.0 - 1e-6).all()


def test_who_is_short_comes_before_who_can_use_more() -> None:
    weighty = two(80.0)
    weighty = replace(weighty, workloads=(replace(weighty.workloads[0], priority=3), weighty.workloads[1]))
    seats = seated(weighty, ((0, 100),), ((0, 60), (1, 40)))
    fill(seats, MORE, PLENTY, {})
    assert seats.served_rps[1] >= 80.0 - 1e-6


def test_others_and_what_stands_are_left_alone() -> None:
    seats = seated(two(), ((0, 20), (1, 20)))
    assert not fill(seats, frozenset({WorkloadId("demo/w0")}), PLENTY, {})
    standing = seated(two(), ((0, 20),), stands={0: [held(0, 20)]})
    assert not fill(standing, MORE, PLENTY, {})


def test_contents_that_stand_come_back_where_only_spare_was_taken() -> None:
    both = (held(0, 60), held(1, 40))
    stood = {0: pattern(two(), (0, 60), (1, 40))}
    seats = seated(two(), ((0, 60),), ((1, 100),), stands={0: [*both]})
    assert fill(seats, MORE, PLENTY, stood)
    assert seats.patterns[0] is not None
    assert list(zip(seats.patterns[0].variants, seats.patterns[0].shares_pct, strict=True)) == [(0, 60), (1, 40)]
    needed = seated(two(80.0), ((0, 80),), ((1, 100),), stands={0: [*both]})
    assert not fill(needed, frozenset({WorkloadId("demo/w0")}), PLENTY, stood)
    fill(needed, MORE, PLENTY, stood)
    assert needed.patterns[0] is not None
    assert needed.patterns[0].shares_pct == (80,), "what stood would leave the first one short"
    closed = seated(two(), ((0, 60),), ((1, 100),), stands={0: [*both]})
    closed.put(0, None)
    fill(closed, MORE, PLENTY, stood)
    assert closed.patterns[0] is None, "no device stays in use for it"


def test_replicas_stay_within_their_number() -> None:
    single = two(replicas_max=1)
    seats = seated(single, ((0, 20),), ((1, 20),))
    fill(seats, MORE, PLENTY, {})
    assert seats.replicas == [1, 1]


def test_a_cap_on_power_is_kept() -> None:
    tight = two()
    tight = replace(tight, pools=(replace(tight.pools[0], limit_w=70.0, capped=True),))
    seats = seated(tight, ((0, 20),))
    assert fill(seats, MORE, PLENTY, {})
    found = seats.patterns[0]
    assert found is not None
    assert found.draw_w <= 70.0 + 1e-6
    assert float(np.sum(found.capacity_rps)) >= 60.0


def test_two_devices_of_a_node_take_no_more_than_it_bears_together() -> None:
    of = two()
    of = replace(of, power_w=of.power_w * np.array([1.0, 0.8])[None, :, None, None])
    seats = Seats(floor(of, nodes=(2, 160.0)))
    seats.put(0, pattern(of, (1, 40)))
    seats.put(1, pattern(of, (0, 40)))
    fill(seats, MORE, PLENTY, {})
    assert seats.left_w.min() >= -1e-6


def test_under_a_controller_the_clock_is_open_as_far_as_promises_keep() -> None:
    of = problem(1, workloads=(workload(0, 10.0, limit_ms=200.0, end_to_end=False),))
    seats = seated(of, ((0, 40),))
    assert clocks_mhz(Batches(seats).members(0, [], governed=True)) == [(600, 1000)]
    assert clocks_mhz(Batches(seats).members(0, [])) == [(1000, 1000)]
    strict = problem(1, workloads=(workload(0, 10.0, limit_ms=50.0, end_to_end=False),))
    assert clocks_mhz(Batches(seated(strict, ((0, 40),))).members(0, [], governed=True)) == [(1000, 1000)]


def clocks_mhz(members: list[Member]) -> list[tuple[int, int]]:
    return [(item.envelope.clock_mhz_sm_min, item.envelope.clock_mhz_sm_max) for item in members]


def order(name: str) -> CycleOrder:
    return CycleOrder(id=CycleId(name), lane=Lane.ACT, seed=7, software_version="0.1.0")


def picture(**changes: object) -> Snapshot:
    slo = builders.slo(120.0, scope=SloScope.EXECUTION)
    made = builders.lab(
        [builders.service("one", slo=slo, replicas_max=8), builders.service("two", slo=slo, replicas_max=8)],
        policy=builders.policy(planners=("joint",), work_units=200, deadline_s=60.0, **changes),
    )
    caps = tuple(
        PowerCap(scope=PowerScope.DEVICE, subject=device.id, limit_w=0.95 * types[device.gpu_type].power_limit_w_max)
        for types in (made.gpu_types_by_name(),)
        for device in made.devices
    )
    return replace(made, power_caps=tuple(sorted(caps, key=lambda cap: (cap.scope, cap.subject))), demands=())


def open_ended(made: Snapshot) -> frozenset[WorkloadId]:
    return read(made, builders.everything_movable(made)).open_ended


def test_only_uncounted_demand_without_waiting_is_open_ended() -> None:
    assert open_ended(picture()) == {"demo/one", "demo/two"}
    assert open_ended(picture(cost_basis=CostBasis.SHARE)) == frozenset()
    counted = replace(picture(), demands=(builders.demand("demo/one", 5.0),))
    assert open_ended(counted) == {"demo/two"}
    begun = picture()
    waiting = builders.service("three", slo=builders.slo(120.0))
    begun = replace(begun, services=tuple(sorted((*begun.services, waiting), key=lambda item: item.id)))
    assert open_ended(begun) == frozenset(), "nobody counts yet: nobody knows who can always use more"
    assert open_ended(replace(begun, demands=(builders.demand("demo/three", 5.0),))) == {"demo/one", "demo/two"}
    waits = picture()
    waits = replace(waits, services=tuple(replace(item, slo=builders.slo(120.0)) for item in waits.services))
    assert open_ended(waits) == frozenset()


def test_declared_rates_of_who_never_waits_are_planned_nearly_at_full_use() -> None:
    first = picture()
    reading = read(first, builders.everything_movable(first))
    assert {item.utilisation_max for item in reading.problem.workloads} == {UTILISATION_OPEN}
    counted = replace(first, demands=tuple(builders.demand(item.id, 5.0) for item in first.services))
    reading = read(counted, builders.everything_movable(counted))
    assert {item.utilisation_max for item in reading.problem.workloads} == {first.policy.utilisation_max}


def test_what_was_planned_above_the_margin_counts_as_long_as_nobody_counts() -> None:
    first = picture()
    plan = registry.propose("joint", builders.request(first)).plan
    assert plan is not None
    most = max(plan.assignments, key=lambda item: item.capacity_rps)
    counted = replace(first, demands=(builders.demand(most.workload, 0.99 * most.capacity_rps),))
    movable = builders.everything_movable(first)
    rates = tuple(
        replace(item, rate_rps_declared=0.99 * most.capacity_rps) if item.id == most.workload else item
        for item in first.services
    )
    alone = (most,)
    declared = worth_of(replace(first, services=rates), movable, alone, plan.settings)
    observed = worth_of(replace(counted, services=rates), movable, alone, plan.settings)
    assert most.workload not in {item.need.workload for item in declared.shortages}
    assert most.workload in {item.need.workload for item in observed.shortages}
    told = {item.code for item in verify(counted, plan, movable)}
    assert FindingCode.CAPACITY_SHORT in told
    assert FindingCode.CAPACITY_SHORT not in {item.code for item in verify(first, plan, movable)}


def test_a_filled_plan_verifies() -> None:
    first = picture()
    plan = registry.propose("joint", builders.request(first)).plan
    assert plan is not None
    assert not is_fatal(verify(first, plan, builders.everything_movable(first)))
    by_device: dict[str, int] = {}
    for item in plan.assignments:
        by_device[item.device] = by_device.get(item.device, 0) + item.share_pct_sm
    assert set(by_device.values()) == {100}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_known_of_a_device_says_what_looking_again_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some short, some with so many replicas and no more, nodes with a cap on all they draw, and equal devices."""
    rng, looks = np.random.default_rng(seed), list[int]()
    works = (workload(number, float(rng.choice([20.0, 60.0, 300.0])), per_device_max=4) for number in range(6))
    bounds = ((int(rng.integers(0, 9)), int(rng.integers(9, 14))) for _ in range(6))
    bounded = (
        replace(work, priority=1 + int(rng.integers(0, 3)), replicas_min=least, replicas_max=most)
        for work, (least, most) in zip(works, bounds, strict=True)
    )
    of, bears_w = problem(6, (24,), workloads=tuple(bounded)), float(rng.choice([220.0, 260.0, 1000.0]))
    contents = [[(int(rng.integers(0, 6)), int(rng.choice([20, 40]))) for _ in range(2)] for _ in range(24)]

    def filled() -> list[Pattern | None]:
        seats = Seats(floor(of, nodes=(3, bears_w)))
        for device, members in enumerate(contents):
            seats.put(device, pattern(of, *members))
        fill(seats, frozenset(item.id for item in of.workloads), PLENTY, {})
        return seats.patterns

    exchange, improve = spare._exchange, spare._improve

    def watched(*given: Any) -> Any:
        looks[-1] += 1
        return exchange(*given)

    monkeypatch.setattr(spare, "_exchange", watched)
    looks.append(0)
    found = filled()
    monkeypatch.setattr(spare, "_improve", lambda seats, table, devices, _: improve(seats, table, devices, {}))
    looks.append(0)
    assert found == filled()
    assert looks[0] < looks[1]


def test_what_was_filled_stays() -> None:
    first = run_cycle(World(picture()).ports, order("c1"))
    assert first.generation == 1
    assert first.plan is not None
    assert sum(item.share_pct_sm for item in first.plan.assignments) == 100
    target = builders.target(first.plan.assignments, settings=first.plan.settings)
    again = run_cycle(World(replace(picture(), target=target)).ports, order("c2"))
    assert again.generation is None
    assert not is_fatal(again.findings)
