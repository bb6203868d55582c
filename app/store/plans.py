"""Plans: immutable documents under their digest, with a state that moves only along its few allowed ways.

The state `promoted` is given by `targets.promote` alone. What waits for approval waits until somebody decides or its
time is over, by the database's clock; nobody needs to be awake for that.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, cast

from sqlalchemy import ColumnElement, ScalarSelect, case, delete, func, null, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.records import record
from app.store import tokens
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import DAY_S, ago, changed, from_row, one, records
from app.store.tables import cluster_state, cycles, plans, target_history
from solvers.cycle.record import Authorship, Lane
from solvers.domain.codec import canonical_json, digest, from_plain, to_plain
from solvers.domain.evidence import Insight
from solvers.domain.ids import Digest
from solvers.domain.plan import Plan, PlanPart
from solvers.errors import FieldError, NotFoundError, StateError, SupersededError

COMPRESSION_LEVEL = 6
DIGEST = "sha256:"


class PlanState(StrEnum):
    PROPOSED = "proposed"
    AWAITING_APPROVAL = "awaiting_approval"
    PROMOTED = "promoted"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    SHADOW = "shadow"
    EXPIRED = "expired"
    """It waited for approval, and nobody decided in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPlan:
    plan: Plan
    lane: Lane
    state: PlanState
    created_by: str
    cycle_id: str | None = None
    policy: str | None = None
    insight: Insight | None = None
    matter: str | None = None
    """Of a plan that waits: what somebody has to decide on, as a digest. Equal ones are one question."""
    waits_s: float | None = None
    """Of a plan that waits: for how long."""
    terms: Mapping[str, str] | None = None
    """Of a plan for approval: what it would tell processes of their workload's document, as a digest by workload."""


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
    cost_usd_per_h: float | None
    """Of the whole plan, $/h, by the policy's cost basis; as the next two null for a project's token."""
    bound_usd_per_h: float | None
    """Proven: serving as much costs at least so much while what the lane may not move stays as it is."""
    unplaced_count: int | None
    created_at: datetime
    created_by: str
    decided_at: datetime | None
    decided_by: str | None
    decided_by_name: str | None = None
    """The name of that token, or of the planner. Empty for a project's token."""
    expires_at: datetime | None
    """Of a plan that waits for approval: until when."""
    comment: str | None
    """Of whoever decided."""
    blocked: tuple[str, ...]
    """Why it could not be approved when the planner looked last. Empty for a project's token."""
    added_usd_per_h: float | None
    """Of a plan that waits: what it would add to the cost of what stood when the planner looked last."""
    told: tuple[str, ...] = ()
    """Of a plan that waits: what whoever decides should know by now. Empty for a project's token."""
    answered: Authorship | None
    """Of the cycle that made it, while that is kept. Empty for a project's token: failures name others' workloads."""


@record
class StoredPlan(PlanSummary):
    """A stored plan, whole. A project's token sees its own assignments alone, no settings and an empty objective."""

    plan: Plan
    gap_told: str
    """How far from the best of which plans it can be, in words."""


_ANSWERED = select(cycles.c.answered).where(cycles.c.id == plans.c.cycle_id).correlate(plans).scalar_subquery()
_PROPOSED = plans.c.state == PlanState.PROPOSED
_WAITS = plans.c.state == PlanState.AWAITING_APPROVAL
_OVER = _WAITS & (plans.c.expires_at <= func.now())
_STATE = case((_OVER, PlanState.EXPIRED.value), else_=plans.c.state)
_BESIDE = ("document", "insight", "looked_at", "matter", "state", "terms")
_SUMMARY = [
    *(column for column in plans.c if column.name not in _BESIDE),
    _STATE.label("state"),
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
        matter=new.matter,
        terms=null() if new.terms is None else dict(new.terms),
        expires_at=None if new.waits_s is None else ago(-new.waits_s),
        insight=None if new.insight is None else zlib.compress(canonical_json(new.insight).encode(), COMPRESSION_LEVEL),
    )
    renewed = ("lane", "state", "cycle_id", "policy", "created_by", "insight", "matter", "expires_at", "terms")
    again = {name: statement.excluded[name] for name in renewed}
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


