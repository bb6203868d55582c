"""What monitoring asks of the database: counts since its last look, and what stands. Ages are the database's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import TextClause
from sqlalchemy.orm import Session

from app.store.sql import named, records

SETTLE_S = 3.0
"""Rows that arrived so long ago are committed, or their writer is frozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSpan:
    """What is counted: what arrived after `since`, up to `until`."""

    since: datetime
    until: datetime

    @property
    def bounds(self) -> dict[str, datetime]:
        return {"since": self.since, "until": self.until}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMeter:
    """A replica of the standing plan."""

    kind: str
    workload: str
    device: str
    share_pct_sm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplacedMeter:
    """`approval_places`: a plan that waits for approval leaves it short no more."""

    kind: str
    workload: str
    rate_rps_short: float
    approval_places: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkMeter:
    """Jobs or tasks of a project in one state; `done` is the sum of the parts of them that are done."""

    kind: str
    project: str
    state: str
    works: int
    done: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMeter:
    """A service over the last window; fields in `_new` were added within the span."""

    service: str
    rate_rps: float | None
    completed: float
    violated: float
    unserved: float
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    arrived_new: float
    completed_new: float
    violated_new: float
    unserved_new: float
    energy_j_new: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclesMeter:
    """Cycles that ended alike. `attempts` are planners and how each came to its end; None: not kept."""

    lane: str
    outcome: str
    attempts: list[dict[str, str]] | None
    cycles: int
    elapsed_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMeter:
    node: str
    rack: str
    schedulable: bool
    age_s: float | None
    certificate_ends_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeMeter:
    """What waits, and for how long. `until`: rows that arrived before are all there."""

    until: datetime
    plans_awaiting: int
    plans_awaiting_s: float
    outcomes_age_s: float | None
    webhooks_age_s: float
    report_age_s: float | None
    partitions_ahead_s: float | None


def whole(session: Session) -> WholeMeter:
    (found,) = records(session, WholeMeter, named("metered_whole"), settle_s=SETTLE_S)
    return found


def planned(session: Session, cluster: str) -> tuple[PlannedMeter, ...]:
    return records(session, PlannedMeter, named("metered_plan"), cluster=cluster)


def unplaced(session: Session, cluster: str) -> tuple[UnplacedMeter, ...]:
    return records(session, UnplacedMeter, named("metered_unplaced"), cluster=cluster)


def work(session: Session, cluster: str) -> tuple[WorkMeter, ...]:
    return records(session, WorkMeter, named("metered_work"), cluster=cluster)


def power_limits(session: Session, cluster: str) -> dict[str, float]:
    return _pairs(session, named("metered_limits"), cluster=cluster)


def services(session: Session, span: NewSpan, window_s: float) -> tuple[ServiceMeter, ...]:
    return records(session, ServiceMeter, named("metered_services"), **span.bounds, window_s=window_s)


def ready(session: Session, silent_s: float) -> dict[str, float]:
    """Ready replicas by workload."""
    return _pairs(session, named("metered_ready"), silent_s=silent_s)


def energy(session: Session, span: NewSpan) -> dict[str, float]:
    """Joules by device."""
    return _pairs(session, named("metered_energy"), **span.bounds)


def cycles(session: Session, span: NewSpan) -> tuple[CyclesMeter, ...]:
    return records(session, CyclesMeter, named("metered_cycles"), **span.bounds)


def events(session: Session, span: NewSpan) -> dict[str, float]:
    """Audit events by name."""
    return _pairs(session, named("metered_events"), **span.bounds)


def nodes(session: Session) -> tuple[NodeMeter, ...]:
    return records(session, NodeMeter, named("metered_nodes"))


def _pairs(session: Session, statement: TextClause, **parameters: Any) -> dict[str, float]:
    return {str(key): float(value) for key, value in session.execute(statement, parameters)}
