"""What learning planners have learned: bytes that only the planner of the same name and version can read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.store.tables.planning import planner_states


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerState:
    """A stored state and its digest, which records name."""

    planner: str
    version: str
    state: bytes
    digest: str
    updated_at: datetime


def find(session: Session, planner: str, version: str) -> PlannerState | None:
    """The state of a planner; None before it learned anything."""
    row = session.execute(
        select(planner_states).where(planner_states.c.planner == planner, planner_states.c.version == version)
    ).one_or_none()
    return None if row is None else PlannerState(**{**row._mapping, "state": bytes(row.state)})


def put(session: Session, planner: str, version: str, state: bytes) -> str:
    """Replace a planner's state; returns its digest."""
    digest = "sha256:" + hashlib.sha256(state).hexdigest()
    statement = insert(planner_states).values(planner=planner, version=version, state=state, digest=digest)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["planner", "version"], set_={"state": state, "digest": digest, "updated_at": func.now()}
        )
    )
    return digest
