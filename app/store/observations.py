"""What was seen lately, read for planning: newest readings, demand at the edge, progress, marks of change.

Owns the queries whose results become a snapshot or decide that a new one is due. Ages are the database's, so that one
clock judges all. It refuses to interpret: rows come out as they were reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, func, select, text, union_all
from sqlalchemy.orm import Session

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


# A gateway's rate inside a bin is what it counted over the time it counted, so that bins need not match its intervals;
# only they may not be shorter, or a bin would miss the gateways that report less often than it lasts.
# A sample with a bad interval would divide by zero; the edge refuses those, the filter keeps us safe.
_DEMAND = text("""
WITH counted AS (
    SELECT service, gateway, arrived, interval_s, received_at, extract(epoch FROM now() - received_at) AS age_s,
           greatest(:bin_s, max(interval_s) OVER (PARTITION BY service)) AS bin_s
    FROM rate_samples
    WHERE received_at > now() - make_interval(secs => :lookback_s) AND interval_s > 0
), bins AS (
    SELECT service, bin, sum(rate) AS rate_rps FROM (
        SELECT service, gateway, floor(age_s / bin_s) AS bin, sum(arrived) / sum(interval_s) AS rate
        FROM counted GROUP BY service, gateway, bin
    ) AS per_gateway GROUP BY service, bin
), means AS (
    SELECT service, sum(rate) AS rate_rps FROM (
        SELECT service, gateway, sum(arrived) / sum(interval_s) AS rate
        FROM counted WHERE age_s < :window_s GROUP BY service, gateway
    ) AS per_gateway GROUP BY service
)
SELECT means.service, means.rate_rps AS rate_rps_mean, greatest(means.rate_rps, max(bins.rate_rps)) AS rate_rps_upper,
       least(:lookback_s, seen.window_s)::float8 AS window_s, seen.age_s
FROM means
JOIN bins USING (service)
JOIN (
    SELECT service, extract(epoch FROM now() - min(received_at))::float8 AS window_s,
           extract(epoch FROM now() - max(received_at))::float8 AS age_s
    FROM counted GROUP BY service
) AS seen USING (service)
GROUP BY means.service, means.rate_rps, seen.window_s, seen.age_s
ORDER BY means.service
""")

# Every report carries its node's devices, so the newest report of a node is the newest one with device rows.
_NEWEST = """
WITH newest AS (
    SELECT DISTINCT ON (node_id) node_id, boot_id, sequence, received_at
    FROM device_samples
    WHERE received_at > now() - make_interval(secs => :silent_s)
    ORDER BY node_id, received_at DESC, sequence DESC
)
"""
_DEVICES = text(
    _NEWEST
    + """
SELECT uuid, power_w, utilisation_pct, memory_mib_used, clock_mhz_sm, temperature_c, healthy,
       extract(epoch FROM now() - sample.received_at)::float8 AS age_s
FROM newest JOIN device_samples AS sample USING (node_id, boot_id, sequence, received_at)
ORDER BY uuid
"""
)
# A process that ended within the interval appears in one more report, without memory; it holds nothing any more.
_REPLICAS = text(
    _NEWEST
    + """
SELECT replica, kind, workload, model, uuid, state, share_pct_sm, memory_mib_limit, batch, interval_s, arrived,
       completed, violated, dropped, queue_length, batch_mean, latency_ms_p50, latency_ms_p99,
       extract(epoch FROM now() - sample.received_at)::float8 AS age_s
FROM newest JOIN replica_samples AS sample USING (node_id, boot_id, sequence, received_at)
WHERE NOT (state = 'draining' AND memory_mib_used = 0)
ORDER BY replica, uuid
"""
)
_PROGRESS = text("SELECT kind, project, name, done, evictions FROM job_progress ORDER BY kind, project, name")

_LIVE = text("""
SELECT node_id FROM node_states WHERE last_report_at > now() - make_interval(secs => :silent_s) ORDER BY node_id
""")


def demand(session: Session, *, window_s: float, lookback_s: float, bin_s: float) -> tuple[DemandRow, ...]:
    """Offered load of every service seen at any edge in the last `window_s` seconds: its mean over them, and its
    busiest bin over the last `lookback_s`.
    """
    spans = {"window_s": window_s, "lookback_s": lookback_s, "bin_s": bin_s}
    return tuple(DemandRow(**row) for row in session.execute(_DEMAND, spans).mappings())


def devices(session: Session, silent_s: float) -> tuple[DeviceRow, ...]:
    """Newest reading of each device whose node reported in the last `silent_s` seconds."""
    return tuple(DeviceRow(**row) for row in session.execute(_DEVICES, {"silent_s": silent_s}).mappings())


def replicas(session: Session, silent_s: float) -> tuple[ReplicaRow, ...]:
    """Replicas that stand by the newest report of each node that reported in the last `silent_s` seconds."""
    return tuple(ReplicaRow(**row) for row in session.execute(_REPLICAS, {"silent_s": silent_s}).mappings())


def progress(session: Session) -> tuple[ProgressRow, ...]:
    """Progress of every job and task that ever ran."""
    return tuple(ProgressRow(**row) for row in session.execute(_PROGRESS).mappings())


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
    return tuple(session.execute(_LIVE, {"silent_s": silent_s}).scalars())
