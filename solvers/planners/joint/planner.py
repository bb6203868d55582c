"""The joint planner: all eight knobs in one problem, with a proven bound, and never worse than greed.

Owns the order of a proposal: a greedy plan first, so that there is an answer at once; then read, solve, seat and write;
the better of both by the policy's objective is proposed, and both are told with bound and gap. Time is shared out by
the size of the fleet, so that an answer is written before the deadline; with counted work everything is repeatable. An
engine that fails costs its own answer, never the greedy one. Where capacity is pursued, what stands takes the greedy
plan's place. It refuses to verify: the cycle does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.insight import Contender, Insight
from solvers.domain.objective import Term
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.domain.policy import CostBasis, Policy
from solvers.domain.workload import WorkloadKind
from solvers.engines.deadline import Deadline
from solvers.errors import EngineError
from solvers.planners import registry
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Recalling, Thought
from solvers.planners.joint.bounding import bound_of
from solvers.planners.joint.change.remembering import remember
from solvers.planners.joint.change.solving import Solve, Solved, solved
from solvers.planners.joint.change.whole_devices import ChangeTerms, Counted, counted, gentle, slights_usd
from solvers.planners.joint.choosing import better
from solvers.planners.joint.explain.explaining import explained, seconds_of
from solvers.planners.joint.reading.formulation import Reading, read
from solvers.planners.joint.seat.floor import Floor, floor_of
from solvers.planners.joint.seat.seating import Terms, seat
from solvers.planners.joint.seat.seats import Seats
from solvers.planners.joint.seat.standing import breaks_usd, interrupted_rps
from solvers.planners.joint.solve.solve import solve
from solvers.planners.joint.spare.filling import fill, open_ended
from solvers.planners.joint.spare.pursuing import held, pursued, pursues
from solvers.planners.joint.write.writing import Seated, write
from solvers.problems.joint import WHOLE_PCT
from solvers.problems.layout import Layout

SPEC = PlannerSpec(
    name="joint",
    about="all knobs in one problem, with a proven bound",
    version="1",
    knobs=tuple(Knob),
    leaves_clock_open=True,
)
FIRST = "greedy"
"""Who answers first."""
GAP_PROVEN_PCT = 1e-4
SOLVE_PART_MIN = 0.2
"""Of the deadline: so much is left to the solve whatever the rest takes."""
FIRST_PART_MAX = 0.25
"""Of the deadline: the first planner is not asked where it would take longer."""
FIRST_S_PER_WORKLOAD = 0.004
FIRST_S_PER_PAIR = 2e-7
"""Of workload and device."""
COUNTING_PART = 0.3
"""Of the deadline, where every replica takes a whole device."""
SERVED_DUST = 1e-6
STANDING, CAPACITY = "standing", "capacity"
"""Contenders where capacity is pursued: what stands, and what carries most."""
RESERVE_S = 0.05
RESERVE_S_PER_DEVICE = 0.0004
RESERVE_S_PER_WORKLOAD = 0.0004
"""What seating and writing take."""
UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class Joint(Recalling):
    """See the module. `solve` can be another one in tests."""

    solve: Solve = field(default=solve)

    @property
    def spec(self) -> PlannerSpec:
        """Name, version, knobs."""
        return SPEC

    def first_state(self) -> bytes:
        """Nothing remembered."""
        return b""

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """A plan always, and the patterns to begin with next time. Raises EngineError when the solver fails and there
        was no time for a first plan.
        """
        whole = Deadline(request.budget.deadline_s)
        first = registry.propose(FIRST, request, reporter=reporter).plan if _affords_first(request) else None
        begun = _Begun(whole, None if first is None else _own(first))
        reading = read(request.snapshot, request.movable)
        if begun.first is not None and not (reading.problem.workloads and reading.problem.kinds):
            return Thought(proposal=_with_insight(_proposal({FIRST: begun.first}, FIRST), request, (reading, begun)))
        try:
            return self._improve(request, reading, state, begun, reporter)
        except EngineError as error:
            if begun.first is None:
                raise
            reporter.event("joint.failed", error=error.message)
            facts = (Fact(name="error", value=error.message),)
            reason = Reason(code=ReasonCode.SOLVER_FAILED, subject=SPEC.name, facts=facts)
            fallen_back = _proposal({FIRST: begun.first}, FIRST, reasons=(reason,))
            return Thought(proposal=_with_insight(fallen_back, request, (reading, begun)))

    def _improve(
        self, request: PlanRequest, reading: Reading, state: bytes, begun: _Begun, reporter: Reporter
    ) -> Thought:
        whole = _counted(request, reading, begun.whole)
        answer = solved(self.solve, request, reading, state, _deadline(request, reading, begun.whole))
        layout, seats = answer.found, _seated(request, reading, (answer, whole), begun.first)
        more = open_ended(reading.snapshot)
        draft = Seated(request=request, reading=reading, seats=seats, first=begun.first, open_ended=more)
        plan = write(SPEC, draft)
        rivals = {SPEC.name: plan} if begun.first is None else {FIRST: begun.first, SPEC.name: plan}
        interrupted: tuple[float, ...] = ()
        if pursues(reading):
            rivals, interrupted = _pursued(request, draft, layout, rivals)
        rivals = {
            name: replace(item, bound_usd_per_h=_bound(reading, (layout, whole), item)) for name, item in rivals.items()
        }
        chosen = tuple(rivals)[better(request.snapshot, request.movable, tuple(rivals.values()), interrupted)]
        if more and chosen not in (STANDING, CAPACITY):
            chosen = _filled(draft, rivals, chosen, (layout, whole))
        reporter.event("joint.solved", chosen=chosen, usd_per_h=plan.objective.cost_usd_per_h, **layout.facts)
        # How long it took is told but is no part of the answer: equal answers are equal.
        told = {name: float(number) for name, number in layout.facts.items() if not name.endswith("_s")}
        facts = tuple(Fact(name=name, value=number) for name, number in sorted(told.items()))
        kept = remember(reading.problem, answer.patterns, answer.full_at_s)
        proposal = _proposal(rivals, chosen, facts=facts)
        return Thought(proposal=_with_insight(proposal, request, (reading, begun), layout), state=kept)


def _pursued(
    request: PlanRequest, draft: Seated, cheapest: Layout, rivals: dict[str, Plan]
) -> tuple[dict[str, Plan], tuple[float, ...]]:
    """What to choose from where capacity is pursued, and what each interrupts: what carries most too, where that can be
    acted on (not while a promotion is fresh and nobody is short), and what stands. That comes first, then: of the
    first planner's nobody knows what it interrupts, so it is left out.
    """
    snapshot = request.snapshot
    terms = _terms(request, draft.reading, draft.seats.floor, draft.first)
    standing, interrupted = held(draft.reading), {SPEC.name: _interrupted(draft.seats, draft.reading)}
    short = math.inf
    if standing is not None:
        now = write(SPEC, replace(draft, seats=_eager(seat(draft.seats.floor, standing, terms))))
        rivals, short = {STANDING: now, SPEC.name: rivals[SPEC.name]}, now.objective.unserved
    if short > SERVED_DUST or snapshot.taken_at_s >= snapshot.target.promoted_at_s + snapshot.policy.cooldown_s:
        layout = pursued(draft.reading, cheapest)
        if layout is not None:
            seats = _eager(seat(draft.seats.floor, layout, terms))
            interrupted[CAPACITY] = _interrupted(seats, draft.reading)
            rivals[CAPACITY] = write(SPEC, replace(draft, seats=seats))
    return rivals, tuple(interrupted.get(name, 0.0) for name in rivals)


def _eager(seats: Seats) -> Seats:
    seats.eager = True
    return seats


def _interrupted(seats: Seats, reading: Reading) -> float:
    """What counts as unserved of who is interrupted, as objectives count it."""
    period_s = reading.snapshot.policy.interruption_over_s
    parts = interrupted_rps(seats, period_s).items()
    return sum((reading.needs[number].weight * rate for number, rate in parts), start=0.0)


def _filled(draft: Seated, rivals: dict[str, Plan], chosen: str, found: tuple[Layout, Counted | None]) -> str:
    """Give what is spare to who can use more, if our own plan is as good as the chosen one. Against what stands it must
    stay better for all that, or else it would move for nothing.
    """
    terms, target = draft.request.snapshot.policy.terms, draft.request.snapshot.target
    as_good = rivals[SPEC.name].objective.key(terms) == rivals[chosen].objective.key(terms)
    clocks = {item.device: item.clock_mhz_sm for item in target.settings if item.clock_mhz_sm is not None}
    if not (as_good or target.assignments):
        return chosen
    changed = fill(draft.seats, draft.open_ended, clocks)
    filled = write(SPEC, draft) if changed else rivals[SPEC.name]
    if target.assignments and _nothing_moves(filled, draft) and _serves_as_much(filled, rivals[chosen]):
        rivals[SPEC.name] = replace(filled, bound_usd_per_h=_bound(draft.reading, found, filled))
        return SPEC.name
    if not (as_good and changed):
        return chosen
    if FIRST in rivals and target.assignments and filled.objective.key(terms) >= rivals[FIRST].objective.key(terms):
        return FIRST
    rivals[SPEC.name] = replace(filled, bound_usd_per_h=_bound(draft.reading, found, filled))
    return SPEC.name


def _nothing_moves(plan: Plan, draft: Seated) -> bool:
    """Whether every replica of the target goes on as it is, and no other begins."""
    stood = {item.replica: item for item in draft.request.snapshot.target.assignments}
    return len(plan.assignments) == len(stood) and all(
        (before := stood.get(item.replica)) is not None
        and (before.device, before.model, before.share_pct_sm, before.memory_mib_limit)
        == (item.device, item.model, item.share_pct_sm, item.memory_mib_limit)
        for item in plan.assignments
    )


def _serves_as_much(plan: Plan, other: Plan) -> bool:
    """Whether it leaves no more unserved and risks no more: what it costs beyond is spare that was given away."""
    mine, theirs = plan.objective, other.objective
    return mine.unserved <= theirs.unserved + SERVED_DUST and mine.slo_risk <= theirs.slo_risk + SERVED_DUST


@dataclass(frozen=True, slots=True)
class _Begun:
    """What there is before the solve: the clock that runs, and the first plan where there was time for one."""

    whole: Deadline
    first: Plan | None


def _affords_first(request: PlanRequest) -> bool:
    """Whether the first planner is done in a small part of the time, by the size of the fleet alone."""
    snapshot = request.snapshot
    devices = len(snapshot.devices) + sum(offer.count_max for offer in snapshot.offers)
    seconds = FIRST_S_PER_WORKLOAD * len(request.movable) + FIRST_S_PER_PAIR * len(request.movable) * devices
    return seconds <= FIRST_PART_MAX * request.budget.deadline_s


def _own(plan: Plan) -> Plan:
    """Another planner's plan as ours: we answer for it."""
    return replace(plan, planner=SPEC.name, planner_version=SPEC.version)


