"""Stored telemetry read for people: series of a device or service in even steps, and the partitions that hold the rows.

Owns bucketing. What planning reads is in `observations`, what costs are made of in `ledger`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from solvers.errors import FieldError

BUCKETS_MAX = 2_000
DAYS_AHEAD = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """From `since` to before `until`, in steps of `step_s` seconds."""

    since: datetime
    until: datetime
    step_s: float

    def __post_init__(self) -> None:
        if self.step_s <= 0:
            raise FieldError("step_s", "step_s must be greater than 0")
        if self.until <= self.since:
            raise FieldError("until", "until must be later than since")
        if (self.until - self.since).total_seconds() / self.step_s > BUCKETS_MAX:
            raise FieldError("step_s", f"step_s is too small: at most {BUCKETS_MAX} steps fit into one answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePoint:
    """A device over one step: means, the energy used and the highest temperature."""

    at: datetime
    power_w: float
    energy_j: float
    utilisation_pct: float
    memory_mib_used: float
    clock_mhz_sm: float
    share_pct_sm_total: float
    temperature_c: float | None
    healthy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePoint:
    """A service over one step, rates per second. Offered load is None where no gateway reported, the rest where no
    replica did.

    Percentiles of intervals cannot be added up: p50 is their mean weighted by completions, p99 the worst interval's.
    """

    at: datetime
    offered_rps: float | None
    unrouted_rps: float | None
    arrived_rps: float | None
    completed_rps: float | None
    dropped_rps: float | None
    violation_fraction: float | None
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    queue_length: float | None
    replicas: int
    share_pct_sm: float | None
    energy_j: float | None


_DEVICE = text("""
SELECT date_bin(make_interval(secs => :step_s), received_at, :since) AS at,
       coalesce(sum(energy_j) / nullif(sum(interval_s), 0), avg(power_w)) AS power_w, sum(energy_j) AS energy_j,
       avg(utilisation_pct) AS utilisation_pct, avg(memory_mib_used) AS memory_mib_used,
       avg(clock_mhz_sm)::float8 AS clock_mhz_sm, avg(share_pct_sm_total)::float8 AS share_pct_sm_total,
       max(temperature_c) AS temperature_c, bool_and(healthy) AS healthy
FROM device_samples
WHERE uuid = :uuid AND received_at >= :since AND received_at < :until
GROUP BY 1 ORDER BY 1
""")

# Replica rates are summed over replicas: what each counted, over the step's share that it reported on.
_SERVICE = text("""
WITH per_replica AS (
    SELECT date_bin(make_interval(secs => :step_s), received_at, :since) AS at, replica,
           sum(interval_s) AS covered_s, sum(arrived) AS arrived, sum(completed) AS completed, sum(dropped) AS dropped,
           sum(violated) AS violated, avg(queue_length) AS queue_length, avg(share_pct_sm) AS share_pct_sm,
           sum(energy_j) AS energy_j, max(latency_ms_p99) AS latency_ms_p99,
           sum(latency_ms_p50 * completed) FILTER (WHERE latency_ms_p50 IS NOT NULL) AS p50_weighted,
           sum(completed) FILTER (WHERE latency_ms_p50 IS NOT NULL) AS p50_weight
    FROM replica_samples
    WHERE workload = :service AND received_at >= :since AND received_at < :until AND interval_s > 0
    GROUP BY 1, 2
), served AS (
    SELECT at, sum(arrived / covered_s) AS arrived_rps, sum(completed / covered_s) AS completed_rps,
           sum(dropped / covered_s) AS dropped_rps, sum(violated) / nullif(sum(completed), 0) AS violation_fraction,
           sum(p50_weighted) / nullif(sum(p50_weight), 0) AS latency_ms_p50, max(latency_ms_p99) AS latency_ms_p99,
           sum(queue_length) AS queue_length, count(*) AS replicas, sum(share_pct_sm)::float8 AS share_pct_sm,
           sum(energy_j) AS energy_j
    FROM per_replica GROUP BY at
), per_gateway AS (
    SELECT date_bin(make_interval(secs => :step_s), received_at, :since) AS at, gateway,
           sum(arrived) / sum(interval_s) AS offered_rps, sum(unrouted) / sum(interval_s) AS unrouted_rps
    FROM rate_samples
    WHERE service = :service AND received_at >= :since AND received_at < :until AND interval_s > 0
    GROUP BY 1, 2
), offered AS (
    SELECT at, sum(offered_rps) AS offered_rps, sum(unrouted_rps) AS unrouted_rps FROM per_gateway GROUP BY at
)
SELECT at, offered_rps, unrouted_rps, arrived_rps, completed_rps, dropped_rps, violation_fraction, latency_ms_p50,
       latency_ms_p99, queue_length, coalesce(replicas, 0) AS replicas, share_pct_sm, energy_j
FROM served FULL JOIN offered USING (at) ORDER BY at
""")


def device_series(session: Session, uuid: str, window: Window) -> tuple[DevicePoint, ...]:
    """A device's readings in the window's steps; steps without a report are left out."""
    rows = session.execute(_DEVICE, {"uuid": uuid, **_parameters(window)}).mappings()
    return tuple(DevicePoint(**row) for row in rows)


def service_series(session: Session, service: str, window: Window) -> tuple[ServicePoint, ...]:
    """A service's (or any workload's) offered and served load in the window's steps; empty steps are left out."""
    rows = session.execute(_SERVICE, {"service": service, **_parameters(window)}).mappings()
    return tuple(ServicePoint(**row) for row in rows)


def ensure_partitions(session: Session, days_ahead: int = DAYS_AHEAD) -> int:
    """Make the missing partitions of today and the coming days; returns how many were made."""
    return int(session.execute(text("SELECT headroom_ensure_partitions(:days)"), {"days": days_ahead}).scalar_one())


def _parameters(window: Window) -> dict[str, object]:
    return {"since": window.since, "until": window.until, "step_s": window.step_s}
