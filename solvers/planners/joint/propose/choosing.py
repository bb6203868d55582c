"""Which of several complete plans is proposed.

A plan must be at least as good as the first one by the policy's objective; among those, one that can be acted on at
once (`models.worth`, which the gate asks too) is preferred to a better one that would only wait. Where capacity is
pursued, what carries most and what stands compete instead of the first planner's plan. What is spare at last goes to
who can use more, if our own plan is as good as the chosen one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import Step, worth_acting, worth_of
from solvers.planners.joint.propose.attempt import Attempt
from solvers.planners.joint.propose.bounding import bounded
from solvers.planners.joint.propose.seated import Found, terms_of
from solvers.planners.joint.seat.seating import seat
from solvers.planners.joint.seat.seats import Seats
from solvers.planners.joint.seat.standing import interrupted_rps
from solvers.planners.joint.spare.filling import fill
from solvers.planners.joint.spare.pursuing import held, pursued, pursues
from solvers.planners.joint.write.writing import Seated, write
from solvers.problems.patterns import Layout

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
    standing, interrupted = held(reading), {own: _interrupted(seated)}
    found, short = dict(plans), math.inf
    if standing is not None:
        now = write(attempt.spec, replace(seated, seats=_eager(seat(attempt.floor, standing, terms))))
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
