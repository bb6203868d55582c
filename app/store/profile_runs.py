"""Profile runs: ordered, carried out by a node, ended. A device has one at a time.

Owns their states and when one counts as given up. What a run may be ordered for is the service's to judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import case, func, insert, select, update
from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from app.records import record
from app.store.pages import StoredPage, cut, decode_cursor
from app.store.tables.profiles import profile_runs as runs
from solvers.errors import NotFoundError

LISTING = "profile-runs"
GIVEN_UP = "its node did not tell of an end in time"
DETAIL_MAX = 2000


class RunState(StrEnum):
    """Life of a run."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = (RunState.QUEUED.value, RunState.RUNNING.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be stored. `patience_s`: after so long without an end it counts as given up."""

    node_id: str
    uuid: str
    service: str
    beside: str | None
    budget_s: float
    drain: bool
    created_by: str
    patience_s: float


@record
class ProfileRunLine:
    """A run and how it goes."""

    id: int
    node_id: str
    uuid: str
    service: str
    beside: str | None
    budget_s: float
    drain: bool
    state: RunState
    measured: int
    doubtful: int
    detail: str
    created_at: datetime
    created_by: str
    started_at: datetime | None
    ended_at: datetime | None
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRunProgress:
    """What a node tells of a run. Counts are totals of the run."""

    state: RunState
    measured: int
    doubtful: int
    detail: str


def create(session: Session, new: NewRun) -> ProfileRunLine:
    """Store a run."""
    expires_at = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, new.patience_s)
    statement = insert(runs).values(
        node_id=new.node_id,
        uuid=new.uuid,
        service=new.service,
        beside=new.beside,
        budget_s=new.budget_s,
        drain=new.drain,
        created_by=new.created_by,
        expires_at=expires_at,
    )
    return _run(session.execute(statement.returning(*runs.c)).one())


def get(session: Session, run_id: int) -> ProfileRunLine:
    """One run. Raises NotFoundError."""
    row = session.execute(select(runs).where(runs.c.id == run_id)).one_or_none()
    if row is None:
        raise NotFoundError(f"no profile run {run_id}", run=run_id)
    return _run(row)


def page(session: Session, *, limit: int, cursor: str | None = None) -> StoredPage[ProfileRunLine]:
    """All runs, the newest first."""
    query = select(runs).order_by(runs.c.id.desc()).limit(limit + 1)
    if cursor is not None:
        (after,) = decode_cursor(LISTING, cursor, (int,))
        query = query.where(runs.c.id < after)
    found = [_run(row) for row in session.execute(query)]
    return cut(LISTING, found, limit, lambda run: (run.id,))


def of_node(session: Session, node_id: str) -> tuple[ProfileRunLine, ...]:
    """What a node has to carry out, the oldest first."""
    query = select(runs).where(runs.c.node_id == node_id, *_alive()).order_by(runs.c.id)
    return tuple(_run(row) for row in session.execute(query))


def held_devices(session: Session) -> frozenset[str]:
    """Devices on which nothing else may be planned."""
    return frozenset(session.execute(select(runs.c.uuid).where(*_alive())).scalars())


def end_overdue(session: Session) -> None:
    """Give up runs whose nodes fell silent."""
    overdue = (runs.c.state.in_(ACTIVE), runs.c.expires_at <= func.now())
    session.execute(
        update(runs).where(*overdue).values(state=RunState.FAILED.value, detail=GIVEN_UP, ended_at=func.now())
    )


def advance(session: Session, run_id: int, told: ProfileRunProgress) -> bool:
    """Note what a node tells; False when the run has ended already."""
    ended = told.state.value not in ACTIVE
    statement = update(runs).where(runs.c.id == run_id, runs.c.state.in_(ACTIVE))
    values = {
        "state": told.state.value,
        "measured": told.measured,
        "doubtful": told.doubtful,
        "detail": told.detail[:DETAIL_MAX],
        "started_at": case((runs.c.started_at.is_(None), func.now()), else_=runs.c.started_at),
        "ended_at": func.now() if ended else None,
    }
    return session.execute(statement.values(values).returning(runs.c.id)).one_or_none() is not None


def cancel(session: Session, run_id: int) -> bool:
    """End a run that goes on; False when it has ended already."""
    statement = update(runs).where(runs.c.id == run_id, runs.c.state.in_(ACTIVE))
    values = {"state": RunState.CANCELLED.value, "ended_at": func.now()}
    return session.execute(statement.values(values).returning(runs.c.id)).one_or_none() is not None


def _alive() -> tuple[Any, ...]:
    return (runs.c.state.in_(ACTIVE), runs.c.expires_at > func.now())


def _run(row: Row[Any]) -> ProfileRunLine:
    return ProfileRunLine(**{**row._mapping, "state": RunState(row.state)})
