"""Devices as pools: which are interchangeable to every workload, which power domains limit them, and rests of devices.

Devices of one pool have one class (type, size, price, mode, power limit), memory, clients, taints and colocation class,
one failure domain where any workload asks for several, and lie in the same kind of power domain. Node caps of like
nodes are merged into one sum, which is a relaxation: whoever seats patterns makes it exact per node. Racks with a cap
keep pools of their own. A cap that cannot bind is left out. Offered GPUs draw nothing until used, so their idle power
is added to the limits they are under: a relaxation too. In no pool are devices where something stays, those whose own
cap lies below their lowest power limit, and MIG slices with a cap of their own, because no setting would keep them.

What is left of a device where something stays (share, memory, watts, at the clock that stands) is a pool of its own for
one replica more on each: a pool cannot say what shares are taken. It tells how hard those who stay press on the
newcomer, and how much pressure they bear before any of them serves less than is counted on. Where whole devices are
paid its rest costs nothing more, and who has a budget has no part in it. Only the largest rests are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.device import ColocationClass, DeviceMode, PowerScope, Taint, is_offered
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.appraisal import Appraisal, DeviceLoad
from solvers.problems.fleet import DeviceClass, Fleet, Places, under
from solvers.problems.joint import Cap, Pool
from solvers.problems.needs import Need, needs_of

DUST_W = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What those who stay on a device leave to one more."""

    share_pct: int
    clock_mhz: int
    pressure: float
    """Of all of them whose pressure is known."""
    unknown: bool
    """Whether the pressure of any of them was never measured."""
    pressure_max: float
    """The most that the newcomer may press with."""
    bears_unknown: bool
    """Whether the newcomer's own pressure may be unknown."""
    excluded: frozenset[WorkloadId]
    """Workloads that may not stand beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Pools with their devices, ordered by id, and the power domains over them."""

    pools: tuple[Pool, ...]
    first: tuple[int, ...]
    """Of each pool one device, by its number in the fleet."""
    rests: tuple[Rest | None, ...]
    """Set where something stays on its devices."""
    devices: tuple[tuple[DeviceId, ...], ...]
    caps: tuple[Cap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Domain:
    """One power domain: its devices by number and what those in pools may draw together."""

    scope: PowerScope
    subject: str
    devices: Whole
    limit_w: float


def pools_of(snapshot: Snapshot, fleet: Fleet, held: Iterable[DeviceId], *, by_failure_domain: bool) -> Pools:
    """Pools of all usable devices but the `held` ones; the fleet's books must carry what stands on those."""
    limit_w = _limits_w(snapshot, fleet)
    group = _groups(fleet, set(held), limit_w, by_failure_domain=by_failure_domain)
    every = _domains(snapshot, fleet, group, limit_w)
    domains = [item for item in every if limit_w[item.devices].sum() > item.limit_w + DUST_W]
    alike = [*grouped(domains, partial(_likeness, group)).values()]
    under_caps = np.full((len(PowerScope), len(group)), -1)
    for number, domain in ((number, domain) for number, like in enumerate(alike) for domain in like):
        under_caps[list(PowerScope).index(domain.scope), domain.devices] = number
    chosen, pool_of = np.flatnonzero(group >= 0), np.full(len(fleet.devices), -1, dtype=np.int64)
    keys, of = np.unique(np.column_stack([group, *under_caps])[chosen], axis=0, return_inverse=True)
    pool_of[chosen] = of.ravel()
    members, pools = [np.flatnonzero(pool_of == index).tolist() for index in range(len(keys))], []
    for index, items in enumerate(members):
        pool = _pool(fleet, items[0], float(limit_w[items[0]]))
        apart = pool.failure_domain if by_failure_domain else 0
        pools.append(replace(pool, name=f"{pool.name}-{index}", devices=len(items), failure_domain=apart))
    return Pools(
        pools=tuple(pools),
        first=tuple(items[0] for items in members),
        rests=(None,) * len(members),
        devices=tuple(tuple(fleet.devices[item].id for item in items) for items in members),
        caps=tuple(_cap(like, pool_of, len(keys)) for like in alike),
    )


def _groups(fleet: Fleet, held: set[DeviceId], limit_w: Floats, *, by_failure_domain: bool) -> Whole:
    """Of each device its group, before power domains divide these; -1: in no pool."""
    group, seen = np.full(len(fleet.devices), -1, dtype=np.int64), dict[tuple[object, ...], int]()
    usable = fleet.usable & (fleet.closed == 0) & (fleet.clients_free > 0)
    free = (fleet.memory_free, fleet.clients_free, fleet.share_free, fleet.occupants > 0, limit_w)
    numbers = (fleet.class_of, *free, fleet.failure_domain * by_failure_domain)
    for index, device in enumerate(fleet.devices):
        if not usable[index] or device.id in held:
            continue
        key = (*(each[index].item() for each in numbers), fleet.taints[index], device.colocation)
        group[index] = seen.setdefault(key, len(seen))
    return group


def _limits_w(snapshot: Snapshot, fleet: Fleet) -> Floats:
    """By device, caps on it alone included."""
    caps = {cap.subject: cap.limit_w for cap in snapshot.power_caps if cap.scope is PowerScope.DEVICE}
    return np.minimum(fleet.limit_w, [caps.get(device.id, np.inf) for device in fleet.devices])


def _domains(snapshot: Snapshot, fleet: Fleet, group: Whole, limit_w: Floats) -> Iterable[_Domain]:
    """Nodes, racks and the cluster with a cap, less what devices outside pools draw in them."""
    draw_w = np.minimum(limit_w, fleet.idle_w + fleet.dynamic_w)
    members = under(snapshot, fleet.devices)
    for cap in snapshot.power_caps:
        inside = members[cap.scope, cap.subject]
        pooled = inside[group[inside] >= 0]
        if len(pooled) and cap.scope is not PowerScope.DEVICE:
            others_w = float(draw_w[inside].sum() - draw_w[pooled].sum())
            # What is idle is drawn whatever a plan does, but by nothing that is not rented.
            idle_w = float(fleet.idle_w[pooled].sum())
            unrented_w = sum(float(fleet.idle_w[item]) for item in pooled if is_offered(fleet.devices[item].node))
            most_w = max(cap.limit_w - others_w + unrented_w, idle_w)
            yield _Domain(scope=cap.scope, subject=cap.subject, devices=pooled, limit_w=most_w)


def _likeness(group: Whole, domain: _Domain) -> tuple[object, ...]:
    """What two nodes must have in common to be alike: the same mix, however many of it, and the same watts for each. No
    two racks are.
    """
    if domain.scope is not PowerScope.NODE:
        return domain.scope, domain.subject
    groups, counts = np.unique(group[domain.devices], return_counts=True)
    times = int(np.gcd.reduce(counts))
    return round(domain.limit_w / times, 3), groups.tobytes(), (counts // times).tobytes()


def _cap(like: list[_Domain], pool_of: Whole, pools: int) -> Cap:
    inside = pool_of[np.concatenate([domain.devices for domain in like])]
    first = f"{like[0].scope.value}/{like[0].subject}"
    return Cap(
        name=first if len(like) == 1 else f"{first} and {len(like) - 1} alike",
        limit_w=sum(domain.limit_w for domain in like),
        devices=tuple(np.bincount(inside, minlength=pools).tolist()),
    )


def _pool(fleet: Fleet, index: int, limit_w: float) -> Pool:
    """Of one device."""
    kind = fleet.class_at(index)
    return Pool(
        name=kind.gpu_type if fleet.devices[index].mig is None else f"{kind.gpu_type}-slice",
        gpu_type=kind.gpu_type,
        devices=1,
        usd_per_h=kind.expected_usd_per_h,
        interruptions_usd_per_h=kind.expected_usd_per_h - kind.usd_per_h,
        memory_mib=float(fleet.memory_free[index]),
        idle_w=float(fleet.idle_w[index]),
        limit_w=limit_w,
        clients=int(fleet.clients_free[index]),
        gpu_part=kind.gpu_part,
        failure_domain=int(fleet.failure_domain[index]),
        capped=bool(limit_w < fleet.limit_w[index]),
        memory_mib_whole=float(kind.memory_mib),
        sliced=kind.unlimited or fleet.devices[index].mode is DeviceMode.TIME_SLICED,
    )


POOLS_MAX = 16
DEVICES_MAX = 200
"""With the largest shares left; to find out what is borne takes a look at everybody there."""
SHARE_LEAST_PCT = 5
"""Less than this is not worth a pool."""
PRESSURE_MOST = 4.0
STEPS = 12
"""Of the search for what those who stay bear."""
DUST = 1e-9


@dataclass(frozen=True, slots=True)
class _Found:
    """One device's rest: what makes pools, and what they are named after."""

    pool: Pool
    device_class: DeviceClass
    taints: frozenset[Taint]
    colocation: ColocationClass
    rest: Rest


def with_rests(
    picture: Snapshot, appraisal: Appraisal, pools: Pools, stays: Sequence[Assignment], needs: Sequence[Need]
) -> Pools:
    """Also those of rests. `appraisal`: of what stays, on a fleet with it on its books; `needs`: of what may move."""
    found, fleet = _rests(picture, appraisal, stays, needs), appraisal.fleet
    if not found:
        return pools
    like = grouped(sorted(found), found.__getitem__)
    largest = sorted(like.items(), key=lambda pair: (-pair[0].rest.share_pct * len(pair[1]), pair[1]))[:POOLS_MAX]
    fresh = [
        replace(item.pool, devices=len(names), name=f"{item.pool.name}-{number}")
        for number, (item, names) in enumerate(largest, len(pools.pools))
    ]
    return Pools(
        pools=(*pools.pools, *fresh),
        first=(*pools.first, *(fleet.index[names[0]] for _, names in largest)),
        rests=(*pools.rests, *(item.rest for item, _ in largest)),
        devices=(*pools.devices, *(tuple(names) for _, names in largest)),
        # What a rest draws is kept within its domains when devices are seated.
        caps=tuple(replace(cap, devices=(*cap.devices, *(0 for _ in largest))) for cap in pools.caps),
    )


def _open_places(fleet: Fleet, on_device: Iterable[DeviceId]) -> Places:
    """Those of these devices that have most room for one more, by number."""
    places = np.array([fleet.index[device] for device in on_device if device in fleet.index], dtype=np.intp)
    able = fleet.usable & (fleet.clients_free > 0) & (fleet.memory_free > 0) & (fleet.closed == 0)
    open_to = places[able[places] & (fleet.share_free[places] >= SHARE_LEAST_PCT)]
    return np.sort(open_to[np.lexsort((open_to, -fleet.share_free[open_to]))[:DEVICES_MAX]])


def _rests(
    picture: Snapshot, appraisal: Appraisal, stays: Sequence[Assignment], needs: Sequence[Need]
) -> dict[DeviceId, _Found]:
    fleet = appraisal.fleet
    on_device = grouped(stays, lambda item: item.device)
    open_to = _open_places(fleet, on_device)
    everybody = tuple(sorted({item.workload for item in stays}))
    bearing = _Bearing(appraisal, {need.workload: need for need in needs_of(picture, everybody)})
    limits_w = _limits_w(picture, fleet).tolist()
    # All in one look, for every workload.
    welcome = {need.workload: fleet.companions(need, open_to) for need in needs}
    found = {}
    for at, index in enumerate(open_to.tolist()):
        device = fleet.devices[index]
        counted = bearing.counted(on_device[device.id])
        if counted is None or not bearing.bear(device.id, counted, 0.0):
            continue
        company = bearing.appraisal.company[device.id]
        kind = fleet.class_at(index)
        found[device.id] = _Found(
            pool=replace(
                _pool(fleet, index, limits_w[index]),
                name=f"{kind.gpu_type}-rest",
                # What replicas hold costs something, where not whole devices do.
                usd_per_h=0.0 if picture.policy.cost_basis is CostBasis.DEVICE else kind.expected_usd_per_h,
                idle_w=0.0,
                limit_w=max(0.0, limits_w[index] - float(fleet.idle_w[index] + fleet.dynamic_w[index])),
                clients=1,
                rest=True,
            ),
            device_class=kind,
            taints=fleet.taints[index],
            colocation=device.colocation,
            rest=Rest(
                share_pct=int(fleet.share_free[index]),
                clock_mhz=bearing.appraisal.running(device.id),
                pressure=round(company.pressure, 9),
                unknown=company.unknown > 0,
                pressure_max=bearing.pressure_max(device.id, counted),
                bears_unknown=bearing.bear(device.id, counted, 0.0, unknown=1),
                excluded=frozenset(name for name, allowed in welcome.items() if not allowed[at]),
            ),
        )
    return found


_Counted = tuple[Need, Assignment, float]
"""A replica that stays, and the least that is counted on."""


@dataclass(frozen=True, slots=True)
class _Bearing:
    """How much more those who stay bear, by judging them again with a neighbour more."""

    appraisal: Appraisal
    needs: dict[WorkloadId, Need]

    def counted(self, items: Iterable[Assignment]) -> list[_Counted] | None:
        """None where any of them cannot even be shown to keep its promise as it is. Jobs bear everything."""
        known = [(self.needs[item.workload], item) for item in items if item.workload in self.needs]
        counted = []
        for need, item in known:
            if need.kind is WorkloadKind.JOB:
                continue
            (shown,) = self.appraisal.capacities_rps(need, [item])
            if shown is None or need.tokens is not None:
                return None
            counted.append((need, item, min(shown, item.capacity_rps) * (1 - DUST)))
        return counted

    def pressure_max(self, device: DeviceId, counted: Sequence[_Counted]) -> float:
        """The most that one more may press with on a device that bears one more."""
        low, high = 0.0, PRESSURE_MOST
        if self.bear(device, counted, high):
            return high
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.bear(device, counted, middle) else (low, middle)
        return low

    def bear(self, device: DeviceId, counted: Sequence[_Counted], pressure: float, unknown: int = 0) -> bool:
        """Whether all still serve what is counted on, beside one more."""
        now = self.appraisal.company[device]
        beside = DeviceLoad(pressure=now.pressure + pressure, unknown=now.unknown + unknown, replicas=now.replicas + 1)
        tried = replace(self.appraisal, company={device: beside})
        shown = ((tried.capacities_rps(need, [item])[0], least_rps) for need, item, least_rps in counted)
        return all(rate is not None and rate >= least_rps for rate, least_rps in shown)
