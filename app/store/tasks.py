"""Offline tasks with how far they are, read for people: pages by key, filtered by what has become of them.

Owns the query and the words for a task's state, the same as those of the view `task_outcomes`: done; late (its deadline
has passed before); running (the standing plan has a place for it); waiting. It refuses to know plans beyond that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy.orm import Session

from app.store.pages import StoredPage, cut, decode_cursor
from app.store.sql import named

LISTING = "task-statuses"


class TaskState(StrEnum):
    """What has become of a task."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task's document beside its progress. `rank` counts those without a place, in the order of their priority."""

    project: str
    name: str
    spec: dict[str, Any]
    state: TaskState
    submitted_at: datetime
    begun_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    inputs_done: float
    evictions: int
    latency_ms_measured: float | None
    rank: int | None
    read_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskListing:
    """What of the list is wanted."""

    limit: int
    cursor: str | None = None
    project: str | None = None
    state: TaskState | None = None


def page(session: Session, cluster: str, listing: TaskListing) -> StoredPage[TaskRow]:
    """Tasks by key. Raises FieldError for a foreign cursor."""
    after = ("", "") if listing.cursor is None else decode_cursor(LISTING, listing.cursor, (str, str))
    wanted = {
        "cluster": cluster,
        "project": listing.project,
        "name": None,
        "state": None if listing.state is None else listing.state.value,
        "after_project": after[0],
        "after_name": after[1],
        "most": listing.limit + 1,
    }
    found = [_row(row) for row in session.execute(named("tasks"), wanted).mappings()]
    return cut(LISTING, found, listing.limit, lambda row: (row.project, row.name))


def find(session: Session, cluster: str, project: str, name: str) -> TaskRow | None:
    """One task; None when there is no such document."""
    wanted = {"cluster": cluster, "project": project, "name": name, "state": None, "most": 1}
    row = session.execute(named("tasks"), {**wanted, "after_project": "", "after_name": ""}).mappings().one_or_none()
    return None if row is None else _row(row)


def standing_plan(session: Session, cluster: str) -> str | None:
    """Id of the plan that stands; None before the first."""
    return session.execute(named("standing_plan"), {"cluster": cluster}).scalar_one_or_none()


def _row(row: Any) -> TaskRow:
    return TaskRow(**{**row, "state": TaskState(row["state"])})
