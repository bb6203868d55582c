"""What is left of devices where something stays: pools of their own, for one replica more on each.

Owns the careful reading of such a rest. The share, memory and watts that are left; the clock that stands; what those
who stay press the newcomer with, and how much they bear of him before any of them serves less than is counted on. The
device is paid for already, so its rest costs nothing where whole devices are paid. A pool cannot say what shares are
taken, so each rest takes one replica; who asks for a budget has no part where the rest has no price. Only the largest
rests are looked at. It refuses to move what stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.device import ColocationClass, PowerScope, Taint
from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.appraisal import Appraisal, DeviceLoad
from solvers.planners.joint.reading.pools import Kin, Pools, Rest
from solvers.problems.fleet import DeviceClass, Fleet
from solvers.problems.joint import Pool
from solvers.problems.needs import Need, needs_of

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

    device_class: DeviceClass
    taints: frozenset[Taint]
    colocation: ColocationClass
    memory_mib: float
    limit_w: float
    capped: bool
    failure_domain: int
    rest: Rest


def with_rests(
    picture: Snapshot, fleet: Fleet, pools: Pools, stays: Sequence[Assignment], needs: Sequence[Need]
) -> Pools:
    """Pools with those of rests behind them. The fleet's books carry what stays; `needs`: of who may move."""
    found = _rests(picture, fleet, stays, needs)
    if not found:
        return pools
    like: dict[_Found, list[DeviceId]] = defaultdict(list)
    for device, item in sorted(found.items()):
        like[item].append(device)
    largest = sorted(like.items(), key=lambda pair: (-pair[0].rest.share_pct * len(pair[1]), pair[1]))[:POOLS_MAX]
    priced = picture.policy.cost_basis is not CostBasis.DEVICE
    fresh = [_pool(item, len(names), priced=priced) for item, names in largest]
    first = len(pools.pools)
    return Pools(
        pools=(*pools.pools, *(replace(pool, name=f"{pool.name}-{first + at}") for at, pool in enumerate(fresh))),
        kin=(
            *pools.kin,
            *(
                Kin(device_class=item.device_class, taints=item.taints, colocation=item.colocation, rest=item.rest)
                for item, _ in largest
            ),
        ),
        devices=(*pools.devices, *(tuple(names) for _, names in largest)),
        # What a rest draws is kept within its domains when devices are seated.
        caps=tuple(replace(cap, devices=(*cap.devices, *(0 for _ in largest))) for cap in pools.caps),
    )


def _pool(item: _Found, devices: int, *, priced: bool) -> Pool:
    """`priced`: what replicas hold costs something, and not whole devices."""
    kind = item.device_class
    return Pool(
        name=f"{kind.gpu_type}-rest",
        gpu_type=kind.gpu_type,
        devices=devices,
        usd_per_h=kind.expected_usd_per_h if priced else 0.0,
        memory_mib=item.memory_mib,
        idle_w=0.0,
        limit_w=item.limit_w,
        clients=1,
        gpu_part=kind.gpu_part,
        failure_domain=item.failure_domain,
        capped=item.capped,
        rest=True,
        memory_mib_whole=float(kind.memory_mib),
    )