PREFIXED_MAX = 5


def full_id(session: Session, text: str) -> str:
    """The id that begins so, `sha256:` before it or not. Raises NotFoundError, and FieldError where several do."""
    wanted = text if text.startswith(DIGEST) else f"{DIGEST}{text}"
    if len(wanted) == len(DIGEST) + 64:
        return wanted
    query = select(plans.c.id).where(plans.c.id.startswith(wanted, autoescape=True)).order_by(plans.c.id)
    found = session.execute(query.limit(PREFIXED_MAX + 1)).scalars().all()
    if not found:
        raise _missing(text)
    if len(found) > 1:
        named = ", ".join(item.removeprefix(DIGEST)[: len(wanted)] for item in found[:PREFIXED_MAX])
        more = " and others" if len(found) > PREFIXED_MAX else ""
        raise FieldError("path:plan_id", f"{text} is ambiguous: {named}{more}; write more of it")
    return str(found[0])


def load(session: Session, plan_id: str) -> Plan:
    """A plan itself. Raises NotFoundError."""
    document = session.execute(select(plans.c.document).where(plans.c.id == plan_id)).scalar_one_or_none()
    if document is None:
        raise _missing(plan_id)
    return from_plain(Plan, document)


def terms(session: Session, plan_id: str) -> Mapping[str, str] | None:
    """What a plan for approval was to tell processes of their documents; None where nothing was kept."""
    return session.execute(select(plans.c.terms).where(plans.c.id == plan_id)).scalar_one_or_none()


def short_of(plan_id: ColumnElement[str]) -> ScalarSelect[Any]:
    """What a plan leaves short."""
    return select(plans.c.document["unplaced"]).where(plans.c.id == plan_id).scalar_subquery()


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
    return read_page(session, _LISTING, select(*_SUMMARY), order, {plans.c.lane: lane, _STATE: state})


def decide(
    session: Session,
    plan_id: str,
    state: PlanState,
    decided_by: str,
    *,
    among: Collection[PlanState],
    comment: str | None = None,
) -> PlanSummary:
    """Move a plan to a state, if it is in one of `among` now. Raises NotFoundError, SupersededError when a newer plan
    took its place, StateError for any other state, naming who decided before.
    """
    statement = update(plans).where(plans.c.id == plan_id, plans.c.state.in_(among), ~_OVER.is_(True))
    statement = statement.values(state=state, decided_at=func.now(), decided_by=decided_by, comment=comment)
    decided = one(session, PlanSummary, statement.returning(*_SUMMARY))
    if decided is not None:
        return decided
    found = get(session, plan_id)
    kind = SupersededError if found.state is PlanState.SUPERSEDED else StateError
    raise kind(f"the plan is {told(session, found)}, so it cannot become {state.value}", state=found.state.value)


def told(session: Session, found: PlanSummary) -> str:
    """A plan's state, and who brought it there."""
    if found.state is PlanState.EXPIRED and found.expires_at is not None:
        return f"expired since {found.expires_at:%Y-%m-%d %H:%M:%S} UTC"
    words = found.state.value
    if found.decided_by is not None and found.decided_at is not None:
        words += f", by {tokens.name_of(session, found.decided_by)} at {found.decided_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{words} ({found.comment})" if found.comment else words


def waiting(session: Session) -> tuple[PlanSummary, ...]:
    """Every plan that waits for approval, the newest first."""
    query = select(*_SUMMARY).where(_WAITS, ~_OVER.is_(True)).order_by(plans.c.created_at.desc(), plans.c.id)
    return records(session, PlanSummary, query)


