"""Counts and rates for people who look at the whole: gauges of the fleet, how well services were served lately.

Owns the queries behind the fleet's summary and the metrics. What planning reads is in `observations`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.store.sql import named


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


def counts(session: Session, cluster: str, silent_s: float) -> FleetCounts:
    """The fleet in numbers; nodes silent for longer than `silent_s` are not up."""
    row = session.execute(named("fleet_counts"), {"cluster": cluster, "silent_s": silent_s}).mappings().one()
    return FleetCounts(**row)


def served(session: Session, window_s: float) -> tuple[ServedRow, ...]:
    """How every service was served over the last `window_s` seconds."""
    return tuple(ServedRow(**row) for row in session.execute(named("served"), {"window_s": window_s}).mappings())


def schema_revision(session: Session) -> str | None:
    """Revision of the connected database; None when it was never migrated."""
    if session.execute(named("migrated")).scalar_one() is None:
        return None
    found: str | None = session.execute(named("schema_revision")).scalar_one_or_none()
    return found
