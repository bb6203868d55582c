"""Telemetry read back: the newest readings for planning, minutes of execution for learning, counts and series for
people; and the partitions that hold the rows.

Ages are the database's, so that one clock judges all. Rows come out as they were reported; what costs are made of is in
`ledger`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Row, Table, delete, func, select, union_all
from sqlalchemy.orm import Session

from app.records import record
from app.store.sql import named, put_over, records
from app.store.tables import TABLES, demand_memories, job_progress, profile_points
from solvers.cycle.memory import Past
from solvers.cycle.offered import CountedLoads
from solvers.domain.telemetry import DEMAND_COUNT_S, DEMAND_JUMP_SIGMAS
from solvers.errors import FieldError

NONE_SHORTER: Mapping[str, float] = MappingProxyType({})
ROWS_AT_ONCE = 64
"""Each is all that a gateway counted of a service: 17 KiB for an hour of reports every five seconds."""

# --- What was seen lately, for planning: its results become a snapshot, or decide that a new one is due


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
    uuid: str
    power_w: float
    utilisation_pct: float
    memory_mib_used: float
    clock_mhz_sm: int
    temperature_c: float | None
    healthy: bool
    slow_factor: float
    """How many times as long as others of its type it takes, as far as was found; 1: as long."""
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
    kind: str
    project: str
    name: str
    done: float
    evictions: int


def demand(
    session: Session, *, window_s: float, lookback_s: float, bin_s: float, shorter_s: Mapping[str, float] = NONE_SHORTER
) -> tuple[DemandRow, ...]:
    """Offered load of every service seen at any edge in the last `window_s` seconds: its mean over them, and its
    busiest bin over the last `lookback_s`, or its own of `shorter_s`, or what is sure of half of one or of what was
    counted last.
    """
    rows = session.execute(named("counted_loads"), {"lookback_s": max(window_s, lookback_s)}).all()
    if not rows:
        return ()
    services, loads = _added_up(rows, bin_s)
    own_s = np.array([shorter_s.get(service, lookback_s) for service in services])
    mean_rps, newest_rps = loads.newest(np.full_like(own_s, window_s))
    upper_rps, last_rps = np.maximum(newest_rps, loads.busiest(own_s)), counted_last(session, bin_s)
    oldest_s, newest_s = loads.ages_s()
    return tuple(
        DemandRow(
            service=service,
            rate_rps_mean=mean,
            rate_rps_upper=max(upper, last_rps.get(service, 0.0)),
            window_s=window,
            age_s=age_s,
        )
        for service, mean, upper, window, age_s in zip(
            services,
            mean_rps.tolist(),
            upper_rps.tolist(),
            np.minimum(own_s, oldest_s).tolist(),
            newest_s.tolist(),
            strict=True,
        )
        if not math.isnan(mean)
    )


def asked(session: Session, past_s: float, bin_s: float) -> Iterator[tuple[str, Past]]:
    """What was asked of every service in the last `past_s` seconds, one after the other: all are hundreds of MiB."""
    options = {"yield_per": ROWS_AT_ONCE}
    rows = session.execute(named("counted_loads"), {"lookback_s": past_s}, execution_options=options)
    for service, mine in groupby(rows, attrgetter("service")):
        yield service, _added_up(list(mine), bin_s)[1].past(past_s)[0]


def _added_up(rows: Sequence[Row[Any]], bin_s: float) -> tuple[list[str], CountedLoads]:
    """Services, and what edges counted of them."""
    services, of_edge = np.unique([row.service for row in rows], return_inverse=True)
    reports = np.frombuffer(b"".join(row.counted for row in rows), ">f8").reshape(-1, 3).astype(float)
    edge = np.repeat(np.arange(len(rows)), [len(row.counted) // 24 for row in rows])
    return services.tolist(), CountedLoads(of_edge, edge, reports, now_s=rows[0].now_s, bin_s=bin_s)


def counted_last(session: Session, since_s: float) -> dict[str, float]:
    """What is sure of every service's rate by what each edge counted last, if it did in the last `since_s` seconds."""
    spans = {"since_s": since_s, "jump_sigmas": DEMAND_JUMP_SIGMAS, "count_s": DEMAND_COUNT_S}
    rows = session.execute(named("counted_last"), spans)
    return {row.service: row.rate_rps for row in rows}


def memories_s(session: Session) -> dict[str, float]:
    """How long each service is looked back at whose past shows that a part of its policy's time will do."""
    rows = session.execute(select(demand_memories.c.service, demand_memories.c.memory_s))
    return {row.service: row.memory_s for row in rows}


def put_memories(session: Session, found: Mapping[str, float]) -> None:
    """These, and no other."""
    session.execute(delete(demand_memories).where(demand_memories.c.service.not_in(sorted(found))))
    rows = [{"service": service, "memory_s": seconds, "learned_at": func.now()} for service, seconds in found.items()]
    if rows:
        session.execute(put_over(demand_memories, rows, ("service",)))


def devices(session: Session, silent_s: float) -> tuple[DeviceRow, ...]:
    """Newest reading of each device whose node reported in the last `silent_s` seconds."""
    return records(session, DeviceRow, named("newest_of_devices"), silent_s=silent_s)


def replicas(session: Session, silent_s: float) -> tuple[ReplicaRow, ...]:
    """Replicas that stand by the newest report of each node that reported in the last `silent_s` seconds."""
    return records(session, ReplicaRow, named("newest_of_replicas"), silent_s=silent_s)


