"""Pools that end at power domains: a problem in which every node has a cap of its own.

A layout knows power as sums over like nodes, which bear together what no parting of boards may bring under the cap of
each. Here every pool lies in one domain of each scope, so whoever exchanges devices keeps them all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.problems.joint import Cap, JointProblem, Pool
from solvers.problems.patterns import Pattern


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The pools of a problem in parts, numbered by pool, and then by what power domains they are in."""

    whole: JointProblem
    pool: tuple[int, ...]
    """By part: whose part it is."""
    of: Whole
    """By device: its part."""
    domain_of: Whole
    """Device x scope: number of the power domain, if it is none below 0."""
    room_w: Floats
    """Of each power domain, above idle."""

    @staticmethod
    def of_devices(whole: JointProblem, pool_of: Whole, domain_of: Whole, room_w: Floats) -> Parts:
        keys = np.column_stack([pool_of, domain_of])
        found, of = np.unique(keys, axis=0, return_inverse=True)
        pool = tuple(found[:, 0].tolist())
        return Parts(whole=whole, pool=pool, of=np.asarray(of).ravel(), domain_of=domain_of, room_w=room_w)

    @cached_property
    def kinds(self) -> list[tuple[int, int]]:
        """By kind of the parts' problem: part, and kind of the whole one."""
        kinds = [np.flatnonzero(self.whole.kind_pool == pool).tolist() for pool in range(len(self.whole.pools))]
        return [(part, kind) for part, pool in enumerate(self.pool) for kind in kinds[pool]]

    @cached_property
    def _number(self) -> dict[tuple[int, int], int]:
        return {kind: number for number, kind in enumerate(self.kinds)}

    @cached_property
    def problem(self) -> JointProblem:
        """With a cap for every power domain, in which idle power is counted as problems do."""
        whole, pool, kinds = self.whole, np.array(self.pool, dtype=np.int64), [kind for _, kind in self.kinds]
        idle_w = np.array([item.idle_w for item in whole.pools])[pool]
        inside = [self.devices((self.domain_of == domain).any(axis=1)) for domain in range(len(self.room_w))]
        caps = (
            Cap(name=str(domain), limit_w=room_w + float(count @ idle_w), devices=tuple(count.tolist()))
            for domain, (room_w, count) in enumerate(zip(self.room_w.tolist(), inside, strict=True))
        )
        return replace(
            whole,
            pools=self._pools(np.ones(len(self.of), dtype=np.bool_)),
            kind_pool=np.array([part for part, _ in self.kinds], dtype=np.int64),
            kind_clock_mhz=whole.kind_clock_mhz[kinds],
            kind_table=whole.kind_table[kinds],
            allowed=whole.allowed[pool],
            caps=tuple(caps),
        )

    def of_some(self, some: Flags) -> JointProblem:
        """With these devices alone."""
        return replace(self.problem, pools=self._pools(some))

    def devices(self, some: Flags) -> Whole:
        """By part how many of these devices are in it."""
        return np.bincount(self.of[some], minlength=len(self.pool))

    def _pools(self, some: Flags) -> tuple[Pool, ...]:
        counts = zip(self.pool, self.devices(some).tolist(), strict=True)
        return tuple(
            replace(self.whole.pools[pool], name=f"{number}", devices=count)
            for number, (pool, count) in enumerate(counts)
        )

    def inside(self, device: int, pattern: Pattern) -> Pattern:
        """What stands on a device as a content of its part."""
        return replace(pattern, kind=self._number[int(self.of[device]), pattern.kind])

    def outside(self, pattern: Pattern) -> tuple[int, Pattern]:
        """Its part, and what it is in the whole problem."""
        part, kind = self.kinds[pattern.kind]
        return part, replace(pattern, kind=kind)
