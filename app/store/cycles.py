"""Planning cycles: opened before they begin, drafted before they act, closed with the whole record.

Owns the stored form of a `CycleRecord` (its canonical JSON, compressed) and the columns that lists need. A cycle whose
leader died is marked aborted by the next one and keeps its draft.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import delete as delete_from
from sqlalchemy import func, insert, select, tuple_, update
from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from app.records import record
from app.store.pages import StoredPage, cut, decode_cursor
from app.store.tables.planning import cycles, plans
from solvers.cycle.record import CycleRecord, CycleStep, Decision, Lane
from solvers.domain.codec import canonical_json, from_json, from_plain, to_plain
from solvers.domain.ids import CycleId
from solvers.errors import LeaseLostError, NotFoundError, StateError

LISTING = "cycles"
COMPRESSION_LEVEL = 6


class CycleState(StrEnum):
    """Where a cycle is."""

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
    findings_count: int
    software_version: str


@record
class StoredCycle(CycleSummary):
    """A cycle with all that is needed to replay it; null for one that died before it knew anything."""

    record: CycleRecord | None


_SUMMARY = [column for column in cycles.c if column.name != "record"]


def begin(session: Session, new: NewCycle) -> None:
    """Remember that a cycle runs."""
    session.execute(
        insert(cycles).values(
            id=new.id,
            lane=new.lane.value,
            state=CycleState.RUNNING.value,
            holder=new.holder,
            fencing_token=new.fencing_token,
            software_version=new.software_version,
        )
    )


def note_step(session: Session, cycle_id: str, step: CycleStep) -> None:
    """Remember that a step begins. Raises LeaseLostError when a newer leader has marked the cycle aborted."""
    _write(session, cycle_id, {"step": step.value})


def draft(session: Session, record: CycleRecord) -> None:
    """Keep all that is known before the target may change. Raises LeaseLostError as `note_step` does."""
    _write(session, record.id, _values(record))


def close(session: Session, record: CycleRecord) -> None:
    """Keep the finished record. Raises LeaseLostError as `note_step` does."""
    elapsed_ms = sum(timing.elapsed_ms for timing in record.timings)
    ended = {"state": CycleState.CLOSED.value, "ended_at": func.now(), "elapsed_ms": elapsed_ms}
    _write(session, record.id, {**_values(record), **ended})


def abort_older(session: Session, fencing_token: int) -> tuple[CycleId, ...]:
    """Mark running cycles of older leaders aborted; one that had promoted its plan learns its generation."""
    promoted = select(func.max(plans.c.generation)).where(plans.c.cycle_id == cycles.c.id).scalar_subquery()
    statement = update(cycles).where(cycles.c.state == CycleState.RUNNING.value, cycles.c.fencing_token < fencing_token)
    statement = statement.values(
        state=CycleState.ABORTED.value,
        ended_at=func.now(),
        generation=func.coalesce(cycles.c.generation, promoted),
    )
    return tuple(CycleId(found) for found in session.execute(statement.returning(cycles.c.id)).scalars())


def abort(session: Session, cycle_id: str) -> bool:
    """Mark one running cycle aborted; False when it does not run any more."""
    statement = update(cycles).where(cycles.c.id == cycle_id, cycles.c.state == CycleState.RUNNING.value)
    statement = statement.values(state=CycleState.ABORTED.value, ended_at=func.now())
    return session.execute(statement.returning(cycles.c.id)).one_or_none() is not None


def delete_older(session: Session, days: float) -> int:
    """Delete cycles that began longer ago and do not run; returns how many."""
    old = cycles.c.started_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, days * 86_400)
    statement = delete_from(cycles).where(old, cycles.c.state != CycleState.RUNNING.value)
    return len(session.execute(statement.returning(cycles.c.id)).all())


def get(session: Session, cycle_id: str) -> CycleSummary:
    """A cycle's summary. Raises NotFoundError."""
    row = session.execute(select(*_SUMMARY).where(cycles.c.id == cycle_id)).one_or_none()
    if row is None:
        raise NotFoundError(f"no cycle {cycle_id}", cycle=cycle_id)
    return _summary(row)


def load(session: Session, cycle_id: str) -> CycleRecord:
    """A cycle's record: the finished one, or the draft. Raises NotFoundError, StateError while there is neither."""
    row = session.execute(select(cycles.c.record, cycles.c.state).where(cycles.c.id == cycle_id)).one_or_none()
    if row is None:
        raise NotFoundError(f"no cycle {cycle_id}", cycle=cycle_id)
    if row.record is None:
        raise StateError(f"cycle {cycle_id} is {row.state} and left no record", cycle=cycle_id)
    return unpack(bytes(row.record))


def page(
    session: Session,
    *,
    limit: int,
    cursor: str | None = None,
    lane: Lane | None = None,
    state: CycleState | None = None,
) -> StoredPage[CycleSummary]:
    """Cycles, newest first."""
    query = select(*_SUMMARY).order_by(cycles.c.started_at.desc(), cycles.c.id.desc()).limit(limit + 1)
    if lane is not None:
        query = query.where(cycles.c.lane == lane.value)
    if state is not None:
        query = query.where(cycles.c.state == state.value)
    if cursor is not None:
        at, cycle_id = decode_cursor(LISTING, cursor, (str, str))
        after = tuple_(datetime.fromisoformat(str(at)), cycle_id)
        query = query.where(tuple_(cycles.c.started_at, cycles.c.id) < after)
    found = [_summary(row) for row in session.execute(query)]
    return cut(LISTING, found, limit, lambda summary: (summary.started_at.isoformat(), summary.id))


def pack(record: CycleRecord) -> bytes:
    """The stored form of a record."""
    return zlib.compress(canonical_json(record).encode(), COMPRESSION_LEVEL)


def unpack(packed: bytes) -> CycleRecord:
    """The record in a stored form."""
    return from_json(CycleRecord, zlib.decompress(packed))


def _values(record: CycleRecord) -> dict[str, Any]:
    return {
        "policy": record.snapshot.policy.name,
        "planner": record.plan.planner if record.plan is not None else None,
        "snapshot_digest": record.snapshot_digest,
        "plan_digest": record.plan_digest,
        "generation": record.generation,
        "decision": to_plain(record.decision),
        "findings_count": len(record.findings),
        "software_version": record.software_version,
        "record": pack(record),
    }


def _write(session: Session, cycle_id: str, values: dict[str, Any]) -> None:
    statement = update(cycles).where(cycles.c.id == cycle_id, cycles.c.state == CycleState.RUNNING.value)
    if session.execute(statement.values(**values).returning(cycles.c.id)).one_or_none() is None:
        found = get(session, cycle_id)
        kind = LeaseLostError if found.state is CycleState.ABORTED else StateError
        raise kind(f"cycle {cycle_id} is {found.state.value} already", cycle=cycle_id)


def _summary(row: Row[Any]) -> CycleSummary:
    return CycleSummary(
        **{
            **row._mapping,
            "id": CycleId(row.id),
            "lane": Lane(row.lane),
            "state": CycleState(row.state),
            "decision": None if row.decision is None else from_plain(Decision, row.decision),
        }
    )