def _rests(
    picture: Snapshot, fleet: Fleet, stays: Sequence[Assignment], needs: Sequence[Need]
) -> dict[DeviceId, _Found]:
    on_device: dict[DeviceId, list[Assignment]] = defaultdict(list)
    for item in stays:
        on_device[item.device].append(item)
    places = np.array([fleet.index[device] for device in on_device if device in fleet.index], dtype=np.intp)
    open_to = places[
        fleet.usable[places]
        & (fleet.share_free[places] >= SHARE_LEAST_PCT)
        & (fleet.clients_free[places] > 0)
        & (fleet.memory_free[places] > 0)
        & (fleet.closed[places] == 0)
    ]
    if not len(open_to):
        return {}
    largest = np.lexsort((open_to, -fleet.share_free[open_to]))[:DEVICES_MAX]
    open_to = open_to[np.sort(largest)]
    bearing = _Bearing.of(picture, fleet, stays)
    caps = {cap.subject: cap.limit_w for cap in picture.power_caps if cap.scope is PowerScope.DEVICE}
    # All in one look, for every workload.
    welcome = {need.workload: fleet.companions(need, open_to) for need in needs}
    found = {}
    for at, index in enumerate(open_to.tolist()):
        device = fleet.devices[index]
        borne = bearing.borne(device.id, on_device[device.id])
        if borne is None:
            continue
        limit_w = min(float(fleet.limit_w[index]), caps.get(device.id, np.inf))
        company = bearing.appraisal.company[device.id]
        found[device.id] = _Found(
            device_class=fleet.class_at(index),
            taints=fleet.taints[index],
            colocation=device.colocation,
            memory_mib=float(fleet.memory_free[index]),
            limit_w=max(0.0, limit_w - float(fleet.idle_w[index] + fleet.dynamic_w[index])),
            capped=limit_w < fleet.limit_w[index],
            failure_domain=int(fleet.failure_domain[index]),
            rest=Rest(
                share_pct=int(fleet.share_free[index]),
                clock_mhz=bearing.appraisal.running(device.id),
                pressure=round(company.pressure, 9),
                strangers=company.unknown > 0,
                borne=borne[0],
                bears_strangers=borne[1],
                shut=frozenset(name for name, allowed in welcome.items() if not allowed[at]),
            ),
        )
    return found


@dataclass(frozen=True, slots=True)
class _Bearing:
    """How much more those who stay bear, by judging them again with somebody beside them."""

    appraisal: Appraisal
    needs: dict[WorkloadId, Need]

    @staticmethod
    def of(picture: Snapshot, fleet: Fleet, stays: Sequence[Assignment]) -> _Bearing:
        """Of everything that stays, and nothing else."""
        settings = {item.device: item for item in picture.target.settings}
        everybody = tuple(sorted({item.workload for item in stays}))
        return _Bearing(
            appraisal=Appraisal.of(fleet, picture.profiles_by_key(), picture.policy, stays, settings),
            needs={need.workload: need for need in needs_of(picture, everybody)},
        )

    def borne(self, device: DeviceId, items: Iterable[Assignment]) -> tuple[float, bool] | None:
        """The most pressure that all on a device bear besides, and whether they bear one of whom nobody knows; None
        where any of them cannot even be shown to keep its promise as it is. Jobs bear everybody.
        """
        known = [(self.needs[item.workload], item) for item in items if item.workload in self.needs]
        asked = [(need, item) for need, item in known if need.kind is not WorkloadKind.JOB]
        counted = []
        for need, item in asked:
            (shown,) = self.appraisal.capacities_rps(need, [item])
            if shown is None or need.tokens is not None:
                return None
            counted.append((need, item, min(shown, item.capacity_rps) * (1 - DUST)))
        if not self._bear(device, counted, 0.0):
            return None
        low, high = 0.0, PRESSURE_MOST
        if self._bear(device, counted, high):
            low = high
        for _ in range(STEPS if low < high else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if self._bear(device, counted, middle) else (low, middle)
        return low, self._bear(device, counted, 0.0, strangers=1)

    def _bear(
        self, device: DeviceId, counted: Sequence[tuple[Need, Assignment, float]], pressure: float, strangers: int = 0
    ) -> bool:
        """Whether everybody still serves what is counted on, beside one more."""
        now = self.appraisal.company[device]
        beside = DeviceLoad(
            pressure=now.pressure + pressure, unknown=now.unknown + strangers, replicas=now.replicas + 1
        )
        tried = replace(self.appraisal, company={device: beside})
        for need, item, least in counted:
            (shown,) = tried.capacities_rps(need, [item])
            if shown is None or shown < least:
                return False
        return True
