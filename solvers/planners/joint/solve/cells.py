"""What one replica could be: every network at every percent of share and batch on every kind of device, side by side;
and what each is worth at prices beside neighbours that press so much. The numbers do not change while prices do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.rows import ItemPrices, Rows, steps_of
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import TOLERANCE

WHOLE_PCT = 100
NEVER = -1e30
KEPT_MAX = 4_000_000
"""Cells that are worth remembering between prices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """One element each, ordered by kind, workload, variant, share and batch."""

    kind: Whole
    work: Whole
    variant: Whole
    share_pct: Whole
    press: Floats
    memory: Floats
    """Part of the device's."""
    mean_ms: Floats
    tail_ms: Floats
    batch: Floats
    watts: Floats
    """Never more than its share of what the device may draw: so they add up to no more than the device draws."""
    served: Floats
    """Part of the rate beside neighbours that do not press at all."""

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, some: Whole) -> Cells:
        """Some of them."""
        return Cells(**{item.name: getattr(self, item.name)[some] for item in fields(self)})


def shares_of(problem: JointProblem) -> Whole:
    """All shares that a replica may have."""
    step = max(1, problem.share_step_pct)
    least = int(problem.shares_pct[0])
    return np.array([pct for pct in range(step, WHOLE_PCT + 1, step) if pct >= least], dtype=np.int64)


def joined(parts: list[Cells]) -> Cells:
    """All of several; at least one."""
    return Cells(**{item.name: np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(Cells)})


class CellTables:
    """All cells of one problem, made kind by kind as they are asked for."""

    def __init__(self, problem: JointProblem, judge: Judge, rows: Rows) -> None:
        self.problem, self.judge = problem, judge
        self._asked = (rows.wanted | rows.floored)[problem.variant_workload]
        self._rate = np.maximum(rows.rate, 1e-12)
        self._shares = shares_of(problem)
        self.size = problem.kinds * len(self._asked) * len(self._shares) * len(problem.batches)
        self._kept: dict[int, Cells] | None = {} if self.size <= KEPT_MAX else None

    def of_kind(self, kind: int) -> Cells:
        """Of all workloads that ask for anything."""
        if self._kept is not None and kind in self._kept:
            return self._kept[kind]
        cells = self._made(kind)
        if self._kept is not None:
            self._kept[kind] = cells
        return cells

    def _made(self, kind: int) -> Cells:
        problem, shares_pct = self.problem, self._shares
        table, pool = int(problem.kind_table[kind]), problem.pools[int(problem.kind_pool[kind])]
        variants = np.flatnonzero(self._asked & problem.allowed[int(problem.kind_pool[kind])])
        variants = variants[np.argsort(problem.variant_workload[variants], kind="stable")]
        shares = shares_pct.astype(np.float64)
        alone = self.judge.at_shares(table, variants, shares_pct)
        mean, tail = alone.mean_ms, alone.tail_ms
        memory = problem.memory_mib[table, variants]
        crowd = problem.crowd[table, variants][:, None, None]
        rate = self.judge.rates(np.broadcast_to(variants[:, None], mean.shape[:2]), mean * crowd, tail * crowd)
        watts = np.where(np.isfinite(alone.power_w), alone.power_w, 0.0)
        able = np.isfinite(mean) & (memory <= pool.memory_mib + TOLERANCE)[:, None, :]
        at, size, batch = np.nonzero(able)
        names = variants[at]
        press = problem.pressure[table, names] * (shares[size] / WHOLE_PCT) ** problem.exponent[table, names]
        most_w = max(0.0, pool.limit_w - pool.idle_w) * shares[size] / WHOLE_PCT
        work = problem.variant_workload[names]
        return Cells(
            kind=np.full(len(at), kind, dtype=np.int64),
            work=work,
            variant=names,
            share_pct=shares_pct[size],
            press=np.asarray(press),
            memory=memory[at, batch] / max(pool.memory_mib, 1e-9),
            mean_ms=mean[able],
            tail_ms=tail[able],
            batch=problem.batches[batch].astype(np.float64),
            watts=np.minimum(watts[able], most_w),
            served=np.minimum(rate[able] / self._rate[work], 1.0),
        )


class Priced:
    """Cells at prices."""

    def __init__(self, problem: JointProblem, judge: Judge, rows: Rows, prices: ItemPrices) -> None:
        self.problem, self.judge, self.prices = problem, judge, prices
        self._rate = np.maximum(rows.rate, 1e-12)

    def costs(self, cells: Cells, kind: int) -> Floats:
        """What each of one kind takes of what has a price, whatever it serves, $/h."""
        prices, pool = self.prices, int(self.problem.kind_pool[kind])
        usd = prices.watt[pool] * cells.watts
        if prices.share[pool].any():
            usd += prices.share[pool][cells.work] * cells.share_pct
        if self.problem.by_memory:
            usd = usd + self.problem.held_usd(kind, cells.variant, cells.share_pct)
        if prices.replica.any():
            usd -= prices.replica[cells.work]
        return np.asarray(usd)

    def crowded(self, cells: Cells, costs: Floats) -> Floats:
        """Value of each beside neighbours that do not press at all. `NEVER` where the promise cannot be kept."""
        return np.asarray(np.where(cells.served > 0, self._value(cells.served, cells.work) - costs, NEVER))

    def _value(self, part: Floats, work: Whole) -> Floats:
        """Of parts of rates."""
        value = part * self.prices.pi[work]
        for steps, usd in self.prices.steps:
            some = np.flatnonzero(usd[work])
            value[some] += steps_of(part[some], steps) * usd[work[some]]
        return value

    def worth(self, cells: Cells, low: Floats, costs: Floats) -> Floats:
        """Value of each beside neighbours that, with itself, press at least `low`; alone on its device where that is
        negative. `NEVER` where the promise cannot be kept.
        """
        problem = self.problem
        table = problem.kind_table[cells.kind]
        felt = problem.sensitivity[table, cells.variant] * np.maximum(low - cells.press, 0.0)
        slow = np.where(low < 0, 1.0, problem.crowd[table, cells.variant] * (1 + felt))
        mean = cells.mean_ms * slow
        tail = mean if problem.mean_ms is problem.tail_ms else cells.tail_ms * slow
        rate = self.judge.rates(cells.variant, mean[:, None], tail[:, None], cells.batch[:, None])[:, 0]
        value = self._value(np.minimum(rate / self._rate[cells.work], 1.0), cells.work) - costs
        return np.asarray(np.where(rate > 0, value, NEVER))
