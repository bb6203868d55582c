"""What people decide of stored plans: to promote one that waits, or to go back to what stood before.

Either is judged by the fleet as it is now, and promoted by compare-and-set like everything else: who decides second is
told who was first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.errors import PreconditionError
from app.logs import EventLog
from app.records import record
from app.services.planning.reviewing import Review, tag_of
from app.services.planning.rollout import Author, promote
from app.services.planning.snapshots import StoreObserver
from app.store import plans, targets
from app.store.engine import Database
from app.store.plans import PlanState
from app.store.targets import Hold
from solvers.cycle.record import Lane
from solvers.domain.plan import Plan
from solvers.errors import StateError, SupersededError

_log = EventLog("headroom.planning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What a person says with a decision. `standing`: the tag of the target that must stand still, as it was read."""

    request_id: str | None = None
    comment: str | None = None
    standing: str | None = None


BARE = Remark()


@record
class RolledBack:
    """What stood at an earlier generation stands again."""

    plan_id: str
    generation: int
    """The new one."""
    restored: int
    """The one whose plan it is."""
    held: Hold | None
    """Until when nobody but people change it."""
    worse: tuple[str, ...]
    """Workloads that it serves less than what it replaced, by the demand of now."""


class Decisions:
    def __init__(self, database: Database, cluster: str, observer: StoreObserver) -> None:
        self._database, self._cluster, self._observer = database, cluster, observer

    def apply(self, plan_id: str, actor: str, terms: Remark) -> int:
        """Make a stored plan the target, if the world as it is now still lets it; the new generation. Raises
        NotFoundError, PreconditionError when something else stands than was read, SupersededError when the target
        changes meanwhile, StateError when the plan is not open to promotion any more, naming who decided, or no longer
        fits, naming every finding.
        """
        with self._database.reading() as session:
            summary, plan = plans.get(session, plan_id), plans.load(session, plan_id)
            told, kept = plans.told(session, summary), plans.terms(session, plan_id)
        if summary.state is PlanState.SUPERSEDED:
            raise SupersededError(f"the plan is {told}: something newer took its place", plan=plan_id)
        if summary.state not in (PlanState.PROPOSED, PlanState.AWAITING_APPROVAL):
            raise StateError(f"the plan is {told}, and cannot be applied", plan=plan_id)
        review = self._review(plan, summary.lane, terms, kept)
        if review.blocked:
            raise StateError(f"the plan no longer fits: {', '.join(review.blocked)}", plan=plan_id)
        author = Author(name=actor, request_id=terms.request_id, comment=terms.comment)
        generation = promote(self._database, self._cluster, plan, review.picture, author, summary.lane)
        _log.info("plan.applied", plan=plan_id, generation=generation, actor=actor)
        return generation

    def rollback(self, wanted: int | None, hold_s: float, actor: str, terms: Remark) -> RolledBack:
        """Make the plan of an earlier generation the target again, of the one before where none is named, and hold
        planning by itself for so long. Raises NotFoundError, PreconditionError and SupersededError as `apply`,
        StateError when that plan stands already or no longer fits, naming every finding.
        """
        with self._database.reading() as session:
            now = targets.current(session, self._cluster)
            line = targets.line(session, now.generation - 1 if wanted is None else wanted)
            plan = plans.load(session, line.plan_id)
        if line.plan_id == now.plan:
            raise StateError(f"the plan of generation {line.generation} stands already")
        review = self._review(plan, Lane.APPROVE, terms)
        if review.picture.target.generation != now.generation:
            raise SupersededError(f"generation {review.picture.target.generation} was promoted meanwhile")
        if review.unsound:
            raise StateError(f"generation {line.generation} no longer fits: {', '.join(review.unsound)}")
        author = Author(
            name=actor, request_id=terms.request_id, comment=terms.comment, again=True, hold_s=hold_s or None
        )
        generation = promote(self._database, self._cluster, plan, review.picture, author, Lane.ACT)
        _log.info("target.rolled_back", plan=line.plan_id, generation=generation, restored=line.generation, actor=actor)
        with self._database.transaction() as session:
            held = targets.held_back(session, self._cluster)
        return RolledBack(
            plan_id=line.plan_id, generation=generation, restored=line.generation, held=held, worse=review.worse
        )

    def _review(self, plan: Plan, lane: Lane, terms: Remark, kept: Mapping[str, str] | None = None) -> Review:
        snapshot = self._observer.observe()
        if terms.standing is not None and terms.standing != tag_of(snapshot.target):
            raise PreconditionError(f"generation {snapshot.target.generation} stands by now: look at the diff again")
        return Review(snapshot, plan, lane, kept)
