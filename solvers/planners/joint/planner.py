"""The joint planner: all eight knobs in one problem, with a proven bound, and never worse than greed.

A greedy plan first, or what stands, so that there is an answer at once; then read, solve, seat and write. The best plan
by the policy's objective is proposed, and all are told with bound and gap (`certificate`). An engine that fails costs
its own answer alone. Time goes by the size of the fleet; where counted work ends first, everything is repeatable. Every
complete plan that is better than those before is handed over at once, so that whoever stops the planner has it.

Among plans at least as good as the first, one that can be acted on at once (`models.worth`, which the gate asks too) is
preferred to a better one that would only wait. Where capacity is pursued, what carries most and what stands compete.
What is spare at last goes to services that can use more, if our own plan is as good as the chosen one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from solvers.domain.evidence import Contender, Fact, Insight, Reason, ReasonCode, Reporter, facts_of
from solvers.domain.ids import DeviceId
from solvers.domain.plan import Destination, Plan, PlannerEnding, Proposal, ProposalStatus
from solvers.engines.deadline import Deadline
from solvers.errors import EngineError
from solvers.models.worth import aim_of
from solvers.planners import registry
from solvers.planners.base import IncumbentTaker, PlannerSpec, PlanRequest, Recalling, Thought, hand_over
from solvers.planners.joint.attempt import NOTHING, SPEC, WAY_WRITES, Attempt, Kept, affords_first, rearranges, remember
from solvers.planners.joint.certificate import Certificate, solved_usd
from solvers.planners.joint.change import JointSearch, Solve, Solved, asked_again, breaks_limits, solved
from solvers.planners.joint.explain.explaining import explained
from solvers.planners.joint.reading.formulation import Reading, read
from solvers.planners.joint.seat.seating import match, seat, seatings
from solvers.planners.joint.seat.seats import DUST, Seats
from solvers.planners.joint.seat.standing import breaks_usd, interruptions, lawful, seated_as, stopover
from solvers.planners.joint.solve.branch import few_devices
from solvers.planners.joint.solve.reach import SHORT_LEAST
from solvers.planners.joint.solve.solve import SolveOrder, solve
from solvers.planners.joint.spare import fill, pursued, pursues
from solvers.planners.joint.whole_devices import counted
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import EMPTY, Layout, Pattern

GAP_PROVEN_PCT, WIDE_PCT = 1e-4, 10.0
"""A gap that is none; and one for which prices of an earlier solve are settled anew."""
ANSWERING_PART = 0.93
"""Of the deadline: then the answer begins to be handed over."""
COUNTING_PART = 0.3
"""Of the deadline, where every replica takes a whole device."""
FEWER_UNITS = 1000
"""What it may take to change less of what stands, where seating made too much of it."""
EXCHANGE_UNITS = 2000
"""What exchanging devices under every node's own cap may take, where nobody counts work."""
WAY_UNITS, WAY_GAP = 1000, 0.05
"""What finding room may take, and how near its bound what serves for minutes alone is near enough."""
ADVANCE_GAIN, ADVANCE_LEAP = 0.005, 0.05
ADVANCE_PAUSE, ADVANCE_WORTH = 8.0, 2.0
"""A layout is seated and handed over on the way where it is cheaper by this part, and this many times as long has
passed as that takes, or it is cheaper by a leap; and so many times as long is left to the search, which has more use
for less.
"""
Toward = tuple[tuple[DeviceId, Pattern], ...]
FIRST, STANDING, CAPACITY = "greedy", "standing", "capacity"
"""Contenders: who answers first, and must be quick; what stands; and what carries most, where capacity is pursued."""


