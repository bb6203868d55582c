"""Where every replica takes a whole device, counting finds the best plan and proves it; nowhere else is it asked."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Proposal, ProposalStatus
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, Project
from solvers.engines.deadline import Deadline
from solvers.planners.base import Budget
from solvers.planners.joint.planner import Joint
from solvers.planners.joint.reading.formulation import read
from solvers.planners.joint.whole_devices import WORKLOADS_COUNTED_MAX, counted
from solvers.problems.joint import Cap, JointProblem
from solvers.verify.checks import verify
from solvers.verify.picture import is_fatal
from tests import builders
from tests.judgement import judge

ALONE = Affinity(anti_affinity=AntiAffinity.OFF, dedicated=True)
POLICY = builders.policy(cost_basis=CostBasis.DEVICE, energy_usd_per_kwh=0.0)
APART = tuple(builders.node(name, failure_domain=name) for name in "abcd")


def world(*rates_rps: float, affinity: Affinity = ALONE, **changes: object) -> Snapshot:
    services = [
        builders.service(f"s{index}", rate_rps_declared=rate, affinity=affinity, slo=builders.slo(40.0 + 20 * index))
        for index, rate in enumerate(rates_rps)
    ]
    fleet = [
        builders.device(name, index, kind)
        for name, kind, count in (("a", "t4", 3), ("b", "l4", 3), ("c", "v100", 2), ("d", "a100", 1))
        for index in range(count)
    ]
    return builders.snapshot(fleet, services, **{"policy": POLICY, **changes})


def problem_of(picture: Snapshot) -> JointProblem:
    return read(picture, builders.everything_movable(picture)).problem


def best_usd(problem: JointProblem) -> float:
    """By trying every number of devices of every pool for every workload."""
    rates, prices = [], [pool.usd_per_h for pool in problem.pools]
    for number in range(len(problem.workloads)):
        made = [judge(problem, kind, (number,), (100,)) for kind in range(problem.kinds)]
        rates.append([0.0 if item is None else item.capacity_rps[0] for item in made])
    ways = []
    for number, work in enumerate(problem.workloads):
        counts = product(*(range(pool.devices + 1) for pool in problem.pools))
        ways.append([np.array(c) for c in counts if np.dot(c, rates[number]) >= work.rate_rps * (1 - 1e-9)])
    devices = problem.pool_devices
    return min(
        float(np.dot(sum(chosen), prices)) for chosen in product(*ways) if (np.sum(chosen, axis=0) <= devices).all()
    )


def proposal_of(picture: Snapshot) -> Proposal:
    request = replace(builders.request(picture), budget=Budget(deadline_s=3600.0, work_units=100))
    proposal = Joint().propose(request, b"", SilentReporter())
    assert proposal.plan is not None
    assert not is_fatal(verify(picture, proposal.plan, request.movable))
    return proposal


@pytest.mark.parametrize("rates", [(900.0, 300.0), (2000.0, 900.0), (100.0, 1500.0)])
def test_counting_is_as_good_as_trying_everything(rates: tuple[float, ...]) -> None:
    problem = problem_of(world(*rates))
    found = counted(problem, Deadline(10.0, 100), 1e-6)
    assert found is not None
    assert (found.served_rps(problem) >= problem.rate_rps * (1 - 1e-6)).all()
    assert found.usd_per_h == pytest.approx(best_usd(problem))
    assert found.bound_usd_per_h is not None
    assert 0.9 * best_usd(problem) <= found.bound_usd_per_h <= best_usd(problem) * (1 + 1e-9)
    assert (found.devices(problem) <= problem.pool_devices).all()


def test_the_plan_is_the_counted_one_with_its_proof() -> None:
    picture = world(2000.0, 900.0)
    proposal = proposal_of(picture)
    assert proposal.plan is not None
    cost = proposal.plan.objective.cost_usd_per_h
    assert cost == pytest.approx(best_usd(problem_of(picture)))
    assert proposal.plan.bound_usd_per_h is not None
    found = counted(problem_of(picture), Deadline(10.0, 100), 1e-6)
    assert found is not None
    assert found.bound_usd_per_h is not None
    assert proposal.plan.bound_usd_per_h >= found.bound_usd_per_h * (1 - 1e-9)
    if proposal.plan.gap_pct is not None and proposal.plan.gap_pct < 1e-4:
        assert proposal.status is ProposalStatus.OPTIMAL


def test_energy_that_smaller_batches_spare_is_taken_off_the_bound() -> None:
    policy = builders.policy(cost_basis=CostBasis.DEVICE, energy_usd_per_kwh=2.0)
    problem = problem_of(world(900.0, 300.0, policy=policy))
    found = counted(problem, Deadline(10.0, 100), 1e-6)
    assert found is not None
    assert found.bound_usd_per_h is not None
    assert found.bound_usd_per_h < found.usd_per_h


def test_what_is_short_is_not_proven() -> None:
    found = counted(problem_of(world(90_000.0, 300.0)), Deadline(10.0, 100), 1e-4)
    assert found is not None
    assert found.bound_usd_per_h is None


@pytest.mark.parametrize(
    "picture",
    [
        world(900.0, affinity=Affinity()),
        world(900.0, projects=(Project(name=builders.service().project, quota_gpus=2.0),)),
        world(900.0, policy=builders.policy(cost_basis=CostBasis.SHARE)),
        world(900.0, affinity=replace(ALONE, failure_domains_min=2), nodes=APART),
        world(*(1.0 for _ in range(WORKLOADS_COUNTED_MAX + 1))),
    ],
    ids=["shared", "quota", "by share", "spread", "too many to repeat"],
)
def test_nothing_else_is_counted(picture: Snapshot) -> None:
    assert counted(problem_of(picture), Deadline(10.0, 100), 1e-4) is None


def test_replicas_that_nobody_allows_are_no_answer() -> None:
    picture = world(3_000.0)
    strict = replace(picture, services=tuple(replace(item, replicas_max=1) for item in picture.services))
    assert counted(problem_of(picture), Deadline(10.0, 100), 1e-4) is not None
    found = counted(problem_of(strict), Deadline(10.0, 100), 1e-4)
    assert found is None or found.counts in ((), (1,))


def test_where_power_is_capped_it_is_no_matter_of_counting() -> None:
    problem = problem_of(world(100.0))
    assert counted(problem, Deadline(60.0), 0.0) is not None
    cap = Cap(name="all", limit_w=1e6, devices=tuple(pool.devices for pool in problem.pools))
    assert counted(replace(problem, caps=(cap,)), Deadline(60.0), 0.0) is None
