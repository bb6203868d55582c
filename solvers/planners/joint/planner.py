"""The joint planner: all eight knobs in one problem, with a proven bound, and never worse than greed.

The order of a proposal: a greedy plan first, so that there is an answer at once; then read, solve, seat and write; the
better of both by the policy's objective is proposed, and both are told with bound and gap. An engine that fails costs
its own answer, never the greedy one. Time goes by the size of the fleet, so that an answer is written before the
deadline; with counted work everything is repeatable.

A plan must be at least as good as the first one; among those, one that can be acted on at once (`models.worth`, which
the gate asks too) is preferred to a better one that would only wait. Where capacity is pursued, what carries most and
what stands compete instead of the first planner's plan. What is spare at last goes to services that can use more, if
our own plan is as good as the chosen one.

Every plan is told with a bound (`certificate`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from solvers.domain.evidence import Contender, Fact, Insight, Reason, ReasonCode, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.domain.policy import CostBasis, Term
from solvers.domain.snapshot import Snapshot
from solvers.engines.deadline import Deadline
from solvers.errors import EngineError
from solvers.models.worth import Step, worth_acting, worth_of
from solvers.planners import registry
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Recalling, Thought
from solvers.planners.joint.certificate import Certificate
from solvers.planners.joint.change import Solve, Solved, solved
from solvers.planners.joint.explain.explaining import SHORT_MAX, explained
from solvers.planners.joint.memory import named, prices_of, remember
from solvers.planners.joint.reading.formulation import Reading, read
from solvers.planners.joint.reading.loosened import loosened
from solvers.planners.joint.seat.seating import seat
from solvers.planners.joint.seat.seats import Floor, Seats, Terms, floor_of
from solvers.planners.joint.seat.standing import breaks_usd, interrupted_rps
from solvers.planners.joint.solve.solve import solve
from solvers.planners.joint.spare import fill, pursued, pursues
from solvers.planners.joint.whole_devices import ChangeTerms, Counted, counted, gentle, slights_usd
from solvers.planners.joint.write import Seated, write
from solvers.problems.joint import WHOLE_PCT
from solvers.problems.patterns import Layout, Prices

SPEC = PlannerSpec(
    name="joint",
    about="all knobs in one problem, with a proven bound",
    version="1",
    knobs=tuple(Knob),
    leaves_clock_open=True,
)
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
RESERVE_S = 0.05
RESERVE_S_PER_DEVICE = 0.0004
RESERVE_S_PER_WORKLOAD = 0.0004
"""What seating and writing take."""
EXPLAIN_S = 0.05
EXPLAIN_S_PER_WORKLOAD = 0.0006
EXPLAIN_S_PER_SHORT = 0.25
EXPLAIN_SHORT_PART = 0.05
"""Of the deadline, for those that are short."""
UNLIMITED = 2**62
DUST = 1e-6
STANDING, CAPACITY = "standing", "capacity"
"""Contenders where capacity is pursued: what stands, and what carries most."""


@dataclass(frozen=True, slots=True)
class Joint(Recalling):
    """See the module. `solve` can be another one in tests; `first` names who answers first and must be quick."""

    solve: Solve = field(default=solve)
    first: str = "greedy"

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
        clock = Deadline(request.budget.deadline_s)
        first = registry.propose(self.first, request, reporter=reporter).plan if affords_first(request) else None
        reading = read(request.snapshot, request.movable)
        attempt = Attempt(request=request, reading=reading, clock=clock, first=None if first is None else _own(first))
        if attempt.first is not None and not (reading.problem.workloads and reading.problem.kinds):
            return Thought(proposal=self._fallen_back(attempt, attempt.first))
        try:
            return self._improve(attempt, state, reporter)
        except EngineError as error:
            if attempt.first is None:
                raise
            reporter.event("joint.failed", error=error.message)
            facts = (Fact(name="error", value=error.message),)
            reason = Reason(code=ReasonCode.SOLVER_FAILED, subject=SPEC.name, facts=facts)
            return Thought(proposal=self._fallen_back(attempt, attempt.first, reason))

    def _improve(self, attempt: Attempt, state: bytes, reporter: Reporter) -> Thought:
        request, reading = attempt.request, attempt.reading
        whole = counted_for(attempt)
        deadline = attempt.solve_deadline()
        answer = solved(self.solve, request, reading, state, deadline)
        found, layout = (
            Found(solved=answer, counted=whole, certificate=attempt.certificate(answer.kept.prices, deadline)),
            answer.found,
        )
        rivals = rivals_of(attempt, seats_of(attempt, found), found, self.first)
        usd_per_h = rivals.plans[SPEC.name].objective.cost_usd_per_h
        reporter.event("joint.solved", chosen=rivals.chosen, usd_per_h=usd_per_h, **layout.facts)
        # How long it took is told but is no part of the answer: equal answers are equal.
        told = {name: float(number) for name, number in layout.facts.items() if not name.endswith("_s")}
        facts = tuple(Fact(name=name, value=number) for name, number in sorted(told.items()))
        kept = remember(reading.problem, answer.kept)
        return Thought(proposal=_proposal(attempt, rivals, layout, facts=facts), state=kept)

    def _fallen_back(self, attempt: Attempt, first: Plan, *reasons: Reason) -> Proposal:
        bound = attempt.certificate(None, attempt.clock).bound(first)
        rivals = Rivals(plans={self.first: replace(first, bound_usd_per_h=bound)}, chosen=self.first)
        return _proposal(attempt, rivals, Layout(patterns=(), counts=()), reasons=reasons)


def _own(plan: Plan) -> Plan:
    """Another planner's plan as ours: we answer for it."""
    return replace(plan, planner=SPEC.name, planner_version=SPEC.version)


