"""Stored telemetry read for people: series of a device or service in even steps, and the partitions that hold the rows.

Owns bucketing. What planning reads is in `observations`, what costs are made of in `ledger`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from app.records import record
from app.store.sql import named
from solvers.errors import FieldError

BUCKETS_MAX = 2_000
DAYS_AHEAD = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryWindow:
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


@record
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


@record
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


def device_series(session: Session, uuid: str, window: TelemetryWindow) -> tuple[DevicePoint, ...]:
    """A device's readings in the window's steps; steps without a report are left out."""
    rows = session.execute(named("device_series"), {"uuid": uuid, **_parameters(window)}).mappings()
    return tuple(DevicePoint(**row) for row in rows)


def service_series(session: Session, service: str, window: TelemetryWindow) -> tuple[ServicePoint, ...]:
    """A service's (or any workload's) offered and served load in the window's steps; empty steps are left out."""
    rows = session.execute(named("service_series"), {"service": service, **_parameters(window)}).mappings()
    return tuple(ServicePoint(**row) for row in rows)


def ensure_partitions(session: Session, days_ahead: int = DAYS_AHEAD) -> int:
    """Make the missing partitions of today and the coming days; returns how many were made."""
    return int(session.execute(named("ensure_partitions"), {"days": days_ahead}).scalar_one())


def _parameters(window: TelemetryWindow) -> dict[str, object]:
    return {"since": window.since, "until": window.until, "step_s": window.step_s}
