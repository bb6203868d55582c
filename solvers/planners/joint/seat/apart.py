"""Every power domain by itself: what a layout promised of like nodes together is sought under the cap of each.

A layout knows power as sums over like nodes. Where no changing of places keeps every node's cap, what is taken from a
node leaves somebody short, and a device more would make up for it. So devices are exchanged first, with pools that end
at power domains: those that there are, until they serve everybody; else whatever was made up for, once more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from solvers.domain.arrays import Whole
from solvers.domain.grouping import grouped
from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.seats import Floor, Seats
from solvers.planners.joint.solve.improve import improved
from solvers.planners.joint.solve.judge import Judge
from solvers.problems.joint import Cap, JointProblem
from solvers.problems.patterns import Layout, Pattern, Prices

POOLS_MAX = 64
"""With more of them nobody is asked: of so many devices one more is little."""
TRIES, UNITS, PART = 3, 150, 0.2
"""Exchanges with other chance, what each may take, and of the time that is left."""


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A floor whose pools end at power domains."""

    floor: Floor

    @cached_property
    def keys(self) -> list[tuple[int, ...]]:
        """Pools, each with its power domains."""
        return sorted({*self._key})

    @cached_property
    def _key(self) -> list[tuple[int, ...]]:
        """By device."""
        return [(int(pool), *row) for pool, row in zip(self.floor.pool_of, self.floor.domain_of.tolist(), strict=True)]

    @cached_property
    def pool_of(self) -> Whole:
        """By device."""
        number = {key: place for place, key in enumerate(self.keys)}
        return np.array([number[key] for key in self._key], dtype=np.int64)

    @cached_property
    def kinds(self) -> list[tuple[int, int]]:
        """By kind: pool, and kind of the floor's own problem."""
        kind_pool = self.floor.problem.kind_pool
        return [(at, kind) for at, key in enumerate(self.keys) for kind in np.flatnonzero(kind_pool == key[0]).tolist()]

    @cached_property
    def problem(self) -> JointProblem:
        whole, floor = self.floor.problem, self.floor
        pool, of = [key[0] for key in self.keys], [kind for _, kind in self.kinds]
        devices = np.bincount(self.pool_of, minlength=len(pool))
        idle_w = np.array([whole.pools[at].idle_w for at in pool])
        caps = []
        for domain, room_w in enumerate(floor.room_w.tolist()):
            inside = np.bincount(self.pool_of[(floor.domain_of == domain).any(axis=1)], minlength=len(pool))
            caps.append(Cap(name=str(domain), limit_w=room_w + float(inside @ idle_w), devices=tuple(inside.tolist())))
        return replace(
            whole,
            pools=tuple(
                replace(whole.pools[at], name=f"{whole.pools[at].name}/{place}", devices=int(devices[place]))
                for place, at in enumerate(pool)
            ),
            kind_pool=np.array([at for at, _ in self.kinds], dtype=np.int64),
            kind_clock_mhz=whole.kind_clock_mhz[of],
            kind_table=whole.kind_table[of],
            allowed=whole.allowed[pool],
            caps=tuple(caps),
        )

    def exchanged(
        self, seats: Seats, prices: Prices | None, deadline: Deadline, seed: int, used: Collection[int] | None = None
    ) -> Seats:
        """Exchanged from these seats; on the devices `used` alone it ends when everybody is served."""
        problem, number = self.problem, {kind: at for at, kind in enumerate(self.kinds)}
        if used is not None:
            devices = np.bincount(self.pool_of[[*used]], minlength=len(problem.pools)).tolist()
            pools = (replace(pool, devices=count) for pool, count in zip(problem.pools, devices, strict=True))
            problem = replace(problem, pools=tuple(pools))
        here = ((at, item) for at, item in enumerate(seats.patterns) if item is not None)
        begun = tuple(replace(item, kind=number[int(self.pool_of[at]), item.kind]) for at, item in here)
        layout, within = Layout(patterns=begun, counts=(1,) * len(begun)), Deadline(PART * deadline.time_left_s, UNITS)
        found = improved(Judge(problem), layout, prices, within, seed, serves=used is not None)
        each = [item for item, count in zip(found.patterns, found.counts, strict=True) for _ in range(count)]
        return self._seated(seats, [(self.kinds[item.kind][0], self._whole(item)) for item in each])

    def _whole(self, item: Pattern) -> Pattern:
        return replace(item, kind=self.kinds[item.kind][1])

    def _seated(self, before: Seats, contents: list[tuple[int, Pattern]]) -> Seats:
        """By pool; what is where it was stays there."""
        seats, rest = Seats.empty(self.floor), list[tuple[int, Pattern]]()
        free = {pool: [*found] for pool, found in grouped(range(len(self.pool_of)), self.pool_of.__getitem__).items()}
        for pool, item in contents:
            same = next((at for at in free[pool] if before.patterns[at] == item), None)
            if same is None:
                rest.append((pool, item))
            else:
                free[pool].remove(same)
                seats.put(same, item)
        for pool, item in rest:
            fewest = min(free[pool], key=lambda at: (len(seats.turnover(at, item).starts), at in self.floor.held, at))
            free[pool].remove(fewest)
            seats.put(fewest, item)
        return seats
