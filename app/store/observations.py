"""What was seen lately, read for planning: newest readings, demand at the edge, progress, marks of change.

Owns the queries whose results become a snapshot or decide that a new one is due. Ages are the database's, so that one
clock judges all. It refuses to interpret: rows come out as they were reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, func, select, union_all
from sqlalchemy.orm import Session

from app.store.sql import named
from app.store.tables.documents import TABLES
from app.store.tables.profiles import profile_points


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRow:
    """Requests per second of a service at the edge: mean over the short window, mean of the busiest bin of the long."""

    service: str
    rate_rps_mean: float
    rate_rps_upper: float
    window_s: float
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """Newest reading of a device."""

    uuid: str
    power_w: float
    utilisation_pct: float
    memory_mib_used: float
    clock_mhz_sm: int
    temperature_c: float | None
    healthy: bool
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """Newest reading of a replica on a device."""

    replica: str
    kind: str
    workload: str
    model: str
    uuid: str
    state: str
    share_pct_sm: int
    memory_mib_limit: int
    batch: int
    interval_s: float
    arrived: float
    completed: float
    violated: float
    dropped: float
    queue_length: float
    batch_mean: float
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """How far a job or task is."""

    kind: str
    project: str
    name: str
    done: float
    evictions: int


def demand(session: Session, *, window_s: float, lookback_s: float, bin_s: float) -> tuple[DemandRow, ...]:
    """Offered load of every service seen at any edge in the last `window_s` seconds: its mean over them, and its
    busiest bin over the last `lookback_s`.
    """
    spans = {"window_s": window_s, "lookback_s": lookback_s, "bin_s": bin_s}
    return tuple(DemandRow(**row) for row in session.execute(named("offered_load"), spans).mappings())


def devices(session: Session, silent_s: float) -> tuple[DeviceRow, ...]:
    """Newest reading of each device whose node reported in the last `silent_s` seconds."""
    return tuple(
        DeviceRow(**row) for row in session.execute(named("newest_of_devices"), {"silent_s": silent_s}).mappings()
    )


def replicas(session: Session, silent_s: float) -> tuple[ReplicaRow, ...]:
    """Replicas that stand by the newest report of each node that reported in the last `silent_s` seconds."""
    return tuple(
        ReplicaRow(**row) for row in session.execute(named("newest_of_replicas"), {"silent_s": silent_s}).mappings()
    )


def progress(session: Session) -> tuple[ProgressRow, ...]:
    """Progress of every job and task that ever ran."""
    return tuple(ProgressRow(**row) for row in session.execute(named("progress")).mappings())


def intent_mark(session: Session) -> str:
    """A text that changes whenever any document or profile does."""
    # Sums beside counts: versions come from one sequence, so any change moves the sum, also one that commits after a
    # later version.
    newest: dict[Table, ColumnElement[Any]] = {table: func.sum(table.c.version) for table in TABLES.values()}
    newest[profile_points] = func.max(profile_points.c.imported_at)
    marks = (
        select(func.concat(f"{table.name} ", func.count(), "/", mark)).select_from(table)
        for table, mark in newest.items()
    )
    return " ".join(sorted(session.execute(union_all(*marks)).scalars()))


def live_nodes(session: Session, silent_s: float) -> tuple[str, ...]:
    """Nodes that reported in the last `silent_s` seconds."""
    return tuple(session.execute(named("live_nodes"), {"silent_s": silent_s}).scalars())
