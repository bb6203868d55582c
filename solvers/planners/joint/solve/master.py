"""The restricted master: pool of columns, rows, and the relaxed optimum that prices the next patterns.

Column n of the pool is column n of the programme after the slacks. What stands now enters as columns of its own,
cheaper by the launches saved and no more of them than there are.
"""

from __future__ import annotations

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.highs import ColumnMaster, Columns, Relaxed
from solvers.planners.joint.solve.judge import Judge, Judged, Patterns, members_max
from solvers.planners.joint.solve.rows import CUT_LEAST, CUTS, Rows, cut_slack, steps_of
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Pattern, Standing

DUST = 1e-9


class Pool:
    """Judged patterns without doubles."""

    def __init__(self, nothing: Judged) -> None:
        """`nothing`: no pattern, judged."""
        self._nothing = nothing
        self._seen: set[bytes] = set()
        self._judged: list[Judged] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def fresh(self, found: Patterns) -> Flags:
        """Which rows are new, the first of equal ones only. Remembers them."""
        rows = found.keys.astype(np.int32)
        new = np.zeros(len(found), dtype=np.bool_)
        data, size = rows.tobytes(), rows.shape[1] * rows.itemsize
        for index in range(len(rows)):
            key = data[index * size : (index + 1) * size]
            if key not in self._seen:
                self._seen.add(key)
                new[index] = True
        return new

    def add(self, judged: Judged) -> None:
        """Append; callers asked `fresh` before."""
        self._judged.append(judged)
        self.count += len(judged)

    @property
    def judged(self) -> Judged:
        """All of them, in the order of the master's columns."""
        if len(self._judged) != 1:
            self._judged = [Judged.joined(self._judged) if self._judged else self._nothing]
        return self._judged[0]


class Master:
    """See the module."""

    def __init__(self, problem: JointProblem, judge: Judge, taken: Floats | None = None) -> None:
        """`taken`: what decided devices owe to the rows; the master is for the rest."""
        self.problem = problem
        self.width = members_max(problem)
        self.judge = judge
        self.rows = Rows(problem, taken)
        self.pool = Pool(judge.judge(Patterns.none(self.width)))
        self.programme = ColumnMaster(self.rows.lower, self.rows.upper)
        slack = self.rows.slack()
        self.slacks = len(slack)
        self.programme.add(slack)
        self._parts: list[Columns] = [slack]

    def offer(self, found: Patterns, duals: Floats | None = None, tolerance: float = 1e-7) -> int:
        """Judge candidates and add the lawful new ones; with duals, only those that would improve the optimum."""
        if not len(found):
            return 0
        judged = self.judge.judge(found)
        keep = judged.lawful & (judged.rows.variants[:, 0] >= 0)
        if duals is not None:
            keep &= self.rows.reduced(self.rows.columns(judged), duals) < -tolerance
        chosen = np.flatnonzero(keep)
        chosen = chosen[self.pool.fresh(judged.rows.take(chosen))]
        self._append(judged.take(chosen))
        return len(chosen)

    def adopt(self, judged: Judged) -> None:
        """Columns that were judged elsewhere; none of them here yet."""
        self._append(judged.take(self.pool.fresh(judged.rows)))

    def keep_standing(self, standing: tuple[Standing, ...], usd_per_s: float) -> None:
        """Columns for what stands: cheaper by its launches, as many as there are."""
        problem = self.problem
        stands = self.of_patterns(tuple(item.pattern for item in standing))
        if not len(stands):
            return
        judged = self.judge.judge(stands)
        seconds = np.array([sum(problem.variants[v].launch_s for v in item.pattern.variants) for item in standing])
        devices = np.array([item.devices for item in standing], dtype=np.float64)
        ok = judged.lawful & (judged.rows.variants[:, 0] >= 0)
        columns = self.rows.columns(judged.take(ok))
        bounded = Columns(
            cost=columns.cost - usd_per_s * seconds[ok],
            lower=columns.lower,
            upper=devices[ok],
            start=columns.start,
            row=columns.row,
            value=columns.value,
        )
        self.pool.add(judged.take(ok))
        self.programme.add(bounded)
        self._parts.append(bounded)

    def of_patterns(self, patterns: tuple[Pattern, ...]) -> Patterns:
        """Patterns as candidates; those with more members than fit this problem's arrays are left out."""
        return Patterns.of([item for item in patterns if len(item.variants) <= self.width], self.width)

    def _append(self, judged: Judged) -> None:
        if not len(judged):
            return
        columns = self.rows.columns(judged)
        self.pool.add(judged)
        self.programme.add(columns)
        self._parts.append(columns)

    def solve(self, time_s: float | None = None, *, primal: bool = True) -> Relaxed | None:
        """The relaxed optimum over all columns so far."""
        return self.programme.solve(time_s, primal=primal)

    def tighten(self, relaxed: Relaxed) -> int:
        """Add the cuts that a relaxed optimum breaks; how many."""
        rows = self.rows
        used = np.flatnonzero(relaxed.values[self.slacks :] > DUST)
        judged = self.pool.judged.take(used)
        column, place = np.nonzero(judged.rows.variants >= 0)
        work = self.problem.variant_workload[judged.rows.variants[column, place]]
        part = np.minimum(judged.capacity_rps[column, place] / np.maximum(rows.rate[work], 1e-12), 1.0)
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
        column, row, value = rows.cut_entries(self.pool.judged, first)
        slack_of = np.full(rows.pool_at, -1, dtype=np.int64)
        slack_of[np.flatnonzero(rows.wanted)] = np.arange(int(rows.wanted.sum()))
        column = np.concatenate([slack_of[work], self.slacks + column])
        row = np.concatenate([rows.base + first + np.arange(len(work)), row])
        value = np.concatenate([cut_slack(steps), value])
        before = self.columns
        self._parts = [_widened(before, column, row, value)]
        order = np.lexsort((column, row))
        start = np.searchsorted(row[order], rows.base + first + np.arange(len(work) + 1))
        self.programme.add_rows((steps + 1).astype(np.float64), start=start, column=column[order], value=value[order])

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


def _widened(columns: Columns, column: Whole, row: Whole, value: Floats) -> Columns:
    """With more entries in rows behind all others."""
    number = np.repeat(np.arange(len(columns)), np.diff(columns.start))
    column, row, value = (
        np.concatenate([old, new]) for old, new in ((number, column), (columns.row, row), (columns.value, value))
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
