"""The relaxed problem around a layout: every pattern with its neighbours, and how many devices may carry the mixture.

Owns that linear programme. A *group* is what one pattern of the layout became: its devices may carry the pattern, any
neighbour of it, or nothing. A *cast* is all columns of one kind with the same members: a mixture within it stands for
shares in between, one across casts for nothing that a device could do. Columns are judged exactly, so nothing is
approximated but the mixing. It refuses to round.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from solvers.engines.columns import ColumnMaster, Columns
from solvers.planners.joint.solve.judge import Judged, Patterns
from solvers.planners.joint.solve.moves import neighbours
from solvers.planners.joint.solve.sheet import Sheet
from solvers.problems.joint import Floats, Whole

DUST = 1e-6
_ENTRIES_PER_UNIT = 600_000


@dataclass(slots=True)
class Casts:
    """Columns of one kind with the same members."""

    of: Whole
    """By column."""
    first: Whole
    """By cast: one of its columns."""
    row: Whole = field(init=False)
    """By cast: its row in the programme; -1 where it has none."""
    least: Floats = field(init=False)
    most: Floats = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.first)
        self.row = np.full(count, -1, dtype=np.int64)
        self.least, self.most = np.full(count, -np.inf), np.full(count, np.inf)


class Near:
    """See the module. Patterns: demand (part of each rate), groups (devices), rules, least replicas (part of them)."""

    def __init__(self, sheet: Sheet, steps_pct: tuple[int, ...], reserve: Floats | float = 0.0) -> None:
        """`reserve`: part of each rate that is asked for beyond it."""
        problem = sheet.rules.judge.problem
        self.rules, self.problem = sheet.rules, problem
        self.groups, self.demands = len(sheet.counts), len(problem.workloads)
        self.devices_min = np.zeros(self.groups)
        self.devices_max = sheet.counts.astype(np.float64)
        self._rule_at = self.demands + self.groups
        self._floor_at = self._rule_at + len(self.rules)
        floors = np.where(self.rules.floor > 0, 1.0, 0.0)
        wanted = np.where(problem.rate_rps > 0, 1.0, 0.0)
        # What already breaks a rule must not be made worse; it need not be made better.
        limit = np.maximum(self.rules.upper, self.rules.usage(sheet.judged, sheet.counts))
        free = np.full(self.groups, -np.inf), np.full(len(self.rules), -np.inf)
        open_end = np.full(self.demands, np.inf), np.full(len(floors), np.inf)
        self._programme = ColumnMaster(
            np.concatenate([wanted * (1 + reserve), *free, floors]),
            np.concatenate([open_end[0], self.devices_max, limit, open_end[1]]),
        )
        self._slack = self._add_slack()
        self.judged: Judged = sheet.judged
        self.group: Whole = np.arange(self.groups)
        self._known = {row.tobytes() for row in _keys(sheet.judged.rows, self.group)}
        self._programme.add(self._columns(sheet.judged, self.group))
        self.parts: Floats = np.zeros(0)
        """Devices that carry each column."""
        self.value = np.inf
        self.widen(sheet.judged.rows, self.group, steps_pct)

    @property
    def units_of_work(self) -> int:
        """What solving it once more takes."""
        rows = self.demands + self.groups + len(self.rules)
        return 1 + len(self.group) * rows // _ENTRIES_PER_UNIT

    def widen(self, rows: Patterns, group: Whole, steps_pct: tuple[int, ...]) -> int:
        """Add the neighbours of some rows to their groups; how many were new."""
        found, parent = neighbours(self.problem, rows, steps_pct)
        return self.add(self.rules.judge.judge(found), group[parent])

    def widen_used(self, steps_pct: tuple[int, ...]) -> int:
        """Add the neighbours of all columns in use."""
        used = np.flatnonzero(self.parts > DUST)
        return self.widen(self.judged.rows.take(used), self.group[used], steps_pct)

    def add(self, judged: Judged, group: Whole) -> int:
        """Add columns to groups; unlawful and known ones are left out."""
        fresh = []
        for place, key in enumerate(_keys(judged.rows, group)):
            name = key.tobytes()
            if judged.lawful[place] and name not in self._known:
                self._known.add(name)
                fresh.append(place)
        if fresh:
            chosen = np.array(fresh, dtype=np.int64)
            some, of = judged.take(chosen), group[chosen]
            self._programme.add(self._columns(some, of))
            self.judged = Judged.joined([self.judged, some])
            self.group = np.concatenate([self.group, of])
            self.parts = np.concatenate([self.parts, np.zeros(len(of))])
        return len(fresh)

    def bound(self, group: int, least: float, most: float) -> None:
        """How many devices of a group may be in use."""
        self.devices_min[group], self.devices_max[group] = least, most
        self._programme.bound_row(self.demands + group, least, most)

    def casts(self) -> Casts:
        """All columns so far by kind and members; no columns may be added afterwards."""
        rows = self.judged.rows
        keys = np.hstack([rows.kind[:, None], rows.variants])
        _, of = np.unique(keys, axis=0, return_inverse=True)
        return Casts(of=of.ravel(), first=np.unique(of.ravel(), return_index=True)[1])

    def bound_cast(self, casts: Casts, cast: int, least: float, most: float) -> None:
        """How many devices may carry columns of a cast."""
        if casts.row[cast] < 0:
            columns = self._slack + np.flatnonzero(casts.of == cast)
            casts.row[cast] = self._programme.add_row(columns, least, most)
        else:
            self._programme.bound_row(int(casts.row[cast]), least, most)

    def solve(self, *, primal: bool) -> bool:
        """The optimum; False where there is none to be had."""
        answer = self._programme.solve(primal=primal)
        if answer is None:
            return False
        self.parts, self.value = answer.values[self._slack :], answer.value
        return True

    def devices(self) -> Floats:
        """In use, by group."""
        weights = np.bincount(self.group, weights=self.parts, minlength=self.groups)
        return np.asarray(weights, dtype=np.float64)

    def _add_slack(self) -> int:
        """What may lack, at its price."""
        usd = self.problem.unserved_usd
        demand = np.flatnonzero(self.problem.rate_rps > 0)
        floored = np.arange(len(self.rules.floored))
        count = len(demand) + len(floored)
        self._programme.add(
            Columns(
                cost=np.concatenate([usd[demand], usd[self.rules.floored]]),
                lower=np.zeros(count),
                upper=np.full(count, np.inf),
                start=np.arange(count + 1),
                row=np.concatenate([demand, self._floor_at + floored]),
                value=np.ones(count),
            )
        )
        return count

    def _columns(self, judged: Judged, group: Whole) -> Columns:
        rules, count = self.rules, len(group)
        at, place = np.nonzero(judged.rows.variants >= 0)
        work = rules.judge.workload[judged.rows.variants[at, place]]
        rate = self.problem.rate_rps[work]
        asked = np.flatnonzero(rate > 0)
        used, floored = rules.entries(judged), rules.floor_entries(judged)
        floor_part = floored.value / np.maximum(rules.floor[floored.rule], 1.0)
        row = np.concatenate(
            [work[asked], self.demands + group, self._rule_at + used.rule, self._floor_at + floored.rule]
        )
        column = np.concatenate([at[asked], np.arange(count), used.pattern, floored.pattern])
        served = judged.capacity_rps[at, place][asked] / rate[asked]
        value = np.concatenate([served, np.ones(count), used.value, floor_part])
        row, column, value = summed(row, column, value)
        return Columns(
            cost=judged.usd_per_h,
            lower=np.zeros(count),
            upper=np.full(count, np.inf),
            start=np.concatenate([[0], np.cumsum(np.bincount(column, minlength=count))]).astype(np.int64),
            row=row,
            value=value,
        )


def summed(row: Whole, column: Whole, value: Floats) -> tuple[Whole, Whole, Floats]:
    """Entries by column and row, those of one place added up."""
    if not len(row):
        return row, column, value
    order = np.lexsort((row, column))
    row, column, value = row[order], column[order], value[order]
    first = np.concatenate([[True], (row[1:] != row[:-1]) | (column[1:] != column[:-1])])
    begins = np.flatnonzero(first)
    return row[begins], column[begins], np.add.reduceat(value, begins)


def _keys(rows: Patterns, group: Whole) -> Whole:
    return np.ascontiguousarray(np.hstack([group[:, None], rows.kind[:, None], rows.variants, rows.shares_pct]))
