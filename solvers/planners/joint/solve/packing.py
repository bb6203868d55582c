"""Packing devices by addition: what one replica takes where, and devices being filled.

A *bin class* is a kind of device together with the pressure that its replicas may put on each other in sum. Within one
every limit is additive (share, memory, pressure, watts, clients), so what fits by addition is lawful by judgement, and
only serves more when its neighbours press less. A replica's *part* of a device is the largest of its parts of all
limits. An unused device becomes one of the class of the first replica that it takes; replicas go to the fullest
devices that fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.planners.joint.solve.solution import Rules, floor_of
from solvers.problems.joint import JointProblem

CROWDING = (0.0, 0.25, 0.5, 0.85)
"""Pressures in sum that packing allow; at 0 a replica stands alone."""
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Replicas, one element each: what each takes and serves at its bin_class's crowding."""

    variant: Whole
    share_pct: Whole
    capacity_rps: Floats
    memory_mib: Floats
    pressure: Floats
    watts: Floats
    part: Floats
    """Of a device; `inf` where it cannot stand."""


class SizeTable:
    """Packing (kind x crowding) and the cheapest size of every variant on each."""

    def __init__(self, judge: Judge) -> None:
        problem = judge.problem
        self.judge = judge
        self.kind = np.repeat(np.arange(problem.kinds), len(CROWDING))
        self.crowding = np.tile(np.array(CROWDING), problem.kinds)
        self.pool = problem.kind_pool[self.kind]
        self.watts = _watts_per_device(problem)[self.pool]
        self.clients = np.where(self.crowding > 0, judge.clients[self.pool], 1)
        pool_usd = np.array([problem.idle_usd_per_h(pool) for pool in range(len(problem.pools))])
        self.device_usd = pool_usd[self.pool]
        count = len(self.kind)
        shape = (count, len(problem.variants))
        self.share_pct = np.zeros(shape, dtype=np.int64)
        self.capacity_rps = np.zeros(shape)
        self.part = np.full(shape, np.inf)
        self.running_usd = np.full(shape, np.inf)
        for bin_class in range(count):
            self._fill(bin_class)

    def _fill(self, bin_class: int) -> None:
        problem = self.judge.problem
        variants = np.flatnonzero(problem.allowed[self.pool[bin_class]])
        if self.crowding[bin_class] > 0:
            variants = variants[~self.judge.dedicated[problem.variant_workload[variants]]]
        if not len(variants):
            return
        shares = problem.shares_pct
        pairs = (np.repeat(variants, len(shares)), np.tile(shares, len(variants)))
        sizes = self.sizes(np.full(len(pairs[0]), bin_class), *pairs)
        shape = (len(variants), len(shares))
        running = self._running(bin_class, sizes)
        work = problem.variant_workload[pairs[0]]
        replicas_most = np.array([item.replicas_max for item in problem.workloads], dtype=np.float64)[work]
        devices = problem.pool_devices[self.pool[bin_class]] * self.judge.per_device_max[work]
        most = np.maximum(1.0, np.minimum(replicas_most, devices))
        with np.errstate(divide="ignore", invalid="ignore"):
            # What cannot carry the whole rate even as often as it may stand leaves the rest to dearer places.
            lack = np.maximum(1.0, problem.rate_rps[work] / (sizes.capacity_rps * most))
            price = (self.device_usd[bin_class] * sizes.part + running) / sizes.capacity_rps * lack
        price = np.where(np.isfinite(sizes.part) & np.isfinite(price), price, np.inf).reshape(shape)
        best = np.argmin(price, axis=1)
        fit = np.isfinite(price[np.arange(len(variants)), best])
        flat = np.arange(len(variants)) * len(shares) + best
        chosen, flat = variants[fit], flat[fit]
        self.share_pct[bin_class, chosen] = sizes.share_pct[flat]
        self.capacity_rps[bin_class, chosen] = sizes.capacity_rps[flat]
        self.part[bin_class, chosen] = sizes.part[flat]
        self.running_usd[bin_class, chosen] = running[flat]

    def _running(self, bin_class: int, sizes: Sizes) -> Floats:
        """$/h of a replica above the device itself."""
        problem = self.judge.problem
        if problem.by_replica:
            return problem.held_usd(int(self.kind[bin_class]), sizes.variant, sizes.share_pct)
        # Watts are without end where nothing runs; free energy costs nothing there either.
        return np.asarray(problem.usd_per_wh * sizes.watts) if problem.usd_per_wh else np.zeros_like(sizes.watts)

    def sizes(self, bin_class: Whole, variant: Whole, share_pct: Whole) -> Sizes:
        """Replicas of these shares on these packing, each slowed by all the neighbours its bin_class allows."""
        judge, problem = self.judge, self.judge.problem
        table = problem.kind_table[self.kind[bin_class]]
        own = problem.pressure[table, variant] * (share_pct / 100) ** problem.exponent[table, variant]
        others = np.maximum(self.crowding[bin_class] - own, 0.0)
        slow = problem.crowd[table, variant] * (1 + problem.sensitivity[table, variant] * others)
        alone = self.crowding[bin_class] <= 0
        slow = np.where(alone, 1.0, slow)
        rows = Patterns(kind=self.kind[bin_class], variants=variant[:, None], shares_pct=share_pct[:, None])
        served = judge.judge_slowed(rows, slow[:, None])
        pool = self.pool[bin_class]
        press = np.where(alone, 0.0, own)
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.maximum.reduce(
                [
                    share_pct / 100,
                    served.memory_mib[:, 0] / judge.room_mib[pool],
                    np.where(alone, 1.0, own / np.maximum(self.crowding[bin_class], 1e-9)),
                    served.power_w[:, 0] / self.watts[bin_class],
                    1 / self.clients[bin_class],
                ]
            )
        fit = served.lawful & (part <= 1.0)
        return Sizes(
            variant=variant,
            share_pct=share_pct,
            capacity_rps=np.where(fit, served.capacity_rps[:, 0], 0.0),
            memory_mib=served.memory_mib[:, 0],
            pressure=press,
            watts=served.power_w[:, 0],
            part=np.where(fit, part, np.inf),
        )