@dataclass(frozen=True, slots=True)
class Joint(Recalling):
    """See the module. `solve` can be another one in tests."""

    solve: Solve = field(default=solve)

    @property
    def spec(self) -> PlannerSpec:
        return SPEC

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """A plan always, and patterns for next time. Raises EngineError without one, where the solver fails."""
        clock = Deadline(ANSWERING_PART * request.budget.deadline_s)
        first = None if request.snapshot.target.assignments else _first(request, reporter)
        reading = read(request.snapshot, request.movable)
        attempt = Attempt(request=request, reading=reading, clock=clock, first=first, first_by=FIRST, reporter=reporter)
        if request.snapshot.target.assignments:
            attempt = _standing(attempt)
        if not (reading.problem.workloads and reading.problem.kinds):
            attempt = _with_first(attempt)
            if attempt.first is not None:
                return Thought(proposal=self._fallen_back(attempt, attempt.first))
        try:
            return self._improve(attempt, state)
        except EngineError as error:
            attempt = _with_first(attempt)
            if attempt.first is None:
                raise
            reporter.event("joint.failed", error=error.message)
            reason = Reason(code=ReasonCode.SOLVER_FAILED, subject=SPEC.name, facts=facts_of(error=error.message))
            return Thought(proposal=self._fallen_back(attempt, attempt.first, reason))

    def _improve(self, attempt: Attempt, state: bytes) -> Thought:
        request, reading = attempt.request, attempt.reading
        gap = request.snapshot.policy.gap_pct_target / 100
        counting = Deadline(COUNTING_PART * attempt.clock.left_s, request.budget.work_units)
        whole, deadline = counted(reading.problem, counting, gap), attempt.solve_deadline()
        advance = Advance(attempt=attempt, deadline=deadline)
        advance.begin()
        if deadline.late:
            advance.stuck()
            if (first := advance.attempt.first) is not None:
                return Thought(proposal=replace(self._fallen_back(attempt, first), ending=PlannerEnding.DEADLINE))
        search = JointSearch(
            solve=self.solve, deadline=deadline, better=advance.better, mended=advance.mended, stuck=advance.stuck
        )
        answer = solved(search, request, reading, state)
        attempt = advance.attempt
        if attempt.hurried and advance.best is not None:
            # There is no time to write another one: what was handed over is the answer.
            by = attempt.first_by if advance.best is attempt.first and attempt.first_by != STANDING else None
            return Thought(proposal=replace(_bare(advance.best, by), ending=PlannerEnding.DEADLINE))
        reached = (answer.reached.layout,) if answer.reached else ()
        certificate = attempt.certificate(answer.kept, answer.found, *answer.found.before, *reached)
        ending = deadline.ending
        found = Found(solved=answer, counted=whole, certificate=certificate, solve=self.solve, mended=advance.patch)
        rivals = rivals_of(attempt, seats_of(attempt, found), found)
        if rivals.plan.objective.unserved > DUST and attempt.first is None:
            attempt = _with_first(attempt)
            rivals = rivals_of(attempt, seats_of(attempt, found), found)
        by = None if rivals.chosen in (SPEC.name, STANDING) else rivals.chosen
        urgent = rivals.plan.unplaced or advance.best is None or not rearranges(request)
        if urgent or few_devices(reading.problem):
            # To prove and to say what would have to give takes longest, and is least.
            hand_over(attempt.reporter, _bare(rivals.plan, by))
        rivals, kept = _closer(attempt, found, rivals)
        usd_per_h = rivals.plans[SPEC.name].objective.cost_usd_per_h
        attempt.reporter.event("joint.solved", chosen=rivals.chosen, usd_per_h=usd_per_h, **answer.found.facts)
        # How long it took is told but is no part of the answer: equal answers are equal.
        told = sorted(item for item in answer.found.facts.items() if not item[0].endswith("_s"))
        facts = facts_of(**{name: float(number) for name, number in told})
        kept = asked_again(replace(kept, toward=rivals.toward or kept.toward), rivals.plan, request.snapshot.target)
        proposal = replace(_proposal(attempt, rivals, answer.found, facts=facts), ending=ending, by=by)
        return Thought(proposal=proposal, state=remember(reading.problem, kept))

    def _fallen_back(self, attempt: Attempt, first: Plan, *reasons: Reason) -> Proposal:
        bound = attempt.certificate(NOTHING).bound(first)
        rivals = Rivals(plans={attempt.first_by: replace(first, bound_usd_per_h=bound)}, chosen=attempt.first_by)
        proposal = _proposal(attempt, rivals, EMPTY, reasons=reasons)
        return replace(proposal, by=None if attempt.first_by == STANDING else attempt.first_by)


