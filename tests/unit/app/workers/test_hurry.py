"""In whatever hurry the joint planner is, everybody is served, at once, and no worse than by greed."""

from __future__ import annotations

import time
from dataclasses import replace
from unittest.mock import patch

import pytest

from app.cli.offline import Tuning
from app.workers.solve_pool import PoolLimits, SolvePool, load_planners
from benchmarks.instances.family_snapshot import family_snapshot
from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Plan, PlannerEnding, Proposal
from solvers.engines import deadline
from solvers.planners import registry
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.joint.attempt import affords_first
from solvers.verify.checks import verify
from solvers.verify.picture import is_fatal
from tests import builders

AT_ONCE_S = 0.2
"""Reading alone takes longer where there are many, or where others have the processors."""
GRACE_S = 200.0
"""However slow this machine is."""


def request_of(gpus: int, services: int, seed: int, deadline_s: float) -> PlanRequest:
    return replace(builders.request(family_snapshot(gpus, services, seed)), budget=Budget(deadline_s=deadline_s))


def sound_plan(request: PlanRequest, proposal: Proposal) -> Plan:
    assert proposal.plan is not None
    assert not is_fatal(verify(request.snapshot, proposal.plan, request.movable))
    return proposal.plan


def greedy_no_better(request: PlanRequest, plan: Plan) -> None:
    greedy, terms = registry.propose("greedy", request).plan, request.snapshot.policy.terms
    assert greedy is not None
    assert plan.objective.key(terms) <= greedy.objective.key(terms)


def test_a_thousand_gpus_in_a_moment() -> None:
    request = request_of(1000, 200, 4, AT_ONCE_S)
    load_planners()
    pool = SolvePool(Tuning().made, SilentReporter(), PoolLimits(grace_s=GRACE_S), start="fork")
    try:
        proposal = pool.propose("joint", request)
    finally:
        pool.close()
    assert proposal.planner == "joint"
    assert proposal.ending in (PlannerEnding.DEADLINE, PlannerEnding.KILLED)
    plan = sound_plan(request, proposal)
    assert not plan.unplaced
    greedy_no_better(request, plan)


@pytest.mark.parametrize(("gpus", "services", "seed"), [(64, 20, 1), (64, 20, 4), (64, 20, 5), (256, 60, 1)])
def test_what_is_handed_over_first_is_no_worse_than_greeds(gpus: int, services: int, seed: int) -> None:
    request, taker = request_of(gpus, services, seed, AT_ONCE_S), builders.Taker()
    registry.propose("joint", request, reporter=taker)
    greedy_no_better(request, sound_plan(request, taker.taken[0]))


@pytest.mark.parametrize("looks", [22, 28])
def test_whom_a_layout_leaves_short_that_time_cut_off_greed_may_serve(looks: int) -> None:
    """The clock stands still, and then it is too late: in the midst of the first layout."""
    request, taker, seen = request_of(64, 20, 1, 1.5), builders.Taker(), 0
    assert not affords_first(request)

    def jumping_s() -> float:
        nonlocal seen
        seen += 1
        return 3600.0 * (seen > looks)

    with patch.object(deadline.time, "monotonic", jumping_s):
        proposal = registry.propose("joint", request, reporter=taker)
    for found in (taker.taken[0], proposal):
        greedy_no_better(request, sound_plan(request, found))


@pytest.mark.parametrize("looks", [1, 4, 16, 64])
def test_a_clock_that_jumps_ends_the_search_and_not_the_answer(looks: int) -> None:
    """As for a process that gets no processor for an hour: after so many looks at the clock, it is too late."""
    request, taker, seen = request_of(64, 20, 2, 60.0), builders.Taker(), 0
    steady_s = time.monotonic

    def jumping_s() -> float:
        nonlocal seen
        seen += 1
        return steady_s() + 3600.0 * (seen > looks)

    with patch.object(deadline.time, "monotonic", jumping_s):
        proposal = registry.propose("joint", request, reporter=taker)
    assert seen > looks
    assert proposal.ending is PlannerEnding.DEADLINE
    plan, last = sound_plan(request, proposal), sound_plan(request, taker.taken[-1])
    assert plan.assignments == last.assignments
    greedy_no_better(request, plan)
