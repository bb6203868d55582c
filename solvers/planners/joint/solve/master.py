"""The master programme of one problem: rows, columns, and the relaxed optimum that prices the next patterns.

Owns the agreement between pool, rows and the growing linear programme: column n of the pool is column n of the
programme after the slacks. What stands now enters as columns of its own, cheaper by the launches saved and no more of
them than there are. It refuses to search for patterns and to round.
"""

from __future__ import annotations

import numpy as np

from solvers.engines.columns import ColumnMaster, Columns, Relaxed
from solvers.planners.joint.solve.pool import Pool
from solvers.planners.joint.solve.rows import CUT_LEAST, CUTS, Rows, cut_slack, steps_of
from solvers.planners.joint.solve.sets import Judge, Judged, Sets, ordered, width_of
from solvers.problems.joint import Flags, Floats, JointProblem, Whole
from solvers.problems.layout import Standing
from solvers.problems.patterns import Pattern

DUST = 1e-9


class Master:
    """See the module."""

    def __init__(self, problem: JointProblem, judge: Judge, taken: Floats | None = None) -> None:
        """`taken`: what decided devices owe to the rows; the master is for the rest."""
        self.problem = problem
        self.width = width_of(problem)
        self.judge = judge
        self.rows = Rows(problem, taken)
        self.pool = Pool(self.width)
        self.programme = ColumnMaster(self.rows.lower, self.rows.upper)
        slack = self.rows.slack()
        self.slacks = len(slack)
        self.programme.add(slack)
        self._parts: list[Columns] = [slack]

    def offer(self, sets: Sets, duals: Floats | None = None, tolerance: float = 1e-7) -> int:
        """Judge candidates and add the lawful new ones; with duals, only those that would improve the optimum."""
        if not len(sets):
            return 0
        judged = self.judge.judge(sets)
        keep = judged.ok
        if duals is not None:
            keep = keep & (self.rows.reduced(self.rows.columns(sets, judged), duals) < -tolerance)
        rows = np.flatnonzero(keep)
        rows = rows[self.pool.fresh(sets.take(rows))]
        self._append(sets.take(rows), judged.take(rows))
        return len(rows)

    def adopt(self, sets: Sets, judged: Judged) -> None:
        """Columns that were judged elsewhere; none of them here yet."""
        fresh = self.pool.fresh(sets)
        self._append(sets.take(fresh), judged.take(fresh))

    def keep_standing(self, standing: tuple[Standing, ...], usd_per_s: float) -> None:
        """Columns for what stands: cheaper by its launches, as many as there are."""
        problem = self.problem
        sets = self.of_patterns(tuple(item.pattern for item in standing))
        if not len(sets):
            return
        judged = self.judge.judge(sets)
        seconds = np.array([sum(problem.variants[v].launch_s for v in item.pattern.variants) for item in standing])
        devices = np.array([item.devices for item in standing], dtype=np.float64)
        ok = judged.ok
        columns = self.rows.columns(sets.take(ok), judged.take(ok))
        bounded = Columns(
            cost=columns.cost - usd_per_s * seconds[ok],
            lower=columns.lower,
            upper=devices[ok],
            start=columns.start,
            row=columns.row,
            value=columns.value,
        )
        self.pool.add(sets.take(ok), judged.take(ok))
        self.programme.add(bounded)
        self._parts.append(bounded)

    def of_patterns(self, patterns: tuple[Pattern, ...]) -> Sets:
        """Patterns as candidates; those with more members than fit this problem's arrays are left out."""
        some = [item for item in patterns if len(item.variants) <= self.width]
        member = np.full((len(some), self.width), -1, dtype=np.int64)
        share = np.zeros((len(some), self.width), dtype=np.int64)
        for row, item in enumerate(some):
            member[row, : len(item.variants)] = item.variants
            share[row, : len(item.variants)] = item.shares_pct
        return ordered(np.array([item.kind for item in some], dtype=np.int64), member, share)

    def _append(self, sets: Sets, judged: Judged) -> None:
        if not len(sets):
            return
        columns = self.rows.columns(sets, judged)
        self.pool.add(sets, judged)
        self.programme.add(columns)
        self._parts.append(columns)

    def solve(self, time_s: float | None = None, *, primal: bool = True) -> Relaxed | None:
        """The relaxed optimum over all columns so far."""
        return self.programme.solve(time_s, primal=primal)

    def tighten(self, relaxed: Relaxed) -> int:
        """Add the cuts that a relaxed optimum breaks; how many."""
        rows = self.rows
        used = np.flatnonzero(relaxed.values[self.slacks :] > DUST)
        sets, judged = self.pool.take(used)
        column, place = np.nonzero(sets.member >= 0)
        work = self.problem.variant_workload[sets.member[column, place]]
        part = np.minimum(judged.rate[column, place] / np.maximum(rows.rate[work], 1e-12), 1.0)
        devices = relaxed.values[self.slacks :][used][column]
        demand = np.flatnonzero(rows.wanted)
        unserved = np.zeros(rows.pool_at)
        unserved[demand] = relaxed.values[: len(demand)]
        works, numbers = [], []
        for steps in CUTS:
            started = np.bincount(work, weights=devices * steps_of(part, steps), minlength=rows.pool_at)
            done = started + unserved * cut_slack(np.array(steps))
            broken = rows.wanted & (done < steps + 1 - CUT_LEAST)
            broken[rows.cut_work[rows.cut_steps == steps]] = False
            works.append(np.flatnonzero(broken))
            numbers.append(np.full(len(works[-1]), steps, dtype=np.int64))
        self._cut(np.concatenate(works), np.concatenate(numbers))
        return sum(len(item) for item in works)

    def _cut(self, work: Whole, steps: Whole) -> None:
        rows, first = self.rows, len(self.rows.cut_work)
        if not len(work):
            return
        rows.cut(work, steps)
        column, row, value = rows.cut_entries(self.pool.sets, self.pool.judged, first)
        slack_of = np.full(rows.pool_at, -1, dtype=np.int64)
        slack_of[np.flatnonzero(rows.wanted)] = np.arange(int(rows.wanted.sum()))
        column = np.concatenate([slack_of[work], self.slacks + column])
        row = np.concatenate([rows.base + first + np.arange(len(work)), row])
        value = np.concatenate([cut_slack(steps), value])
        before = self.columns
        self._parts = [_widened(before, (column, row, value))]
        order = np.lexsort((column, row))
        start = np.searchsorted(row[order], rows.base + first + np.arange(len(work) + 1))
        self.programme.add_rows((steps + 1).astype(np.float64), (start, column[order], value[order]))

    def activity(self, counts: Whole) -> Floats:
        """What whole counts of the pool's columns add to every row."""
        columns = self.columns
        number = np.repeat(np.arange(len(columns)), np.diff(columns.start))
        every = np.concatenate([np.zeros(self.slacks), counts])
        return np.asarray(np.bincount(columns.row, weights=columns.value * every[number], minlength=self.rows.count))

    @property
    def columns(self) -> Columns:
        """All columns, slacks first."""
        if len(self._parts) > 1:
            self._parts = [_stacked(self._parts)]
        return self._parts[0]

    def part_of(self, chosen: Whole) -> Columns:
        """Some columns, by number among all of them."""
        return picked(self.columns, chosen)