def _proposal(
    attempt: Attempt,
    rivals: Rivals,
    layout: Layout,
    *,
    reasons: tuple[Reason, ...] = (),
    facts: tuple[Fact, ...] = (),
) -> Proposal:
    """With what was found out on the way, where there is time for it."""
    plan = rivals.plan
    optimal = plan.gap_pct is not None and plan.gap_pct <= GAP_PROVEN_PCT
    contenders = tuple(
        Contender(name=name, objective=item.objective, bound_usd_per_h=item.bound_usd_per_h, gap_pct=item.gap_pct)
        for name, item in rivals.plans.items()
    )
    most = attempt.explained_most()
    told = Insight() if most is None else explained(attempt.reading, layout, plan, most)
    return Proposal(
        status=ProposalStatus.OPTIMAL if optimal else ProposalStatus.FEASIBLE,
        planner=SPEC.name,
        plan=plan,
        reasons=(*reasons, _summary(plan)),
        insight=replace(told, contenders=contenders, facts=(*facts, *told.facts)),
    )


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


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """See the module."""

    request: PlanRequest
    reading: Reading
    clock: Deadline
    """Runs since the request came."""
    first: Plan | None
    """As ours, where there was time for one."""

    @cached_property
    def floor(self) -> Floor:
        """The devices behind the reading's pools."""
        return floor_of(self.reading)

    def _explain_s(self) -> float:
        """What it takes to explain a plan in which no workload is short."""
        return EXPLAIN_S + EXPLAIN_S_PER_WORKLOAD * len(self.reading.problem.workloads)

    def solve_deadline(self) -> Deadline:
        """What is left to the solve, with enough kept back for seating, writing and explaining."""
        budget, problem = self.request.budget, self.reading.problem
        devices = sum(len(pool) for pool in self.reading.pool_devices)
        reserve = RESERVE_S + RESERVE_S_PER_DEVICE * devices + RESERVE_S_PER_WORKLOAD * len(problem.workloads)
        reserve += self._explain_s() + min(SHORT_MAX * EXPLAIN_S_PER_SHORT, EXPLAIN_SHORT_PART * budget.deadline_s)
        return Deadline(max(SOLVE_PART_MIN * budget.deadline_s, self.clock.left_s - reserve), budget.work_units)

    def certificate(self, prices: Prices | None, deadline: Deadline) -> Certificate:
        """What prices of this solve, or of an earlier one, prove of whatever plan."""
        loose = loosened(self.request.snapshot, self.request.movable, self.reading)
        if prices is not None and loose.problem is not self.reading.problem:
            prices = prices_of(loose.problem, named(self.reading.problem, prices))
        return Certificate.of(loose, prices, deadline)

    def explained_most(self) -> int | None:
        """Of how many short workloads there is time to tell what would have to give; None: no time for anything."""
        if self.request.budget.work_units is not None:
            return SHORT_MAX
        spare_s = self.clock.left_s - self._explain_s()
        return None if spare_s < 0 else min(SHORT_MAX, int(spare_s / EXPLAIN_S_PER_SHORT))

    def counting_deadline(self) -> Deadline:
        """What counting may take, where the problem is a matter of counting."""
        budget = self.request.budget
        return Deadline(COUNTING_PART * min(self.clock.left_s, budget.deadline_s), budget.work_units)

    @cached_property
    def terms(self) -> Terms:
        """What seating is bound to. Seating counts no work, so where work is counted no clock may end it. A job may
        grow to its owner's bound; where cost counts before how fast jobs run, no farther than in the first plan if
        shares are paid, and not to the whole device if memory is.
        """
        snapshot, budget = self.reading.snapshot, self.request.budget
        policy, order = snapshot.policy, snapshot.policy.terms
        jobs_first = Term.TRAINING in order and order.index(Term.TRAINING) < order.index(Term.COST)
        given = {item.workload: item.share_pct_sm for item in (() if self.first is None else self.first.assignments)}
        done = {item.workload: item.done for item in snapshot.job_statuses}
        jobs = {WorkloadId(job.id): job for job in snapshot.jobs}
        most_pct, left_s = dict[int, int](), dict[int, float]()
        for number, work in enumerate(self.reading.problem.workloads):
            if work.id not in jobs:
                continue
            job = jobs[work.id]
            left_s[number] = (job.iterations_total - done.get(work.id, 0)) * job.iteration_ms_reference / 1000
            most_pct[number] = job.share_pct_sm_max
            if policy.cost_basis is CostBasis.SHARE and not jobs_first:
                most_pct[number] = given.get(work.id, job.share_pct_sm_min)
            elif policy.cost_basis is CostBasis.MEMORY and not jobs_first:
                most_pct[number] = max(job.share_pct_sm_min, min(job.share_pct_sm_max, WHOLE_PCT - 1))
        return Terms(
            deadline=Deadline(budget.deadline_s, None if budget.work_units is None else UNLIMITED),
            launch_usd_per_s=policy.launch_usd_per_s,
            job_most_pct=most_pct,
            job_left_s=left_s,
            jobs_first=jobs_first,
        )

    def written(self, seats: Seats, *, eager: bool = False) -> Plan:
        """Of these seats; `eager`: what stands goes on with the largest batches that it bears."""
        seated = Seated(request=self.request, reading=self.reading, seats=seats, first=self.first, eager=eager)
        return write(SPEC, seated)


