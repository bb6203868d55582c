"""How little the greedy planner changes: the reserve, urgent plans that only add, jobs that hold, savings that have
room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from solvers.domain.device import PriceKind, PriceRow
from solvers.domain.plan import Assignment, Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import Demand
from solvers.planners.registry import propose
from solvers.problems.needs import sized_for_rps
from solvers.verify.picture import knobs
from tests import builders

AB = [builders.service("a"), builders.service("b")]


def planned(picture: Snapshot) -> Plan:
    plan = propose("greedy", builders.request(picture)).plan
    assert plan is not None
    return plan


def rates(**rates_rps: float) -> tuple[Demand, ...]:
    return tuple(builders.demand(f"demo/{name}", rate) for name, rate in sorted(rates_rps.items()))


def standing(picture: Snapshot, **changes: object) -> Snapshot:
    """The picture with its own plan as the target, and then changed."""
    plan = planned(picture)
    return replace(picture, target=builders.target(plan.assignments, settings=plan.settings), **changes)  # type: ignore[arg-type]


def unchanged(before: Iterable[Assignment], plan: Plan) -> set[str]:
    after = {item.replica: item for item in plan.assignments}
    return {item.replica for item in before if item.replica in after and knobs(after[item.replica]) == knobs(item)}


def capacity_rps(items: Iterable[Assignment], name: str) -> float:
    return sum(item.capacity_rps for item in items if item.workload == f"demo/{name}")


@pytest.mark.parametrize("part", [0.3, 0.999])
def test_the_reserve_may_be_used_up_before_anything_is_added(part: float) -> None:
    policy = builders.policy(demand_headroom=1.25, demand_noise_sigmas=2.0)
    picture = standing(builders.lab(AB, demands=rates(a=200.0, b=50.0), policy=policy))
    stands_rps = capacity_rps(picture.target.assignments, "a")
    assert stands_rps >= sized_for_rps(200.0, policy)
    inside = replace(picture, demands=rates(a=200.0 + part * (stands_rps - 200.0), b=50.0))
    plan = planned(inside)
    assert unchanged(picture.target.assignments, plan) == {item.replica for item in plan.assignments}
    beyond = planned(replace(picture, demands=rates(a=1.01 * stands_rps, b=50.0)))
    assert capacity_rps(beyond.assignments, "a") >= sized_for_rps(1.01 * stands_rps, policy)


def test_what_is_urgent_for_one_leaves_what_another_could_save_for_later() -> None:
    picture = standing(builders.lab(AB, demands=rates(a=100.0, b=900.0)))
    urgent = planned(replace(picture, demands=rates(a=600.0, b=10.0)))
    assert unchanged(picture.target.assignments, urgent) == {item.replica for item in picture.target.assignments}
    calm = standing(replace(picture, demands=rates(a=600.0, b=10.0)))
    assert capacity_rps(planned(calm).assignments, "b") < capacity_rps(calm.target.assignments, "b")


def test_jobs_yield_to_a_shortage_only_where_nothing_else_has_room() -> None:
    roomy = builders.snapshot(
        [builders.device("a", index, "v100") for index in range(2)],
        [builders.service("a")],
        jobs=(builders.job(share_pct_sm_max=50),),
        demands=rates(a=100.0),
    )
    picture = standing(roomy)
    (job,) = (item for item in picture.target.assignments if item.workload == "demo/train")
    more = planned(replace(picture, demands=rates(a=400.0)))
    assert job.replica in unchanged(picture.target.assignments, more)
    crowded = planned(replace(picture, demands=rates(a=1500.0)))
    assert job.replica not in unchanged(picture.target.assignments, crowded)
    assert capacity_rps(crowded.assignments, "a") > capacity_rps(more.assignments, "a")


def test_a_saving_needs_room_beside_what_stands() -> None:
    """A workload leaves a device that became dear for a cheap one, unless that one is full."""
    devices = [builders.device("a", 0, "t4"), builders.device("b", 0, "v100")]
    picture = builders.snapshot(devices, [builders.service("a", rate_rps_declared=300.0)])
    dear = replace(builders.gpu_type("v100"), prices=(PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=9.0),))
    types = tuple(dear if item.name == "v100" else item for item in picture.gpu_types)
    on_v100 = standing(replace(picture, gpu_types=picture.gpu_types, devices=tuple(devices[1:])))
    costly = replace(on_v100, gpu_types=types, devices=tuple(devices), demands=rates(a=30.0))
    (moved,) = planned(costly).assignments
    assert moved.device == "GPU-a-0"
    other = builders.service("other", priority=999)
    holder = builders.assignment("demo/other#0", devices[0], share_pct_sm=100, capacity_rps=100.0)
    full = replace(
        costly,
        services=(*costly.services, other),
        target=builders.target((*costly.target.assignments, holder)),
    )
    held = builders.request(full, movable=["demo/a"])
    plan = propose("greedy", held).plan
    assert plan is not None
    assert {item.device for item in plan.assignments if item.workload == "demo/a"} == {"GPU-b-0"}


def test_several_savings_do_not_plan_on_room_that_is_still_held() -> None:
    picture = standing(builders.lab(AB, demands=rates(a=900.0, b=900.0)))
    quiet = replace(picture, demands=rates(a=20.0, b=20.0))
    saved = planned(quiet)
    kept = unchanged(picture.target.assignments, saved)
    shares: Counter[str] = Counter()
    for item in (*picture.target.assignments, *(item for item in saved.assignments if item.replica not in kept)):
        shares[item.device] += item.share_pct_sm
    assert saved.objective.cost_usd_per_h < 0.8 * standing_cost(picture)
    assert max(shares.values()) <= 100


def standing_cost(picture: Snapshot) -> float:
    plan = propose("keep-target", builders.request(picture)).plan
    assert plan is not None
    return plan.objective.cost_usd_per_h