def _widened(columns: Columns, entries: tuple[Whole, Whole, Floats]) -> Columns:
    """With more entries (column, row, value) in rows behind all others."""
    number = np.repeat(np.arange(len(columns)), np.diff(columns.start))
    column, row, value = (
        np.concatenate([old, new]) for old, new in zip((number, columns.row, columns.value), entries, strict=True)
    )
    order = np.lexsort((row, column))
    return Columns(
        cost=columns.cost,
        lower=columns.lower,
        upper=columns.upper,
        start=np.concatenate([[0], np.cumsum(np.bincount(column, minlength=len(columns)))]).astype(np.int64),
        row=row[order],
        value=value[order],
    )


def _stacked(parts: list[Columns]) -> Columns:
    ends = np.cumsum([0] + [len(part.value) for part in parts])
    starts = [part.start[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return Columns(
        cost=np.concatenate([part.cost for part in parts]),
        lower=np.concatenate([part.lower for part in parts]),
        upper=np.concatenate([part.upper for part in parts]),
        start=np.concatenate([*starts, [ends[-1]]]).astype(np.int64),
        row=np.concatenate([part.row for part in parts]),
        value=np.concatenate([part.value for part in parts]),
    )


def picked(columns: Columns, chosen: Whole | Flags) -> Columns:
    """Some columns."""
    numbers = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    sizes = np.diff(columns.start)[numbers]
    start = np.concatenate([[0], np.cumsum(sizes)])
    entries = np.repeat(columns.start[:-1][numbers] - start[:-1], sizes) + np.arange(start[-1])
    return Columns(
        cost=columns.cost[numbers],
        lower=columns.lower[numbers],
        upper=columns.upper[numbers],
        start=start.astype(np.int64),
        row=columns.row[entries],
        value=columns.value[entries],
    )
