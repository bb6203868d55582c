"""The joint planner proposes what verifies, is never worse than greed, and says how far from the best it can be."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from solvers.domain.change import Target
from solvers.domain.device import Device, PowerCap, PowerScope, PriceKind, PriceRow
from solvers.domain.evidence import Fact, ReasonCode, Reporter, SilentReporter
from solvers.domain.ids import DeviceId, Generation, ModelName
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.domain.policy import CostBasis, Policy, Term
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, WorkloadKind
from solvers.engines import deadline as deadline_module
from solvers.engines.deadline import Deadline
from solvers.errors import EngineError
from solvers.models.worth import worth_of
from solvers.planners import registry
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.joint import certificate, change
from solvers.planners.joint.attempt import CLOSER_UNITS, URGENT_UNITS, Attempt, recall
from solvers.planners.joint.planner import SPEC, Advance, Joint
from solvers.planners.joint.reading.formulation import read
from solvers.planners.joint.seat.seats import Seats
from solvers.planners.joint.solve.master import Rows
from solvers.planners.joint.solve.solve import SolveOrder, first_layout, solve
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from solvers.verify.checks import verify
from solvers.verify.picture import is_fatal
from tests import builders

SERVICES = (
    builders.service("vision"),
    builders.service("fast", slo=builders.slo(12.0), rate_rps_declared=200.0),
    builders.service("big", rate_rps_declared=900.0),
)
DEVICE = builders.policy(cost_basis=CostBasis.DEVICE)
SHARE = builders.policy(cost_basis=CostBasis.SHARE)


def request_of(picture: Snapshot, movable: tuple[str, ...] | None = None) -> PlanRequest:
    """Counted work, so that machines of any speed answer alike."""
    return replace(builders.request(picture, movable), budget=Budget(deadline_s=3600.0, work_units=200))


def propose(picture: Snapshot, planner: Joint | None = None, movable: tuple[str, ...] | None = None) -> Proposal:
    request = request_of(picture, movable)
    proposal = (planner or Joint()).propose(request, b"", SilentReporter())
    assert proposal.plan is not None
    assert not is_fatal(verify(picture, proposal.plan, request.movable))
    return proposal


def plan_of(picture: Snapshot, planner: Joint | None = None, movable: tuple[str, ...] | None = None) -> Plan:
    plan = propose(picture, planner, movable).plan
    assert plan is not None
    return plan


@cache
def of_three() -> tuple[Snapshot, Plan]:
    """Three services on a few devices, and what is planned for them, once for all that begin from there."""
    picture = builders.lab(SERVICES, policy=DEVICE)
    return picture, plan_of(picture)


def standing(picture: Snapshot, plan: Plan) -> Snapshot:
    """The same world with this plan in force, in the middle between two full solves."""
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    return replace(picture, target=target, taken_at_s=1_000_150.0)


@pytest.mark.parametrize(("policy", "at_most"), [(DEVICE, 0.999), (SHARE, 0.9)], ids=["device", "share"])
def test_it_is_cheaper_than_greed_and_says_so(policy: object, at_most: float) -> None:
    proposal = propose(builders.lab(SERVICES, policy=policy))
    assert proposal.insight is not None
    greedy, joint = proposal.insight.contenders
    assert (greedy.name, joint.name) == ("greedy", SPEC.name)
    assert proposal.plan is not None
    assert proposal.plan.objective == joint.objective
    assert joint.objective.unserved == greedy.objective.unserved == 0
    assert joint.objective.cost_usd_per_h < at_most * greedy.objective.cost_usd_per_h


def test_jobs_and_tasks_are_placed_beside() -> None:
    jobs = (builders.job(value_usd_per_h=20.0),)
    plan = plan_of(builders.lab(SERVICES, policy=DEVICE, jobs=jobs, tasks=(builders.task(),)))
    assert not plan.unplaced
    (job,) = [item for item in plan.assignments if item.kind is WorkloadKind.JOB]
    assert [item.code for item in job.reasons] == [ReasonCode.FILLS_SPARE_SHARE]


@pytest.mark.parametrize(("jobs", "shares"), [(1, [100]), (2, [50, 50]), (3, [20, 30, 50])])
def test_jobs_that_nothing_was_measured_beside_part_all_of_a_device(jobs: int, shares: list[int]) -> None:
    picture = builders.snapshot(
        (builders.device("a", 0, "v100"),),
        jobs=tuple(builders.job(f"train-{number}") for number in range(jobs)),
        policy=builders.policy(objective=(Term.UNSERVED, Term.TRAINING), share_step_pct=10),
        profiles=(),
    )
    assert sorted(item.share_pct_sm for item in plan_of(picture).assignments) == shares


def test_who_is_short_is_served_no_less_than_by_what_stands() -> None:
    wide = builders.service("wide", priority=100, affinity=Affinity(failure_domains_min=2))
    picture = builders.snapshot((builders.device("a", 0, "v100"),), tasks=(builders.task("big", 1500.0),))
    before = plan_of(picture)
    target = Target(generation=Generation(1), assignments=before.assignments, settings=before.settings)
    after = replace(picture, services=(wide,), target=target)
    stands = worth_of(after, builders.request(after).movable, target.assignments, target.settings)
    assert plan_of(after).objective.unserved <= stands.objective.unserved


def first_only(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
    return first_layout(problem)


def broken(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
    raise EngineError("planted")


def nothing(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
    return Layout(patterns=(), counts=())


def test_a_failing_engine_leaves_the_greedy_answer() -> None:
    picture = builders.lab(SERVICES)
    proposal = propose(picture, Joint(broken))
    greedy = registry.propose("greedy", request_of(picture)).plan
    assert greedy is not None
    assert proposal.plan is not None
    assert proposal.plan.assignments == greedy.assignments
    assert ReasonCode.SOLVER_FAILED in {item.code for item in proposal.reasons}


def demanding(rate_rps: float) -> Snapshot:
    """What was planned for a hundred requests/s stands, and one service wants another rate."""
    return replace(standing(*of_three()), demands=(builders.demand("demo/vision", rate_rps),))


@pytest.mark.usefixtures("unproven")
def test_who_is_short_is_served_beside_what_stands_and_nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    later, asked = demanding(1100.0), list[str]()
    reading = read(later, builders.everything_movable(later))
    served = reading.stands.served_rps(reading.problem)
    assert any(rate < work.rate_least_rps for rate, work in zip(served, reading.problem.workloads, strict=True))
    ask = registry.propose

    def counting(name: str, request: PlanRequest, reporter: Reporter) -> Proposal:
        asked.append(name)
        return ask(name, request, reporter=reporter)

    monkeypatch.setattr(registry, "propose", counting)
    plan = plan_of(later)
    assert not plan.unplaced
    assert asked == []
    assert plan_of(demanding(100_000.0)).unplaced
    assert "greedy" in asked


@pytest.mark.parametrize("rate_rps", [900.0, 2500.0, 4000.0])
def test_who_is_short_is_planned_for_as_well_when_asked_again(rate_rps: float) -> None:
    """A plan that waits for somebody, or is held: what stands goes on to leave the same one short."""
    picture = demanding(rate_rps)
    first = Joint().think(request_of(picture), b"", SilentReporter())
    again = Joint().think(request_of(picture), first.state or b"", SilentReporter())
    assert first.proposal.plan is not None
    assert again.proposal.plan is not None
    before, after = first.proposal.plan.objective, again.proposal.plan.objective
    assert after.unserved <= before.unserved
    assert after.cost_usd_per_h <= before.cost_usd_per_h


def test_a_failing_engine_leaves_the_greedy_answer_to_who_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise EngineError("planted")

    monkeypatch.setattr(change, "reached", failing)
    later = demanding(1100.0)
    proposal = propose(later)
    assert proposal.by == "greedy"
    assert ReasonCode.SOLVER_FAILED in {item.code for item in proposal.reasons}


def test_a_plan_is_handed_over_before_its_bound_is_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing was on the way, since a little beside what stands is all that is looked for."""
    taker, before = builders.Taker(), list[Proposal]()
    closer = certificate.Certificate.closer

    def late(self: certificate.Certificate, plan: Plan, known: certificate.Shown | None, deadline: Deadline) -> object:
        before.extend(taker.taken)
        return closer(self, plan, known, deadline)

    monkeypatch.setattr(certificate.Certificate, "closer", late)
    state = Joint().think(request_of(demanding(100.0)), b"", SilentReporter()).state
    answer = Joint().propose(request_of(demanding(1100.0)), state or b"", taker).plan
    assert answer is not None
    assert [item.plan.assignments for item in before if item.plan is not None][-1:] == [answer.assignments]