def affords_first(request: PlanRequest) -> bool:
    """Whether the first planner is done in a small part of the time, by the size of the fleet alone."""
    snapshot = request.snapshot
    devices = len(snapshot.devices) + sum(offer.count_max for offer in snapshot.offers)
    seconds = FIRST_S_PER_WORKLOAD * len(request.movable) + FIRST_S_PER_PAIR * len(request.movable) * devices
    return seconds <= FIRST_PART_MAX * request.budget.deadline_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the solve found, and what counting did where that is all there is to it."""

    solved: Solved
    counted: Counted | None
    certificate: Certificate


def counted_for(attempt: Attempt) -> Counted | None:
    """Where counting is all there is to it: the best count, and the best of those that interrupt nobody."""
    policy, reading = attempt.request.snapshot.policy, attempt.reading
    gap = policy.gap_pct_target / 100
    found = counted(reading.problem, attempt.counting_deadline(), gap)
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
    return replace(found, gentle=gentle(attempt.floor, terms, attempt.counting_deadline()))


def seats_of(attempt: Attempt, found: Found) -> Seats:
    """The layout that is worth most with its launches and interruptions, seated."""
    policy, whole = attempt.request.snapshot.policy, found.counted
    mild = None if whole is None else whole.gentle
    others = (found.solved.held, None if whole is None else whole.layout, None if mild is None else mild.layout)
    layouts = (*(item for item in others if item is not None), found.solved.found)
    part, period_s = policy.gain_pct_min / 100, policy.interruption_over_s if mild is None else mild.period_s
    seated = [seat(attempt.floor, layout, attempt.terms) for layout in layouts]
    usd_per_h = [
        item.worth(policy.launch_usd_per_s, part)
        + breaks_usd(item, period_s)
        + (0.0 if whole is None else slights_usd(item))
        for item in seated
    ]
    return seated[usd_per_h.index(min(usd_per_h))]


def bounded(found: Found, plan: Plan) -> Plan:
    """The plan with the better of what prices and what counting proved; counting holds for plans that serve everybody,
    where nothing is pinned.
    """
    bound, whole, loose = found.certificate.bound(plan), found.counted, found.certificate.problem
    if whole is not None and whole.bound_usd_per_h is not None and not loose.pinned:
        served: dict[WorkloadId, float] = defaultdict(float)
        for item in plan.assignments:
            served[item.workload] += item.capacity_rps
        if all(served[item.id] >= item.rate_rps * (1 - DUST) for item in loose.problem.workloads):
            cost = plan.objective.cost_usd_per_h
            bound = max(bound, min(whole.bound_usd_per_h, cost) if whole.bound_usd_per_h <= cost * (1 + DUST) else 0.0)
    return replace(plan, bound_usd_per_h=bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """Complete plans by contender, the one that sets the mark first."""

    plans: Mapping[str, Plan]
    chosen: str

    @property
    def plan(self) -> Plan:
        """The one to propose."""
        return self.plans[self.chosen]


def rivals_of(attempt: Attempt, seats: Seats, found: Found, first: str) -> Rivals:
    """All contenders with their bounds, and the one to propose. `first`: the name of the first plan's planner."""
    own, request = SPEC.name, attempt.request
    plans = {} if attempt.first is None else {first: attempt.first}
    plans[own] = attempt.written(seats)
    interrupted: Mapping[str, float] = {}
    if pursues(attempt.reading):
        plans, interrupted = _pursued(attempt, seats, found.solved.found, plans)
    plans = {name: bounded(found, item) for name, item in plans.items()}
    parts = [interrupted.get(name, 0.0) for name in plans]
    chosen = tuple(plans)[better(request.snapshot, request.movable, tuple(plans.values()), parts)]
    rivals = Rivals(plans=plans, chosen=chosen)
    if not attempt.reading.open_ended or chosen in (STANDING, CAPACITY):
        return rivals
    return _filled(attempt, seats, found, rivals, plans.get(first))