def _deadline(request: PlanRequest, reading: Reading, whole: Deadline) -> Deadline:
    """What is left to the solve, with enough kept back for seating and writing."""
    devices = sum(len(pool) for pool in reading.pool_devices)
    reserve = RESERVE_S + RESERVE_S_PER_DEVICE * devices + RESERVE_S_PER_WORKLOAD * len(reading.problem.workloads)
    reserve += seconds_of(reading.problem, request.budget.deadline_s)
    seconds = max(SOLVE_PART_MIN * request.budget.deadline_s, whole.left_s - reserve)
    return Deadline(seconds, request.budget.work_units)


def _counting(request: PlanRequest, whole: Deadline) -> Deadline:
    """What counting may take, where the problem is a matter of counting."""
    return Deadline(COUNTING_PART * min(whole.left_s, request.budget.deadline_s), request.budget.work_units)


def _counted(request: PlanRequest, reading: Reading, whole: Deadline) -> Counted | None:
    """Where counting is all there is to it: the best count, and the best of those that interrupt nobody."""
    policy = request.snapshot.policy
    gap = policy.gap_pct_target / 100
    found = counted(reading.problem, _counting(request, whole), gap)
    if found is None or not reading.standing:
        return found
    terms = ChangeTerms(
        launch_usd_per_s=policy.launch_usd_per_s,
        restart_part=policy.gain_pct_min / 100,
        period_s=policy.interruption_over_s,
        remembered_s=policy.demand_lookback_s,
        gap=gap,
        bound_usd_per_h=found.bound_usd_per_h,
    )
    return replace(found, gentle=gentle(floor_of(reading), terms, _counting(request, whole)))


