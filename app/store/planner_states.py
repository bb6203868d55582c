"""What planners keep between cycles: bytes that only the planner of the same name and version can read.

Owns which states stay: the newest one always, and those before it, so that cycles can be repeated, as far as there is
room for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.store.tables.planning import planner_states
from solvers.domain.codec import bytes_digest
from solvers.domain.ids import Digest

KEPT_BYTES_MAX = 64 * 2**20
"""Of all states of one planner and version together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerState:
    """A stored state and its digest, which records name."""

    planner: str
    version: str
    state: bytes
    digest: str
    updated_at: datetime


def find(session: Session, planner: str, version: str, digest: str | None = None) -> PlannerState | None:
    """The newest state of a planner, or the one of this digest; None when there is none (any more)."""
    mine = (planner_states.c.planner == planner, planner_states.c.version == version)
    query = select(planner_states).where(*mine).order_by(planner_states.c.updated_at.desc()).limit(1)
    if digest is not None:
        query = query.where(planner_states.c.digest == digest)
    row = session.execute(query).one_or_none()
    return None if row is None else PlannerState(**{**row._mapping, "state": bytes(row.state)})


def put(session: Session, planner: str, version: str, state: bytes) -> Digest:
    """Make this a planner's newest state; returns its digest. The oldest ones go where there are too many."""
    digest = bytes_digest(state)
    now = func.clock_timestamp()
    statement = insert(planner_states).values(
        planner=planner, version=version, state=state, digest=digest, updated_at=now
    )
    session.execute(
        statement.on_conflict_do_update(index_elements=["planner", "version", "digest"], set_={"updated_at": now})
    )
    _make_room(session, planner, version)
    return digest


def _make_room(session: Session, planner: str, version: str) -> None:
    table = planner_states
    newest_first = table.c.updated_at.desc()
    sizes = (
        select(
            table.c.digest,
            func.sum(func.length(table.c.state)).over(order_by=newest_first).label("size"),
            func.row_number().over(order_by=newest_first).label("place"),
        )
        .where(table.c.planner == planner, table.c.version == version)
        .subquery()
    )
    beyond = select(sizes.c.digest).where(sizes.c.size > KEPT_BYTES_MAX, sizes.c.place > 1)
    session.execute(
        delete(table).where(table.c.planner == planner, table.c.version == version, table.c.digest.in_(beyond))
    )
