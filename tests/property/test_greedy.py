"""Whatever the world, the greedy planner's plan survives the verifier, and its own next cycle leaves it alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings

from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.change import Target
from solvers.domain.evidence import Severity
from solvers.domain.ids import Generation
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.planners.registry import propose
from solvers.verify.checks import verify
from solvers.verify.picture import knobs
from tests import builders
from tests.property.worlds import worlds, worlds_with_target

pytestmark = [pytest.mark.filterwarnings("ignore:Generating overly large repr"), pytest.mark.no_cover]
"""Worlds are large, and Hypothesis now and then prints one for itself. Counting the same lines over and over makes them
half as slow again; other tests cover them.
"""

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking: a world is too large for it, and the findings say what is wrong."""


def plan_of(world: Snapshot, movable: tuple[str, ...] | None = None) -> Plan:
    plan = propose("greedy", builders.request(world, movable)).plan
    assert plan is not None
    return plan


def fatal(world: Snapshot, plan: Plan, movable: tuple[str, ...]) -> list[object]:
    findings = verify(world, plan, movable)  # type: ignore[arg-type]
    return [item for item in findings if item.severity is Severity.FATAL]


def test_fresh_plans_verify_whatever_they_hold() -> None:
    """Properties of empty worlds prove nothing: over the examples, plans must hold replicas of every kind and leave out
    work for every kind of reason.
    """
    seen: set[str] = set()

    @given(worlds())
    @settings(max_examples=110, phases=PHASES)
    def look(world: Snapshot) -> None:
        plan = plan_of(world)
        assert fatal(world, plan, builders.everything_movable(world)) == []
        seen.update(item.kind.value for item in plan.assignments)
        seen.update(reason.code.value for item in plan.unplaced for reason in item.reasons)

    look()
    assert {kind.value for kind in WorkloadKind} <= seen
    assert {"slo_unreachable", "no_profile", "no_memory_left", "anti_affinity", "budget", "power_cap"} <= seen


@given(worlds_with_target())
@settings(max_examples=40, phases=PHASES)
def test_a_plan_around_a_standing_target_verifies(world: Snapshot) -> None:
    for movable in (builders.everything_movable(world), movable_workloads(world, Lane.ACT)):
        assert fatal(world, plan_of(world, movable), movable) == []


ROUNDS_MAX = 4
"""Greed seldom finds at its second look what it missed at the first; it must not go on looking for ever."""


@given(worlds())
@settings(max_examples=30, phases=PHASES)
def test_planning_again_comes_to_rest_and_never_serves_less(world: Snapshot) -> None:
    plan = plan_of(world)
    for generation in range(1, ROUNDS_MAX + 1):
        target = Target(generation=Generation(generation), assignments=plan.assignments, settings=plan.settings)
        again = plan_of(replace(world, target=target))
        assert again.objective.unserved <= plan.objective.unserved + 1e-6
        if choices(again) == choices(plan):
            return
        plan = again
    pytest.fail(f"still changing after {ROUNDS_MAX} rounds")


def choices(plan: Plan) -> list[tuple[object, ...]]:
    return [(item.replica, knobs(item)) for item in plan.assignments]
