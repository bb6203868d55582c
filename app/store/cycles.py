"""Planning cycles and what planners keep between them.

A cycle is opened before it begins, drafted before it acts, closed with its whole record (canonical JSON, compressed);
one whose leader died is marked aborted by the next and keeps its draft. Of a planner's states, bytes that only its own
name and version can read, the newest stays always, and those before it, so that cycles can be repeated, as far as there
is room.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlalchemy.orm import Session

from app.records import record
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import DAY_S, ago, changed, from_row, named, one, put_over
from app.store.tables import cycles, planner_states, plans
from solvers.cycle.record import Authorship, CycleRecord, CycleStep, Decision, Lane
from solvers.domain.codec import bytes_digest, canonical_json, from_json, to_plain
from solvers.domain.ids import CycleId, Digest
from solvers.errors import LeaseLostError, NotFoundError, StateError

COMPRESSION_LEVEL = 6
STATES_BYTES_MAX = 64 * 2**20
"""Of all states of one planner and version together."""


class CycleState(StrEnum):
    RUNNING = "running"
    CLOSED = "closed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCycle:
    """A cycle that is about to begin, and whose it is."""

    id: CycleId
    lane: Lane
    holder: str
    fencing_token: int
    software_version: str


@record
class CycleSummary:
    """A cycle without its record."""

    id: CycleId
    lane: Lane
    state: CycleState
    step: str
    holder: str
    fencing_token: int
    started_at: datetime
    ended_at: datetime | None
    elapsed_ms: float | None
    policy: str | None
    planner: str | None
    snapshot_digest: str | None
    plan_digest: str | None
    generation: int | None
    decision: Decision | None
    answered: Authorship | None
    findings_count: int
    software_version: str


@record
class StoredCycle(CycleSummary):
    """A cycle with all that is needed to replay it; null for one that died before it knew anything."""

    record: CycleRecord | None


_SUMMARY = [column for column in cycles.c if column.name not in ("record", "attempts")]
_LISTING = Listing(
    name="cycles", by=(cycles.c.started_at, cycles.c.id), made=partial(from_row, CycleSummary), newest_first=True
)
_RUNNING = cycles.c.state == CycleState.RUNNING


def begin(session: Session, new: NewCycle) -> None:
    session.execute(insert(cycles).values(**asdict(new), state=CycleState.RUNNING))


def note_step(session: Session, cycle_id: str, step: CycleStep) -> None:
    """Remember that a step begins. Raises LeaseLostError when a newer leader has marked the cycle aborted."""
    _write(session, cycle_id, {"step": step})


def draft(session: Session, record: CycleRecord) -> None:
    """Keep all that is known before the target may change. Raises LeaseLostError as `note_step` does."""
    _write(session, record.id, _values(record))


def close(session: Session, record: CycleRecord) -> None:
    """Keep the finished record. Raises LeaseLostError as `note_step` does."""
    elapsed_ms = sum(timing.elapsed_ms for timing in record.timings)
    ended = {"state": CycleState.CLOSED, "ended_at": func.now(), "elapsed_ms": elapsed_ms}
    _write(session, record.id, {**_values(record), **ended})


def abort_older(session: Session, fencing_token: int) -> tuple[CycleId, ...]:
    """Mark running cycles of older leaders aborted."""
    return _abort(session, cycles.c.fencing_token < fencing_token)


def abort(session: Session, cycle_id: str) -> bool:
    """Mark one running cycle aborted; False when it does not run any more."""
    return bool(_abort(session, cycles.c.id == cycle_id))


def _abort(session: Session, among: ColumnElement[bool]) -> tuple[CycleId, ...]:
    """One that had promoted its plan learns its generation."""
    promoted = select(func.max(plans.c.generation)).where(plans.c.cycle_id == cycles.c.id).scalar_subquery()
    statement = update(cycles).where(_RUNNING, among)
    statement = statement.values(
        state=CycleState.ABORTED, ended_at=func.now(), generation=func.coalesce(cycles.c.generation, promoted)
    )
    return tuple(CycleId(found) for found in session.execute(statement.returning(cycles.c.id)).scalars())


def delete_older(session: Session, days: float) -> int:
    """Delete cycles that began longer ago and do not run; returns how many."""
    return changed(session, delete(cycles).where(cycles.c.started_at < ago(days * DAY_S), ~_RUNNING))


def get(session: Session, cycle_id: str) -> CycleSummary:
    """A cycle's summary. Raises NotFoundError."""
    found = one(session, CycleSummary, select(*_SUMMARY).where(cycles.c.id == cycle_id))
    if found is None:
        raise NotFoundError(f"no cycle {cycle_id}", cycle=cycle_id)
    return found