def _bound(reading: Reading, found: tuple[Layout, Counted | None], plan: Plan) -> float | None:
    """The better of what the solve and what counting proved, which holds for plans that serve everybody."""
    layout, whole = found
    bounds = [bound_of(reading, layout, plan)]
    if whole is not None and whole.bound_usd_per_h is not None:
        served = {item.id: 0.0 for item in reading.problem.workloads}
        for item in plan.assignments:
            served[item.workload] = served.get(item.workload, 0.0) + item.capacity_rps
        if all(served[item.id] >= item.rate_rps * (1 - SERVED_DUST) for item in reading.problem.workloads):
            bounds.append(bound_of(reading, replace(layout, bound_usd_per_h=whole.bound_usd_per_h), plan))
    return max((bound for bound in bounds if bound is not None), default=None)


def _seated(request: PlanRequest, reading: Reading, found: tuple[Solved, Counted | None], first: Plan | None) -> Seats:
    answer, whole = found
    policy = request.snapshot.policy
    floor = floor_of(reading)
    terms = _terms(request, reading, floor, first)
    mild = None if whole is None else whole.gentle
    others = (answer.held, None if whole is None else whole.layout, None if mild is None else mild.layout)
    layouts = (*(item for item in others if item is not None), answer.found)
    part, period_s = policy.gain_pct_min / 100, policy.interruption_over_s if mild is None else mild.period_s
    return min(
        (seat(floor, layout, terms) for layout in layouts),
        key=lambda item: (
            item.worth(policy.launch_usd_per_s, part)
            + breaks_usd(item, period_s)
            + (0.0 if whole is None else slights_usd(item))
        ),
    )


