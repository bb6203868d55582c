"""Where memory is paid, every batch worth it is a choice, and the plan that comes out is the cheapest there is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from solvers.domain.change import Target
from solvers.domain.device import Device, PriceKind, PriceRow
from solvers.domain.ids import Generation, ModelName
from solvers.domain.policy import CostBasis
from solvers.domain.profile import Profile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity
from solvers.engines.deadline import Deadline
from solvers.planners.joint.reading.formulation import read
from solvers.planners.joint.reading.work import split
from solvers.planners.joint.solve.solve import SolveOrder, solve
from tests import builders
from tests.oracle import optimum, worth
from tests.property.tiny import billed, used_mib
from tests.unit.solvers.planners.joint.test_planner import plan_of

POLICY = builders.policy(cost_basis=CostBasis.MEMORY, share_step_pct=20, replicas_per_device_max=1)
FLEET = (builders.device("a", 0, "t4"), builders.device("a", 1, "t4"), builders.device("b", 0, "v100"))
BATCHES, SHARES = (1, 4, 16), (20, 40, 60, 80, 100)
USD_PER_H = {"t4": 0.35, "v100": 1.15}


def picture(rate_rps: float, fleet: Sequence[Device] = FLEET, replicas_min: int = 1) -> Snapshot:
    service = builders.service(
        slo=builders.slo(60_000.0),
        rate_rps_declared=rate_rps,
        replicas_min=replicas_min,
        affinity=Affinity(anti_affinity=AntiAffinity.HARD),
    )
    profiles = [builders.profile(type_name=name, work=6.0, batches=BATCHES, shares=SHARES) for name in ("t4", "v100")]
    return builders.snapshot(fleet, [service], profiles=profiles, policy=POLICY)


def options(device: Device) -> list[tuple[float, float]]:
    """Requests/s and $/h of nothing and of every replica that this device could carry, from the tests' own laws."""
    found = [(0.0, 0.0)]
    for share, batch in itertools.product(SHARES, BATCHES):
        latency_ms = round(builders.latency_ms(device.gpu_type, batch, share, 6.0), 6)
        part = 1.0 if share == 100 else builders.memory_mib(batch, 6.0) / device.memory_mib
        found.append((POLICY.utilisation_max * 1000 * batch / latency_ms, USD_PER_H[device.gpu_type] * part))
    return found


def cheapest(rate_rps: float, replicas_min: int) -> float:
    """By trying everything."""
    choices = itertools.product(*(options(device) for device in FLEET))
    return min(
        sum(usd for _, usd in choice)
        for choice in choices
        if sum(rate for rate, _ in choice) >= rate_rps * (1 - 1e-6)
        and sum(rate > 0 for rate, _ in choice) >= replicas_min
    )


@pytest.mark.parametrize(
    ("rate_rps", "replicas_min"),
    [*itertools.product([5.0, 20.0, 45.0, 60.0, 85.0, 100.0, 125.0], [1]), *itertools.product([5.0, 85.0], [2, 3])],
)
def test_the_plan_is_the_cheapest_there_is(rate_rps: float, replicas_min: int) -> None:
    plan = plan_of(picture(rate_rps, replicas_min=replicas_min))
    assert not plan.unplaced
    assert len(plan.assignments) >= replicas_min
    assert plan.objective.cost_usd_per_h == pytest.approx(cheapest(rate_rps, replicas_min), rel=3e-3)
    assert plan.bound_usd_per_h is None or plan.bound_usd_per_h <= plan.objective.cost_usd_per_h * (1 + 1e-6)


def test_nobody_takes_a_whole_device_who_need_not() -> None:
    small, large = (plan_of(picture(rate)) for rate in (20.0, 125.0))
    assert {item.share_pct_sm for item in small.assignments} == {80}
    assert len(small.assignments) < len(large.assignments)


def test_split_batches_are_never_worse() -> None:
    for problem in map(billed, (0, 1, 3)):
        apart = split(problem, used_mib(problem))
        assert len(apart.variants) == 2 * len(problem.variants)
        best = optimum(apart).usd_per_h
        assert best <= optimum(problem).usd_per_h + 1e-9
        layout = solve(apart, SolveOrder(gap=0.0), Deadline(60.0, work_units=1000))
        assert layout.bound_usd_per_h is None or layout.bound_usd_per_h <= best + 1e-6
        assert -1e-6 <= worth(apart, layout) / best - 1 <= 0.005


def test_smaller_batches_pay_for_some() -> None:
    for problem in map(billed, range(5)):
        if optimum(split(problem, used_mib(problem))).usd_per_h < 0.99 * optimum(problem).usd_per_h:
            return
    pytest.fail("they never do")


