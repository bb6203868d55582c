"""What stands around a solve: how its time is shared out, which layout is seated, which plan is proposed, and its
bound.

Time goes by the size of the fleet, so that an answer is written before the deadline; with counted work everything is
repeatable. A plan must be at least as good as the first one by the policy's objective; among those, one that can be
acted on at once (`models.worth`, which the gate asks too) is preferred to a better one that would only wait. Where
capacity is pursued, what carries most and what stands compete instead of the first planner's plan. What is spare at
last goes to who can use more, if our own plan is as good as the chosen one.

A layout's bound holds for cost plus what is left unserved at its price; so any plan that leaves no more unserved than
this one costs at least the bound less this plan's own price of the unserved. What stays outside the problem costs what
it costs. Where somebody could still be seated outside the problem, beside what is pinned, nothing is proven, and what
the plan itself disproves is not stated.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.policy import CostBasis, Policy, Term
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.engines.deadline import Deadline
from solvers.models.worth import Step, cost_by_device, worth_acting, worth_of
from solvers.planners.base import PlannerSpec, PlanRequest
from solvers.planners.joint.change import Solved
from solvers.planners.joint.explain.explaining import seconds_of
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.seat.seating import seat
from solvers.planners.joint.seat.seats import Floor, Seats, Terms, floor_of
from solvers.planners.joint.seat.standing import breaks_usd, interrupted_rps
from solvers.planners.joint.spare import fill, pursued, pursues
from solvers.planners.joint.whole_devices import ChangeTerms, Counted, counted, gentle, slights_usd
from solvers.planners.joint.write import Seated, write
from solvers.problems.joint import WHOLE_PCT
from solvers.problems.patterns import Layout

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
UNLIMITED = 2**62


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """See the module."""

    spec: PlannerSpec
    """In whose name it is answered."""
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

    @property
    def left_s(self) -> float | None:
        """Seconds left; None where work is counted instead."""
        return self.clock.left_s if self.request.budget.work_units is None else None

    def solve_deadline(self) -> Deadline:
        """What is left to the solve, with enough kept back for seating, writing and explaining."""
        budget, problem = self.request.budget, self.reading.problem
        devices = sum(len(pool) for pool in self.reading.pool_devices)
        reserve = RESERVE_S + RESERVE_S_PER_DEVICE * devices + RESERVE_S_PER_WORKLOAD * len(problem.workloads)
        reserve += seconds_of(problem, budget.deadline_s)
        return Deadline(max(SOLVE_PART_MIN * budget.deadline_s, self.clock.left_s - reserve), budget.work_units)

    def counting_deadline(self) -> Deadline:
        """What counting may take, where the problem is a matter of counting."""
        budget = self.request.budget
        return Deadline(COUNTING_PART * min(self.clock.left_s, budget.deadline_s), budget.work_units)

    def seating_deadline(self) -> Deadline:
        """Seating counts no work, so where work is counted no clock may end it."""
        budget = self.request.budget
        return Deadline(budget.deadline_s, None if budget.work_units is None else UNLIMITED)


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
    policy = attempt.request.snapshot.policy
    terms = terms_of(attempt)
    whole = found.counted
    mild = None if whole is None else whole.gentle
    others = (found.solved.held, None if whole is None else whole.layout, None if mild is None else mild.layout)
    layouts = (*(item for item in others if item is not None), found.solved.found)
    part, period_s = policy.gain_pct_min / 100, policy.interruption_over_s if mild is None else mild.period_s
    return min(
        (seat(attempt.floor, layout, terms) for layout in layouts),
        key=lambda item: (
            item.worth(policy.launch_usd_per_s, part)
            + breaks_usd(item, period_s)
            + (0.0 if whole is None else slights_usd(item))
        ),
    )


def terms_of(attempt: Attempt) -> Terms:
    """What seating is bound to."""
    policy = attempt.request.snapshot.policy
    return Terms(
        deadline=attempt.seating_deadline(),
        launch_usd_per_s=policy.launch_usd_per_s,
        quotas={str(name): gpus for name, gpus in attempt.reading.problem.quotas},
        job_most_pct=_job_most_pct(attempt),
        job_left_s=_job_left_s(attempt),
        jobs_first=_jobs_first(policy),
    )


def _job_most_pct(attempt: Attempt) -> Mapping[int, int]:
    """How far each job may grow: where share costs, no farther than in the first plan, else to its owner's bound; where
    memory costs, not to the whole device.
    """
    reading, first = attempt.reading, attempt.first
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
    return {number: bounds[item.id] for number, item in enumerate(attempt.reading.problem.workloads) if item.id in jobs}


def _jobs_first(policy: Policy) -> bool:
    """Whether how fast jobs run counts before what devices cost."""
    terms = policy.terms
    return Term.TRAINING in terms and terms.index(Term.TRAINING) < terms.index(Term.COST)


def _job_left_s(attempt: Attempt) -> Mapping[int, float]:
    """What each job has still to do, as its owner reckons."""
    snapshot = attempt.reading.snapshot
    done = {item.workload: item.done for item in snapshot.job_statuses}
    left = {
        WorkloadId(job.id): (job.iterations_total - done.get(WorkloadId(job.id), 0)) * job.iteration_ms_reference / 1000
        for job in snapshot.jobs
    }
    return {number: left[item.id] for number, item in enumerate(attempt.reading.problem.workloads) if item.id in left}


DUST = 1e-6


def bounded(attempt: Attempt, found: Found, plan: Plan) -> Plan:
    """The plan with the better of what the solve and what counting proved; counting holds for plans that serve
    everybody.
    """
    reading, layout = attempt.reading, found.solved.found
    bounds = [bound_of(reading, layout, plan)]
    if found.counted is not None and found.counted.bound_usd_per_h is not None:
        served: dict[WorkloadId, float] = defaultdict(float)
        for item in plan.assignments:
            served[item.workload] += item.capacity_rps
        if all(served[item.id] >= item.rate_rps * (1 - DUST) for item in reading.problem.workloads):
            bounds.append(bound_of(reading, replace(layout, bound_usd_per_h=found.counted.bound_usd_per_h), plan))
    return replace(plan, bound_usd_per_h=max((bound for bound in bounds if bound is not None), default=None))


def bound_of(reading: Reading, layout: Layout, plan: Plan) -> float | None:
    """Proven lower bound on the cost of serving what this plan serves, $/h; None when nothing is proven."""
    if layout.bound_usd_per_h is None or _room_outside(reading):
        return None
    bound = layout.bound_usd_per_h - _unserved_usd(reading, plan) + _outside_usd_per_h(reading, plan)
    cost = plan.objective.cost_usd_per_h
    if not 0 < bound <= cost * (1 + DUST):
        return None
    return min(bound, cost)


def _room_outside(reading: Reading) -> bool:
    """Whether devices where something stays have share left that a movable workload might take: pools know of it only
    in part.
    """
    if any(pool.rest for pool in reading.problem.pools):
        return True
    taken: dict[DeviceId, int] = defaultdict(int)
    for item in (*reading.pinned, *reading.kept):
        taken[item.device] += item.share_pct_sm
    least = int(reading.problem.shares_pct[0]) if len(reading.problem.shares_pct) else 100
    return any(share + least <= 100 for share in taken.values())


def _unserved_usd(reading: Reading, plan: Plan) -> float:
    """What the layout's price says of what this plan leaves unserved, headroom included."""
    problem = reading.problem
    inside = {device for pool in reading.pool_devices for device in pool}
    served: dict[WorkloadId, float] = defaultdict(float)
    replicas: dict[WorkloadId, int] = defaultdict(int)
    for item in plan.assignments:
        if item.device in inside:
            served[item.workload] += item.capacity_rps
            replicas[item.workload] += 1
    total = 0.0
    for work in problem.workloads:
        if work.rate_rps > 0:
            total += work.unserved_usd * max(0.0, 1 - served[work.id] / work.rate_rps)
        missing = max(0, work.replicas_min - replicas[work.id])
        total += work.unserved_usd * missing / max(1, work.replicas_min)
    return total


