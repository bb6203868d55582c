"""Profile runs: ordered, carried out by a node, ended or given up. A device has one at a time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import case, delete, func, insert, select, update
from sqlalchemy.orm import Session

from app.records import record
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import DAY_S, ago, changed, from_row, interval, one, records
from app.store.tables import profile_runs as runs
from solvers.errors import NotFoundError

GIVEN_UP = "its node did not tell of an end in time"
DETAIL_MAX = 2000


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = (RunState.QUEUED, RunState.RUNNING)


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


_LISTING = Listing(name="profile-runs", by=(runs.c.id,), made=partial(from_row, ProfileRunLine), newest_first=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRunProgress:
    """What a node tells of a run. Counts are totals of the run."""

    state: RunState
    measured: int
    doubtful: int
    detail: str


def create(session: Session, new: NewRun) -> ProfileRunLine:
    values = asdict(new)
    expires_at = func.now() + interval(values.pop("patience_s"))
    (run,) = records(session, ProfileRunLine, insert(runs).values(**values, expires_at=expires_at).returning(runs))
    return run


def get(session: Session, run_id: int) -> ProfileRunLine:
    """One run. Raises NotFoundError."""
    run = one(session, ProfileRunLine, select(runs).where(runs.c.id == run_id))
    if run is None:
        raise NotFoundError(f"no profile run {run_id}", run=run_id)
    return run


def page(session: Session, order: PageOrder) -> StoredPage[ProfileRunLine]:
    return read_page(session, _LISTING, select(runs), order)


def of_node(session: Session, node_id: str) -> tuple[ProfileRunLine, ...]:
    """What a node has to carry out, the oldest first."""
    return records(
        session, ProfileRunLine, select(runs).where(runs.c.node_id == node_id, *_alive()).order_by(runs.c.id)
    )


def held_devices(session: Session) -> frozenset[str]:
    return frozenset(session.execute(select(runs.c.uuid).where(*_alive())).scalars())


def end_overdue(session: Session) -> None:
    overdue = (runs.c.state.in_(ACTIVE), runs.c.expires_at <= func.now())
    session.execute(update(runs).where(*overdue).values(state=RunState.FAILED, detail=GIVEN_UP, ended_at=func.now()))


def advance(session: Session, run_id: int, told: ProfileRunProgress) -> bool:
    """Note what a node tells; False when the run has ended already."""
    statement = update(runs).where(runs.c.id == run_id, runs.c.state.in_(ACTIVE))
    values = {
        "state": told.state,
        "measured": told.measured,
        "doubtful": told.doubtful,
        "detail": told.detail[:DETAIL_MAX],
        "started_at": case((runs.c.started_at.is_(None), func.now()), else_=runs.c.started_at),
        "ended_at": None if told.state in ACTIVE else func.now(),
    }
    return changed(session, statement.values(values)) > 0


def cancel(session: Session, run_id: int) -> bool:
    """End a run that goes on; False when it has ended already."""
    statement = update(runs).where(runs.c.id == run_id, runs.c.state.in_(ACTIVE))
    values = {"state": RunState.CANCELLED, "ended_at": func.now()}
    return changed(session, statement.values(values)) > 0


def delete_older(session: Session, days: float) -> int:
    """Forget runs that ended longer ago: what they measured is in the profiles. Returns how many."""
    return changed(session, delete(runs).where(runs.c.ended_at < ago(days * DAY_S)))


def _alive() -> tuple[Any, ...]:
    return (runs.c.state.in_(ACTIVE), runs.c.expires_at > func.now())