def _watts_per_device(problem: JointProblem) -> Floats:
    """Power above idle that each pool's devices may draw so that no cap can break, `inf` where nothing caps them."""
    idle = np.array([item.idle_w for item in problem.pools])
    span = np.array([item.limit_w for item in problem.pools]) - idle
    watts = np.full(len(problem.pools), np.inf)
    for cap in problem.caps:
        inside = np.array(cap.devices)
        spare = max(0.0, cap.limit_w - float(inside @ idle))
        part = spare / max(float(inside @ span), 1e-9)
        if part < 1:
            watts = np.where(inside > 0, np.minimum(watts, part * span), watts)
    return watts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """Equal replicas."""

    bin_class: int
    variant: int
    replicas: int
    share_pct: int
    capacity_rps: float
    memory_mib: float
    pressure: float
    watts: float


class Packing:
    """See the module. Devices are numbered through, pool after pool."""

    def __init__(self, size_table: SizeTable, rules: Rules) -> None:
        judge, problem = size_table.judge, size_table.judge.problem
        self.size_table, self.judge, self.rules = size_table, judge, rules
        count = int(problem.pool_devices.sum())
        self.first = np.concatenate([[0], np.cumsum(problem.pool_devices)])
        pool = np.repeat(np.arange(len(problem.pools)), problem.pool_devices)
        self.bin_class = np.full(count, -1, dtype=np.int64)
        self.share_free = np.full(count, 100, dtype=np.int64)
        self.memory_free = judge.room_mib[pool]
        self.pressure_free = np.zeros(count)
        self.watts_free = np.zeros(count)
        self.clients_free = judge.clients[pool]
        self.planned_rps = np.zeros(len(problem.workloads))
        self.replicas = np.zeros(len(problem.workloads), dtype=np.int64)
        self.replicas_max = np.array([item.replicas_max for item in problem.workloads], dtype=np.int64)
        self.floor = np.array([floor_of(problem, number) for number in range(len(problem.workloads))])
        self.budget_left = np.array([item.budget_usd_per_h for item in problem.workloads])
        self.quota_left = np.array([limit for _, limit in problem.quotas])
        self._hosts: dict[int, list[Whole]] = {}
        self._placed: list[tuple[Whole, int, int]] = []
        self._conflicts = _both_ways([item.avoids for item in problem.workloads])

    def place(self, lot: Lot) -> int:
        """Put down as many as rules and room allow; how many that were."""
        work = int(self.judge.workload[lot.variant])
        wanted = min(lot.replicas, self._allowed(lot, work))
        if wanted <= 0:
            return 0
        placed = 0
        for devices in self._open(lot, work, wanted):
            if not len(devices):
                continue
            self._take(lot, work, devices)
            placed += len(devices)
        return placed

    def rows(self) -> Patterns:
        """Contents of the devices in use."""
        used = np.flatnonzero(self.bin_class >= 0)
        place = np.zeros(len(self.bin_class), dtype=np.int64)
        variants = np.full((len(self.bin_class), self.judge.width), -1, dtype=np.int64)
        shares = np.zeros((len(self.bin_class), self.judge.width), dtype=np.int64)
        for devices, variant, share in self._placed:
            variants[devices, place[devices]] = variant
            shares[devices, place[devices]] = share
            place[devices] += 1
        return Patterns(
            kind=self.size_table.kind[self.bin_class[used]], variants=variants[used], shares_pct=shares[used]
        )

    def _allowed(self, lot: Lot, work: int) -> int:
        """By replicas, budget and quota."""
        pool = self.judge.problem.pools[int(self.size_table.pool[lot.bin_class])]
        bill = pool.usd_per_h * lot.share_pct / 100
        most = int(self.replicas_max[work] - self.replicas[work])
        if bill > 0 and np.isfinite(self.budget_left[work]):
            most = min(most, int((self.budget_left[work] + _EPSILON) // bill))
        quota, gpus = int(self.rules.project[work]), pool.gpu_part * lot.share_pct / 100
        if quota >= 0 and gpus > 0:
            most = min(most, int((self.quota_left[quota] + _EPSILON) // gpus))
        return most

    def _open(self, lot: Lot, work: int, wanted: int) -> tuple[Whole, Whole]:
        """Devices of the bin_class with room, fullest first; and unused ones for the rest."""
        pool = int(self.size_table.pool[lot.bin_class])
        low, high = int(self.first[pool]), int(self.first[pool + 1])
        window = slice(low, high)
        fit: Flags = (self.bin_class[window] == lot.bin_class) & (self.clients_free[window] > 0)
        fit &= self.share_free[window] >= lot.share_pct
        fit &= self.memory_free[window] >= lot.memory_mib - _EPSILON
        fit &= self.pressure_free[window] >= lot.pressure - _EPSILON
        fit &= self.watts_free[window] >= lot.watts - _EPSILON
        for shunned in (work, *self._conflicts[work]):
            for devices in self._hosts.get(shunned, ()):
                inside = devices[(devices >= low) & (devices < high)]
                fit[inside - low] = False
        found = low + np.flatnonzero(fit)
        if len(found) > wanted:
            found = found[np.argsort(self.share_free[found], kind="stable")[:wanted]]
        unused = low + np.flatnonzero(self.bin_class[window] < 0)[: wanted - len(found)]
        return found, unused

    def _take(self, lot: Lot, work: int, devices: Whole) -> None:
        fresh = devices[self.bin_class[devices] < 0]
        self.bin_class[fresh] = lot.bin_class
        self.pressure_free[fresh] = self.size_table.crowding[lot.bin_class]
        self.watts_free[fresh] = self.size_table.watts[lot.bin_class]
        self.clients_free[fresh] = self.size_table.clients[lot.bin_class]
        self.share_free[devices] -= lot.share_pct
        self.memory_free[devices] -= lot.memory_mib
        self.pressure_free[devices] -= lot.pressure
        self.watts_free[devices] -= lot.watts
        self.clients_free[devices] -= 1
        self.planned_rps[work] += lot.capacity_rps * len(devices)
        self.replicas[work] += len(devices)
        pool = self.judge.problem.pools[int(self.size_table.pool[lot.bin_class])]
        part = len(devices) * lot.share_pct / 100
        self.budget_left[work] -= pool.usd_per_h * part
        if self.rules.project[work] >= 0:
            self.quota_left[self.rules.project[work]] -= pool.gpu_part * part
        self._hosts.setdefault(work, []).append(devices)
        self._placed.append((devices, lot.variant, lot.share_pct))


def _both_ways(avoids: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """By workload, which others may not stand beside it, whichever of the two said so."""
    conflicts: list[set[int]] = [set(item) for item in avoids]
    for number, item in enumerate(avoids):
        for other in item:
            conflicts[other].add(number)
    return [tuple(sorted(item)) for item in conflicts]