def _outside_usd_per_h(reading: Reading, plan: Plan) -> float:
    inside = {device for pool in reading.pool_devices for device in pool}
    outside = tuple(item for item in plan.assignments if item.device not in inside)
    if not outside:
        return 0.0
    settings = {item.device: item for item in plan.settings}
    return sum(cost_by_device(reading.snapshot, reading.fleet, outside, settings).values())


SERVED_DUST = 1e-6
STANDING, CAPACITY = "standing", "capacity"
"""Contenders where capacity is pursued: what stands, and what carries most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """Complete plans by contender, the one that sets the mark first."""

    plans: Mapping[str, Plan]
    chosen: str

    @property
    def plan(self) -> Plan:
        """The one to propose."""
        return self.plans[self.chosen]


def rivals_of(attempt: Attempt, seated: Seated, found: Found, first: str) -> Rivals:
    """All contenders with their bounds, and the one to propose. `first`: the name of the first plan's planner."""
    own, request = attempt.spec.name, attempt.request
    plans = {} if attempt.first is None else {first: attempt.first}
    plans[own] = write(attempt.spec, seated)
    interrupted: Mapping[str, float] = {}
    if pursues(attempt.reading):
        plans, interrupted = _pursued(attempt, seated, found.solved.found, plans)
    plans = {name: bounded(attempt, found, item) for name, item in plans.items()}
    parts = [interrupted.get(name, 0.0) for name in plans]
    chosen = tuple(plans)[better(request.snapshot, request.movable, tuple(plans.values()), parts)]
    rivals = Rivals(plans=plans, chosen=chosen)
    if not seated.open_ended or chosen in (STANDING, CAPACITY):
        return rivals
    return _filled(attempt, seated, found, rivals, plans.get(first))


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
    attempt: Attempt, seated: Seated, cheapest: Layout, plans: Mapping[str, Plan]
) -> tuple[dict[str, Plan], dict[str, float]]:
    """What to choose from where capacity is pursued, and what each interrupts: what carries most too, where that can be
    acted on (not while a promotion is fresh and nobody is short), and what stands. That comes first, then: of the
    first planner's nobody knows what it interrupts, so it is left out.
    """
    snapshot, reading, own = attempt.request.snapshot, attempt.reading, attempt.spec.name
    terms = terms_of(attempt)
    standing, interrupted = reading.standing_patterns, {own: _interrupted(seated)}
    found, short = dict(plans), math.inf
    if standing:
        patterns, counts = tuple(item.pattern for item in standing), tuple(item.devices for item in standing)
        as_is = seat(attempt.floor, Layout(patterns=patterns, counts=counts), terms)
        now = write(attempt.spec, replace(seated, seats=_eager(as_is)))
        found, short = {STANDING: now, own: plans[own]}, now.objective.unserved
    if short > SERVED_DUST or snapshot.taken_at_s >= snapshot.target.promoted_at_s + snapshot.policy.cooldown_s:
        layout = pursued(reading, cheapest)
        if layout is not None:
            most = replace(seated, seats=_eager(seat(attempt.floor, layout, terms)))
            interrupted[CAPACITY] = _interrupted(most)
            found[CAPACITY] = write(attempt.spec, most)
    return found, interrupted