def progress(session: Session) -> tuple[ProgressRow, ...]:
    return records(session, ProgressRow, named("progress"))


def intent_mark(session: Session) -> str:
    """A text that changes whenever any document or profile does, or what is believed of them."""
    # Sums beside counts: versions come from one sequence, so any change moves the sum, also one that commits after a
    # later version.
    newest: dict[Table, ColumnElement[Any]] = {table: func.sum(table.c.version) for table in TABLES.values()}
    newest[profile_points] = func.max(profile_points.c.imported_at)
    marks = (
        select(func.concat(f"{table.name} ", func.count(), "/", mark)).select_from(table)
        for table, mark in newest.items()
    )
    learned = session.execute(named("newest_fit")).scalar_one()
    return " ".join((*sorted(session.execute(union_all(*marks)).scalars()), str(learned)))


def works_ended(session: Session) -> int:
    """How many jobs and tasks are done."""
    return session.execute(select(func.count(job_progress.c.finished_at))).scalar_one()


def live_nodes(session: Session, silent_s: float) -> tuple[str, ...]:
    return tuple(session.execute(named("live_nodes"), {"silent_s": silent_s}).scalars())


@record
class Hearing:
    """How many nodes ever reported, and for how long none of them has."""

    nodes: int
    unheard_s: float


def hearing(session: Session) -> Hearing:
    (found,) = records(session, Hearing, named("hearing"))
    return found


# --- Executions by minute of arrival, for learning: a row per replica and minute whatever the interval of reports.
# Starting, failed and throttled ones come out as such


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
    """One device over the reports that arrived within a minute. `hindered`: throttled by heat or by its host."""

    minute: datetime
    uuid: str
    seconds: float
    clock_mhz_sm_min: int
    clock_mhz_sm_max: int
    clock_mhz_sm_mean: float
    throttled: bool
    hindered: bool
    healthy: bool


def replica_minutes(session: Session, start: datetime, end: datetime) -> tuple[ReplicaMinute, ...]:
    """Every process of every replica in the minutes of [start, end)."""
    return records(session, ReplicaMinute, named("replica_minutes"), start=start, end=end)


def device_minutes(session: Session, start: datetime, end: datetime) -> tuple[DeviceMinute, ...]:
    return records(session, DeviceMinute, named("device_minutes"), start=start, end=end)


def clocks_asked(session: Session) -> dict[str, int]:
    """The SM clock in MHz that devices are told to hold now; those left to their driver are missing."""
    return {row.uuid: row.clock_mhz_sm for row in session.execute(named("clocks_asked"))}


# --- The fleet in numbers, and how well services were served lately, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts:
    """The fleet in numbers. `ledger_age_s` is the age of the newest minute accounted; None before the first.
    `measurements_unlearned` came, changed or went since `beliefs_as_of`, when all had been learned (None: never).
    """

    generation: int
    nodes_known: int
    nodes_up: int
    devices: int
    replicas_ready: int
    replicas_planned: int
    plan_cost_usd_per_h: float
    plan_bound_usd_per_h: float | None
    plan_age_s: float | None
    cycles_last_hour: int
    cycles_stood_in_last_hour: int
    ledger_age_s: float | None
    raw_bytes: int
    minute_bytes: int
    outcomes_admitted: int
    outcomes_rejected: int
    beliefs_rebuilt: int
    beliefs_as_of: datetime | None
    measurements_unlearned: int
    beliefs_failed: bool


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
    (found,) = records(session, FleetCounts, named("fleet_counts"), cluster=cluster, silent_s=silent_s)
    return found


def served(session: Session, window_s: float) -> tuple[ServedRow, ...]:
    return records(session, ServedRow, named("served"), window_s=window_s)


# --- Series in even steps, for people


BUCKETS_MAX = 2_000
DAYS_AHEAD = 7
PARENTS = ("sample_shapes", "node_samples", "rate_samples", "report_log")
"""Tables of raw telemetry, which have partitions."""


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
            raise FieldError("from", "`from` must lie before `to`")
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
    slo_attainment: float | None
    """Part of what was asked that ended within the SLO; what was dropped or found no replica did not."""
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    queue_length: float | None
    replicas: int
    share_pct_sm: float | None
    energy_j: float | None
    energy_j_per_request: float | None
    usd_per_h: float | None
    """By SM share held, as the ledger has it: of minutes in windows of two hours at most, else of whole hours."""


def device_series(session: Session, uuid: str, window: TelemetryWindow) -> tuple[DevicePoint, ...]:
    """A device's readings in the window's steps; steps without a report are left out."""
    return records(session, DevicePoint, named("device_series"), uuid=uuid, **asdict(window))


def service_series(session: Session, service: str, window: TelemetryWindow) -> tuple[ServicePoint, ...]:
    """A service's (or any workload's) offered and served load in the window's steps; empty steps are left out."""
    return records(session, ServicePoint, named("service_series"), service=service, **asdict(window))


def ensure_partitions(session: Session, days_ahead: int = DAYS_AHEAD, parents: Sequence[str] = PARENTS) -> int:
    """Make the missing partitions of today and the coming days; returns how many were made. While others read and
    write, those of one table in a transaction: it keeps them from its default partition.
    """
    wanted = ({"days": days_ahead, "parent": parent} for parent in parents)
    return sum(int(session.execute(named("ensure_partitions"), each).scalar_one()) for each in wanted)
