"""How far training jobs and offline tasks are.

Work done comes in with reports; this module reads it and counts evictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete as delete_from
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.store.tables.documents import job_progress
from solvers.domain.workload import WorkloadKind


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkProgress:
    """Iterations of a job, or inputs of a task, that are done, in how many batches of how long together."""

    kind: WorkloadKind
    project: str
    name: str
    done: float
    evictions: int
    updated_at: datetime
    begun_at: datetime | None = None
    finished_at: datetime | None = None
    executions: float = 0.0
    executed_ms: float = 0.0


def find(session: Session, kind: WorkloadKind, project: str, name: str) -> WorkProgress | None:
    """Progress of one job or task; None before it ever ran."""
    row = session.execute(
        select(job_progress).where(
            job_progress.c.kind == kind.value, job_progress.c.project == project, job_progress.c.name == name
        )
    ).one_or_none()
    return None if row is None else WorkProgress(**{**row._mapping, "kind": kind})


def count_eviction(session: Session, kind: WorkloadKind, project: str, name: str) -> int:
    """Count one more time that a job or task lost its place; returns the count."""
    statement = insert(job_progress).values(kind=kind.value, project=project, name=name, evictions=1)
    statement = statement.on_conflict_do_update(
        index_elements=["kind", "project", "name"],
        set_={"evictions": job_progress.c.evictions + 1, "updated_at": func.now()},
    )
    return int(session.execute(statement.returning(job_progress.c.evictions)).scalar_one())


def forget(session: Session, kind: WorkloadKind, project: str, name: str) -> bool:
    """Drop the progress of a deleted job or task, so that a new one of its name starts at nothing."""
    statement = delete_from(job_progress).where(
        job_progress.c.kind == kind.value, job_progress.c.project == project, job_progress.c.name == name
    )
    return session.execute(statement.returning(job_progress.c.name)).one_or_none() is not None
