"""What monitoring is told of services, devices, power and planning, read in one moment of the database.

Counts rise from the moment on in which a process looked first: each look adds what arrived since the last one, so its
cost follows the load and not the history. What documents alone say (prices, caps, objectives) is read again only when a
document changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from app import kinds
from app.services.declared.ownership import read_owners
from app.services.planning.snapshots import read_policy
from app.services.seen.status import price_of
from app.store import documents, meters, telemetry
from app.store.engine import Database
from app.store.meters import NewSpan, NodeMeter, ServiceMeter, UnplacedMeter, WholeMeter, WorkMeter
from app.store.telemetry import DeviceRow, FleetCounts
from solvers.cycle.record import OUTCOMES, Lane
from solvers.domain.device import GpuType

WINDOW_S = 60.0
"""Rates, latencies and attainment are those of the last minute."""
FIRST_LOOK_BACK = timedelta(hours=1)
"""Cycles and audit events are counted from so long before the first look on, so that what happens seldom is there."""
CYCLE_OUTCOMES = ("promoted", "held", "no_plan", "aborted")
Plain = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredDevice:
    """What documents say of a device."""

    node: str
    rack: str
    index: int
    gpu_type: str
    memory_mib: int
    usd_per_h: float
    power_limit_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedDomain:
    """A power cap and the devices that it covers."""

    scope: str
    subject: str
    limit_w: float
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredFleet:
    """What documents say."""

    devices: Mapping[str, DeclaredDevice]
    services: Mapping[str, Plain]
    domains: tuple[CappedDomain, ...]


@dataclass(slots=True)
class MeterTotals:
    """Counts since the first look."""

    services: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Of each service: arrived, completed, violated, unserved, energy_j."""
    device_energy_j: Counter[str] = field(default_factory=Counter)
    attempts: dict[str, Counter[str]] = field(default_factory=dict)
    """By planner and outcome."""
    cycles: dict[str, Counter[str]] = field(default_factory=dict)
    """By lane and outcome."""
    cycle_ms: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By lane."""
    events: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meters:
    """One look. `served` and `readings` lack what did not report lately."""

    known: DeclaredFleet
    counts: FleetCounts
    whole: WholeMeter
    nodes: tuple[NodeMeter, ...]
    readings: Mapping[str, DeviceRow]
    served: Mapping[str, ServiceMeter]
    ready: Mapping[str, float]
    planned: Counter[str]
    """Replicas by workload."""
    share_pct_of: Counter[str]
    """By workload, of whole GPUs."""
    share_pct_on: Counter[str]
    """By device."""
    usd_per_h_of: Mapping[str, float]
    """By workload: its shares of its devices' prices."""
    limits_w: Mapping[str, float]
    """By device, as the plan sets them."""
    unplaced: tuple[UnplacedMeter, ...]
    work: tuple[WorkMeter, ...]
    silent_s: float
    totals: MeterTotals