def better(
    snapshot: Snapshot, movable: tuple[WorkloadId, ...], plans: Sequence[Plan], interrupted: Sequence[float] = ()
) -> int:
    """Index of the plan to propose; the first one sets the mark. `interrupted`: what counts as unserved of each as
    well, where it is known.
    """
    terms = snapshot.policy.terms
    counted = [
        replace(plan, objective=replace(plan.objective, unserved=plan.objective.unserved + more))
        for plan, more in zip(plans, interrupted or [0.0] * len(plans), strict=True)
    ]
    keys = [plan.objective.key(terms) for plan in counted]
    able = [index for index, key in enumerate(keys) if key <= keys[0]]
    if len(able) > 1:
        target = snapshot.target
        now = worth_of(snapshot, movable, target.assignments, target.settings).objective
        able = [able[number] for number in worth_acting(Step.of(snapshot, now, plans[index]) for index in able)]
    return min(able, key=lambda index: (keys[index], index))


def _pursued(
    attempt: Attempt, seats: Seats, cheapest: Layout, plans: Mapping[str, Plan]
) -> tuple[dict[str, Plan], dict[str, float]]:
    """What to choose from where capacity is pursued, and what each interrupts: what carries most too, where that can be
    acted on (not while a promotion is fresh and nobody is short), and what stands. That comes first, then: of the
    first planner's nobody knows what it interrupts, so it is left out.
    """
    snapshot, reading, own = attempt.request.snapshot, attempt.reading, SPEC.name
    standing, interrupted = reading.standing_patterns, {own: _interrupted(reading, seats)}
    found, short = dict(plans), math.inf
    if standing:
        patterns, counts = tuple(item.pattern for item in standing), tuple(item.devices for item in standing)
        as_is = seat(attempt.floor, Layout(patterns=patterns, counts=counts), attempt.terms)
        now = attempt.written(as_is, eager=True)
        found, short = {STANDING: now, own: plans[own]}, now.objective.unserved
    if short > DUST or snapshot.taken_at_s >= snapshot.target.promoted_at_s + snapshot.policy.cooldown_s:
        layout = pursued(reading, cheapest)
        if layout is not None:
            most = seat(attempt.floor, layout, attempt.terms)
            interrupted[CAPACITY] = _interrupted(reading, most)
            found[CAPACITY] = attempt.written(most, eager=True)
    return found, interrupted