def _eager(seats: Seats) -> Seats:
    seats.eager = True
    return seats


def _interrupted(seated: Seated) -> float:
    """What counts as unserved of who is interrupted, as objectives count it."""
    reading = seated.reading
    weights = {need.workload: need.weight for need in reading.needs}
    parts = interrupted_rps(seated.seats, reading.snapshot.policy.interruption_over_s).items()
    return sum((weights[reading.problem.workloads[number].id] * rate for number, rate in parts), start=0.0)


def _filled(attempt: Attempt, seated: Seated, found: Found, rivals: Rivals, first: Plan | None) -> Rivals:
    """Give what is spare to who can use more, if our own plan is as good as the chosen one. Against what stands it must
    stay better for all that, or else it would move for nothing.
    """
    own, snapshot = attempt.spec.name, attempt.request.snapshot
    terms, target = snapshot.policy.terms, snapshot.target
    as_good = rivals.plans[own].objective.key(terms) == rivals.plan.objective.key(terms)
    if not (as_good or target.assignments):
        return rivals
    clocks = {item.device: item.clock_mhz_sm for item in target.settings if item.clock_mhz_sm is not None}
    changed = fill(seated.seats, seated.open_ended, clocks)
    filled = write(attempt.spec, seated) if changed else rivals.plans[own]
    stays = target.assignments and _nothing_moves(snapshot, filled) and _serves_as_much(filled, rivals.plan)
    if not stays and not (as_good and changed):
        return rivals
    if (
        not stays
        and first is not None
        and target.assignments
        and filled.objective.key(terms) >= first.objective.key(terms)
    ):
        return replace(rivals, chosen=next(iter(rivals.plans)))
    return Rivals(plans={**rivals.plans, own: bounded(attempt, found, filled)}, chosen=own)


def _nothing_moves(snapshot: Snapshot, plan: Plan) -> bool:
    """Whether every replica of the target goes on as it is, and no other begins."""
    stood = {item.replica: item for item in snapshot.target.assignments}
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
