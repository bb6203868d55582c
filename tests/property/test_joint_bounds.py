"""No bound of a plan that changes what stands is above what another plan costs that serves as much."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.instances.family_snapshot import family_snapshot
from benchmarks.instances.small import small
from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.change import Target
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import Generation
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.planners.base import Budget, PlanRequest, Thought
from solvers.planners.joint.planner import Joint
from solvers.planners.registry import propose

CENT = 1e-6
PICTURES = {f"small {seed}": seed for seed in (20, 29, 34, 46, 60)} | {"8 x 5": None}


def request(picture: Snapshot, units: int) -> PlanRequest:
    movable, budget = movable_workloads(picture, Lane.ACT), Budget(deadline_s=600.0, work_units=units)
    return PlanRequest(snapshot=picture, movable=movable, budget=budget, seed=1)


def thought(picture: Snapshot, state: bytes, units: int = 200) -> Thought:
    return Joint().think(request(picture, units), state, SilentReporter())


def served(plan: Plan) -> Counter[str]:
    total = Counter[str]()
    for item in plan.assignments:
        total[item.workload] += item.capacity_rps
    return total


@pytest.mark.parametrize("name", PICTURES)
def test_no_bound_is_above_what_others_cost_that_serve_as_much(name: str) -> None:
    seed = PICTURES[name]
    picture = family_snapshot(8, 5, 22) if seed is None else small(seed)
    afresh, greedy = thought(picture, b"", 300), propose("greedy", request(picture, 200)).plan
    assert greedy is not None
    known, stated, state = [greedy, afresh.proposal.plan], list[Plan](), afresh.state or b""
    for generation in (1, 2):
        before = greedy if generation == 1 else stated[-1]
        target = Target(generation=Generation(generation), assignments=before.assignments, settings=before.settings)
        found = thought(replace(picture, target=target, taken_at_s=picture.taken_at_s + 400.0 * generation), state)
        assert found.proposal.plan is not None
        stated, state = [*stated, found.proposal.plan], found.state or b""
    for plan in stated:
        assert plan.bound_usd_per_h is not None
        asked = served(plan)
        for other in (*known, *stated):
            assert other is not None
            if all(served(other)[work] >= rate * (1 - CENT) for work, rate in asked.items()):
                assert plan.bound_usd_per_h <= other.objective.cost_usd_per_h + CENT
