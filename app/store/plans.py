"""Plans: immutable documents under their digest, with a state that moves only along its few allowed ways.

The state `promoted` is given by `targets.promote` alone.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.records import record
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import DAY_S, ago, changed, from_row, one
from app.store.tables import cluster_state, cycles, plans, target_history
from solvers.cycle.record import Authorship, Lane
from solvers.domain.codec import canonical_json, digest, from_plain, to_plain
from solvers.domain.evidence import Insight
from solvers.domain.ids import Digest
from solvers.domain.plan import Plan, PlanPart
from solvers.errors import NotFoundError, StateError, SupersededError

COMPRESSION_LEVEL = 6


class PlanState(StrEnum):
    PROPOSED = "proposed"
    AWAITING_APPROVAL = "awaiting_approval"
    PROMOTED = "promoted"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    SHADOW = "shadow"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlan:
    plan: Plan
    lane: Lane
    state: PlanState
    created_by: str
    cycle_id: str | None = None
    policy: str | None = None
    insight: Insight | None = None


@record
class PlanSummary:
    """A stored plan without its document."""

    id: Digest
    lane: Lane
    state: PlanState
    parent_generation: int
    generation: int | None
    cycle_id: str | None
    planner: str
    policy: str | None
    cost_usd_per_h: float
    bound_usd_per_h: float | None
    unplaced_count: int
    created_at: datetime
    created_by: str
    decided_at: datetime | None
    decided_by: str | None
    answered: Authorship | None
    """Of the cycle that made it, while that is kept."""


@record
class StoredPlan(PlanSummary):
    """A stored plan, whole. A project's token sees only its own assignments and no device settings."""

    plan: Plan


_ANSWERED = select(cycles.c.answered).where(cycles.c.id == plans.c.cycle_id).correlate(plans).scalar_subquery()
_SUMMARY = [
    *(column for column in plans.c if column.name not in ("document", "insight")),
    _ANSWERED.label("answered"),
]
_LISTING = Listing(
    name="plans", by=(plans.c.created_at, plans.c.id), made=partial(from_row, PlanSummary), newest_first=True
)
_UNDECIDED = (PlanState.SHADOW, PlanState.PROPOSED)


def put(session: Session, new: NewPlan) -> PlanSummary:
    """Keep a plan. One that is there already keeps its state, unless nobody has decided on it yet."""
    plan_id = digest(new.plan)
    statement = insert(plans).values(
        id=plan_id,
        lane=new.lane,
        state=new.state,
        parent_generation=new.plan.parent,
        cycle_id=new.cycle_id,
        planner=new.plan.planner,
        policy=new.policy,
        document=to_plain(new.plan),
        cost_usd_per_h=new.plan.objective.cost_usd_per_h,
        bound_usd_per_h=new.plan.bound_usd_per_h,
        unplaced_count=len(new.plan.unplaced),
        created_by=new.created_by,
        insight=None if new.insight is None else zlib.compress(canonical_json(new.insight).encode(), COMPRESSION_LEVEL),
    )
    again = {
        name: statement.excluded[name] for name in ("lane", "state", "cycle_id", "policy", "created_by", "insight")
    }
    session.execute(
        statement.on_conflict_do_update(index_elements=["id"], set_=again, where=plans.c.state.in_(_UNDECIDED))
    )
    return get(session, plan_id)


def get(session: Session, plan_id: str) -> PlanSummary:
    """A plan's summary. Raises NotFoundError."""
    found = one(session, PlanSummary, select(*_SUMMARY).where(plans.c.id == plan_id))
    if found is None:
        raise _missing(plan_id)
    return found


def load(session: Session, plan_id: str) -> Plan:
    """A plan itself. Raises NotFoundError."""
    document = session.execute(select(plans.c.document).where(plans.c.id == plan_id)).scalar_one_or_none()
    if document is None:
        raise _missing(plan_id)
    return from_plain(Plan, document)


