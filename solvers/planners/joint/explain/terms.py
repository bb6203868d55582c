"""What a part of a device is worth, by list and at the prices of a solve.

Owns the sums with which single configurations are compared: the room one takes, what that room costs, and what it
would be worth to others. Without duals both sums agree. It refuses to choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from solvers.domain.ids import WorkloadId
from solvers.planners.joint.solve.judge import Patterns
from solvers.problems.joint import Floats, JointProblem, Whole
from solvers.problems.layout import Prices

Taken = tuple[Floats, Whole, Floats, Floats]
"""Room (part of a device), share in percent, watts, and $/h of what is held, where that is the cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """See the module."""

    problem: JointProblem
    numbers: Mapping[WorkloadId, int]
    idle_usd: Floats
    """By pool: price and idle energy of a whole device."""
    pool_usd: Floats
    watt_usd: Floats
    """By pool: what a watt is worth to the caps over it."""
    quota_usd: Floats
    """By workload: of a whole GPU."""
    replicas_least: Floats
    """By workload: nobody is served by less than one replica."""
    pressure: Floats
    """By table: what one neighbour presses with on average, at the whole device."""

    @staticmethod
    def of(problem: JointProblem, prices: Prices | None) -> Terms:
        """From the duals of a solve; nothing is scarce without."""
        pools, works = len(problem.pools), problem.workloads
        watt, pool_usd, quota = np.zeros(pools), np.zeros(pools), np.zeros(len(works))
        if prices is not None:
            pool_usd = prices.pool_usd
            for cap, usd in zip(problem.caps, prices.cap_usd, strict=True):
                watt += usd * (np.array(cap.devices) > 0)
            by_project = {name: usd for (name, _), usd in zip(problem.quotas, prices.quota_usd, strict=True)}
            quota = np.array([by_project.get(work.project, 0.0) for work in works], dtype=np.float64)
        known = np.where(problem.pressure > 0, problem.pressure, np.nan)
        counted = np.maximum(1, np.count_nonzero(~np.isnan(known), axis=1)) if known.size else 1
        return Terms(
            problem=problem,
            numbers={work.id: number for number, work in enumerate(works)},
            idle_usd=np.array([problem.idle_usd_per_h(pool) for pool in range(pools)]),
            pool_usd=np.asarray(pool_usd, dtype=np.float64),
            watt_usd=watt,
            quota_usd=quota,
            replicas_least=np.array([max(1, work.replicas_min) for work in works], dtype=np.float64),
            pressure=np.asarray(np.nansum(known, axis=1) / counted, dtype=np.float64),
        )

    def slowdown(self, rows: Patterns) -> Floats:
        """Of single replicas beside somebody average, who takes the rest of the device."""
        problem, table = self.problem, self.problem.kind_table[rows.kind][:, None]
        rest = 1 - rows.shares_pct / 100
        felt = problem.sensitivity[table, rows.variants] * self.pressure[table] * rest
        return np.where(rest > 0, problem.crowd[table, rows.variants] * (1 + felt), 1.0)

    def room(self, pool: Whole, share_pct: Whole, memory_mib: Floats) -> Floats:
        """Part of a device that nobody else can have."""
        whole = np.array([item.memory_mib for item in self.problem.pools])
        clients = np.array([item.clients for item in self.problem.pools], dtype=np.float64)
        parts = np.maximum(share_pct / 100, memory_mib / np.maximum(whole[pool], 1e-9))
        return np.asarray(np.minimum(1.0, np.maximum(parts, 1 / clients[pool])))

    def usd_listed(self, pool: Whole, taken: Taken) -> Floats:
        """$/h of replicas at their part of the price, with energy where the problem counts it."""
        room, _, watts, held_usd = taken
        if self.problem.by_replica:
            return held_usd
        return np.asarray(self.idle_usd[pool] * room + self.problem.usd_per_wh * watts)

    def usd_at_duals(self, pool: Whole, work: Whole, taken: Taken) -> Floats:
        """$/h of replicas with what their room, watts and quota are worth to others."""
        room, share, watts, _ = taken
        part = np.array([item.gpu_part for item in self.problem.pools])
        scarce = self.pool_usd[pool] * room + self.watt_usd[pool] * watts
        return np.asarray(self.usd_listed(pool, taken) + scarce + self.quota_usd[work] * part[pool] * share / 100)