def test_whoever_waits_for_a_plan_waits_for_little_of_its_proof() -> None:
    """And it is found out later, since it is remembered how little was done for it."""

    def units_of(picture: Snapshot, plan: Plan, shown: certificate.Shown | None = None) -> int | None:
        request = replace(builders.request(picture), budget=Budget(deadline_s=3600.0))
        attempt = Attempt(request=request, reading=read(picture, request.movable), clock=Deadline(3600.0))
        return attempt.closer_deadline(plan, shown).work_units

    calm, jumped = demanding(100.0), demanding(1100.0)
    before, plan = of_three()[1], plan_of(jumped)
    assert units_of(jumped, plan) == URGENT_UNITS
    assert units_of(jumped, before) == units_of(calm, plan) == units_of(calm, before) == CLOSER_UNITS
    assert units_of(of_three()[0], before) == CLOSER_UNITS  # nothing stands

    def shown_of(picture: Snapshot) -> certificate.Shown:
        state = Joint().think(request_of(picture), b"", SilentReporter()).state
        shown = recall(state or b"", read(picture, builders.everything_movable(picture)).problem).shown
        assert shown is not None
        assert shown.leaves is not None
        return shown

    assert shown_of(jumped).effort * certificate.HARDER < shown_of(standing(jumped, plan)).effort
    # Where something was proven before, it takes little at a time.
    assert units_of(calm, before, shown_of(calm)) == units_of(jumped, plan, shown_of(calm)) == URGENT_UNITS


