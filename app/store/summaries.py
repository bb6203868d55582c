"""Counts and rates for people who look at the whole: gauges of the fleet, how well services were served lately.

Owns the queries behind the fleet's summary and the metrics. What planning reads is in `observations`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.store.migrate import VERSION_TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts:
    """The fleet in numbers. `ledger_age_s` is the age of the newest minute accounted; None before the first."""

    generation: int
    nodes_known: int
    nodes_up: int
    devices: int
    replicas_ready: int
    replicas_planned: int
    plan_cost_usd_per_h: float
    ledger_age_s: float | None
    outcomes_admitted: int
    outcomes_rejected: int
    beliefs_rebuilt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """How a service was served over a window. `unserved` are requests that were dropped or found nobody."""

    service: str
    completed: float
    violated: float
    unserved: float
    latency_ms_p99: float | None
    rate_rps: float


_COUNTS = text("""
WITH standing AS (
    SELECT state.generation, plan.cost_usd_per_h, jsonb_array_length(plan.document -> 'assignments') AS planned
    FROM cluster_state AS state LEFT JOIN plans AS plan ON plan.id = state.plan_id WHERE state.cluster = :cluster
), newest AS (
    SELECT substr(source, 6) AS node_id, boot_id, sequence, received_at
    FROM report_heads
    WHERE source LIKE 'node/%' AND received_at > now() - make_interval(secs => :silent_s)
)
SELECT coalesce((SELECT generation FROM standing), 0) AS generation,
       (SELECT count(*) FROM nodes) AS nodes_known,
       (SELECT count(*) FROM node_states WHERE last_report_at > now() - make_interval(secs => :silent_s)) AS nodes_up,
       (SELECT count(*) FROM devices WHERE billed_until IS NULL) AS devices,
       (SELECT count(*) FROM newest JOIN replica_samples AS sample USING (node_id, boot_id, sequence, received_at)
        WHERE sample.state = 'ready') AS replicas_ready,
       coalesce((SELECT planned FROM standing), 0) AS replicas_planned,
       coalesce((SELECT cost_usd_per_h FROM standing), 0) AS plan_cost_usd_per_h,
       (SELECT extract(epoch FROM now() - max(minute))::float8 FROM ledger) AS ledger_age_s,
       coalesce((SELECT admitted FROM learning_marks WHERE name = 'outcomes'), 0) AS outcomes_admitted,
       coalesce((SELECT rejected FROM learning_marks WHERE name = 'outcomes'), 0) AS outcomes_rejected,
       coalesce((SELECT rebuilt FROM learning_marks WHERE name = 'outcomes'), 0) AS beliefs_rebuilt
""")

# p99 is the worst interval's: percentiles of intervals cannot be added up.
_SERVED = text("""
WITH served AS (
    SELECT workload AS service, sum(completed) AS completed, sum(violated) AS violated, sum(dropped) AS dropped,
           max(latency_ms_p99) AS latency_ms_p99
    FROM replica_samples
    WHERE kind = 'service' AND received_at > now() - make_interval(secs => :window_s)
    GROUP BY workload
), offered AS (
    SELECT service, sum(unrouted) AS unrouted, sum(rate) AS rate_rps FROM (
        SELECT service, gateway, sum(unrouted) AS unrouted, sum(arrived) / sum(interval_s) AS rate
        FROM rate_samples WHERE received_at > now() - make_interval(secs => :window_s) AND interval_s > 0
        GROUP BY service, gateway
    ) AS per_gateway GROUP BY service
)
SELECT service, coalesce(completed, 0) AS completed, coalesce(violated, 0) AS violated,
       coalesce(dropped, 0) + coalesce(unrouted, 0) AS unserved, latency_ms_p99, coalesce(rate_rps, 0) AS rate_rps
FROM served FULL JOIN offered USING (service) ORDER BY service
""")


def counts(session: Session, cluster: str, silent_s: float) -> FleetCounts:
    """The fleet in numbers; nodes silent for longer than `silent_s` are not up."""
    row = session.execute(_COUNTS, {"cluster": cluster, "silent_s": silent_s}).mappings().one()
    return FleetCounts(**row)


def served(session: Session, window_s: float) -> tuple[ServedRow, ...]:
    """How every service was served over the last `window_s` seconds."""
    return tuple(ServedRow(**row) for row in session.execute(_SERVED, {"window_s": window_s}).mappings())


def schema_revision(session: Session) -> str | None:
    """Revision of the connected database; None when it was never migrated."""
    if session.execute(text("SELECT to_regclass(:name)"), {"name": VERSION_TABLE}).scalar_one() is None:
        return None
    found: str | None = session.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()
    return found
