"""A plan of a picture made outside a cycle: asked for as within one, with the same chain, lane, seed and budget.

What could be done before a change can still be done after it, unless the change forbids it. So the plan before, judged
anew by the changed picture, always competes with what planners find there: with more hardware, looser promises, smaller
rates or fewer limits no answer is worse than without them, however little time planners had. Each plan has a deadline
of its own. Nothing is stored or promoted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from solvers.cycle.attempts import Asking, ChosenPlan
from solvers.cycle.parts import Course, try_policies
from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Attempt, Lane
from solvers.domain.change import Target
from solvers.domain.codec import digest, picture_digest
from solvers.domain.evidence import Insight
from solvers.domain.ids import Generation
from solvers.domain.ownership import moved_by
from solvers.domain.plan import Plan, PlannerEnding
from solvers.domain.policy import Term
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value, within
from solvers.errors import EngineError
from solvers.models.worth import worth_of
from solvers.planners import registry
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.chain import SPEC as KEEP

DEADLINE_S_MAX = 3600.0
WORK_UNITS_MAX = 10**12
SEED_MAX = 2**63 - 1
KEPT, QUICK = KEEP.name, "greedy"


@value
class Wish:
    """How to plan. None is what the snapshot's policy says; `work_units` makes a plan repeatable on any machine."""

    lane: Lane = Lane.ACT
    planner: str | None = None
    deadline_s: Annotated[float | None, within(0.05, DEADLINE_S_MAX)] = None
    work_units: Annotated[int | None, within(1, WORK_UNITS_MAX)] = None
    seed: Annotated[int | None, within(0, SEED_MAX)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A picture, and the plan that the chain of planners ended with, sound or not."""

    picture: Snapshot
    plan: Plan
    chosen: ChosenPlan

    @property
    def insight(self) -> Insight | None:
        """What the planner told beside its plan."""
        return None if self.chosen.proposal is None else self.chosen.proposal.insight


def request_of(picture: Snapshot, wish: Wish) -> PlanRequest:
    """What planners are asked, as a cycle of the same lane would ask."""
    return PlanRequest(
        snapshot=picture,
        movable=movable_workloads(picture, wish.lane),
        budget=Budget(
            deadline_s=wish.deadline_s or picture.policy.planner_deadline_s,
            work_units=wish.work_units or picture.policy.work_units,
        ),
        seed=picture.policy.seed if wish.seed is None else wish.seed,
    )


def planned(picture: Snapshot, wish: Wish, asking: Asking) -> Made:
    """What the chain of planners makes of a picture. Raises EngineError when it ends without any plan."""
    return _made(picture, _asked(picture, wish, asking))


def planned_beside(known: Plan, picture: Snapshot, wish: Wish, asking: Asking) -> Made:
    """The same, unless a plan that is known is better here. Raises EngineError when there is no plan at all."""
    found, again = _asked(picture, wish, asking), judged_anew(known, picture, wish, asking)
    if again.proposal is None or again.plan is None or not again.sound:
        return _made(picture, found)
    attempts, terms = (*found.attempts, *again.attempts), picture.policy.terms
    if found.plan is None or not found.sound:
        return _made(picture, replace(again, attempts=attempts))
    mine, theirs = again.plan.objective, found.plan.objective
    if mine.key(terms) >= theirs.key(terms):
        return _made(picture, found)
    same = mine.key((Term.UNSERVED,)) == theirs.key((Term.UNSERVED,))
    bound = found.plan.bound_usd_per_h if same else None
    plan = replace(again.plan, bound_usd_per_h=None if bound is None else min(bound, mine.cost_usd_per_h))
    told = None if found.proposal is None else found.proposal.insight
    proposal = replace(again.proposal, plan=plan, insight=None if told is None else Insight(prices=told.prices))
    return _made(picture, replace(again, attempts=attempts, proposal=proposal))


def _made(picture: Snapshot, chosen: ChosenPlan) -> Made:
    if chosen.plan is None:
        raise EngineError(no_plan(picture, chosen.attempts))
    return Made(picture=picture, plan=chosen.plan, chosen=chosen)


def _asked(picture: Snapshot, wish: Wish, asking: Asking) -> ChosenPlan:
    asked = request_of(picture, wish)
    own = wish.deadline_s is None and wish.work_units is None
    course = Course(planners=None if wish.planner is None else (wish.planner,), budget=None if own else asked.budget)
    found = try_policies(asking, asked, course)
    if found.plan is not None or not any(map(_stopped, found.attempts)):
        return found
    # Nobody had found anything when it ended: then the answer is what stands, or the quick planner's where that serves
    # more; both end by themselves, so they are asked here.
    at_hand = replace(asking, propose=registry.propose)
    best = try_policies(at_hand, asked, Course(planners=(KEPT,)))
    if _unserved(best):
        best = min(best, try_policies(at_hand, asked, Course(planners=(QUICK,))), key=_unserved)
    return replace(best, attempts=(*found.attempts, *best.attempts))


def _unserved(found: ChosenPlan) -> float:
    return math.inf if found.plan is None else found.plan.objective.unserved


def _stopped(attempt: Attempt) -> bool:
    """Whether a planner was ended from outside; one's own that fails shall be seen to."""
    crashed = attempt.ending is PlannerEnding.FAILED and attempt.planner in registry.names()
    return crashed or attempt.ending is PlannerEnding.KILLED


def kept(picture: Snapshot, wish: Wish, asking: Asking) -> ChosenPlan:
    """What stands in a picture, as a plan of it."""
    return try_policies(replace(asking, propose=registry.propose), request_of(picture, wish), Course(planners=(KEPT,)))


def judged_anew(known: Plan, picture: Snapshot, wish: Wish, asking: Asking) -> ChosenPlan:
    """The known plan as one of this picture, without workloads and devices that are gone. It changes what it changes
    of what really stands, and the verifier judges it by that.
    """
    whole = picture.with_offers()
    works = {str(item.id) for items in (whole.services, whole.jobs, whole.tasks) for item in items}
    devices = whole.devices_by_id()
    target = replace(
        picture.target,
        assignments=tuple(item for item in known.assignments if item.workload in works and item.device in devices),
        settings=tuple(item for item in known.settings if item.device in devices),
    )
    asked, chosen = request_of(picture, wish), kept(replace(picture, target=target), wish, asking)
    if chosen.proposal is None or chosen.plan is None:
        return chosen
    plan = chosen.plan
    worth = worth_of(picture, asked.movable, plan.assignments, plan.settings).objective
    objective = replace(plan.objective, churn=worth.churn)
    plan = replace(plan, snapshot=picture_digest(picture), objective=objective)
    findings = asking.verify(picture, plan, moved_by(plan, picture, asked.movable))
    return replace(chosen, proposal=replace(chosen.proposal, plan=plan), findings=findings)


def no_plan(picture: Snapshot, attempts: Sequence[Attempt]) -> str:
    """What each planner of a chain ended with, or whose chain is empty."""
    told = "; ".join(f"{each.planner}: {each.error or each.status}" for each in attempts)
    empty = ", ".join(item.name for item in (picture.policy, *picture.policies) if not item.planners)
    return f"no planner gave a plan ({told or f'policy {empty} names no planners'})"


def standing_on(picture: Snapshot, before: Plan) -> Snapshot:
    """The picture with this plan standing, where nothing stands yet."""
    if picture.target.assignments:
        return picture
    target = Target(
        generation=Generation(picture.target.generation + 1),
        plan=digest(before),
        assignments=before.assignments,
        settings=before.settings,
    )
    return replace(picture, target=target)