class MeterReader:
    """Looks at the database for monitoring; one look at a time."""

    def __init__(self, database: Database, cluster: str) -> None:
        self._database = database
        self._cluster = cluster
        self._totals = MeterTotals()
        self._until: NewSpan | None = None
        self._mark = ""
        self._known = DeclaredFleet(devices={}, services={}, domains=())

    def look(self) -> Meters:
        """Count on, and see what stands. Raises TransientError when the database is away; nothing is counted then."""
        with self._database.reading() as session:
            whole, mark = meters.whole(session), telemetry.intent_mark(session)
            known = self._known if mark == self._mark else read_known(session)
            before = self._until
            span = NewSpan(since=whole.until if before is None else before.until, until=whole.until)
            news = span if before is not None else NewSpan(since=whole.until - FIRST_LOOK_BACK, until=whole.until)
            silent_s = read_policy(session).device_silent_after_s
            served = {row.service: row for row in meters.services(session, span, WINDOW_S)}
            energy_j = meters.energy(session, span)
            cycles, events = meters.cycles(session, news), meters.events(session, news)
            planned, share_of, share_on = Counter[str](), Counter[str](), Counter[str]()
            usd_of = defaultdict[str, float](float)
            for row in meters.planned(session, self._cluster):
                planned[row.workload] += 1
                share_of[row.workload] += row.share_pct_sm
                share_on[row.device] += row.share_pct_sm
                device = known.devices.get(row.device)
                usd_of[row.workload] += 0.0 if device is None else device.usd_per_h * row.share_pct_sm / 100
            found = Meters(
                known=known,
                counts=telemetry.counts(session, self._cluster, silent_s),
                whole=whole,
                nodes=meters.nodes(session),
                readings={row.uuid: row for row in telemetry.devices(session, silent_s)},
                served=served,
                ready=meters.ready(session, silent_s),
                planned=planned,
                share_pct_of=share_of,
                share_pct_on=share_on,
                usd_per_h_of=usd_of,
                limits_w=meters.power_limits(session, self._cluster),
                unplaced=meters.unplaced(session, self._cluster),
                work=meters.work(session, self._cluster),
                silent_s=silent_s,
                totals=self._totals,
            )
        self._until, self._mark, self._known = span, mark, known
        self._count(found, energy_j, cycles, events)
        return found

    def _count(
        self,
        found: Meters,
        energy_j: Mapping[str, float],
        cycles: tuple[meters.CyclesMeter, ...],
        events: Mapping[str, float],
    ) -> None:
        totals = self._totals
        for service, row in found.served.items():
            for name in ("arrived", "completed", "violated", "unserved", "energy_j"):
                totals.services[service][name] += getattr(row, f"{name}_new")
        totals.device_energy_j.update(energy_j)
        for gone in totals.services.keys() - found.known.services.keys():
            del totals.services[gone]
        for gone in totals.device_energy_j.keys() - found.known.devices.keys():
            del totals.device_energy_j[gone]
        for lane in Lane:
            totals.cycles.setdefault(lane.value, Counter(dict.fromkeys(CYCLE_OUTCOMES, 0)))
        for each in cycles:
            totals.cycles[each.lane][each.outcome] += each.cycles
            totals.cycle_ms[each.lane] += each.elapsed_ms
            for attempt in each.attempts or ():
                outcomes = totals.attempts.setdefault(attempt["planner"], Counter(dict.fromkeys(OUTCOMES, 0)))
                outcomes[attempt["outcome"]] += each.cycles
        totals.events.update(events)


def read_known(session: Session) -> DeclaredFleet:
    specs = {
        kind: {"/".join(stored.key): stored.spec for stored in documents.all_specs(session, kind)}
        for kind in (kinds.NODE, kinds.DEVICE, kinds.SERVICE, kinds.POWER_CAP)
    }
    types = {item.name: item for item in documents.values(session, kinds.GPU_TYPE, GpuType)}
    owners, nodes = read_owners(session), specs[kinds.NODE]
    devices = {
        uuid: DeclaredDevice(
            node=spec["node"],
            rack=nodes[spec["node"]]["rack"],
            index=spec["index"],
            gpu_type=spec["gpu_type"],
            memory_mib=spec["memory_mib"],
            usd_per_h=price_of(spec, nodes[spec["node"]], types[spec["gpu_type"]], owners),
            power_limit_w=types[spec["gpu_type"]].power_limit_w_max,
        )
        for uuid, spec in specs[kinds.DEVICE].items()
    }
    return DeclaredFleet(
        devices=devices,
        services=specs[kinds.SERVICE],
        domains=tuple(_domain(spec, devices) for spec in specs[kinds.POWER_CAP].values()),
    )


def _domain(spec: Plain, devices: Mapping[str, DeclaredDevice]) -> CappedDomain:
    scope, subject = spec["scope"], spec["subject"]

    def covers(uuid: str, device: DeclaredDevice) -> bool:
        return scope == "cluster" or bool(subject == {"device": uuid, "node": device.node, "rack": device.rack}[scope])

    covered = tuple(uuid for uuid, device in devices.items() if covers(uuid, device))
    return CappedDomain(scope=scope, subject=subject, limit_w=spec["limit_w"], devices=covered)
