"""Only what has a reason to change is opened, but for a full solve now and then."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from solvers.domain.change import Target
from solvers.domain.ids import Generation, ModelName
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import SloScope
from solvers.planners.joint.change.scope import FULL_EVERY_S, FULL_FOR_S, restless_of, scope_of
from solvers.planners.joint.reading.formulation import read
from solvers.planners.registry import propose
from tests import builders

QUIET_S = 10 * FULL_EVERY_S + FULL_FOR_S


@cache
def served() -> Snapshot:
    """Ten services, served by a plan of our own."""
    services = [builders.service(f"s{number}", rate_rps_declared=60.0) for number in range(10)]
    picture = builders.lab(services)
    plan = propose("joint", builders.request(picture)).plan
    assert plan is not None
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    return replace(picture, target=target, taken_at_s=QUIET_S)


def world(**changes: Any) -> Snapshot:
    """The same, and what is different."""
    return replace(served(), **changes)


def opened(picture: Snapshot) -> set[str] | None:
    reading = read(picture, builders.everything_movable(picture))
    standing = reading.standing_patterns()
    scope = scope_of(reading, standing, restless_of(reading, standing))
    return None if scope is None else {reading.problem.workloads[number].id for number in scope}


def test_what_is_served_and_has_nothing_to_spare_rests() -> None:
    assert opened(world()) == set()


def test_everything_opens_when_its_hour_comes_and_before_anything_stands() -> None:
    picture = world()
    assert opened(replace(picture, taken_at_s=QUIET_S - 1.0)) is None
    assert opened(replace(picture, target=Target())) is None


def test_who_needs_more_is_opened() -> None:
    picture = world(demands=(builders.demand("demo/s3", 500.0),))
    assert opened(picture) == {"demo/s3"}


def test_who_could_do_with_fewer_is_opened() -> None:
    services = [builders.service(f"s{number}", rate_rps_declared=60.0) for number in range(9)]
    picture = builders.lab([*services, builders.service("much", rate_rps_declared=1500.0)])
    plan = propose("joint", builders.request(picture)).plan
    assert plan is not None
    assert sum(item.workload == "demo/much" for item in plan.assignments) > 1
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    calm = replace(picture, target=target, taken_at_s=QUIET_S)
    assert "demo/much" not in (opened(calm) or set())
    assert "demo/much" in (opened(replace(calm, demands=(builders.demand("demo/much", 50.0),))) or set())


def test_who_can_always_use_more_rests_with_plenty() -> None:
    services = [builders.service(f"s{number}", rate_rps_declared=60.0) for number in range(9)]
    slo = builders.slo(scope=SloScope.EXECUTION)
    picture = builders.lab([*services, builders.service("much", rate_rps_declared=1500.0, slo=slo)])
    others = tuple(builders.demand(item.id, 60.0) for item in services)
    picture = replace(picture, demands=others)
    plan = propose("joint", builders.request(picture)).plan
    assert plan is not None
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    fewer = tuple(replace(item, rate_rps_declared=50.0) if item.name == "much" else item for item in picture.services)
    calm = replace(picture, target=target, taken_at_s=QUIET_S, services=fewer)
    assert "demo/much" not in (opened(calm) or set())
    counted = replace(calm, demands=(builders.demand("demo/much", 50.0), *others))
    assert "demo/much" in (opened(counted) or set())


def test_who_could_do_with_much_less_share_is_opened() -> None:
    picture = builders.lab([builders.service("much", rate_rps_declared=150.0)])
    plan = propose("joint", builders.request(picture)).plan
    assert plan is not None
    assert len(plan.assignments) == 1
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    calm = replace(picture, target=target, taken_at_s=QUIET_S)
    assert opened(calm) == set()
    assert opened(replace(calm, demands=(builders.demand("demo/much", 20.0),))) == {"demo/much"}


def test_who_lost_a_replica_or_may_not_run_it_is_opened() -> None:
    picture = world()
    first = picture.target.assignments[0]
    without = replace(picture, target=replace(picture.target, assignments=picture.target.assignments[1:]))
    assert first.workload in (opened(without) or set())
    other = tuple(
        replace(item, model=ModelName("vgg")) if item.workload == "demo/s1" else item
        for item in picture.target.assignments
    )
    found = opened(replace(picture, target=replace(picture.target, assignments=other)))
    assert found is None or "demo/s1" in found  # None: everything is opened


def test_with_many_open_all_are() -> None:
    picture = world(demands=tuple(builders.demand(f"demo/s{number}", 400.0) for number in range(5)))
    assert opened(picture) is None
