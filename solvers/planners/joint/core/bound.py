"""A proven bound: no pattern whatever, at whole percents of share, is worth more at these duals than is shown here.

Owns the proof. For every kind the devices' contents are split by the pressure on them; within a slice everybody is
taken to feel no more than its lower edge, so that a knapsack over single percents of share can only be too good. Slices
that look better than what is known to exist are looked at again with multipliers on pressure, memory and clients, and
then cut in two. Stopped at any time it holds: unrefined slices only make it weaker. From the worst value of each pool
follows the bound on the cost of every layout (weak duality, see `lagrangian`). It refuses to construct patterns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from solvers.engines.deadline import Deadline
from solvers.planners.joint.core.rows import ItemPrices, Rows
from solvers.planners.joint.core.sets import Judge
from solvers.planners.joint.core.tables import levels_of
from solvers.problems.joint import Floats, JointProblem, Pool, Whole
from solvers.problems.patterns import between

UNITS = 100
TRIES_MAX = 8
BATCH = 32
SLICE_LEAST = 0.01
NEVER = -1e30
STEP = 0.5
NEAR = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Contents of devices of one kind whose pressure lies between two edges; `alone` are single replicas."""

    kind: int
    low: float
    high: float
    alone: bool = False
    usd: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Multipliers on pressure, memory and clients."""
    least: tuple[float, ...] = (0.0, 0.0, 0.0)
    most: tuple[float, ...] = (np.inf, np.inf, np.inf)
    tries: int = 0
    worth: float = np.inf
    """No pattern in it has more value above its device's fixed price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """What the knapsack of a slice found: its value, and what it would take of pressure, memory and clients."""

    value: float = 0.0
    press: float = 0.0
    memory: float = 0.0
    clients: float = 0.0
    members: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """One table at every share: variant x share x batch, and pressure without the batch."""

    mean: Floats
    tail: Floats
    watts: Floats
    press: Floats


