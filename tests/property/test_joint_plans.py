"""Whatever the world, the joint planner's plan survives the verifier and is never worse than the greedy one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.evidence import Severity
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Proposal
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.planners.base import Budget
from solvers.planners.registry import propose
from solvers.verify.checks import verify
from tests import builders
from tests.property.worlds import worlds, worlds_with_target

pytestmark = [pytest.mark.filterwarnings("ignore:Generating overly large repr"), pytest.mark.no_cover]

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking: a world is too large for it, and the findings say what is wrong."""
EXAMPLES = settings(max_examples=8, phases=PHASES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BUDGET = Budget(deadline_s=3600.0, work_units=150)


def checked(world: Snapshot, movable: tuple[WorkloadId, ...]) -> None:
    request = replace(builders.request(world, movable), budget=BUDGET)
    joint, greedy = propose("joint", request), propose("greedy", request)
    assert joint.plan is not None
    assert greedy.plan is not None
    findings = verify(world, joint.plan, movable)
    assert [item for item in findings if item.severity is Severity.FATAL] == []
    terms = world.policy.terms
    assert joint.plan.objective.key(terms) <= greedy.plan.objective.key(terms)
    assert_bounds(joint)


def assert_bounds(proposal: Proposal) -> None:
    """No contender, and so nobody known, is cheaper than its bound."""
    assert proposal.insight is not None
    for item in proposal.insight.contenders:
        if item.bound_usd_per_h is not None:
            assert item.bound_usd_per_h <= item.objective.cost_usd_per_h * (1 + 1e-6)


BASES = st.sampled_from(tuple(CostBasis))


@given(worlds(), BASES)
@EXAMPLES
def test_a_fresh_plan_verifies(world: Snapshot, basis: CostBasis) -> None:
    world = replace(world, policy=replace(world.policy, cost_basis=basis))
    checked(world, builders.everything_movable(world))


@given(worlds_with_target(), BASES)
@EXAMPLES
def test_a_plan_around_a_standing_target_verifies(world: Snapshot, basis: CostBasis) -> None:
    world = replace(world, policy=replace(world.policy, cost_basis=basis))
    for movable in (builders.everything_movable(world), movable_workloads(world, Lane.ACT)):
        checked(world, movable)
