"""What the joint planner tells beside its plan: prices have the sign and size that re-solves show, candidates say what
each type would add or what rules it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.device import PowerCap, PowerScope
from solvers.domain.evidence import Candidate, Insight, ReasonCode, Resource, SilentReporter
from solvers.domain.ids import GpuTypeName, ModelName, WorkloadId
from solvers.domain.policy import CostBasis, Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Project
from solvers.engines.deadline import Deadline
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.joint.attempt import CLOSER_UNITS, Attempt
from solvers.planners.joint.explain import candidates
from solvers.planners.joint.explain.explaining import AT_UNSERVED_PART, SHORT_MAX, TOLD_BY, explained, prices_of
from solvers.planners.joint.planner import Joint
from solvers.planners.joint.reading.formulation import read
from solvers.planners.joint.solve.solve import SolveOrder, solve
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from tests import builders, chats

DEVICE = builders.policy(cost_basis=CostBasis.DEVICE)
SERVICES = (
    builders.service("vision"),
    builders.service("fast", slo=builders.slo(12.0), rate_rps_declared=200.0),
    builders.service("big", rate_rps_declared=900.0),
)
LAB = builders.lab(SERVICES, policy=DEVICE)


def counted(picture: Snapshot) -> PlanRequest:
    """Counted work, so that machines of any speed answer alike."""
    return replace(builders.request(picture), budget=Budget(deadline_s=3600.0, work_units=60))


def insight_of(picture: Snapshot) -> Insight:
    insight = Joint().propose(counted(picture), b"", SilentReporter()).insight
    assert insight is not None
    return insight


def relaxed(problem: JointProblem) -> Layout:
    """The relaxed optimum and its duals."""
    return solve(problem, SolveOrder(), Deadline(60.0, 150))


def prices(layout: Layout, problem: JointProblem) -> dict[tuple[Resource, str], float]:
    return {(item.resource, item.subject): item.usd_per_h for item in prices_of(problem, layout)}


def problem_of(picture: Snapshot) -> JointProblem:
    return read(picture, builders.everything_movable(picture)).problem


def grown(problem: JointProblem, gpu_type: str, devices: int) -> JointProblem:
    pools = tuple(
        replace(pool, devices=pool.devices + devices) if pool.gpu_type == gpu_type else pool for pool in problem.pools
    )
    return replace(problem, pools=pools)


def looser(problem: JointProblem, workload: str, part: float) -> JointProblem:
    works = tuple(
        replace(work, limit_ms=work.limit_ms * (1 + part)) if work.id == workload else work
        for work in problem.workloads
    )
    return replace(problem, workloads=works)


@pytest.fixture(scope="module")
def insight() -> Insight:
    return insight_of(LAB)


def found(insight: Insight, workload: str, gpu_type: str) -> Candidate:
    (one,) = [item for item in insight.candidates if (item.workload, item.gpu_type) == (workload, gpu_type)]
    return one


@pytest.mark.parametrize("gpu_type", ["t4", "l4", "v100", "a100"])
def test_one_more_gpu_saves_at_most_its_price_and_what_does_not_bind_saves_nothing(gpu_type: str) -> None:
    problem = problem_of(LAB)
    before = relaxed(problem)
    after = relaxed(grown(problem, gpu_type, 1))
    price = prices(before, problem)[Resource.GPU, gpu_type]
    saved = before.facts["relaxed_usd_per_h"] - after.facts["relaxed_usd_per_h"]
    assert price >= 0
    # A dual is the steepest that the value falls; column generation stops a little above the optimum.
    assert -2e-3 <= saved <= price + 2e-3
    if price > 0:
        assert saved > 0.1 * price


def test_a_longer_promise_saves_and_about_what_its_price_says() -> None:
    fast = builders.service("fast", slo=builders.slo(12.0), rate_rps_declared=900.0)
    problem = problem_of(builders.snapshot([builders.device("a", index, "l4") for index in range(8)], [fast]))
    before = relaxed(problem)
    after = relaxed(looser(problem, "demo/fast", 0.01))
    saved = before.facts["relaxed_usd_per_h"] - after.facts["relaxed_usd_per_h"]
    price = prices(before, problem)[Resource.LATENCY_MS, "demo/fast"]
    assert price > 0
    assert saved == pytest.approx(0.12 * price, rel=0.3)


def test_a_longer_promise_saves_nothing_where_one_device_serves_it_all() -> None:
    problem = problem_of(LAB)
    before = relaxed(problem)
    after = relaxed(looser(problem, "demo/fast", 0.01))
    # Column generation stops a little above the optimum.
    assert after.facts["relaxed_usd_per_h"] == pytest.approx(before.facts["relaxed_usd_per_h"], abs=2e-3)
    assert prices(before, problem)[Resource.LATENCY_MS, "demo/fast"] == 0


def test_less_to_serve_saves_what_the_rates_price_says() -> None:
    problem = problem_of(LAB)
    before = relaxed(problem)
    number = next(index for index, work in enumerate(problem.workloads) if work.id == "demo/big")
    works = list(problem.workloads)
    works[number] = replace(works[number], rate_rps=works[number].rate_rps - 9.0)
    after = relaxed(replace(problem, workloads=tuple(works)))
    price = prices(before, problem)[Resource.RATE_RPS, "demo/big"]
    saved = before.facts["relaxed_usd_per_h"] - after.facts["relaxed_usd_per_h"]
    assert saved == pytest.approx(9.0 * price, rel=0.5)


MIXED = (
    *(builders.device("a", index, "t4") for index in range(6)),
    *(builders.device("b", index, "a100") for index in range(4)),
)
CAP = PowerCap(scope=PowerScope.CLUSTER, subject="lab", limit_w=290.0)
QUOTA = Project(name=builders.service().project, quota_gpus=1.0)


def capped(problem: JointProblem, watts: float) -> JointProblem:
    return replace(problem, caps=tuple(replace(cap, limit_w=cap.limit_w + watts) for cap in problem.caps))


def granted(problem: JointProblem, gpus: float) -> JointProblem:
    return replace(problem, quotas=tuple((name, limit + gpus) for name, limit in problem.quotas))


def roomier(problem: JointProblem, gib: float) -> JointProblem:
    pools = tuple(replace(pool, memory_mib=pool.memory_mib + 1024 * gib) for pool in problem.pools)
    return replace(problem, pools=pools)


def changed(problem: JointProblem, field: str, by: float) -> JointProblem:
    """The first workload allowed, asked or given so much more."""
    first = problem.workloads[0]
    works = (replace(first, **{field: getattr(first, field) + by}), *problem.workloads[1:])
    return replace(problem, workloads=works)


def big(rate_rps: float, **more: Any) -> Snapshot:
    return builders.snapshot(MIXED, [builders.service("big", rate_rps_declared=rate_rps, **more)], policy=DEVICE)


@pytest.mark.parametrize(
    ("picture", "priced", "change", "amount", "part"),
    [
        (replace(big(1500.0), power_caps=(CAP,)), (Resource.POWER_W, "cluster/lab"), capped, 1.0, 0.999),
        (replace(big(1500.0), projects=(QUOTA,)), (Resource.QUOTA_GPU, "demo"), granted, 0.1, 0.999),
        (
            big(900.0, budget_usd_per_h=0.3),
            (Resource.BUDGET_USD, "demo/big"),
            lambda problem, usd: changed(problem, "budget_usd_per_h", usd),
            0.05,
            0.999,
        ),
        (
            big(2000.0, replicas_max=2),
            (Resource.REPLICA, "demo/big"),
            lambda problem, replicas: changed(problem, "replicas_max", int(replicas)),
            1.0,
            0.999,
        ),
        (
            big(900.0, replicas_max=2),
            (Resource.REPLICA, "demo/big"),
            lambda problem, replicas: changed(problem, "replicas_max", int(replicas)),
            1.0,
            0.3,
        ),
        (
            replace(
                big(900.0),
                services=(
                    builders.service("big", rate_rps_declared=900.0, replicas_min=4, replicas_max=8),
                    builders.service("vision", rate_rps_declared=900.0),
                ),
            ),
            (Resource.REPLICA_LEAST, "demo/big"),
            lambda problem, replicas: changed(problem, "replicas_min", -int(replicas)),
            1.0,
            0.3,
        ),
        (
            builders.snapshot(
                [builders.device("a", index, "t4", memory_mib=2400) for index in range(3)],
                [builders.service(slo=builders.slo(400.0), rate_rps_declared=1500.0)],
                gpu_types=(builders.gpu_type("t4", memory_mib=2400),),
            ),
            (Resource.MEMORY_GIB, "t4"),
            roomier,
            1.0,
            0.99,
        ),
        (
            builders.snapshot(
                [builders.device("a", index, "l4") for index in range(3)],
                [builders.service("fast", slo=builders.slo(12.0), rate_rps_declared=900.0)],
                policy=DEVICE,
            ),
            (Resource.LATENCY_MS, "demo/fast"),
            lambda problem, ms: changed(problem, "limit_ms", ms),
            0.12,
            0.99,
        ),
    ],
    ids=["cap", "quota", "budget", "replicas", "replicas in part", "floor", "memory", "promise"],
)
def test_what_binds_saves_what_its_price_says_and_never_more(
    picture: Snapshot,
    priced: tuple[Resource, str],
    change: Callable[[JointProblem, float], JointProblem],
    amount: float,
    part: float,
) -> None:
    problem = problem_of(picture)
    before = relaxed(problem)
    price = prices(before, problem)[priced]
    saved = before.facts["relaxed_usd_per_h"] - relaxed(change(problem, amount)).facts["relaxed_usd_per_h"]
    assert price > 0
    # The first part of a unit is worth what the dual says, the rest of it may be worth less.
    assert part * price * amount - 1e-4 <= saved <= price * amount + 1e-4


def test_no_price_is_above_what_a_plan_that_serves_all_costs() -> None:
    """Floors and ceilings that bind on the same replicas leave duals open: any that sum up are as good to a solver."""
    picture = replace(
        big(300.0, replicas_min=3, replicas_max=3),
        power_caps=(replace(CAP, limit_w=400.0),),
        projects=(replace(QUOTA, quota_gpus=0.9),),
    )
    proposal = Joint().propose(counted(picture), b"", SilentReporter())
    assert proposal.plan is not None
    assert proposal.insight is not None
    usd = proposal.plan.objective.cost_usd_per_h
    assert proposal.plan.objective.unserved == 0
    scarce = [item for item in proposal.insight.prices if item.binding]
    assert scarce
    assert max(item.usd_per_h * TOLD_BY.get(item.resource, 1.0) for item in scarce) <= usd + 1e-6


@pytest.mark.parametrize(
    ("policy", "project", "code"),
    [
        (replace(DEVICE, replicas_per_device_max=1), QUOTA, ReasonCode.CLIENTS_MAX),
        (DEVICE, replace(QUOTA, quota_gpus=0.1), ReasonCode.QUOTA),
    ],
)
def test_a_candidate_without_a_place_says_what_its_plan_says(
    policy: Policy, project: Project, code: ReasonCode
) -> None:
    services = [builders.service(name, rate_rps_declared=1.0) for name in ("one", "two", "three")]
    picture = builders.snapshot([builders.device("a", 0, "t4")], services, policy=policy, projects=(project,))
    proposal = Joint().propose(counted(picture), b"", SilentReporter())
    assert proposal.plan is not None
    assert proposal.insight is not None
    assert proposal.plan.unplaced
    for gap in proposal.plan.unplaced:
        (told,) = found(proposal.insight, gap.workload, "t4").reasons
        assert told.code is code
        assert told in gap.reasons


def test_what_does_not_bind_is_worth_nothing_or_not_told() -> None:
    roomy = replace(
        big(900.0, budget_usd_per_h=1000.0),
        projects=(replace(QUOTA, quota_gpus=100.0),),
        power_caps=(replace(CAP, limit_w=2000.0),),
    )
    problem = problem_of(roomy)
    told = prices(relaxed(problem), problem)
    assert told[Resource.QUOTA_GPU, "demo"] == told[Resource.BUDGET_USD, "demo/big"] == 0
    assert told[Resource.POWER_W, "cluster/lab"] == 0
    # One replica at least is no floor worth a word, and nobody comes near the sixteen that are allowed.
    assert not {Resource.REPLICA, Resource.REPLICA_LEAST} & {resource for resource, _ in told}


def test_more_memory_is_worth_something_where_it_makes_batches_smaller() -> None:
    small = builders.gpu_type("t4", memory_mib=2400)
    device = builders.device("a", 0, "t4", memory_mib=2400)
    picture = builders.snapshot(
        [device], [builders.service(slo=builders.slo(400.0), rate_rps_declared=5000.0)], gpu_types=(small,)
    )
    problem = problem_of(picture)
    told = prices(relaxed(problem), problem)
    assert told[Resource.MEMORY_GIB, "t4"] > 0
    ample = problem_of(builders.snapshot([builders.device("a", 0, "t4")], picture.services))
    assert prices(relaxed(ample), ample)[Resource.MEMORY_GIB, "t4"] == 0


def test_nothing_is_priced_without_duals() -> None:
    problem = problem_of(LAB)
    assert prices_of(problem, Layout(patterns=(), counts=())) == ()


def test_every_type_is_told_for_every_service(insight: Insight) -> None:
    keys = {(item.workload, item.gpu_type) for item in insight.candidates}
    assert keys == {
        (f"demo/{name}", kind) for name in ("vision", "fast", "big") for kind in ("t4", "l4", "v100", "a100")
    }
    assert list(insight.candidates) == sorted(
        insight.candidates, key=lambda item: (item.workload, item.gpu_type, item.model)
    )


def test_what_was_chosen_is_told_as_the_plan_has_it(insight: Insight) -> None:
    plan = Joint().propose(counted(LAB), b"", SilentReporter()).plan
    assert plan is not None
    types = {device.id: device.gpu_type for device in LAB.devices}
    held = {(item.workload, types[item.device]) for item in plan.assignments}
    assert {(item.workload, item.gpu_type) for item in insight.candidates if item.chosen} == held
    one = next(item for item in plan.assignments if item.workload == "demo/fast")
    told = found(insight, "demo/fast", types[one.device])
    assert (told.share_pct_sm, told.batch, told.latency_ms) == (one.share_pct_sm, one.batch, one.latency_ms_planned)
    assert told.usd_per_h_more == 0


def test_replicas_of_one_type_that_differ_are_told_apart() -> None:
    """Two of a kind are one line of two, another share or batch is another line."""
    device = builders.device("a", 0, "t4")
    shares = ((100, 32, 80.0), (10, 4, 20.0), (100, 32, 90.0))
    had = [
        candidates._Had(
            item=builders.assignment(
                f"demo/vision#{number}", device, share_pct_sm=share, batch=batch, latency_ms_planned=latency_ms
            ),
            clock_mhz=1590,
            listed_usd=share / 100,
            worth_usd=0.0,
        )
        for number, (share, batch, latency_ms) in enumerate(shares)
    ]
    told = candidates._of_plan(GpuTypeName("t4"), had)
    assert [(item.share_pct_sm, item.batch, item.replicas, item.usd_per_h, item.latency_ms) for item in told] == [
        (100, 32, 2.0, 2.0, 90.0),
        (10, 4, 1.0, 0.1, 20.0),
    ]


def test_a_dearer_type_says_how_much_dearer(insight: Insight) -> None:
    dearer = found(insight, "demo/fast", "a100")
    assert dearer.feasible
    assert dearer.usd_per_h_more is not None
    assert dearer.usd_per_h_more > 0.3
    assert [reason.code for reason in dearer.reasons] == [ReasonCode.COSTLIER]
    facts = {fact.name: fact.value for fact in dearer.reasons[0].facts}
    assert facts["usd_per_h_here"] == pytest.approx(dearer.usd_per_h)
    assert facts["usd_per_h_more"] == pytest.approx(dearer.usd_per_h_more)


def test_what_rules_a_type_out_comes_with_its_numbers() -> None:
    picture = builders.lab(
        [
            builders.service("tight", slo=builders.slo(6.0), rate_rps_declared=10.0),
            builders.service("picky", gpu_types_allowed=(GpuTypeName("l4"),), rate_rps_declared=10.0),
        ]
    )
    insight = insight_of(picture)
    slow = found(insight, "demo/tight", "t4")
    assert not slow.feasible
    (reason,) = slow.reasons
    facts = {fact.name: fact.value for fact in reason.facts}
    assert reason.code is ReasonCode.SLO_UNREACHABLE
    assert facts["latency_ms_limit"] == 6.0
    assert float(facts["latency_ms_best"]) > 6.0
    assert [item.code for item in found(insight, "demo/picky", "t4").reasons] == [ReasonCode.TYPE_NOT_ALLOWED]


def test_a_type_that_takes_more_replicas_than_allowed_is_ruled_out_and_others_take_fewer() -> None:
    def candidates(most: int) -> dict[str, Candidate]:
        service = builders.service("big", rate_rps_declared=600.0, replicas_max=most)
        return {item.gpu_type: item for item in insight_of(builders.lab((service,), policy=DEVICE)).candidates}

    free, bound = candidates(2), candidates(1)
    assert all(item.feasible for item in free.values())
    assert 1 < free["t4"].replicas <= 2
    assert 1 < free["v100"].replicas <= 2
    assert not bound["t4"].feasible
    (reason,) = bound["t4"].reasons
    assert (reason.code, reason.subject) == (ReasonCode.REPLICAS_MAX, "demo/big")
    assert {fact.name: fact.value for fact in reason.facts} == {"replicas_needed": 2.0, "replicas_max": 1.0}
    assert bound["v100"].feasible
    assert bound["v100"].replicas == 1.0
    assert bound["v100"].share_pct_sm > free["v100"].share_pct_sm


def test_a_network_among_several_is_a_candidate_of_its_own() -> None:
    models = (builders.model("resnet50", accuracy_pct=80.0), builders.model("small", accuracy_pct=78.0))
    profiles = [builders.profile(item.name, kind, work=0.5) for item in models for kind in ("t4", "l4", "v100", "a100")]
    service = builders.service(alternatives=(ModelName("small"),), accuracy_pct_min=70.0)
    insight = insight_of(builders.lab([service], models=models, profiles=profiles))
    assert {item.model for item in insight.candidates if item.gpu_type == "t4"} == {"resnet50", "small"}


def test_prices_of_a_short_fleet_say_that_they_count_the_unserved() -> None:
    picture = builders.snapshot([builders.device("a", 0, "t4")], [builders.service(rate_rps_declared=5_000.0)])
    insight = insight_of(picture)
    facts = {fact.name: fact.value for fact in insight.facts}
    assert facts["workloads_priced_as_unserved"] == 1.0
    assert 0 < AT_UNSERVED_PART < 1


def test_who_is_short_and_could_not_be_looked_into_is_counted() -> None:
    services = [builders.service(f"s{index}", rate_rps_declared=900.0) for index in range(3)]
    picture = builders.snapshot([builders.device("a", 0, "t4")], services)
    plan = Joint().propose(counted(picture), b"", SilentReporter()).plan
    assert plan is not None
    reading = read(picture, builders.everything_movable(picture))
    told = explained(reading, Layout(patterns=(), counts=()), plan, 0)
    assert told.relaxations == ()
    assert {fact.name: fact.value for fact in told.facts} == {"workloads_short_unexplained": len(plan.unplaced)}


def test_too_much_to_look_at_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solvers.planners.joint.explain.candidates.ROWS_MAX", 12)
    reading = read(LAB, builders.everything_movable(LAB))
    layout = relaxed(reading.problem)
    plan = Joint().propose(counted(LAB), b"", SilentReporter()).plan
    assert plan is not None
    told = explained(reading, layout, plan)
    facts = {fact.name: fact.value for fact in told.facts}
    assert facts["workloads_without_candidates"] >= 1.0
    chosen = {item.workload for item in told.candidates if item.chosen}
    assert chosen == {WorkloadId(f"demo/{name}") for name in ("vision", "fast", "big")}


def test_it_takes_no_time_that_is_not_there() -> None:
    request = replace(counted(LAB), budget=Budget(deadline_s=1.0))
    reading = read(LAB, builders.everything_movable(LAB))

    def attempt(left_s: float) -> Attempt:
        return Attempt(request=request, reading=reading, clock=Deadline(left_s), first=None)

    assert attempt(0.01).explained_most() is None
    assert attempt(0.06).explained_most() == 0
    assert attempt(60.0).explained_most() == SHORT_MAX
    assert attempt(1.0).solve_deadline().left_s < 0.9
    # Parts of work that there is no time for are more than all the time.
    plan = Joint().propose(counted(LAB), b"", SilentReporter()).plan
    assert plan is not None
    assert 1 <= (attempt(0.4).closer_deadline(plan, None).work_units or 0) < 400
    assert attempt(60.0).closer_deadline(plan, None).work_units == CLOSER_UNITS


def test_equal_requests_are_told_alike(insight: Insight) -> None:
    assert insight_of(LAB) == insight


def test_services_that_promise_tokens_are_told_of_without_a_price_of_their_promise() -> None:
    insight = insight_of(chats.lab([chats.service()]))
    mine = [item for item in insight.candidates if item.workload == "demo/chat"]
    assert {item.gpu_type for item in mine} == {"t4", "l4", "v100", "a100"}
    assert any(item.chosen for item in mine)
    assert {item.share_pct_sm for item in mine if item.feasible} == {100}
    assert not [item for item in insight.prices if item.resource is Resource.LATENCY_MS]
    assert [item for item in insight.prices if item.resource is Resource.RATE_RPS]


def test_a_network_that_may_not_serve_is_told_with_the_reason_where_its_service_runs() -> None:
    asking = builders.service("vision", alternatives=(ModelName("crude"), ModelName("nobody")), accuracy_pct_min=70.0)
    picture = builders.lab([asking], policy=DEVICE)
    crude = builders.model("crude", accuracy_pct=60.0)
    insight = insight_of(replace(picture, models=(*picture.models, crude)))
    used = {item.gpu_type for item in insight.candidates if item.chosen}
    told = {
        (item.model, item.gpu_type, item.reasons[0].code)
        for item in insight.candidates
        if item.model != asking.model and not item.feasible
    }
    assert used
    assert told == {("crude", name, ReasonCode.ACCURACY_TOO_LOW) for name in used} | {
        ("nobody", name, ReasonCode.NO_PROFILE) for name in used
    }
    assert all(item.model == asking.model for item in insight.candidates if item.feasible)