def _first(request: PlanRequest, reporter: Reporter, *, urged: bool = False) -> Plan | None:
    """The first planner's plan as ours, handed over at once, if there is time for it."""
    found = registry.propose(FIRST, request, reporter=reporter).plan if affords_first(request, urged) else None
    if found is not None:
        found = replace(found, planner=SPEC.name, planner_version=SPEC.version)
        hand_over(reporter, _bare(found, FIRST))
    return found


def _with_first(attempt: Attempt, *, urged: bool = False) -> Attempt:
    if attempt.first is not None:
        return attempt
    return replace(attempt, first=_first(attempt.request, attempt.reporter, urged=urged))


def _standing(attempt: Attempt) -> Attempt:
    """With what stands as the first plan, handed over at once, where it leaves nobody short and keeps all limits."""
    stands = attempt.reading.stands
    if stands.leaves_short(attempt.reading.problem) or breaks_limits(attempt.reading):
        return attempt
    plan = attempt.written(seat(attempt.floor, stands, attempt.terms))
    hand_over(attempt.reporter, _bare(plan))
    return replace(attempt, first=plan, first_by=STANDING)


@dataclass(slots=True, kw_only=True)
class Advance:
    """Hands over what a solve finds on its way, no more often than seating it is worth."""

    attempt: Attempt
    deadline: Deadline
    """Of the search."""
    best: Plan | None = None
    best_usd: float = math.inf
    """Of the best layout, what it leaves unserved priced in."""
    patch: Seats | None = None
    """What stands, with so much beside it that everybody is served."""
    resting_until_s: float = 0.0
    took_s: float = 0.0
    """To seat and write the last one."""

    def begin(self) -> None:
        """Nothing but the first plan was handed over."""
        self.best = first = self.attempt.first
        self.best_usd = math.inf if first is None or first.unplaced else first.objective.cost_usd_per_h

    def stuck(self) -> None:
        """What stands serves not everybody, however little changes: where there is no first plan, ask for one."""
        if self.attempt.first is None:
            self.attempt = _with_first(self.attempt)
            self.begin()

    def mended(self) -> bool:
        """Whether who is short of what stands can be served by a little more beside it."""
        attempt = self.attempt
        seats = seat(attempt.floor, attempt.reading.stands, attempt.terms)
        if not seats.unserved():
            self.patch = seats
        return self.patch is not None

    def better(self, layout: Layout) -> None:
        """Seat a layout and hand it over, if it is a good deal better than what was; the first one however late."""
        attempt = self.attempt
        usd, begun_s = layout.judged_usd(attempt.reading.problem), attempt.clock.elapsed_s
        gain = ADVANCE_LEAP if begun_s < self.resting_until_s else ADVANCE_GAIN
        if not isinstance(attempt.reporter, IncumbentTaker) or usd > (1 - gain) * self.best_usd:
            return
        if self.best is not None and (attempt.hurried or self.deadline.time_left_s < ADVANCE_WORTH * self.took_s):
            return
        plan = attempt.written(seat(attempt.floor, layout, attempt.terms))
        plan = replace(plan, bound_usd_per_h=solved_usd(attempt.reading, plan, layout) or None)
        if self.best is None and plan.unplaced and attempt.hurried:
            # There is no time for a better one of our own, but greed may serve who is short.
            self.attempt = _with_first(attempt, urged=True)
            self.begin()
        if self.best is None or attempt.better((self.best, plan)) == 1:
            self.best, self.best_usd = plan, usd
            attempt.reporter.found(_bare(plan))
        self.took_s = attempt.clock.elapsed_s - begun_s
        self.deadline.end_within(attempt.clock.left_s - self.took_s)  # the last one takes as long
        self.resting_until_s = begun_s + (1 + ADVANCE_PAUSE) * self.took_s


def _bare(plan: Plan, by: str | None = None) -> Proposal:
    """With nothing told beside it."""
    return Proposal(status=ProposalStatus.FEASIBLE, planner=SPEC.name, plan=plan, reasons=(_summary(plan),), by=by)