def makers(session: Session, plan_id: str) -> tuple[str, tuple[PlanPart, ...]]:
    """Who made a plan: its planner, and where several policies did, the part of each. Raises NotFoundError."""
    query = select(plans.c.planner, plans.c.document["parts"].label("parts")).where(plans.c.id == plan_id)
    row = session.execute(query).one_or_none()
    if row is None:
        raise _missing(plan_id)
    return row.planner, tuple(from_plain(PlanPart, part) for part in row.parts or ())


def load_insight(session: Session, plan_id: str, workload: str | None = None) -> Insight | None:
    """What the planner found out beside a plan, its candidates of one workload alone where named; None where nothing
    was kept. Raises NotFoundError.
    """
    row = session.execute(select(plans.c.insight).where(plans.c.id == plan_id)).one_or_none()
    if row is None:
        raise _missing(plan_id)
    if row.insight is None:
        return None
    plain = json.loads(zlib.decompress(bytes(row.insight)))
    if workload is not None:
        # Of a large fleet most of it is about others, and decoding is what takes time.
        plain["candidates"] = [item for item in plain["candidates"] if item["workload"] == workload]
    return from_plain(Insight, plain)


def page(
    session: Session, order: PageOrder, *, lane: Lane | None = None, state: PlanState | None = None
) -> StoredPage[PlanSummary]:
    return read_page(session, _LISTING, select(*_SUMMARY), order, {plans.c.lane: lane, plans.c.state: state})


def decide(
    session: Session, plan_id: str, state: PlanState, decided_by: str, *, among: Collection[PlanState]
) -> PlanSummary:
    """Move a plan to a state, if it is in one of `among` now. Raises NotFoundError, SupersededError when a newer plan
    took its place, StateError for any other state.
    """
    statement = update(plans).where(plans.c.id == plan_id, plans.c.state.in_(among))
    statement = statement.values(state=state, decided_at=func.now(), decided_by=decided_by)
    decided = one(session, PlanSummary, statement.returning(*_SUMMARY))
    if decided is not None:
        return decided
    found = get(session, plan_id)
    kind = SupersededError if found.state is PlanState.SUPERSEDED else StateError
    raise kind(f"the plan is {found.state.value}, so it cannot become {state.value}", state=found.state.value)


def supersede_awaiting(session: Session, keep: str, decided_by: str) -> int:
    """Set aside every plan that awaits approval but `keep`, since there is a newer one; returns how many."""
    statement = update(plans).where(plans.c.state == PlanState.AWAITING_APPROVAL, plans.c.id != keep)
    values = {"state": PlanState.SUPERSEDED, "decided_at": func.now(), "decided_by": decided_by}
    return changed(session, statement.values(values))


def mark_promoted(session: Session, plan_id: str, generation: int, promoted_by: str) -> None:
    """Make a plan the promoted one, and set aside those that no longer can be; for `targets.promote` alone. Raises
    StateError when the plan was rejected, set aside or made for shadow only.
    """
    open_states = (PlanState.PROPOSED, PlanState.AWAITING_APPROVAL)
    decide(session, plan_id, PlanState.PROMOTED, promoted_by, among=open_states)
    session.execute(update(plans).where(plans.c.id == plan_id).values(generation=generation))
    overtaken = or_(
        plans.c.state == PlanState.PROMOTED, plans.c.state.in_(open_states) & (plans.c.parent_generation < generation)
    )
    session.execute(update(plans).where(overtaken, plans.c.id != plan_id).values(state=PlanState.SUPERSEDED))


def delete_older(session: Session, days: float) -> int:
    """Delete plans made longer ago with their place in history, but for the standing target's; returns how many."""
    standing = select(cluster_state.c.plan_id).where(cluster_state.c.plan_id.is_not(None))
    doomed = select(plans.c.id).where(plans.c.created_at < ago(days * DAY_S), plans.c.id.not_in(standing))
    session.execute(delete(target_history).where(target_history.c.plan_id.in_(doomed)))
    return changed(session, delete(plans).where(plans.c.id.in_(doomed)))


def _missing(plan_id: str) -> NotFoundError:
    return NotFoundError(f"no plan {plan_id}", plan=plan_id)
