"""How far offline tasks and training jobs are: tasks as people list them, and the progress that reports bring in.

The words for a task's state are those of the view `task_outcomes`: done; late (its deadline has passed before); running
(the standing plan has a place for it); waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from app.store.pages import PageOrder, StoredPage, cut, decode_cursor
from app.store.sql import changed, named, one, records
from app.store.tables import job_progress
from solvers.domain.workload import WorkloadKind

LISTING = "task-statuses"


class TaskState(StrEnum):
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
class TaskListing(PageOrder):
    project: str | None = None
    state: TaskState | None = None


def page(session: Session, cluster: str, listing: TaskListing) -> StoredPage[TaskRow]:
    """Tasks by key. Raises FieldError for a foreign cursor."""
    after = ("", "") if listing.cursor is None else decode_cursor(LISTING, listing.cursor, (str, str))
    wanted = {
        "cluster": cluster,
        "project": listing.project,
        "name": None,
        "state": listing.state,
        "after_project": after[0],
        "after_name": after[1],
        "most": listing.limit + 1,
    }
    found = records(session, TaskRow, named("tasks"), **wanted)
    return cut(LISTING, found, listing.limit, lambda row: (row.project, row.name))


def find(session: Session, cluster: str, project: str, name: str) -> TaskRow | None:
    """One task; None when there is no such document."""
    wanted = {"cluster": cluster, "project": project, "name": name, "state": None, "most": 1}
    return one(session, TaskRow, named("tasks"), **wanted, after_project="", after_name="")


def standing_plan(session: Session, cluster: str) -> str | None:
    """Id of the plan that stands; None before the first."""
    return session.execute(named("standing_plan"), {"cluster": cluster}).scalar_one_or_none()


# --- Progress of tasks and jobs


def count_eviction(session: Session, kind: WorkloadKind, project: str, name: str) -> int:
    """Count one more time that a job or task lost its place; returns the count."""
    work = {"kind": kind, "project": project, "name": name}
    return int(session.execute(named("count_eviction"), work).scalar_one())


def forget(session: Session, kind: WorkloadKind, project: str, name: str) -> bool:
    """Drop the progress of a deleted job or task, so that a new one of its name starts at nothing."""
    mine = (job_progress.c.kind == kind, job_progress.c.project == project, job_progress.c.name == name)
    return changed(session, delete(job_progress).where(*mine)) > 0
