"""Nobody is seated beyond his owner's budget, whatever a layout or a rule asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.evidence import FindingCode, Severity
from solvers.domain.plan import Plan
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity
from solvers.engines.deadline import Deadline
from solvers.planners.base import Budget
from solvers.planners.joint.seat.seats import Seats, Terms
from solvers.planners.joint.seat.standing import within_bounds
from solvers.planners.registry import propose
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Pattern
from solvers.verify.checks import verify
from tests import builders
from tests.unit.solvers.planners.joint.seat.floors import floor, pattern, problem, workload

TERMS = Terms(deadline=Deadline(3600.0), job_most_pct={})


def seats_of(of: JointProblem, *patterns: Pattern) -> Seats:
    seats = Seats(floor(of))
    for device, item in enumerate(patterns):
        seats.put(device, item)
    return seats


def bounded(usd: float, rate_rps: float = 20.0, **changes: Any) -> JointProblem:
    return problem(2, workloads=(workload(0, rate_rps, budget_usd_per_h=usd, **changes), workload(1, 20.0)))


def test_a_floor_beyond_the_budget_keeps_what_the_budget_bears() -> None:
    of = bounded(0.5, replicas_min=3)
    seats = seats_of(of, pattern(of, (0, 20), (1, 20)), pattern(of, (0, 20)), pattern(of, (0, 20)))
    within_bounds(seats)
    assert seats.spent_usd(0) == pytest.approx(0.4)
    assert seats.replicas == [2, 1]


def test_a_replica_that_is_too_dear_becomes_smaller_before_it_goes() -> None:
    of = bounded(0.5, rate_rps=80.0)
    seats = seats_of(of, pattern(of, (0, 80), (1, 20)))
    within_bounds(seats)
    (left,) = [item for item in seats.patterns if item is not None]
    assert (left.variants, left.shares_pct) == ((0, 1), (40, 20))
    assert seats.served_rps.tolist() == [40.0, 20.0]


def test_who_keeps_to_his_budget_keeps_his_replicas() -> None:
    of = bounded(0.4, replicas_min=2)
    patterns = (pattern(of, (0, 20), (1, 20)), pattern(of, (0, 20)))
    seats = seats_of(of, *patterns)
    within_bounds(seats)
    assert seats.patterns[:2] == list(patterns)


def test_who_has_more_replicas_than_he_may_keeps_those_that_serve_most() -> None:
    """Ended is the one by which least is lost; neighbours stay."""
    of = problem(2, workloads=(workload(0, 120.0, replicas_max=2), workload(1, 20.0)))
    seats = seats_of(of, pattern(of, (0, 60)), pattern(of, (0, 20), (1, 20)), pattern(of, (0, 40)))
    within_bounds(seats)
    assert [None if item is None else item.shares_pct for item in seats.patterns[:3]] == [(60,), (20,), (40,)]
    assert seats.replicas == [2, 1]


def test_projects_beyond_their_quota_give_what_is_missed_least() -> None:
    """By smaller replicas first; whoever is of another project keeps all."""
    of = problem(2, workloads=(workload(0, 60.0), workload(1, 20.0, project="other")))
    of = replace(of, quotas=((of.workloads[0].project, 0.7),))
    seats = seats_of(of, pattern(of, (0, 60), (1, 20)), pattern(of, (0, 40)))
    within_bounds(seats)
    assert seats.gpus(of.workloads[0].project) <= 0.7 + 1e-9
    assert seats.served_rps.tolist() == [60.0, 20.0]


def planned(picture: Snapshot) -> Plan:
    request = replace(builders.request(picture), budget=Budget(deadline_s=3600.0, work_units=100))
    plan = propose("joint", request).plan
    assert plan is not None
    fatal = [
        item.code
        for item in verify(picture, plan, builders.everything_movable(picture))
        if item.severity is Severity.FATAL
    ]
    assert fatal == []
    return plan


@pytest.mark.parametrize("basis", list(CostBasis))
def test_a_plan_serves_who_asks_for_more_than_he_pays_as_far_as_he_pays(basis: CostBasis) -> None:
    poor = builders.service(
        "poor",
        rate_rps_declared=20.0,
        replicas_min=3,
        budget_usd_per_h=0.3,
        affinity=Affinity(failure_domains_min=2),
    )
    fleet = [builders.device(f"n{index}", 0, "v100") for index in range(4)]
    nodes = [builders.node(f"n{index}", failure_domain=f"zone-{index % 2}") for index in range(4)]
    picture = builders.snapshot(
        fleet, [poor, builders.service("rich")], nodes=nodes, policy=builders.policy(cost_basis=basis)
    )
    plan = planned(picture)
    mine = [item for item in plan.assignments if item.workload == "demo/poor"]
    assert len(mine) in (1, 2)
    assert {item.workload for item in plan.unplaced} == {"demo/poor"}
    assert any(item.workload == "demo/rich" for item in plan.assignments)
    unbounded = replace(picture, services=(replace(poor, budget_usd_per_h=None), picture.services[1]))
    assert len([item for item in planned(unbounded).assignments if item.workload == "demo/poor"]) == 3


def test_the_verifier_refuses_what_is_beyond_a_budget() -> None:
    picture = builders.lab([builders.service(rate_rps_declared=900.0)])
    plan = planned(picture)
    poorer = replace(picture, services=(replace(picture.services[0], budget_usd_per_h=0.01),))
    codes = {item.code for item in verify(poorer, plan, builders.everything_movable(picture))}
    assert FindingCode.BUDGET_EXCEEDED in codes
