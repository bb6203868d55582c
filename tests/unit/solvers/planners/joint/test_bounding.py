"""A plan's bound is the layout's, less what this plan leaves unserved, plus what stays outside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.change import Target
from solvers.domain.ids import Generation
from solvers.domain.plan import Plan
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.planners.joint.planner import bound_of
from solvers.planners.joint.reading.formulation import Reading, read
from solvers.planners.registry import propose
from solvers.problems.patterns import Layout
from tests import builders

POLICY = builders.policy(cost_basis=CostBasis.DEVICE)


def planned(picture: Snapshot, movable: tuple[str, ...] | None = None) -> tuple[Reading, Plan]:
    request = builders.request(picture, movable)
    plan = propose("joint", request).plan
    assert plan is not None
    return read(picture, request.movable), plan


def lab(rate_rps: float = 100.0) -> Snapshot:
    return builders.lab((builders.service(rate_rps_declared=rate_rps), builders.service("other")), policy=POLICY)


def layout(bound: float | None) -> Layout:
    return Layout(patterns=(), counts=(), bound_usd_per_h=bound)


def test_what_is_all_served_has_the_layouts_bound() -> None:
    reading, plan = planned(lab())
    cost = plan.objective.cost_usd_per_h
    assert bound_of(reading, layout(0.9 * cost), plan) == pytest.approx(0.9 * cost)
    assert bound_of(reading, layout(None), plan) is None


def test_what_the_plan_itself_disproves_is_not_stated() -> None:
    reading, plan = planned(lab())
    assert bound_of(reading, layout(1.1 * plan.objective.cost_usd_per_h), plan) is None


def test_what_is_left_unserved_counts_off() -> None:
    reading, plan = planned(lab())
    cost = plan.objective.cost_usd_per_h
    left = tuple(item for item in plan.assignments if item.workload != "demo/other")
    served = sum(item.capacity_rps for item in left)
    assert served > 0
    (price,) = (item.unserved_usd for item in reading.problem.workloads if item.id == "demo/other")
    short = replace(plan, assignments=left)
    # Its whole rate, and the one replica that it shall have at least.
    assert bound_of(reading, layout(2 * price + 0.5 * cost), short) == pytest.approx(0.5 * cost)


def test_where_there_is_room_beside_pinned_replicas_nothing_is_proven() -> None:
    picture = lab()
    _, plan = planned(picture)
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    reading, later = planned(replace(picture, target=target), ("demo/vision",))
    assert reading.pinned
    assert bound_of(reading, layout(0.01), later) is None
