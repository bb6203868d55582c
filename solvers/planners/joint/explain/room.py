"""What a plan leaves over, and what workloads that are short could do with it.

A second picture of the fleet in which only the short workloads are left, on any GPU type, with any latency, and with
one more GPU of every type to be had; and what the plan leaves: free devices, watts, quotas. Room beside others on a
device is not looked at: the planner has filled that already.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.change import Target
from solvers.domain.device import OFFERED, GpuType, Offer, PowerCap, PowerScope, PriceRow, is_offered
from solvers.domain.ids import DeviceId, GpuTypeName, ProjectName, WorkloadId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Service, SloKind
from solvers.planners.joint.reading.formulation import Reading, read
from solvers.problems.fleet import Fleet, open_fleet

NEW = "more-"
"""Beginning of the names of GPUs that are not there."""
LOOSE = 1e4
"""Times a promise: looser than any owner would ask for."""
CELLS_MAX = 32
"""Groups of like free devices; the largest ones count."""
NEW_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Free devices that are alike and under the same caps; `new`: devices that would have to be added."""

    pool: int
    gpu_type: GpuTypeName
    caps: frozenset[int]
    devices: int
    new: bool = False
    idle_w: float = 0.0
    """What one draws more than now by being there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapLeft:
    """One power cap and what the plan leaves of it."""

    name: str
    limit_w: float
    left_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLeft:
    """A project's quota and what the plan leaves of it, GPUs."""

    whole: float
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """See the module."""

    picture: Snapshot
    """As it is, offers standing ready."""
    elastic: Reading
    """Of the short workloads alone."""
    cells: tuple[Cell, ...]
    caps: tuple[CapLeft, ...]
    quotas: dict[ProjectName, QuotaLeft]
    spent_usd_per_h: dict[WorkloadId, float]
    held: dict[WorkloadId, list[Assignment]]
    types: Counter[GpuTypeName]
    """Usable GPUs by type."""

    def cells_of(self, devices: Iterable[DeviceId]) -> tuple[Cell, ...]:
        """Those devices as if they were free; what stood on them draws nothing any more, which is not counted."""
        return _cells(self.elastic, self.picture, set(devices), _covers(self.picture))


