"""Executions as telemetry holds them, read for learning: replicas and devices by minute of arrival.

Owns the queries that boil reports down, so that learning reads a row per replica and minute whatever the interval of
reports. It refuses to judge: starting, failed and throttled ones come out as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session


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


_REPLICAS = text("""
SELECT date_trunc('minute', received_at, 'UTC') AS minute, uuid, replica, kind, model, share_pct_sm, sm_count, batch,
       bool_and(state = 'ready') AS ready, bool_or(state = 'failed') AS failed, sum(held_s) AS held_s,
       sum(completed) AS completed, sum(dropped) AS dropped,
       coalesce(sum(executions) FILTER (WHERE execution_ms_mean IS NOT NULL), 0) AS executions,
       coalesce(sum(executions * execution_ms_mean), 0) AS executed_ms,
       coalesce(sum(executions * batch_mean) FILTER (WHERE execution_ms_mean IS NOT NULL)
           / nullif(sum(executions) FILTER (WHERE execution_ms_mean IS NOT NULL), 0), 0) AS batch_mean
FROM replica_samples
WHERE received_at >= :start AND received_at < :end
GROUP BY 1, uuid, replica, kind, model, share_pct_sm, sm_count, batch
ORDER BY 1, uuid, replica, share_pct_sm, batch
""")
_DEVICES = text("""
SELECT date_trunc('minute', received_at, 'UTC') AS minute, uuid, sum(interval_s) AS seconds,
       min(clock_mhz_sm) AS clock_mhz_sm_min, max(clock_mhz_sm) AS clock_mhz_sm_max,
       bool_or(throttle <> '') AS throttled, bool_and(healthy) AS healthy
FROM device_samples
WHERE received_at >= :start AND received_at < :end
GROUP BY 1, uuid
ORDER BY 1, uuid
""")
_CLOCKS = text("""
SELECT device ->> 'uuid' AS uuid, (device ->> 'clock_mhz_sm')::integer AS clock_mhz_sm
FROM node_targets CROSS JOIN LATERAL jsonb_array_elements(document -> 'devices') AS device
WHERE device ->> 'clock_mhz_sm' IS NOT NULL
""")


def replica_minutes(session: Session, start: datetime, end: datetime) -> tuple[ReplicaMinute, ...]:
    """Every process of every replica in the minutes of [start, end)."""
    rows = session.execute(_REPLICAS, {"start": start, "end": end}).mappings()
    return tuple(ReplicaMinute(**row) for row in rows)


def device_minutes(session: Session, start: datetime, end: datetime) -> tuple[DeviceMinute, ...]:
    """Every device in the minutes of [start, end)."""
    return tuple(DeviceMinute(**row) for row in session.execute(_DEVICES, {"start": start, "end": end}).mappings())


def clocks_asked(session: Session) -> dict[str, int]:
    """The SM clock in MHz that devices are told to hold now; those left to their driver are missing."""
    return {row.uuid: row.clock_mhz_sm for row in session.execute(_CLOCKS)}