def last_closed(session: Session) -> CycleSummary | None:
    query = select(*_SUMMARY).where(cycles.c.state == CycleState.CLOSED).order_by(cycles.c.started_at.desc())
    return one(session, CycleSummary, query.limit(1))


def load(session: Session, cycle_id: str) -> CycleRecord:
    """A cycle's record: the finished one, or the draft. Raises NotFoundError, StateError while there is neither."""
    row = session.execute(select(cycles.c.record, cycles.c.state).where(cycles.c.id == cycle_id)).one_or_none()
    if row is None:
        raise NotFoundError(f"no cycle {cycle_id}", cycle=cycle_id)
    if row.record is None:
        raise StateError(f"cycle {cycle_id} is {row.state} and left no record", cycle=cycle_id)
    return unpack(bytes(row.record))


def page(
    session: Session, order: PageOrder, *, lane: Lane | None = None, state: CycleState | None = None
) -> StoredPage[CycleSummary]:
    return read_page(session, _LISTING, select(*_SUMMARY), order, {cycles.c.lane: lane, cycles.c.state: state})


def pack(record: CycleRecord) -> bytes:
    return zlib.compress(canonical_json(record).encode(), COMPRESSION_LEVEL)


def unpack(packed: bytes) -> CycleRecord:
    return from_json(CycleRecord, zlib.decompress(packed))


def _values(record: CycleRecord) -> dict[str, Any]:
    return {
        "policy": record.snapshot.policy.name,
        "planner": record.plan.planner if record.plan is not None else None,
        "snapshot_digest": record.snapshot_digest,
        "plan_digest": record.plan_digest,
        "generation": record.generation,
        "decision": to_plain(record.decision),
        "answered": to_plain(record.answered),
        "attempts": [{"planner": item.planner, "outcome": item.outcome} for item in record.attempts],
        "findings_count": len(record.findings),
        "software_version": record.software_version,
        "record": pack(record),
    }


def _write(session: Session, cycle_id: str, values: dict[str, Any]) -> None:
    if not changed(session, update(cycles).where(cycles.c.id == cycle_id, _RUNNING).values(**values)):
        found = get(session, cycle_id)
        kind = LeaseLostError if found.state is CycleState.ABORTED else StateError
        raise kind(f"cycle {cycle_id} is {found.state.value} already", cycle=cycle_id)


# --- States of planners


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerState:
    """A stored state and its digest, which records name."""

    planner: str
    version: str
    state: bytes
    digest: str
    updated_at: datetime


def newest_state(session: Session, planner: str, version: str) -> PlannerState | None:
    """What a planner keeps; None when it kept nothing yet."""
    return _newest(session, (planner_states.c.planner == planner, planner_states.c.version == version))


def find_state(session: Session, planner: str, digest: str) -> PlannerState | None:
    """What a planner kept under a digest; None when it is not there any more."""
    return _newest(session, (planner_states.c.planner == planner, planner_states.c.digest == digest))


def _newest(session: Session, among: tuple[Any, ...]) -> PlannerState | None:
    query = select(planner_states).where(*among).order_by(planner_states.c.updated_at.desc()).limit(1)
    return one(session, PlannerState, query)


def put_state(session: Session, planner: str, version: str, state: bytes) -> Digest:
    """Make this a planner's newest state; returns its digest. The oldest ones go where there are too many."""
    digest = bytes_digest(state)
    now = func.clock_timestamp()
    row = {"planner": planner, "version": version, "digest": digest, "state": state, "updated_at": now}
    session.execute(put_over(planner_states, row, ("planner", "version", "digest")))
    session.execute(named("trim_states"), {"planner": planner, "version": version, "bytes_max": STATES_BYTES_MAX})
    return digest


def delete_older_states(session: Session, days: float) -> int:
    """Delete states in whose place their planner kept another longer ago, of whichever version: the cycles that were
    handed them are gone, too. Returns how many.
    """
    return len(session.execute(named("forget_states"), {"days": days}).all())