@pytest.mark.usefixtures("unproven")
def test_a_worse_answer_gives_way() -> None:
    crowded = [builders.service(f"s{number}", rate_rps_declared=300.0) for number in range(8)]
    picture = builders.lab(crowded, policy=DEVICE)
    greedy = registry.propose("greedy", request_of(picture)).plan
    assert greedy is not None
    plan = plan_of(picture, Joint(nothing))
    assert plan.objective.key() <= greedy.objective.key()


def test_a_bound_is_stated_for_what_is_served_and_makes_an_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "few_devices", lambda _: False)  # branching would prove more than these prices
    picture = builders.lab((builders.service(),), policy=DEVICE)
    found = plan_of(picture).objective.cost_usd_per_h

    def proving(part: float) -> Joint:
        def solved(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
            layout, rows = solve(problem, order, deadline), Rows(problem)
            duals = np.zeros(rows.count)
            duals[0] = part * layout.usd_per_h
            prices = rows.prices(duals, worth=np.zeros(len(problem.pools)))
            return replace(layout, bound_usd_per_h=None, prices=prices)

        return Joint(solved)

    exact = propose(picture, proving(1.0))
    assert exact.status is ProposalStatus.OPTIMAL
    near = propose(picture, proving(0.9))
    assert near.status is ProposalStatus.FEASIBLE
    assert near.plan is not None
    assert near.plan.bound_usd_per_h == pytest.approx(0.9 * found, rel=1e-4)
    assert near.plan.gap_pct == pytest.approx(100 / 9, rel=1e-2)
    wrong = propose(picture, proving(1.5))
    assert wrong.plan is not None
    assert wrong.plan.bound_usd_per_h is not None
    assert wrong.plan.bound_usd_per_h < 0.9 * found


def test_what_stands_and_is_enough_stays() -> None:
    picture, plan = of_three()
    again = plan_of(standing(picture, plan))
    assert again.objective.churn == 0
    assert [(item.replica, item.device, item.share_pct_sm) for item in again.assignments] == [
        (item.replica, item.device, item.share_pct_sm) for item in plan.assignments
    ]


def test_one_that_grew_moves_alone() -> None:
    picture = builders.lab((*SERVICES, builders.service("fourth", rate_rps_declared=80.0)), policy=DEVICE)
    plan = plan_of(picture)
    later = replace(standing(picture, plan), demands=(builders.demand("demo/vision", 400.0),))
    grown = plan_of(later)
    assert not grown.unplaced
    before = {item.replica: (item.device, item.share_pct_sm) for item in plan.assignments}
    moved = {
        item.workload for item in grown.assignments if before.get(item.replica) != (item.device, item.share_pct_sm)
    }
    assert "demo/vision" in moved
    assert len(moved) <= 2


def test_pinned_workloads_stay_and_nothing_is_proven_beside_them() -> None:
    picture, plan = of_three()
    later = replace(standing(picture, plan), demands=(builders.demand("demo/vision", 150.0),))
    pinned = plan_of(later, movable=("demo/vision",))
    others = {item.replica: item.device for item in plan.assignments if item.workload != "demo/vision"}
    assert others.items() <= {item.replica: item.device for item in pinned.assignments}.items()


def test_devices_keep_their_own_caps_by_a_power_limit() -> None:
    caps = (PowerCap(scope=PowerScope.DEVICE, subject="GPU-a-0", limit_w=65.0),)
    plan = plan_of(builders.lab((builders.service("big", rate_rps_declared=2500.0),), power_caps=caps, policy=DEVICE))
    limits = {item.device: item.power_limit_w for item in plan.settings}
    assert limits.get(DeviceId("GPU-a-0"), 65.0) == 65.0
    assert all(limit is None for device, limit in limits.items() if device != "GPU-a-0")


def test_node_caps_are_kept_node_by_node() -> None:
    devices = [builders.device(node, number, "t4") for node in "abcd" for number in range(2)]
    services = [builders.service(f"s{number}", rate_rps_declared=150.0) for number in range(6)]
    caps = tuple(PowerCap(scope=PowerScope.NODE, subject=node, limit_w=90.0) for node in "abcd")
    plan = plan_of(builders.snapshot(devices, services, power_caps=caps, policy=DEVICE))
    assert not plan.unplaced


@pytest.mark.parametrize("services", [1, 3])
def test_what_interruptions_cost_is_within_no_budget(services: int) -> None:
    spot = PriceRow(kind=PriceKind.SPOT, usd_per_h=0.1, interruptions_per_h=1.0)
    picture = builders.snapshot(
        [builders.device("a", number, "t4") for number in range(services)],
        [builders.service(f"s{number}", rate_rps_declared=60.0, budget_usd_per_h=0.1) for number in range(services)],
        nodes=[builders.node("a", price_kind=PriceKind.SPOT)],
        gpu_types=(builders.gpu_type("t4", prices=(spot,)),),
        policy=replace(DEVICE, interruption_usd=1.0),
    )
    proposal = propose(picture)
    assert proposal.insight is not None
    own = next(item for item in proposal.insight.contenders if item.name == "joint")
    assert own.objective.unserved == 0.0
    assert own.objective.cost_usd_per_h > 1.1


def test_failure_domains_are_used() -> None:
    affinity = Affinity(failure_domains_min=2)
    plan = plan_of(builders.lab((builders.service(affinity=affinity), *SERVICES[1:]), policy=DEVICE))
    domain = {"GPU-a": "zone-a", "GPU-b": "zone-b", "GPU-c": "zone-b"}
    used = {domain[item.device[:5]] for item in plan.assignments if item.workload == "demo/vision"}
    assert used == {"zone-a", "zone-b"}


@pytest.mark.parametrize("elsewhere", [(), (builders.device("b", 0, "l4", memory_mib=1024),)])
def test_failure_domains_that_cannot_be_had_are_told_and_not_paid_for(elsewhere: tuple[Device, ...]) -> None:
    service = builders.service(affinity=Affinity(failure_domains_min=2, anti_affinity=AntiAffinity.HARD))
    nodes = (builders.node("a", failure_domain="zone-a"), builders.node("b", failure_domain="zone-b"))
    fleet = (builders.device("a", 0, "v100"), builders.device("a", 1, "v100"), *elsewhere)
    plan = plan_of(builders.snapshot(fleet, [service], nodes=nodes, policy=DEVICE))
    assert [item.device for item in plan.assignments] == ["GPU-a-0"]
    (told,) = plan.unplaced
    assert told.rate_rps_short == 0.0
    assert Fact(name="failure_domains_min", value=2.0) in told.reasons[-1].facts


def test_what_nothing_can_serve_is_told_by_type() -> None:
    plan = plan_of(builders.lab((builders.service(slo=builders.slo(3.0)), *SERVICES[2:])))
    (unplaced,) = plan.unplaced
    assert unplaced.workload == "demo/vision"
    assert unplaced.rate_rps_short == 100.0
    assert {item.code for item in unplaced.reasons} >= {ReasonCode.SLO_UNREACHABLE}


def test_a_fleet_without_any_profile_is_planned_without_greed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the largest fleets are, of which no plan is asked for first."""
    monkeypatch.setattr("solvers.planners.joint.planner.affords_first", lambda _request, _urged: False)
    plan = plan_of(replace(builders.lab(SERVICES), profiles=()))
    assert {item.workload for item in plan.unplaced} == {service.id for service in SERVICES}


def test_what_only_the_first_answer_cannot_do_is_no_reason() -> None:
    """Greedy reckons with a neighbour on any device; alone on one the promise is kept, and none is left."""
    fast = builders.slo(2.2 * builders.latency_ms("t4", 1, 100))
    services = [builders.service(name, slo=fast, rate_rps_declared=1.0) for name in ("one", "two")]
    plan = plan_of(builders.snapshot((builders.device("a", 0, "t4"),), services, policy=DEVICE))
    assert len(plan.assignments) == 1
    (gap,) = plan.unplaced
    assert {item.code for item in gap.reasons if item.subject == "t4"} == {ReasonCode.NO_SHARE_LEFT}


def test_patterns_found_are_handed_to_the_next_solve() -> None:
    warm: list[int] = []

    def watching(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
        warm.append(len(order.warm))
        return first_layout(problem)

    request, planner = request_of(builders.lab(SERVICES)), Joint(watching)
    state = planner.think(request, b"", SilentReporter()).state
    assert state
    planner.think(request, state, SilentReporter())
    planner.think(request, b"of another planner", SilentReporter())
    assert warm[0] == 0
    assert warm[1] > 0
    assert warm[2] == 0


def test_what_is_handed_over_says_what_is_proven_by_then() -> None:
    proven_usd = list[float]()

    def on_the_way(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
        layout = solve(problem, replace(order, better=None), deadline)
        assert order.better is not None
        order.better(layout)
        proven_usd.append(layout.bound_usd_per_h or 0.0)
        return layout

    taker = builders.Taker()
    Joint(on_the_way).propose(request_of(builders.lab(SERVICES)), b"", taker)
    greedy, *_, last = [item.plan for item in taker.taken if item.plan is not None]
    assert greedy.bound_usd_per_h is None
    assert last.objective.cost_usd_per_h < greedy.objective.cost_usd_per_h
    assert [last.bound_usd_per_h] == proven_usd
    assert 0 < proven_usd[0] <= last.objective.cost_usd_per_h


@pytest.mark.parametrize(("left_s", "more"), [(100.0, 1), (1.5, 0)])
def test_what_is_left_to_a_search_is_not_spent_on_handing_over(left_s: float, more: int) -> None:
    """A layout that takes as long to seat and write as is left, twice over, waits for the end."""

    def on_the_way(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
        layout, advance = solve(problem, replace(order, better=None), deadline), getattr(order.better, "__self__", None)
        assert isinstance(advance, Advance)
        advance.took_s, advance.deadline = 1.0, Deadline(left_s)
        advance.better(layout)
        taken.append(len(taker.taken))
        return layout

    taken, taker = list[int](), builders.Taker()
    Joint(on_the_way).propose(request_of(builders.lab(SERVICES, policy=SHARE)), b"", taker)
    assert taken == [1 + more]  # greed's first


def test_what_handing_over_took_is_kept_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what was found last is not written in time, and the first answer stays."""
    late_s, clock, write, left_s = [0.0], time.monotonic, Attempt.written, list[float]()

    def slow(attempt: Attempt, seats: Seats) -> Plan:
        late_s[0] += 75.0
        return write(attempt, seats)

    def on_the_way(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
        layout, advance = solve(problem, replace(order, better=None), deadline), getattr(order.better, "__self__", None)
        assert isinstance(advance, Advance)
        advance.best_usd = 2 * layout.judged_usd(problem)
        advance.better(layout)
        left_s.append(advance.attempt.clock.left_s - deadline.time_left_s)
        return layout

    monkeypatch.setattr(deadline_module.time, "monotonic", lambda: clock() + late_s[0])
    monkeypatch.setattr(Attempt, "written", slow)
    request = replace(request_of(builders.lab(SERVICES)), budget=Budget(deadline_s=200.0, work_units=200))
    Joint(on_the_way).propose(request, b"", builders.Taker())
    assert late_s[0] == 150.0
    assert left_s[0] >= 75.0


def test_there_is_time_for_greed_only_on_fleets_of_its_size() -> None:
    picture = builders.lab(SERVICES)
    hurried = replace(request_of(picture), budget=Budget(deadline_s=0.01))
    proposal = Joint(first_only).propose(hurried, b"", SilentReporter())
    assert proposal.insight is not None
    assert [item.name for item in proposal.insight.contenders] == [SPEC.name]
    with pytest.raises(EngineError):
        Joint(broken).propose(hurried, b"", SilentReporter())


def test_one_network_that_nobody_knows_of_does_not_make_all_others_careful() -> None:
    """Three who are known fit onto one device, where with the margin for all of them they need two."""
    known = Interference(pressure=0.01, sensitivity=0.01)
    services = [builders.service(f"s{index}", slo=builders.slo(20.0), rate_rps_declared=100.0) for index in range(3)]
    odd = builders.service("odd", model=ModelName("other"), rate_rps_declared=5.0)
    picture = builders.snapshot(
        [builders.device("a", index, "v100") for index in range(6)],
        [*services, odd],
        policy=builders.policy(cost_basis=CostBasis.DEVICE, interference_margin=1.8),
    )
    told = tuple(replace(item, interference=known) if item.model == "resnet50" else item for item in picture.profiles)
    costs = [
        plan_of(world).objective.cost_usd_per_h
        for world in (
            picture,
            replace(picture, profiles=told),
            replace(picture, profiles=told, services=tuple(services)),
        )
    ]
    nobody, mixed, without = (round(cost / builders.gpu_type("v100").prices[0].usd_per_h) for cost in costs)
    assert (nobody, mixed, without) == (3, 2, 1)


@pytest.mark.parametrize("policy", [DEVICE, SHARE], ids=["device", "share"])
def test_devices_that_cost_nothing_still_serve(policy: Policy) -> None:
    """Greed is not asked, so that nobody makes up for it."""
    free = tuple(replace(item, prices=()) for item in builders.lab().gpu_types)
    picture = builders.lab(SERVICES, gpu_types=free, policy=replace(policy, energy_usd_per_kwh=0.0))
    reading = read(picture, builders.everything_movable(picture))
    layout = solve(reading.problem, SolveOrder(), Deadline(60.0, 500))
    assert (reading.problem.unserved_usd > 0).all()
    assert (layout.served_rps(reading.problem) >= reading.problem.rate_rps * (1 - 1e-6)).all()