def _interrupted(reading: Reading, seats: Seats) -> float:
    """What counts as unserved of who is interrupted, as objectives count it."""
    weights = {need.workload: need.weight for need in reading.needs}
    parts = interrupted_rps(seats, reading.snapshot.policy.interruption_over_s).items()
    return sum((weights[reading.problem.workloads[number].id] * rate for number, rate in parts), start=0.0)


def _filled(attempt: Attempt, seats: Seats, found: Found, rivals: Rivals, first: Plan | None) -> Rivals:
    """Give what is spare to who can use more, if our own plan is as good as the chosen one. Against what stands it must
    stay better for all that, or else it would move for nothing.
    """
    own, snapshot = SPEC.name, attempt.request.snapshot
    terms, target = snapshot.policy.terms, snapshot.target
    as_good = rivals.plans[own].objective.key(terms) == rivals.plan.objective.key(terms)
    if not (as_good or target.assignments):
        return rivals
    clocks = {item.device: item.clock_mhz_sm for item in target.settings if item.clock_mhz_sm is not None}
    changed = fill(seats, attempt.reading.open_ended, clocks)
    filled = attempt.written(seats) if changed else rivals.plans[own]
    nothing_moves = filled.objective.churn == 0 and len(filled.assignments) == len(target.assignments)
    stays = target.assignments and nothing_moves and _serves_as_much(filled, rivals.plan)
    if not stays and not (as_good and changed):
        return rivals
    if (
        not stays
        and first is not None
        and target.assignments
        and filled.objective.key(terms) >= first.objective.key(terms)
    ):
        return replace(rivals, chosen=next(iter(rivals.plans)))
    return Rivals(plans={**rivals.plans, own: bounded(found, filled)}, chosen=own)


def _serves_as_much(plan: Plan, other: Plan) -> bool:
    """Whether it leaves no more unserved and risks no more: what it costs beyond is spare that was given away."""
    mine, theirs = plan.objective, other.objective
    return mine.unserved <= theirs.unserved + DUST and mine.slo_risk <= theirs.slo_risk + DUST
