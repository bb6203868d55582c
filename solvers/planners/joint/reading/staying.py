"""What stays where it is, whatever is planned: what is then left to plan, and what is left of its devices.

Pinned replicas stay to the letter. A job that was evicted as often as it bears stays as if it were pinned, and movable
replicas beside either stay too, as long as today's rules allow it, they keep their promise and their owner can pay:
what is beside them cannot be planned anew. Everything that stays is on the fleet's books afterwards and is taken off
what is asked.

What is left of such a device (share, memory, watts, at the clock that stands) is a pool of its own for one replica more
on each. It tells how hard those who stay press on it, and how much pressure they bear before any of them serves less
than is counted on. The device is paid for already, so its rest costs nothing where whole devices are paid. A pool
cannot say what shares are taken, so each rest takes one replica; who asks for a budget has no part where the rest has
no price. Only the largest rests are looked at.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.device import ColocationClass, PowerScope, Taint
from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.models.appraisal import Appraisal, DeviceLoad
from solvers.planners.joint.reading.pools import Pools, PoolTraits, Rest
from solvers.planners.joint.reading.work import Left, left_of
from solvers.planners.seating import standing_seat
from solvers.problems.fleet import DeviceClass, Fleet, RoomSearch
from solvers.problems.joint import Pool
from solvers.problems.needs import Need, needs_of, pinned_assignments


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """Replicas by id, and what every need that can be planned still wants."""

    pinned: tuple[Assignment, ...]
    """Exhausted jobs included."""
    kept: tuple[Assignment, ...]
    left: tuple[Left, ...]

    @property
    def devices(self) -> frozenset[DeviceId]:
        """Those that cannot be planned anew."""
        return frozenset(item.device for item in self.pinned)


def staying_of(picture: Snapshot, movable: tuple[WorkloadId, ...], needs: tuple[Need, ...], fleet: Fleet) -> Staying:
    """Decide, and put what stays on the books."""
    books = _Books(picture, fleet)
    pinned = list(pinned_assignments(picture, movable))
    for item in pinned:
        books.put(item)
    planned = tuple(need for need in needs if need.refusal is None)
    jobs = {WorkloadId(job.id): job for job in picture.jobs}
    standing: dict[WorkloadId, list[Assignment]] = defaultdict(list)
    for item in sorted(picture.target.assignments, key=lambda item: item.replica):
        standing[item.workload].append(item)
    exhausted = set(_exhausted(picture, jobs))
    settled = {need.workload for need in planned if need.workload in exhausted}
    for need in planned:
        if need.workload in settled:
            stays = books.let_job_stay(need, standing[need.workload], jobs[need.workload])
            pinned.extend(stays)
            if not stays:
                settled.discard(need.workload)
    beside = {item.device for item in pinned}
    kept: list[Assignment] = []
    left: list[Left] = []
    for need in planned:
        if need.workload in settled:
            continue
        mine = [item for item in standing[need.workload] if item.device in beside]
        if need.kind is WorkloadKind.JOB:
            good = [(item, 0.0) for item in books.let_job_stay(need, mine, jobs[need.workload])]
        else:
            good = list(books.let_stay(need, mine))
        kept.extend(item for item, _ in good)
        usd_per_h = sum(books.usd_per_h(item) for item, _ in good)
        left.append(left_of(need, len(good), sum(capacity for _, capacity in good), usd_per_h))
    return Staying(
        pinned=tuple(sorted(pinned, key=lambda item: item.replica)),
        kept=tuple(sorted(kept, key=lambda item: item.replica)),
        left=tuple(left),
    )


def _exhausted(picture: Snapshot, jobs: Mapping[WorkloadId, TrainingJob]) -> Iterator[WorkloadId]:
    for status in picture.job_statuses:
        job = jobs.get(status.workload)
        if job is not None and status.evictions >= job.evictions_max:
            yield status.workload


class _Books:
    """The fleet's books, and what stands judged beside everything that stands."""

    def __init__(self, picture: Snapshot, fleet: Fleet) -> None:
        settings = {item.device: item for item in picture.target.settings}
        self.fleet = fleet
        self.appraisal = Appraisal.of(
            fleet, picture.profiles_by_key(), picture.policy, picture.target.assignments, settings
        )
        self.dedicated: set[str] = {item.id for item in picture.services if item.affinity.dedicated}

    def put(self, item: Assignment) -> None:
        """Take its room, whether or not it fits."""
        alone = item.workload in self.dedicated
        seat = standing_seat(self.fleet, item, dedicated=alone, power_w=item.power_w_planned)
        if seat is not None:
            self.fleet.put(seat)

    def usd_per_h(self, item: Assignment) -> float:
        """The bill by share."""
        return self.fleet.class_at(self.fleet.index[item.device]).usd_per_h * item.share_pct_sm / 100

    def let_job_stay(self, need: Need, standing: list[Assignment], job: TrainingJob) -> tuple[Assignment, ...]:
        """The job's replica if it may stay exactly as it is."""
        for item in standing[:1]:
            inside = job.share_pct_sm_min <= item.share_pct_sm <= job.share_pct_sm_max
            if (
                item.model == job.model
                and inside
                and item.memory_mib_limit >= job.memory_mib
                and self._fits(need, item)
            ):
                self.put(item)
                return (item,)
        return ()

    def let_stay(self, need: Need, standing: list[Assignment]) -> Iterator[tuple[Assignment, float]]:
        """Replicas that may stay exactly as they are, with what they can be shown to serve."""
        budget = math.inf if need.budget_usd_per_h is None else need.budget_usd_per_h
        count = 0
        known = [item for item in standing if item.device in self.fleet.index]
        for item, shown_rps in zip(known, self.appraisal.capacities_rps(need, known), strict=True):
            price = self.usd_per_h(item)
            if shown_rps is None or count >= need.replicas_max or price > budget + DUST or not self._fits(need, item):
                continue
            self.put(item)
            count, budget = count + 1, budget - price
            yield item, min(shown_rps, item.capacity_rps)

    def _fits(self, need: Need, item: Assignment) -> bool:
        device = self.fleet.index.get(item.device)
        if device is None:
            return False
        quota = self.fleet.quota_left.get(need.project, math.inf)
        search = RoomSearch(
            need=need,
            share_pct=item.share_pct_sm,
            memory_mib=item.memory_mib_limit,
            power_w=item.power_w_planned,
        )
        return self.fleet.gpus(device, item.share_pct_sm) <= quota + DUST and self.fleet.fits(search, device)


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
        traits=(
            *pools.traits,
            *(
                PoolTraits(
                    device_class=item.device_class, taints=item.taints, colocation=item.colocation, rest=item.rest
                )
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
                unknown=company.unknown > 0,
                pressure_max=borne.pressure,
                bears_unknown=borne.unknown,
                excluded=frozenset(name for name, allowed in welcome.items() if not allowed[at]),
            ),
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Borne:
    """What all on a device bear besides."""

    pressure: float
    unknown: bool
    """A neighbour whose pressure nobody measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """A replica that stays, and the least that is counted on."""

    need: Need
    assignment: Assignment
    least_rps: float


@dataclass(frozen=True, slots=True)
class _Bearing:
    """How much more those who stay bear, by judging them again with a neighbour more."""

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

    def borne(self, device: DeviceId, items: Iterable[Assignment]) -> _Borne | None:
        """None where any of them cannot even be shown to keep its promise as it is. Jobs bear everything."""
        known = [(self.needs[item.workload], item) for item in items if item.workload in self.needs]
        asked = [(need, item) for need, item in known if need.kind is not WorkloadKind.JOB]
        counted = []
        for need, item in asked:
            (shown,) = self.appraisal.capacities_rps(need, [item])
            if shown is None or need.tokens is not None:
                return None
            least_rps = min(shown, item.capacity_rps) * (1 - DUST)
            counted.append(_Counted(need=need, assignment=item, least_rps=least_rps))
        if not self._bear(device, counted, 0.0):
            return None
        low, high = 0.0, PRESSURE_MOST
        if self._bear(device, counted, high):
            low = high
        for _ in range(STEPS if low < high else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if self._bear(device, counted, middle) else (low, middle)
        return _Borne(pressure=low, unknown=self._bear(device, counted, 0.0, unknown=1))

    def _bear(self, device: DeviceId, counted: Sequence[_Counted], pressure: float, unknown: int = 0) -> bool:
        """Whether all still serve what is counted on, beside one more."""
        now = self.appraisal.company[device]
        beside = DeviceLoad(pressure=now.pressure + pressure, unknown=now.unknown + unknown, replicas=now.replicas + 1)
        tried = replace(self.appraisal, company={device: beside})
        for item in counted:
            (shown,) = tried.capacities_rps(item.need, [item.assignment])
            if shown is None or shown < item.least_rps:
                return False
        return True