def rooms_of(picture: Snapshot, plan: Plan, short: Sequence[WorkloadId]) -> Rooms:
    """The rooms that a plan leaves to some short workloads."""
    fleet = open_fleet(picture, {item.device: item for item in plan.settings})
    elastic = read(_elastic(picture, set(short)), tuple(sorted(short)))
    return Rooms(picture=picture, plan=plan, elastic=elastic, fleet=fleet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """What a plan leaves over; workloads planned anew give back devices on which a replica of theirs is alone."""

    picture: Snapshot
    plan: Plan
    elastic: Reading
    fleet: Fleet

    def room(self, anew: Iterable[WorkloadId] = ()) -> Room:
        """The room with some planned anew."""
        picture, fleet, elastic = self.picture, self.fleet, self.elastic
        on = Counter(item.device for item in self.plan.assignments)
        again = set(anew)
        stays = [item for item in self.plan.assignments if item.workload not in again or on[item.device] > 1]
        held: dict[WorkloadId, list[Assignment]] = defaultdict(list)
        for item in stays:
            held[item.workload].append(item)
        covers = _covers(picture)
        free = {device for pool in elastic.pool_devices for device in pool} - {item.device for item in stays}
        return Room(
            picture=picture,
            elastic=elastic,
            cells=_cells(elastic, picture, free, covers),
            caps=_caps_left(picture, fleet, stays, covers),
            quotas=_quotas_left(picture, fleet, held),
            spent_usd_per_h={name: _usd_per_h(fleet, items) for name, items in held.items()},
            held=dict(held),
            types=Counter(
                device.gpu_type for device, usable in zip(fleet.devices, fleet.usable, strict=True) if usable
            ),
        )


def _elastic(picture: Snapshot, short: set[WorkloadId]) -> Snapshot:
    wanted: set[str] = set(short)
    known = {item.gpu_type for item in picture.profiles} | {item.gpu_type for item in picture.token_profiles}
    offers = [
        Offer(
            name=f"{NEW}{item.name}"[:40].rstrip(".-_"),
            gpu_type=item.name,
            count_max=1,
            price_kind=row.kind,
            region=row.region,
        )
        for item in picture.gpu_types
        if item.name in known and (row := _row(picture, item)) is not None
    ]
    return replace(
        picture,
        services=tuple(_loosened(item) for item in picture.services if item.id in wanted),
        tasks=tuple(replace(item, gpu_types_allowed=()) for item in picture.tasks if item.id in wanted),
        jobs=(),
        power_caps=tuple(cap for cap in picture.power_caps if cap.scope is PowerScope.DEVICE),
        projects=tuple(replace(item, quota_gpus=None) for item in picture.projects),
        target=Target(),
        offers=tuple(offers),
    )


def _row(picture: Snapshot, gpu_type: GpuType) -> PriceRow | None:
    kind = picture.policy.price_kind
    return next((row for row in gpu_type.prices if kind in (None, row.kind)), None)


def _loosened(service: Service) -> Service:
    slo = service.slo
    if slo.kind is SloKind.LATENCY and slo.latency_ms is not None:
        slo = replace(slo, latency_ms=slo.latency_ms * LOOSE)
    elif slo.kind is SloKind.DEADLINE and slo.deadline_s is not None:
        slo = replace(slo, deadline_s=slo.deadline_s * LOOSE)
    return replace(service, slo=slo, gpu_types_allowed=(), budget_usd_per_h=None)


def is_new(device: DeviceId) -> bool:
    """Whether a device of the elastic picture is one that would have to be added."""
    return device.startswith(f"{OFFERED}{NEW}")


def _covers(picture: Snapshot) -> dict[DeviceId, frozenset[int]]:
    """The caps over every device, by number; those on single devices are in its power limit."""
    nodes = picture.nodes_by_id()
    numbers = {(cap.scope, cap.subject): index for index, cap in enumerate(_wide(picture))}
    found = {}
    for device in picture.devices:
        places = (
            (PowerScope.NODE, str(device.node)),
            (PowerScope.RACK, str(nodes[device.node].rack)),
            (PowerScope.CLUSTER, str(picture.cluster)),
        )
        found[device.id] = frozenset(numbers[place] for place in places if place in numbers)
    return found


def _wide(picture: Snapshot) -> tuple[PowerCap, ...]:
    return tuple(cap for cap in picture.power_caps if cap.scope is not PowerScope.DEVICE)


def _cells(
    elastic: Reading, picture: Snapshot, devices: set[DeviceId], covers: dict[DeviceId, frozenset[int]]
) -> tuple[Cell, ...]:
    wide = _wide(picture)
    cluster = frozenset(index for index, cap in enumerate(wide) if cap.scope is PowerScope.CLUSTER)
    known = elastic.snapshot.devices_by_id()
    count: Counter[tuple[int, frozenset[int], bool, bool]] = Counter()
    for pool, names in enumerate(elastic.pool_devices):
        for name in names:
            if name in devices:
                new = is_new(name)
                count[pool, cluster if new else covers[name], new, is_offered(known[name].node)] += 1
    pools = elastic.problem.pools
    ordered = sorted(count.items(), key=lambda pair: (not pair[0][2], -pair[1], pair[0][0], sorted(pair[0][1])))
    return tuple(
        Cell(
            pool=pool,
            gpu_type=pools[pool].gpu_type,
            caps=caps,
            devices=NEW_MAX if new else number,
            new=new,
            idle_w=pools[pool].idle_w if unrented else 0.0,
        )
        for (pool, caps, new, unrented), number in ordered[:CELLS_MAX]
    )


def _caps_left(
    picture: Snapshot, fleet: Fleet, stays: Iterable[Assignment], covers: dict[DeviceId, frozenset[int]]
) -> tuple[CapLeft, ...]:
    dynamic: dict[DeviceId, float] = defaultdict(float)
    for item in stays:
        dynamic[item.device] += item.power_w_planned
    wide = _wide(picture)
    drawn = np.zeros(len(wide))
    for index, device in enumerate(fleet.devices):
        if fleet.unrented[index] and device.id not in dynamic:
            continue
        watts = min(float(fleet.limit_w[index]), float(fleet.idle_w[index]) + dynamic[device.id])
        for cap in covers[device.id]:
            drawn[cap] += watts
    return tuple(
        CapLeft(name=f"{cap.scope.value}/{cap.subject}", limit_w=cap.limit_w, left_w=cap.limit_w - float(watts))
        for cap, watts in zip(wide, drawn, strict=True)
    )


def _quotas_left(
    picture: Snapshot, fleet: Fleet, held: dict[WorkloadId, list[Assignment]]
) -> dict[ProjectName, QuotaLeft]:
    used: dict[str, float] = defaultdict(float)
    for name, items in held.items():
        project = str(name).partition("/")[0]
        used[project] += sum(
            fleet.gpus(fleet.index[item.device], item.share_pct_sm) for item in items if item.device in fleet.index
        )
    return {
        item.name: QuotaLeft(whole=item.quota_gpus, left=max(0.0, item.quota_gpus - used[item.name]))
        for item in picture.projects
        if item.quota_gpus is not None
    }


def _usd_per_h(fleet: Fleet, items: list[Assignment]) -> float:
    """As budgets count: by share, without interruptions."""
    return sum(
        fleet.class_at(fleet.index[item.device]).usd_per_h * item.share_pct_sm / 100
        for item in items
        if item.device in fleet.index
    )