def looked_at(session: Session) -> dict[str, datetime]:
    """When the planner held each plan that waits against the fleet last."""
    found = session.execute(select(plans.c.id, plans.c.looked_at).where(_WAITS, plans.c.looked_at.is_not(None)))
    return {row.id: row.looked_at for row in found}


def decided_on(session: Session, matter: str) -> PlanSummary | None:
    """The newest plan that asks the same question and waits, or that somebody rejected."""
    asked = (_WAITS & ~_OVER.is_(True)) | (plans.c.state == PlanState.REJECTED)
    query = select(*_SUMMARY).where(plans.c.matter == matter, asked).order_by(plans.c.created_at.desc(), plans.c.id)
    return one(session, PlanSummary, query.limit(1))


def last_decided(session: Session) -> datetime | None:
    """When a plan that had waited was decided on last."""
    query = select(func.max(plans.c.decided_at)).where(plans.c.matter.is_not(None))
    return cast("datetime | None", session.execute(query).scalar_one())


def note_look(session: Session, plan_id: str, blocked: Sequence[str], added_usd_per_h: float) -> None:
    """Remember why a waiting plan could not be approved now, what it would add to the bill, and that this is of now."""
    seen = {"blocked": list(blocked), "added_usd_per_h": added_usd_per_h, "looked_at": func.now()}
    session.execute(update(plans).where(plans.c.id == plan_id, _WAITS).values(seen))


def lapse(session: Session, plan_id: str, why: str) -> bool:
    """Set a plan aside that waits, though nobody decided on it; whether it still did."""
    statement = update(plans).where(plans.c.id == plan_id, _WAITS, ~_OVER.is_(True))
    return bool(changed(session, statement.values(state=PlanState.SUPERSEDED, comment=why)))


def mark_promoted(
    session: Session,
    plan_id: str,
    generation: int,
    promoted_by: str,
    comment: str | None = None,
    *,
    again: bool = False,
) -> None:
    """Make a plan the promoted one, and set aside those that no longer can be; for `targets.promote` alone. What waits
    for approval waits on: it is judged by the fleet as it then is. `again`: the plan was promoted before. Raises
    StateError when the plan was rejected, set aside or made for shadow only.
    """
    open_states = (PlanState.SUPERSEDED,) if again else (PlanState.PROPOSED, PlanState.AWAITING_APPROVAL)
    decide(session, plan_id, PlanState.PROMOTED, promoted_by, among=open_states, comment=comment)
    session.execute(update(plans).where(plans.c.id == plan_id).values(generation=generation, blocked=[]))
    overtaken = or_(plans.c.state == PlanState.PROMOTED, _PROPOSED & (plans.c.parent_generation < generation))
    session.execute(update(plans).where(overtaken, plans.c.id != plan_id).values(state=PlanState.SUPERSEDED))


def delete_older(session: Session, days: float) -> int:
    """Delete plans made longer ago with their place in history, but for those that stand or stood since, the one before
    what stands, and those that wait: all of them may become the target yet. Returns how many.
    """
    before = ago(days * DAY_S)
    after = target_history.alias("after")
    newest = select(func.max(cluster_state.c.generation)).scalar_subquery()
    stood = (
        select(target_history.c.plan_id)
        .join(after, after.c.generation == target_history.c.generation + 1)
        .where(or_(after.c.promoted_at >= before, after.c.generation == newest))
    )
    standing = select(cluster_state.c.plan_id).where(cluster_state.c.plan_id.is_not(None))
    kept = (plans.c.id.in_(standing), plans.c.id.in_(stood), _WAITS & ~_OVER.is_(True))
    doomed = select(plans.c.id).where(plans.c.created_at < before, ~or_(*kept))
    session.execute(delete(target_history).where(target_history.c.plan_id.in_(doomed)))
    return changed(session, delete(plans).where(plans.c.id.in_(doomed)))


def _missing(plan_id: str) -> NotFoundError:
    return NotFoundError(f"no plan {plan_id}", plan=plan_id)
