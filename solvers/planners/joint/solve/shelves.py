"""Devices being filled: what is free on each by addition, and equal replicas put down many at a time.

Owns the packing state of a first layout. An unused device becomes part of the shelf of the first replica that it takes;
from then on share, memory, pressure, watts and clients are subtracted. Replicas go to the fullest devices that fit. It
refuses to choose sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.planners.joint.solve.judge import Patterns
from solvers.planners.joint.solve.menu import Menu
from solvers.planners.joint.solve.rules import Rules, floor_of
from solvers.problems.joint import Flags, Floats, Whole

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Equal replicas."""

    shelf: int
    variant: int
    replicas: int
    share_pct: int
    capacity_rps: float
    memory_mib: float
    pressure: float
    watts: float


class Shelves:
    """See the module. Devices are numbered through, pool after pool."""

    def __init__(self, menu: Menu, rules: Rules) -> None:
        judge, problem = menu.judge, menu.judge.problem
        self.menu, self.judge, self.rules = menu, judge, rules
        count = int(problem.pool_devices.sum())
        self.first = np.concatenate([[0], np.cumsum(problem.pool_devices)])
        pool = np.repeat(np.arange(len(problem.pools)), problem.pool_devices)
        self.shelf = np.full(count, -1, dtype=np.int64)
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
        self._foes = _both_ways([item.avoids for item in problem.workloads])

    def devices_left(self) -> Floats:
        """Unused devices of each pool."""
        unused = np.concatenate([[0], np.cumsum(self.shelf < 0)])
        return np.asarray(unused[self.first[1:]] - unused[self.first[:-1]], dtype=np.float64)

    def place(self, batch: Batch) -> int:
        """Put down as many as rules and room allow; how many that were."""
        work = int(self.judge.workload[batch.variant])
        wanted = min(batch.replicas, self._allowed(batch, work))
        if wanted <= 0:
            return 0
        placed = 0
        for devices in self._open(batch, work, wanted):
            if not len(devices):
                continue
            self._take(batch, work, devices)
            placed += len(devices)
        return placed

    def rows(self) -> Patterns:
        """Contents of the devices in use."""
        used = np.flatnonzero(self.shelf >= 0)
        place = np.zeros(len(self.shelf), dtype=np.int64)
        variants = np.full((len(self.shelf), self.judge.width), -1, dtype=np.int64)
        shares = np.zeros((len(self.shelf), self.judge.width), dtype=np.int64)
        for devices, variant, share in self._placed:
            variants[devices, place[devices]] = variant
            shares[devices, place[devices]] = share
            place[devices] += 1
        return Patterns(kind=self.menu.kind[self.shelf[used]], variants=variants[used], shares_pct=shares[used])

    def _allowed(self, batch: Batch, work: int) -> int:
        """By replicas, budget and quota."""
        pool = self.judge.problem.pools[int(self.menu.pool[batch.shelf])]
        bill = pool.usd_per_h * batch.share_pct / 100
        most = int(self.replicas_max[work] - self.replicas[work])
        if bill > 0 and np.isfinite(self.budget_left[work]):
            most = min(most, int((self.budget_left[work] + _EPSILON) // bill))
        quota, gpus = int(self.rules.project[work]), pool.gpu_part * batch.share_pct / 100
        if quota >= 0 and gpus > 0:
            most = min(most, int((self.quota_left[quota] + _EPSILON) // gpus))
        return most

    def _open(self, batch: Batch, work: int, wanted: int) -> tuple[Whole, Whole]:
        """Devices of the shelf with room, fullest first; and unused ones for the rest."""
        pool = int(self.menu.pool[batch.shelf])
        low, high = int(self.first[pool]), int(self.first[pool + 1])
        window = slice(low, high)
        fit: Flags = (self.shelf[window] == batch.shelf) & (self.clients_free[window] > 0)
        fit &= self.share_free[window] >= batch.share_pct
        fit &= self.memory_free[window] >= batch.memory_mib - _EPSILON
        fit &= self.pressure_free[window] >= batch.pressure - _EPSILON
        fit &= self.watts_free[window] >= batch.watts - _EPSILON
        for shunned in (work, *self._foes[work]):
            for devices in self._hosts.get(shunned, ()):
                inside = devices[(devices >= low) & (devices < high)]
                fit[inside - low] = False
        found = low + np.flatnonzero(fit)
        if len(found) > wanted:
            found = found[np.argsort(self.share_free[found], kind="stable")[:wanted]]
        unused = low + np.flatnonzero(self.shelf[window] < 0)[: wanted - len(found)]
        return found, unused

    def _take(self, batch: Batch, work: int, devices: Whole) -> None:
        fresh = devices[self.shelf[devices] < 0]
        self.shelf[fresh] = batch.shelf
        self.pressure_free[fresh] = self.menu.crowding[batch.shelf]
        self.watts_free[fresh] = self.menu.watts[batch.shelf]
        self.clients_free[fresh] = self.menu.clients[batch.shelf]
        self.share_free[devices] -= batch.share_pct
        self.memory_free[devices] -= batch.memory_mib
        self.pressure_free[devices] -= batch.pressure
        self.watts_free[devices] -= batch.watts
        self.clients_free[devices] -= 1
        self.planned_rps[work] += batch.capacity_rps * len(devices)
        self.replicas[work] += len(devices)
        pool = self.judge.problem.pools[int(self.menu.pool[batch.shelf])]
        part = len(devices) * batch.share_pct / 100
        self.budget_left[work] -= pool.usd_per_h * part
        if self.rules.project[work] >= 0:
            self.quota_left[self.rules.project[work]] -= pool.gpu_part * part
        self._hosts.setdefault(work, []).append(devices)
        self._placed.append((devices, batch.variant, batch.share_pct))


def _both_ways(avoids: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Whom nobody may stand beside, whoever of the two said so."""
    foes: list[set[int]] = [set(item) for item in avoids]
    for number, item in enumerate(avoids):
        for other in item:
            foes[other].add(number)
    return [tuple(sorted(item)) for item in foes]