@pytest.mark.parametrize(("basis", "usd_per_kwh"), [(CostBasis.SHARE, 0.4), (CostBasis.DEVICE, 0.0)])
def test_nothing_is_split_where_neither_memory_nor_watts_cost_anything(basis: CostBasis, usd_per_kwh: float) -> None:
    policy = replace(POLICY, cost_basis=basis, energy_usd_per_kwh=usd_per_kwh)
    problem = read(replace(picture(50.0), policy=policy), ("demo/vision",)).problem
    assert [item.batch_max for item in problem.variants] == [0]


def test_batches_are_a_choice_where_watts_cost() -> None:
    policy = replace(POLICY, cost_basis=CostBasis.DEVICE, energy_usd_per_kwh=0.4)
    problem = read(replace(picture(50.0), policy=policy), ("demo/vision",)).problem
    assert [item.batch_max for item in problem.variants] == [1, 4, 16]
    assert problem.billed_mib is None


def test_what_stands_is_known_by_its_batch() -> None:
    problem = read(picture(50.0), ("demo/vision",)).problem
    assert [item.batch_max for item in problem.variants] == [1, 4, 16]
    of = (problem.workloads[0].id, problem.variants[0].model)
    assert [problem.variant_of(*of, batch) for batch in (1, 2, 4, 16, 32)] == [0, 1, 1, 2, 2]
    assert problem.variant_of(problem.workloads[0].id, ModelName("another"), 1) is None
    assert problem.networks((0, 2, 1)) == (0, 0, 0)


def test_a_batch_grows_in_place() -> None:
    """All limits are those of the largest batch, which costs nothing, so that no process must start anew."""
    before = plan_of(picture(20.0, FLEET[:2]))
    standing = Target(generation=Generation(1), assignments=before.assignments, settings=before.settings)
    after = plan_of(replace(picture(40.0, FLEET[:2]), target=standing, taken_at_s=1_000_600.0))
    (one,), (other,) = before.assignments, after.assignments
    assert other.batch > one.batch
    assert (other.replica, other.device, other.share_pct_sm) == (one.replica, one.device, one.share_pct_sm)
    assert other.memory_mib_limit == one.memory_mib_limit
    assert after.objective.cost_usd_per_h > before.objective.cost_usd_per_h
    assert after.objective.churn == 0.0


@pytest.mark.parametrize("gain", [0.002, 0.5])
def test_a_batch_is_a_choice_where_it_serves_more_on_any_device_however_little(gain: float) -> None:
    """The other device is faster, and no larger batch serves more there."""

    def measured(name: str) -> Profile:
        made = builders.profile(type_name=name, batches=(1, 8, 16), shares=(50, 100))
        times = {1: 1.0, 8: 4.0, 16: 8.0 / (1 + gain) if name == "t4" else 8.5}
        speed_ms = 10.0 if name == "t4" else 2.0
        points = (
            replace(item, latency_ms_mean=speed_ms * times[item.batch] * 100 / item.share_pct_sm)
            for item in made.points
        )
        return replace(made, points=tuple(points))

    largest_rps = POLICY.utilisation_max * 100 * (1 + gain)
    service = builders.service(slo=builders.slo(60_000.0), rate_rps_declared=largest_rps * (1 - 1e-5))
    policy = replace(POLICY, share_step_pct=50)
    profiles = [measured(name) for name in ("t4", "v100")]
    dear = builders.gpu_type("v100", prices=(PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=90.0),))
    fleet, types = (FLEET[0], FLEET[2]), (builders.gpu_type("t4"), dear)
    plan = plan_of(builders.snapshot(fleet, [service], profiles=profiles, policy=policy, gpu_types=types))
    usd_per_h = USD_PER_H["t4"] * builders.memory_mib(16) / FLEET[0].memory_mib
    assert plan.objective.cost_usd_per_h == pytest.approx(usd_per_h)
    assert plan.bound_usd_per_h == pytest.approx(usd_per_h)


def test_a_small_batch_leaves_the_memory_that_it_does_not_need_to_a_neighbour() -> None:
    """Where there is room it has the limit of the largest, so that it grows in place."""
    policy = replace(POLICY, share_step_pct=50, replicas_per_device_max=2)
    rates = {"vision": 150.0, "text": 20.0}
    services = [builders.service(name, slo=builders.slo(400.0), rate_rps_declared=rate) for name, rate in rates.items()]
    profiles = [builders.profile(type_name="t4", batches=(1, 8, 16), shares=(50, 100))]
    for memory_mib, limits in ((3000, [1088, 1344]), (8000, [1728, 1728])):
        fleet = [replace(FLEET[0], memory_mib=memory_mib)]
        plan = plan_of(builders.snapshot(fleet, services, profiles=profiles, policy=policy))
        assert not plan.unplaced
        assert sorted(item.memory_mib_limit for item in plan.assignments) == limits
