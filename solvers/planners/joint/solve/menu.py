"""What one replica costs where: for every network, on every kind of device at every crowding, its cheapest size.

Owns the *shelf*: a kind of device together with the pressure its replicas may put on each other in sum. On a shelf
every limit is additive (share, memory, pressure, watts, clients), so what fits by addition is lawful by judgement, and
only serves more when the neighbours press less. A replica's *part* of a device is the largest of its parts of all
limits. It refuses to pack.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.problems.joint import Floats, JointProblem, Whole

CROWDING = (0.0, 0.25, 0.5, 0.85)
"""Pressures in sum that shelves allow; at 0 a replica stands alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Replicas, one element each: what each takes and serves at its shelf's crowding."""

    variant: Whole
    share_pct: Whole
    capacity_rps: Floats
    memory_mib: Floats
    pressure: Floats
    watts: Floats
    part: Floats
    """Of a device; `inf` where it cannot stand."""


class Menu:
    """Shelves (kind x crowding) and the cheapest size of every variant on each."""

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
        for shelf in range(count):
            self._fill(shelf)

    def _fill(self, shelf: int) -> None:
        problem = self.judge.problem
        variants = np.flatnonzero(problem.allowed[self.pool[shelf]])
        if self.crowding[shelf] > 0:
            variants = variants[~self.judge.dedicated[problem.variant_workload[variants]]]
        if not len(variants):
            return
        shares = problem.shares_pct
        pairs = (np.repeat(variants, len(shares)), np.tile(shares, len(variants)))
        sizes = self.sizes(np.full(len(pairs[0]), shelf), *pairs)
        shape = (len(variants), len(shares))
        running = self._running(shelf, sizes)
        work = problem.variant_workload[pairs[0]]
        replicas_most = np.array([item.replicas_max for item in problem.workloads], dtype=np.float64)[work]
        devices = problem.pool_devices[self.pool[shelf]] * self.judge.per_device_max[work]
        most = np.maximum(1.0, np.minimum(replicas_most, devices))
        with np.errstate(divide="ignore", invalid="ignore"):
            # What cannot carry the whole rate even as often as it may stand leaves the rest to dearer places.
            lack = np.maximum(1.0, problem.rate_rps[work] / (sizes.capacity_rps * most))
            price = (self.device_usd[shelf] * sizes.part + running) / sizes.capacity_rps * lack
        price = np.where(np.isfinite(sizes.part) & np.isfinite(price), price, np.inf).reshape(shape)
        best = np.argmin(price, axis=1)
        fit = np.isfinite(price[np.arange(len(variants)), best])
        flat = np.arange(len(variants)) * len(shares) + best
        chosen, flat = variants[fit], flat[fit]
        self.share_pct[shelf, chosen] = sizes.share_pct[flat]
        self.capacity_rps[shelf, chosen] = sizes.capacity_rps[flat]
        self.part[shelf, chosen] = sizes.part[flat]
        self.running_usd[shelf, chosen] = running[flat]

    def _running(self, shelf: int, sizes: Sizes) -> Floats:
        """$/h of a replica above the device itself."""
        problem = self.judge.problem
        if problem.by_replica:
            return problem.held_usd(int(self.kind[shelf]), sizes.variant, sizes.share_pct)
        # Watts are without end where nothing runs; free energy costs nothing there either.
        return np.asarray(problem.usd_per_wh * sizes.watts) if problem.usd_per_wh else np.zeros_like(sizes.watts)

    def sizes(self, shelf: Whole, variant: Whole, share_pct: Whole) -> Sizes:
        """Replicas of these shares on these shelves, each slowed by all the neighbours its shelf allows."""
        judge, problem = self.judge, self.judge.problem
        table = problem.kind_table[self.kind[shelf]]
        own = problem.pressure[table, variant] * (share_pct / 100) ** problem.exponent[table, variant]
        others = np.maximum(self.crowding[shelf] - own, 0.0)
        slow = problem.crowd[table, variant] * (1 + problem.sensitivity[table, variant] * others)
        alone = self.crowding[shelf] <= 0
        slow = np.where(alone, 1.0, slow)
        rows = Patterns(kind=self.kind[shelf], variants=variant[:, None], shares_pct=share_pct[:, None])
        served = judge.judge_slowed(rows, slow[:, None])
        pool = self.pool[shelf]
        press = np.where(alone, 0.0, own)
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.maximum.reduce(
                [
                    share_pct / 100,
                    served.memory_mib[:, 0] / judge.room_mib[pool],
                    np.where(alone, 1.0, own / np.maximum(self.crowding[shelf], 1e-9)),
                    served.power_w[:, 0] / self.watts[shelf],
                    1 / self.clients[shelf],
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
