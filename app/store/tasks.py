"""Offline tasks with how far they are, read for people: pages by key, filtered by what has become of them.

Owns the query and the words for a task's state, the same as those of the view `task_outcomes`: done; late (its deadline
has passed before); running (the standing plan has a place for it); waiting. It refuses to know plans beyond that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.store.pages import Page, cut, decode_cursor

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


_ROWS = """
WITH standing AS (
    SELECT DISTINCT item ->> 'workload' AS task
    FROM cluster_state JOIN plans ON plans.id = cluster_state.plan_id
    CROSS JOIN LATERAL jsonb_array_elements(plans.document -> 'assignments') AS item
    WHERE cluster_state.cluster = :cluster AND item ->> 'kind' = 'task'
), told AS (
    SELECT t.project, t.name, t.spec, t.created_at AS submitted_at, p.begun_at, ended.at AS finished_at,
        asked.deadline_at, coalesce(p.done, 0) AS inputs_done, coalesce(p.evictions, 0) AS evictions,
        p.executed_ms / nullif(p.executions, 0) AS latency_ms_measured,
        ended.at IS NULL AND standing.task IS NULL AS unseated, now() AS read_at,
        CASE WHEN ended.at IS NOT NULL THEN 'done' WHEN now() > asked.deadline_at THEN 'late'
            WHEN standing.task IS NOT NULL THEN 'running' ELSE 'waiting' END AS state
    FROM tasks t
    LEFT JOIN job_progress p ON p.kind = 'task' AND p.project = t.project AND p.name = t.name
    LEFT JOIN standing ON standing.task = t.project || '/' || t.name
    CROSS JOIN LATERAL (
        SELECT (t.spec ->> 'inputs_total')::float8 AS inputs,
            t.created_at + make_interval(secs => (t.spec -> 'slo' ->> 'deadline_s')::float8) AS deadline_at) asked
    CROSS JOIN LATERAL (
        SELECT CASE WHEN p.done >= asked.inputs THEN coalesce(p.finished_at, p.updated_at) END AS at) ended
), ranked AS (
    SELECT told.*, CASE WHEN unseated THEN row_number() OVER (
        PARTITION BY unseated ORDER BY (spec ->> 'priority')::integer DESC, project, name) END AS rank
    FROM told
)
SELECT project, name, spec, state, submitted_at, begun_at, finished_at, deadline_at, inputs_done, evictions,
    latency_ms_measured, rank, read_at
FROM ranked
"""
_PAGE = text(
    _ROWS
    + """
WHERE (CAST(:project AS text) IS NULL OR project = :project) AND (CAST(:state AS text) IS NULL OR state = :state)
    AND (project, name) > (:after_project, :after_name)
ORDER BY project, name LIMIT :most
"""
)
_ONE = text(_ROWS + "WHERE project = :project AND name = :name")


def page(session: Session, cluster: str, listing: TaskListing) -> Page[TaskRow]:
    """Tasks by key. Raises FieldError for a foreign cursor."""
    after = ("", "") if listing.cursor is None else decode_cursor(LISTING, listing.cursor, (str, str))
    wanted = {
        "cluster": cluster,
        "project": listing.project,
        "state": None if listing.state is None else listing.state.value,
        "after_project": after[0],
        "after_name": after[1],
        "most": listing.limit + 1,
    }
    found = [_row(row) for row in session.execute(_PAGE, wanted).mappings()]
    return cut(LISTING, found, listing.limit, lambda row: (row.project, row.name))


def find(session: Session, cluster: str, project: str, name: str) -> TaskRow | None:
    """One task; None when there is no such document."""
    wanted = {"cluster": cluster, "project": project, "name": name}
    row = session.execute(_ONE, wanted).mappings().one_or_none()
    return None if row is None else _row(row)


def standing_plan(session: Session, cluster: str) -> str | None:
    """Id of the plan that stands; None before the first."""
    query = text("SELECT plan_id FROM cluster_state WHERE cluster = :cluster")
    return session.execute(query, {"cluster": cluster}).scalar_one_or_none()


def _row(row: Any) -> TaskRow:
    return TaskRow(**{**row, "state": TaskState(row["state"])})
