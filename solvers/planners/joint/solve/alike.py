"""Pools that no workload can tell apart as one: the same device, whatever power and failure domains it is in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Whole
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Patterns


@dataclass(frozen=True, kw_only=True)
class Alike:
    """A problem in which pools that no workload can tell apart are one, whatever domains they are in."""

    problem: JointProblem
    pool: Whole
    """By pool of the whole problem: which one it is here."""
    kind: Whole
    """By kind of the whole problem, likewise."""

    @staticmethod
    def of(whole: JointProblem, *, by_domain: bool = False) -> Alike:
        """A relaxation: failure domains may not be kept apart, and caps let the rest of a pool draw more."""
        number, first, pool = dict[tuple[object, ...], int](), list[int](), list[int]()
        kinds = [np.flatnonzero(whole.kind_pool == at) for at in range(len(whole.pools))]
        for at, item in enumerate(whole.pools):
            same = (
                replace(item, name="", devices=0, failure_domain=item.failure_domain * by_domain),
                whole.allowed[at].tobytes(),
            )
            tables = (*whole.kind_table[kinds[at]].tolist(), *whole.kind_clock_mhz[kinds[at]].tolist())
            pool.append(number.setdefault((same, tables), len(number)))
            first += [at] if pool[-1] == len(first) else []
        chosen, of = np.concatenate([np.zeros(0, np.int64), *(kinds[at] for at in first)]), np.array(pool, np.int64)
        start = np.searchsorted(of[whole.kind_pool[chosen]], np.arange(len(first)))
        kind = np.zeros(whole.kinds, dtype=np.int64)
        for at, mine in enumerate(kinds):
            kind[mine] = start[of[at]] + np.arange(len(mine))
        devices = np.bincount(of, weights=whole.pool_devices, minlength=len(first)).astype(np.int64).tolist()
        caps = (np.bincount(of, weights=cap.devices, minlength=len(first)).astype(np.int64) for cap in whole.caps)
        anywhere = (replace(work, replicas_min=work.replicas_floor, domains_min=1) for work in whole.workloads)
        problem = replace(
            whole,
            pools=tuple(replace(whole.pools[at], devices=n) for at, n in zip(first, devices, strict=True)),
            kind_pool=of[whole.kind_pool[chosen]],
            kind_clock_mhz=whole.kind_clock_mhz[chosen],
            kind_table=whole.kind_table[chosen],
            allowed=whole.allowed[first],
            caps=tuple(
                replace(cap, devices=tuple(inside.tolist())) for cap, inside in zip(whole.caps, caps, strict=True)
            ),
            workloads=whole.workloads if by_domain else tuple(anywhere),
        )
        return Alike(problem=problem, pool=of, kind=kind)

    def inside(self, rows: Patterns) -> Patterns:
        """Rows of the whole problem here."""
        return replace(rows, kind=self.kind[rows.kind])
