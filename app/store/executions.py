"""Executions as telemetry holds them, read for learning: replicas and devices by minute of arrival.

Owns the queries that boil reports down, so that learning reads a row per replica and minute whatever the interval of
reports. It refuses to judge: starting, failed and throttled ones come out as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from app.store.sql import named


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMinute:
    """One process of a replica over the reports that arrived within a minute. `batch` is its limit, `batch_mean` the
    mean size of what it executed, `executed_ms` the time of all executions; both are 0 without any.
    """

    minute: datetime
    uuid: str
    replica: str
    kind: str
    model: str
    share_pct_sm: int
    sm_count: int
    batch: int
    ready: bool
    failed: bool
    held_s: float
    completed: float
    dropped: float
    executions: float
    executed_ms: float
    batch_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMinute:
    """One device over the reports that arrived within a minute."""

    minute: datetime
    uuid: str
    seconds: float
    clock_mhz_sm_min: int
    clock_mhz_sm_max: int
    throttled: bool
    healthy: bool


def replica_minutes(session: Session, start: datetime, end: datetime) -> tuple[ReplicaMinute, ...]:
    """Every process of every replica in the minutes of [start, end)."""
    rows = session.execute(named("replica_minutes"), {"start": start, "end": end}).mappings()
    return tuple(ReplicaMinute(**row) for row in rows)


def device_minutes(session: Session, start: datetime, end: datetime) -> tuple[DeviceMinute, ...]:
    """Every device in the minutes of [start, end)."""
    return tuple(
        DeviceMinute(**row) for row in session.execute(named("device_minutes"), {"start": start, "end": end}).mappings()
    )


def clocks_asked(session: Session) -> dict[str, int]:
    """The SM clock in MHz that devices are told to hold now; those left to their driver are missing."""
    return {row.uuid: row.clock_mhz_sm for row in session.execute(named("clocks_asked"))}