class Bound:
    """Slices of one problem at one set of duals."""

    def __init__(self, problem: JointProblem, judge: Judge, rows: Rows, duals: Floats) -> None:
        self.problem, self.judge, self.rows, self.duals = problem, judge, rows, duals
        self.prices: ItemPrices = rows.item_prices(duals)
        self.variant = np.flatnonzero((rows.wanted | rows.floored)[problem.variant_workload])
        step = max(1, problem.share_step_pct)
        least = int(problem.shares_pct[0])
        self.shares = np.array([pct for pct in range(step, UNITS + 1, step) if pct >= least], dtype=np.int64)
        width = max((pool.clients for pool in problem.pools), default=1)
        self.width = max(1, min(UNITS // max(1, least), width))
        edges = levels_of(problem, self.width).edge
        works = [problem.workloads[item.workload] for item in problem.variants]
        self._dedicated = np.array([work.dedicated for work in works], dtype=np.bool_)[self.variant]
        self._last: tuple[int, Cells] | None = None
        self.seen: list[tuple[int, list[tuple[int, int]]]] = []
        """Kinds and members (variant, share) that looked too good on the way."""
        self.slices = [Slice(kind=kind, low=0.0, high=0.0, alone=True) for kind in range(problem.kinds)]
        self.slices += [
            Slice(kind=kind, low=float(low), high=float(high))
            for kind in range(problem.kinds)
            if problem.pools[int(problem.kind_pool[kind])].clients > 1
            for low, high in pairwise(edges.tolist())
        ]

    def tighten(self, target: Floats, deadline: Deadline, until_part: float) -> None:
        """Refine until no slice is worth more than its pool's target, $/h, or the deadline says stop."""
        problem = self.problem
        open_to = {index for index in range(len(self.slices)) if self._pool(index).devices}
        while open_to:
            # What weakens the bound most comes first, table by table because their numbers are worked out once.
            worst = sorted(open_to, key=lambda index: (-self._harm(index, target), index))[:BATCH]
            for index in sorted(worst, key=lambda item: (int(problem.kind_table[self.slices[item].kind]), item)):
                if deadline.left_part <= until_part:
                    return
                deadline.spend()
                open_to.discard(index)
                open_to |= set(self._look(index, float(target[int(problem.kind_pool[self.slices[index].kind])])))

    def _harm(self, index: int, target: Floats) -> float:
        item = self.slices[index]
        pool = int(self.problem.kind_pool[item.kind])
        return float(self._pool(index).devices * (item.worth - target[pool]))

    def _pool(self, index: int) -> Pool:
        return self.problem.pools[int(self.problem.kind_pool[self.slices[index].kind])]

    def _look(self, index: int, target: float) -> list[int]:
        """Look at a slice once; returns the slices to look at again."""
        item = self.slices[index]
        found = self._knapsack(item)
        pool = self.problem.pools[int(self.problem.kind_pool[item.kind])]
        fixed = float(self.prices.fixed[int(self.problem.kind_pool[item.kind])])
        side = item.usd[0] * item.high + item.usd[1] * pool.memory_mib + item.usd[2] * pool.clients
        worth = min(item.worth, found.value + side - fixed)
        item = self.slices[index] = replace(item, worth=worth, tries=item.tries + 1)
        if worth <= target:
            return []
        if found.members:
            self.seen.append((item.kind, found.members))
        moved = self._moved(item, found, max(found.value + side, 1e-6))
        if moved is not None:
            self.slices[index] = moved
            return [index]
        if item.alone or item.high - item.low <= SLICE_LEAST:
            return []
        middle = (item.low + item.high) / 2
        fresh = replace(item, tries=0, least=(0.0,) * 3, most=(np.inf,) * 3)
        self.slices[index] = replace(fresh, high=middle)
        self.slices.append(replace(fresh, low=middle))
        return [index, len(self.slices) - 1]

    def _moved(self, item: Slice, found: Best, value: float) -> Slice | None:
        """The multiplier of what is overdone most, moved within what is known of it; None when nothing is overdone, or
        often enough.
        """
        pool = self.problem.pools[int(self.problem.kind_pool[item.kind])]
        rooms = (max(item.high, 1e-9), pool.memory_mib, float(pool.clients))
        over = [used / room - 1 for used, room in zip((found.press, found.memory, found.clients), rooms, strict=True)]
        worst = int(
            np.argmax(np.abs([part if part > 0 or usd > 0 else 0.0 for part, usd in zip(over, item.usd, strict=True)]))
        )
        if item.alone or item.tries >= TRIES_MAX or abs(over[worst]) < NEAR:
            return None
        usd, least, most = list(item.usd), list(item.least), list(item.most)
        if over[worst] > 0:
            least[worst] = usd[worst]
        else:
            most[worst] = usd[worst]
        known = np.isfinite(most[worst])
        usd[worst] = (least[worst] + most[worst]) / 2 if known else max(2 * usd[worst], STEP * value / rooms[worst])
        return replace(item, usd=tuple(usd), least=tuple(least), most=tuple(most))

    def _knapsack(self, item: Slice) -> Best:
        """The best choice of at most one share per workload on one device, over single percents."""
        here = self._here(item)
        if not len(here):
            return Best()
        value, batch = self._values(item, here)
        if item.alone:
            return Best(value=max(0.0, float(value.max())), clients=1.0)
        value, source = self._by_workload(value, self.variant[here])
        rows = self._promising(value)
        value, source = value[rows], source[rows]
        table = np.zeros(UNITS + 1)
        taken = np.full((len(value), UNITS + 1), -1, dtype=np.int64)
        every = np.arange(UNITS + 1)
        for row in range(len(value)):
            useful = np.flatnonzero(value[row] > 0)
            offer = self._padded(table)[every[:, None] - self.shares[useful][None, :] + UNITS] + value[row, useful]
            pick = np.argmax(offer, axis=1)
            best = offer[every, pick]
            better = best > table
            taken[row, better] = useful[pick[better]]
            table = np.where(better, best, table)
        return self._spent(item, table, taken, (self.variant[here], source, batch))

    @staticmethod
    def _padded(table: Floats) -> Floats:
        return np.concatenate([np.full(UNITS, NEVER), table])

    def _spent(self, item: Slice, table: Floats, taken: Whole, parts: tuple[Whole, Whole, Whole]) -> Best:
        names, source, batch = parts
        number = int(self.problem.kind_table[item.kind])
        press = memory = 0.0
        members: list[tuple[int, int]] = []
        left = UNITS
        for row in range(len(taken) - 1, -1, -1):
            option = int(taken[row, left])
            if option < 0:
                continue
            place = int(source[row, option])
            variant, share = int(names[place]), int(self.shares[option])
            press += self.problem.pressure[number, variant] * (share / 100) ** self.problem.exponent[number, variant]
            memory += float(self.problem.memory_mib[number, variant, int(batch[place, option])])
            members.append((variant, share))
            left -= share
        clients = float(len(members))
        return Best(value=float(table[UNITS]), press=float(press), memory=memory, clients=clients, members=members)

    def _by_workload(self, value: Floats, names: Whole) -> tuple[Floats, Whole]:
        """The best variant of each workload at each share, as often as it may stand there; and which it is."""
        work = self.problem.variant_workload[names]
        copies = np.array([self.problem.workloads[number].per_device_max for number in work.tolist()], dtype=np.int64)
        if len(np.unique(work)) == len(work) and copies.max() == 1:
            return value, np.broadcast_to(np.arange(len(names))[:, None], value.shape)
        rows, sources = [], []
        for number in np.unique(work).tolist():
            mine = np.flatnonzero(work == number)
            best = np.argmax(value[mine], axis=0)
            times = min(self.width, int(copies[mine[0]]))
            rows += [value[mine][best, np.arange(value.shape[1])]] * times
            sources += [mine[best]] * times
        return np.array(rows), np.array(sources)

    def _here(self, item: Slice) -> Whole:
        """Places in `variant` that may be in this slice."""
        here = self.problem.allowed[int(self.problem.kind_pool[item.kind]), self.variant]
        return np.flatnonzero(here if item.alone else here & ~self._dedicated)

    def _promising(self, value: Floats) -> Whole:
        """Rows that can be in a best choice: at each share only so many as fit, and as many more as others may use."""
        chosen = np.zeros(len(value), dtype=np.bool_)
        for option, share in enumerate(self.shares.tolist()):
            count = UNITS // share + self.width - 1
            column = value[:, option]
            if count < len(value):
                column = np.where(column >= np.partition(column, -count)[-count], column, 0.0)
            chosen |= column > 0
        return np.flatnonzero(chosen)

    def _values(self, item: Slice, here: Whole) -> tuple[Floats, Whole]:
        """Highest value over batches of some variants at every share, and the batch."""
        problem, number = self.problem, int(self.problem.kind_table[item.kind])
        pool = int(problem.kind_pool[item.kind])
        names = self.variant[here]
        work = problem.variant_workload[names]
        cells = self._cells(number)
        press = cells.press[here]
        mean, tail, watts = cells.mean[here], cells.tail[here], cells.watts[here]
        if not item.alone:
            felt = problem.sensitivity[number, names][:, None] * np.maximum(item.low - press, 0.0)
            factor = (problem.crowd[number, names][:, None] * (1 + felt))[:, :, None]
            same = cells.mean is cells.tail
            mean = mean * factor
            tail = mean if same else tail * factor
        rate = self.judge.rates(np.broadcast_to(names[:, None], press.shape), mean, tail)
        worth = np.minimum(rate * (1 / np.maximum(self.rows.rate[work], 1e-12))[:, None, None], 1.0)
        worth *= self.prices.pi[work][:, None, None]
        worth -= self.prices.watt[pool] * watts
        if item.usd[1]:
            worth -= item.usd[1] * problem.memory_mib[number, names][:, None, :]
        flat = self.prices.share[pool, work][:, None] * self.shares[None, :] + item.usd[0] * press
        worth += (self.prices.replica[work][:, None] - flat - item.usd[2])[:, :, None]
        worth[rate <= 0] = NEVER
        batch = np.argmax(worth, axis=2)
        return np.take_along_axis(worth, batch[:, :, None], axis=2)[:, :, 0], batch

    def _cells(self, table: int) -> Cells:
        """Of all variants asked for, at every share; the last table is kept."""
        if self._last is None or self._last[0] != table:
            problem, names = self.problem, self.variant
            shares = self.shares.astype(np.float64)
            mean = _latency(problem.shares_pct, problem.mean_ms[table, names], shares)
            same = problem.mean_ms is problem.tail_ms
            tail = mean if same else _latency(problem.shares_pct, problem.tail_ms[table, names], shares)
            watts = _chords(problem.shares_pct, problem.power_w[table, names], shares)
            press = problem.pressure[table, names][:, None] * (shares / 100) ** problem.exponent[table, names][:, None]
            watts = np.where(np.isfinite(watts), watts, 0.0)
            self._last = table, Cells(mean=mean, tail=tail, watts=watts, press=np.asarray(press))
        return self._last[1]

    @property
    def worth(self) -> Floats:
        """By pool: no pattern has more value above what its device costs at the duals."""
        most = np.zeros(len(self.problem.pools))
        for item in self.slices:
            pool = int(self.problem.kind_pool[item.kind])
            if self.problem.pools[pool].devices:
                most[pool] = max(most[pool], item.worth)
        return most


def lagrangian(rows: Rows, duals: Floats, worth: Floats) -> float:
    """The bound that follows. With value above cost at most `worth` (by pool), duals scaled by any t in (0, 1] prove

    t * (duals x sides) - sum over pools of devices * max(0, t * worth - (1 - t) * least cost of a pattern).
    """
    problem = rows.problem
    if not np.isfinite(worth).all():
        return -np.inf
    devices = problem.pool_devices.astype(np.float64)
    cost = np.array([problem.idle_usd_per_h(pool) for pool in range(len(problem.pools))])
    pools = float(duals[rows.pool_at : rows.cap_at] @ rows.upper[rows.pool_at : rows.cap_at])
    total = rows.sides(duals) + pools
    scales = [1.0, *(float(c / (c + w)) for c, w in zip(cost, worth, strict=True) if c > 0 and w > 0)]
    return max(t * total - float((devices * np.maximum(0.0, t * worth - (1 - t) * cost)).sum()) for t in scales)


def _latency(grid: Whole, cells: Floats, shares: Floats) -> Floats:
    """Latencies (variant x grid share x batch) at shares: `patterns.between`."""
    above = np.minimum(np.searchsorted(grid, shares - 1e-9), len(grid) - 1)
    below = np.maximum(above - 1, 0)
    weight = np.where(
        grid[above] - shares < 1e-9, 1.0, (shares - grid[below]) / np.maximum(grid[above] - grid[below], 1)
    )
    return between(cells[:, below], cells[:, above], np.minimum(weight, 1.0)[None, :, None])


def _chords(grid: Whole, cells: Floats, shares: Floats) -> Floats:
    """Powers, likewise, on the chords."""
    above = np.minimum(np.searchsorted(grid, shares - 1e-9), len(grid) - 1)
    below = np.maximum(above - 1, 0)
    gap = np.maximum(grid[above] - grid[below], 1)
    weight = np.where(np.abs(grid[above] - shares) < 1e-9, 1.0, (shares - grid[below]) / gap)
    weight = np.minimum(weight, 1.0)[None, :, None]
    with np.errstate(invalid="ignore"):
        mixed = np.where(weight < 1, (1 - weight) * cells[:, below] + weight * cells[:, above], cells[:, above])
    return np.asarray(mixed)