def _terms(request: PlanRequest, reading: Reading, floor: Floor, first: Plan | None) -> Terms:
    return Terms(
        deadline=Deadline(request.budget.deadline_s, None if request.budget.work_units is None else UNLIMITED),
        launch_usd_per_s=request.snapshot.policy.launch_usd_per_s,
        quotas={str(name): gpus for name, gpus in reading.problem.quotas},
        job_most_pct=_jobs(reading, floor, first),
        job_left_s=_left_s(reading, floor),
        jobs_first=_jobs_first(request.snapshot.policy),
    )


def _jobs(reading: Reading, floor: Floor, first: Plan | None) -> Mapping[int, int]:
    """How far each job may grow: where share costs, no farther than in the first plan, else to its owner's bound; where
    memory costs, not to the whole device.
    """
    bounds: dict[WorkloadId, int] = {WorkloadId(job.id): job.share_pct_sm_max for job in reading.snapshot.jobs}
    least = {WorkloadId(job.id): job.share_pct_sm_min for job in reading.snapshot.jobs}
    basis, free = reading.snapshot.policy.cost_basis, _jobs_first(reading.snapshot.policy)
    if basis is CostBasis.SHARE and not free:
        seated = () if first is None else first.assignments
        given = {item.workload: item.share_pct_sm for item in seated if item.kind is WorkloadKind.JOB}
        bounds = {job: given.get(job, least[job]) for job in bounds}
    if basis is CostBasis.MEMORY and not free:
        bounds = {job: max(least[job], min(share, WHOLE_PCT - 1)) for job, share in bounds.items()}
    jobs = {need.workload for need in reading.needs if need.kind is WorkloadKind.JOB}
    return {number: bounds[item.id] for number, item in enumerate(floor.problem.workloads) if item.id in jobs}


def _jobs_first(policy: Policy) -> bool:
    """Whether how fast jobs run counts before what devices cost."""
    terms = policy.terms
    return Term.TRAINING in terms and terms.index(Term.TRAINING) < terms.index(Term.COST)


def _left_s(reading: Reading, floor: Floor) -> Mapping[int, float]:
    """What each job has still to do, as its owner reckons."""
    done = {item.workload: item.done for item in reading.snapshot.job_statuses}
    left = {
        WorkloadId(job.id): (job.iterations_total - done.get(WorkloadId(job.id), 0)) * job.iteration_ms_reference / 1000
        for job in reading.snapshot.jobs
    }
    return {number: left[item.id] for number, item in enumerate(floor.problem.workloads) if item.id in left}


def _proposal(
    rivals: Mapping[str, Plan], chosen: str, *, reasons: tuple[Reason, ...] = (), facts: tuple[Fact, ...] = ()
) -> Proposal:
    plan = rivals[chosen]
    optimal = plan.gap_pct is not None and plan.gap_pct <= GAP_PROVEN_PCT
    contenders = tuple(
        Contender(name=name, objective=item.objective, bound_usd_per_h=item.bound_usd_per_h, gap_pct=item.gap_pct)
        for name, item in rivals.items()
    )
    return Proposal(
        status=ProposalStatus.OPTIMAL if optimal else ProposalStatus.FEASIBLE,
        planner=SPEC.name,
        plan=plan,
        reasons=(*reasons, _summary(plan)),
        insight=Insight(contenders=contenders, facts=facts),
    )


def _with_insight(
    proposal: Proposal, request: PlanRequest, at: tuple[Reading, _Begun], layout: Layout | None = None
) -> Proposal:
    """With what was found out on the way, where there is time for it."""
    reading, begun = at
    told = proposal.insight or Insight()
    if proposal.plan is None:
        return proposal
    left_s = None if request.budget.work_units is not None else begun.whole.left_s
    found = explained(reading, layout or Layout(patterns=(), counts=()), proposal.plan, left_s)
    if found is None:
        return proposal
    return replace(proposal, insight=replace(found, contenders=told.contenders, facts=(*told.facts, *found.facts)))


def _summary(plan: Plan) -> Reason:
    facts = [
        Fact(name="usd_per_h", value=round(plan.objective.cost_usd_per_h, 6)),
        Fact(name="devices_in_use", value=float(len({item.device for item in plan.assignments}))),
        Fact(name="unserved", value=round(plan.objective.unserved, 6)),
    ]
    if plan.bound_usd_per_h is not None and plan.gap_pct is not None:
        facts.append(Fact(name="bound_usd_per_h", value=round(plan.bound_usd_per_h, 6)))
        facts.append(Fact(name="gap_pct", value=round(plan.gap_pct, 4)))
    return Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=SPEC.name, facts=tuple(facts))