def _proposal(
    attempt: Attempt, rivals: Rivals, layout: Layout, *, reasons: tuple[Reason, ...] = (), facts: tuple[Fact, ...] = ()
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
    objective, devices = plan.objective, {item.device for item in plan.assignments}
    told = {"usd_per_h": round(objective.cost_usd_per_h, 6), "devices_in_use": float(len(devices))}
    told["unserved"] = round(objective.unserved, 6)
    if plan.toward is not None:
        told["toward_usd_per_h"] = round(plan.toward.objective.cost_usd_per_h, 6)
    if plan.bound_usd_per_h is not None and plan.gap_pct is not None:
        told |= {"bound_usd_per_h": round(plan.bound_usd_per_h, 6), "gap_pct": round(plan.gap_pct, 4)}
    return Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=SPEC.name, facts=facts_of(**told))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the solve found, and what counting did where that is all there is to it."""

    solved: Solved
    counted: Layout | None
    certificate: Certificate
    solve: Solve
    mended: Seats | None = None
    """What stands, with a little more beside it."""


def seats_of(attempt: Attempt, found: Found) -> Seats:
    """The layout that is worth most with its launches and interruptions, seated; to be short counts most."""
    policy, reached = attempt.request.snapshot.policy, found.solved.reached
    period_s = policy.interruption_over_s if reached is None else reached.period_s
    layouts = [item for item in (reached.layout if reached else None, found.counted) if item is not None]
    if found.solved.searched or not (layouts or found.mended):
        layouts += [found.solved.found, *found.solved.found.before[::-1]]
    exchange = attempt.spare_deadline(attempt.request.budget.work_units or EXCHANGE_UNITS)
    seated = seatings(attempt.floor, layouts, attempt.terms, exchange)
    seated += [found.mended] if found.mended else []
    seated += [seated_as(attempt.floor, found.solved.toward)] if found.solved.toward else []
    # What stands may break limits that came after it, and little changes of it may, too.
    seated = [item for item in seated if lawful(item)] or seated
    part, slight_usd = policy.gain_pct_min / 100, SHORT_LEAST * attempt.reading.problem.dearest_usd

    def worth(item: Seats) -> tuple[float, float]:
        short = sum(item.short_rps(number) > 0 for number in range(len(item.replicas)))
        usd = item.worth(policy.launch_usd_per_s, part) + breaks_usd(item, period_s) + slight_usd * short
        return 0.0 if attempt.reading.stands.patterns else round(item.unserved(), 3), usd

    return min(seated, key=worth)


def bounded(found: Found, plan: Plan) -> Plan:
    """The plan with the best of what prices, the solve and counting proved."""
    proven = [item for item in (found.solved.found, found.counted) if item is not None]
    about = found.certificate.problem
    known = plan.bound_usd_per_h or 0.0
    bound = max(known, found.certificate.bound(plan), *(solved_usd(about, plan, item) for item in proven))
    toward = plan.toward and replace(plan.toward, bound_usd_per_h=bounded(found, plan.arrived).bound_usd_per_h)
    return replace(plan, bound_usd_per_h=bound, toward=toward)


def _closer(attempt: Attempt, found: Found, rivals: Rivals) -> tuple[Rivals, Kept]:
    """With what more there is time to prove, and what is kept of it: prices of today, where those of an earlier solve
    prove little of many devices, and what branching proves of few.
    """
    kept, certificate = found.solved.kept, found.certificate
    wide = (rivals.plan.gap_pct or 0.0) > WIDE_PCT
    if wide and not (found.solved.searched or few_devices(attempt.reading.problem)):
        found = replace(found, certificate=certificate.renewed(attempt.proof_deadline(rivals.plan)))
        rivals = replace(rivals, plans={name: bounded(found, item) for name, item in rivals.plans.items()})
        if certificate.problem.problem is attempt.reading.problem:
            kept = replace(kept, prices=found.certificate.prices)
    plan, shown = certificate.closer(rivals.plan, kept.shown, attempt.closer_deadline(rivals.plan, kept.shown))
    return replace(rivals, plans={**rivals.plans, rivals.chosen: plan}), replace(kept, shown=shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """Complete plans by contender, the one that sets the mark first."""

    plans: Mapping[str, Plan]
    chosen: str
    toward: Toward = ()
    """By device, what ours leads to, at once or by way of room."""

    @property
    def plan(self) -> Plan:
        return self.plans[self.chosen]


def rivals_of(attempt: Attempt, seats: Seats, found: Found) -> Rivals:
    """All contenders with their bounds, and the one to propose."""
    own, stands = SPEC.name, attempt.reading.stands
    plans = {} if attempt.first is None else {attempt.first_by: attempt.first}
    pursuing = pursues(attempt.reading)
    plans[own], to = attempt.written(seats), seats
    if not pursuing:
        plans[own], to = _within_churn(attempt, found, plans[own], seats)
    if not (pursuing or attempt.reading.open_ended):
        plans[own], to = _by_way(attempt, found, plans[own], seats)
    toward = tuple((attempt.floor.names[at], item) for at, item in enumerate(to.patterns) if item)
    interrupted, lacks = dict[str, float](), bool(stands.patterns) and plans[own].objective.unserved > DUST
    if pursuing:
        plans, interrupted = _pursued(attempt, seats, found.solved.found, plans)
    elif lacks and STANDING not in plans and not (attempt.hurried or breaks_limits(attempt.reading)):
        plans[STANDING] = attempt.written(seat(attempt.floor, stands, attempt.terms))
    plans = {name: bounded(found, item) for name, item in plans.items()}
    parts = [interrupted.get(name, 0.0) for name in plans]
    chosen = tuple(plans)[attempt.better(tuple(plans.values()), parts)]
    if attempt.held_openly(plans[chosen], plans[own]):
        chosen = own
    rivals = Rivals(plans=plans, chosen=chosen, toward=toward if chosen == own else ())
    if not attempt.reading.open_ended or chosen in (STANDING, CAPACITY):
        return rivals
    return _filled(attempt, seats, found, rivals, plans.get(attempt.first_by))


def _within_churn(attempt: Attempt, found: Found, plan: Plan, seats: Seats) -> tuple[Plan, Seats]:
    """This plan, or where it changes more than one promotion may, what so many changes make of what stands: once more
    with fewer, where seating made too many of them.
    """
    reached, most = found.solved.reached, attempt.request.snapshot.policy.changes_max
    if reached is None or attempt.hurried or attempt.step(plan).within_churn:
        return plan, seats
    less = seat(attempt.floor, reached.layout, attempt.terms)
    step = attempt.step(attempt.written(less))
    within = attempt.spare_deadline(FEWER_UNITS)
    if not (step.within_churn or reached.fewer is None or within.over):
        reached = reached.fewer(max(1.0, most * most / step.counted_changes), within)
        less = seat(attempt.floor, reached.layout, attempt.terms)
        step = attempt.step(attempt.written(less))
    return (step.plan, less) if step.transition.changes and step.worthwhile else (plan, seats)


def _by_way(attempt: Attempt, found: Found, plan: Plan, seats: Seats) -> tuple[Plan, Seats]:
    """This plan, or room for what was found, if nothing leads there at once without a break, and it saves more yet than
    this plan does: what is to be had at once comes first, for from there room may not be needed. And where it leads.
    """
    request, floor = attempt.request, attempt.floor
    stands = attempt.reading.stands
    if not (found.solved.searched and stands.patterns and attempt.first) or attempt.first_by != STANDING:
        return plan, seats
    if not rearranges(request):
        return plan, seats
    toward = seat(floor, found.solved.found, attempt.terms)
    then = attempt.written(toward)
    at_once = attempt.first.objective.net_usd_per_h - plan.objective.net_usd_per_h
    # Room costs something besides.
    if plan.objective.net_usd_per_h - then.objective.net_usd_per_h <= max(DUST, at_once):
        return plan, seats

    def meanwhile(problem: JointProblem) -> Layout:
        within = attempt.spare_deadline(WAY_UNITS, WAY_WRITES)
        some = attempt.of_many_groups and not within.over
        return found.solve(problem, SolveOrder(gap=WAY_GAP), within) if some else EMPTY

    clocks_mhz = {item.device: item.clock_mhz_sm for item in request.snapshot.target.settings if item.clock_mhz_sm}
    there, _ = match(floor, stands, clocks_mhz)
    now = seated_as(floor, tuple((floor.names[at], item) for at, item in there.items()))
    if (room := stopover(now, toward, meanwhile)) is None:
        return plan, seats
    to = Destination(
        assignments=then.assignments, settings=then.settings, unplaced=then.unplaced, objective=then.objective
    )
    way = replace(attempt.written(room), toward=to)
    besides = plan.objective.net_usd_per_h - aim_of(request.snapshot, way).net_usd_per_h
    goes = attempt.better((plan, way)) == 1 or attempt.held_openly(plan, way)
    if besides < at_once or not goes:
        return plan, seats
    return way, toward


def _pursued(
    attempt: Attempt, seats: Seats, cheapest: Layout, plans: Mapping[str, Plan]
) -> tuple[dict[str, Plan], dict[str, float]]:
    """What to choose from where capacity is pursued, and what each interrupts: what carries most too, where that can be
    acted on (not while a promotion is fresh and nobody is short), and what stands. That comes first, then: of the
    first planner's nobody knows what it interrupts, so it is left out.
    """
    snapshot, reading, own = attempt.request.snapshot, attempt.reading, SPEC.name
    interrupted = {own: _interrupted(reading, seats)}
    found, short = dict(plans), math.inf
    if reading.stands.patterns:
        as_is = seat(attempt.floor, reading.stands, attempt.terms)
        now = attempt.written(as_is, eager=True)
        found, short = {STANDING: now, own: plans[own]}, now.objective.unserved
    if short > DUST or snapshot.taken_at_s >= snapshot.target.promoted_at_s + snapshot.policy.cooldown_s:
        places = pursued(reading, attempt.floor, cheapest, attempt.spare_deadline())
        if places is not None:
            most = seat(attempt.floor, places[0], attempt.terms, places[1])
            interrupted[CAPACITY] = _interrupted(reading, most)
            found[CAPACITY] = attempt.written(most, eager=True)
    return found, interrupted


def _interrupted(reading: Reading, seats: Seats) -> float:
    """What counts as unserved of who is interrupted, as objectives count it."""
    weights, works = {need.workload: need.weight for need in reading.needs}, reading.problem.workloads
    parts = (weights[works[number].id] * rate * for_s for number, (rate, for_s) in interruptions(seats).items())
    return sum(parts, start=0.0) / reading.snapshot.policy.interruption_over_s


def _filled(attempt: Attempt, seats: Seats, found: Found, rivals: Rivals, first: Plan | None) -> Rivals:
    """Give what is spare to who can use more, if our own plan is as good as the chosen one. Against what stands it must
    stay better for all that, or else it would move for nothing.
    """
    own, snapshot = SPEC.name, attempt.request.snapshot
    terms, target = snapshot.policy.terms, snapshot.target
    as_good = rivals.plans[own].objective.key(terms) == rivals.plan.objective.key(terms)
    if not (as_good or target.assignments):
        return rivals
    stood, _ = match(attempt.floor, attempt.reading.stands)
    changed = fill(seats, attempt.reading.open_ended, attempt.spare_deadline(), stood)
    filled = attempt.written(seats) if changed else rivals.plans[own]
    nothing_moves = filled.objective.churn == 0 and len(filled.assignments) == len(target.assignments)
    mine, other = filled.objective, rivals.plan.objective
    as_much = mine.unserved <= other.unserved + DUST and mine.slo_risk <= other.slo_risk + DUST
    # What such a plan costs beyond is spare that was given away.
    stays = target.assignments and nothing_moves and as_much
    if not stays and not (as_good and changed):
        return rivals
    if not stays and first is not None and target.assignments and mine.key(terms) >= first.objective.key(terms):
        return replace(rivals, chosen=next(iter(rivals.plans)))
    return Rivals(plans={**rivals.plans, own: bounded(found, filled)}, chosen=own)
