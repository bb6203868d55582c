"""A solution as arrays, its constraints and its worth, its neighbourhood, and the linear programme around it.

`Rules` are the constraints over a whole layout as rows over patterns: devices, watts, quotas, budgets, numbers of
replicas. A power cap that covers part of a pool lets the rest of the pool draw what it may; seating keeps the cap
itself. A budget is price x share of a workload's replicas. A `Solution` is worth the cost of its devices, a workload's
`unserved_usd` for the part of its rate that lacks, and as much again for the part of its least replicas that lack: by
that sum every step is accepted or refused. Solutions are never changed in place.

The neighbourhood of a pattern is what its device could carry without a new member: share handed from one member to
another, given back or taken from what is free, a member less, another clock; shares stay multiples of the problem's
step. The linear programme knows every pattern with its neighbourhood. A *group* is what one pattern became: its devices
may carry it, any neighbour of it, or nothing. A *composition* is all columns of one kind with the same members: a
mixture within it stands for shares in between, one across compositions for nothing that a device could do. Columns are
judged exactly, so nothing is approximated but the mixing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.highs import ColumnMaster, Columns
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Judged, Layout, Patterns

SERVED = 1e-9
"""Part of a rate that may lack for the sake of rounding."""
_ENTRIES_PER_UNIT = 600_000
DUST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """A sparse matrix: row x pattern."""

    row: Whole
    pattern: Whole
    value: Floats


class Rules:
    """`usage <= upper` of every rule, the rows of the master behind the demands; `usage` by patterns. Rows behind the
    rules count replicas of workloads that must have a number of them.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge, self.rows = judge, Rows(judge.problem)
        self.floors = judge.problem.floors
        self.project = np.where(self.rows.quota >= 0, self.rows.quota - self.rows.quota_at, -1)
        """Quota of each workload; -1 for none."""
        self.upper: Floats = self.rows.upper[self.rows.pool_at : self.rows.floor_at]
        self.size = len(self.upper)

    def entries(self, judged: Judged) -> Entries:
        """What each pattern uses of each row."""
        found = self.rows.columns(judged)
        some = np.flatnonzero(found.row >= self.rows.pool_at)
        return Entries(row=found.row[some] - self.rows.pool_at, pattern=found.number[some], value=found.value[some])

    def columns(self, judged: Judged, own: Entries, first: int, floor_unit: Floats) -> Columns:
        """Patterns as columns of a programme: the caller's own rows, from `first` on the rules, and then the least
        replicas, in parts of `floor_unit`.
        """
        used = self.entries(judged)
        unit = np.concatenate([np.ones(self.size), floor_unit])
        return Columns.of(
            judged.usd_per_h,
            column=np.concatenate([own.pattern, used.pattern]),
            row=np.concatenate([own.row, first + used.row]),
            value=np.concatenate([own.value, used.value / unit[used.row]]),
        )

    def usage(self, judged: Judged, counts: Whole) -> Floats:
        entries = self.entries(judged)
        total = np.bincount(entries.row, weights=entries.value * counts[entries.pattern], minlength=self.size)
        return np.asarray(total[: self.size], dtype=np.float64)

    def kept(self, usage: Floats) -> bool:
        """Whether nothing is over its limit."""
        return bool(np.all(usage <= self.upper + 1e-6 * np.maximum(1.0, np.abs(self.upper))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Patterns that differ, judged, with how many devices carry each."""

    rules: Rules
    judged: Judged
    counts: Whole

    @staticmethod
    def of_rows(rules: Rules, rows: Patterns, counts: Whole) -> Solution:
        """What is lawful of so many devices of each row."""
        judged, total = rules.judge.devices(rows, counts)
        return Solution(rules=rules, judged=judged, counts=total)

    @staticmethod
    def of_layout(rules: Rules, layout: Layout) -> Solution:
        """A layout's patterns, judged again."""
        rows = Patterns.of(layout.patterns, rules.judge.width)
        return Solution.of_rows(rules, rows, np.array(layout.counts, dtype=np.int64))

    def layout(self, like: Layout | None = None) -> Layout:
        """As patterns; bound, prices and facts of another layout are kept."""
        patterns = tuple(self.rules.judge.patterns(self.judged))
        counts = tuple(int(item) for item in self.counts)
        if like is None:
            return Layout(patterns=patterns, counts=counts)
        return replace(like, patterns=patterns, counts=counts)

    def members(self) -> tuple[Whole, Whole, Whole]:
        """Row, place and workload of every member."""
        at, place = np.nonzero(self.judged.rows.variants >= 0)
        return at, place, self.rules.judge.workload[self.judged.rows.variants[at, place]]

    def served_rps(self) -> Floats:
        at, place, work = self.members()
        weights = self.judged.capacity_rps[at, place] * self.counts[at]
        size = len(self.rules.judge.problem.workloads)
        return np.asarray(np.bincount(work, weights=weights, minlength=size), dtype=np.float64)

    def replicas(self) -> Floats:
        """Those that count for each floor."""
        at, _, work = self.members()
        pool = self.rules.judge.problem.kind_pool[self.judged.rows.kind]
        return self.rules.floors.counted(work, pool[at], self.counts[at])

    def lacking(self) -> Floats:
        """By workload: part of the rate, plus part of the least replicas, that is not there."""
        problem, floors = self.rules.judge.problem, self.rules.floors
        rate = problem.rate_rps
        part = np.maximum(0.0, 1 - self.served_rps() / np.where(rate > 0, rate, 1.0))
        part = np.where((rate > 0) & (part > SERVED), part, 0.0)
        missing = floors.weight * np.maximum(0.0, floors.least - self.replicas()) / floors.least
        np.add.at(part, floors.workload, missing)
        return np.asarray(part)

    def usd_per_h(self) -> float:
        return float(self.judged.usd_per_h @ self.counts)

    def worth(self) -> float:
        """What every step must not raise, $/h."""
        return self.usd_per_h() + float(self.lacking() @ self.rules.judge.problem.unserved_usd)

    def kept(self) -> bool:
        """Whether every rule over the whole layout is kept."""
        return self.rules.kept(self.rules.usage(self.judged, self.counts))


def neighbours(problem: JointProblem, rows: Patterns, steps_pct: tuple[int, ...]) -> tuple[Patterns, Whole]:
    """All neighbours of some rows, and which row each comes from."""
    every, shares, width = np.arange(len(rows.kind)), rows.shares_pct, rows.variants.shape[1]
    stands, step = rows.variants >= 0, problem.share_step_pct
    members, free = stands.sum(axis=1), (100 - shares.sum(axis=1)) // step * step
    # Whose share changes at which place by how much, and to whom it goes: to itself where it is free.
    parents, places, changes, others = [every[:0]], [0], [every[:0]], [0]
    for place in range(width):
        holds = every[stands[:, place]]
        for size in sorted({max(step, pct // step * step) for pct in steps_pct}):
            able = holds[shares[holds, place] > size]
            for other in (place, *(other for other in range(width) if other != place)):
                parents.append(able[stands[able, other]])
                changes.append(np.full(len(parents[-1]), -size))
                places.append(place)
                others.append(other)
        filled, dropped = holds[free[holds] > 0], holds[members[holds] > 1]
        parents += [filled, dropped]
        changes += [free[filled], -shares[dropped, place]]
        places += [place, place]
        others += [place, place]
    sizes, change = [len(item) for item in parents], np.concatenate(changes)
    for kind in range(problem.kinds):
        same = (problem.kind_pool[rows.kind] == problem.kind_pool[kind]) & (rows.kind != kind)
        parents.append(every[same])
    parent = np.concatenate(parents)
    share, moved = shares[parent], np.arange(len(change))
    giver, taker = np.repeat(places, sizes), np.repeat(others, sizes)
    share[moved, giver] += change
    handed = moved[giver != taker]
    share[handed, taker[handed]] -= change[handed]
    clocks = np.repeat(np.arange(problem.kinds), [len(item) for item in parents[len(sizes) :]])
    kinds = np.concatenate([rows.kind[parent[: len(change)]], clocks])
    return Patterns(kind=kinds, variants=rows.variants[parent], shares_pct=share), parent


@dataclass(slots=True)
class Compositions:
    """Columns of one kind with the same members."""

    of: Whole
    """By column."""
    first: Whole
    """By composition: one of its columns."""
    row: Whole = field(init=False)
    """By composition: its row in the programme; -1 where it has none."""
    least: Floats = field(init=False)
    most: Floats = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.first)
        self.row = np.full(count, -1, dtype=np.int64)
        self.least, self.most = np.full(count, -np.inf), np.full(count, np.inf)


class LocalProgramme:
    """See the module. Patterns: demand (part of each rate), groups (devices), rules, least replicas (part of them)."""

    def __init__(self, solution: Solution, steps_pct: tuple[int, ...], reserve: Floats | float = 0.0) -> None:
        """`reserve`: part of each rate that is asked for beyond it."""
        problem = solution.rules.judge.problem
        self.rules, self.problem = solution.rules, problem
        self.groups, self.demands = len(solution.counts), len(problem.workloads)
        self.devices_min = np.zeros(self.groups)
        self.devices_max = solution.counts.astype(np.float64)
        self._rule_at = self.demands + self.groups
        self._floor_at = self._rule_at + self.rules.size
        floors = np.ones(len(self.rules.floors.least))
        wanted = np.where(problem.rate_rps > 0, 1.0, 0.0)
        # What already breaks a rule must not be made worse; it need not be made better.
        limit = np.maximum(self.rules.upper, self.rules.usage(solution.judged, solution.counts))
        free = np.full(self.groups, -np.inf), np.full(self.rules.size, -np.inf)
        open_end = np.full(self.demands, np.inf), np.full(len(floors), np.inf)
        self._programme = ColumnMaster(
            np.concatenate([wanted * (1 + reserve), *free, floors]),
            np.concatenate([open_end[0], self.devices_max, limit, open_end[1]]),
        )
        self._slack = self._add_slack()
        self.judged: Judged = solution.judged
        self.group: Whole = np.arange(self.groups)
        self._known = {row.tobytes() for row in _keys(solution.judged.rows, self.group)}
        self._programme.add(self._columns(solution.judged, self.group))
        self.parts: Floats = np.zeros(0)
        """Devices that carry each column."""
        self.value = np.inf
        self.widen(solution.judged.rows, self.group, steps_pct)

    @property
    def units_of_work(self) -> int:
        """What solving it once more takes."""
        rows = self.demands + self.groups + self.rules.size
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
            self.judged = Judged.chained([self.judged, some])
            self._programme.add(self._columns(some, of))
            self.group = np.concatenate([self.group, of])
            self.parts = np.concatenate([self.parts, np.zeros(len(of))])
        return len(fresh)

    def bound(self, group: int, least: float, most: float) -> None:
        """How many devices of a group may be in use."""
        self.devices_min[group], self.devices_max[group] = least, most
        self._programme.bound_row(self.demands + group, least, most)

    def compositions(self) -> Compositions:
        """All columns so far by kind and members; no columns may be added afterwards."""
        rows = self.judged.rows
        keys = np.hstack([rows.kind[:, None], rows.variants])
        _, of = np.unique(keys, axis=0, return_inverse=True)
        return Compositions(of=of.ravel(), first=np.unique(of.ravel(), return_index=True)[1])

    def bound_composition(self, compositions: Compositions, composition: int, least: float, most: float) -> None:
        """How many devices may carry columns of a composition."""
        if compositions.row[composition] < 0:
            columns = self._slack + np.flatnonzero(compositions.of == composition)
            compositions.row[composition] = self._programme.add_row(columns, least, most)
        else:
            self._programme.bound_row(int(compositions.row[composition]), least, most)

    def solve(self, *, primal: bool) -> bool:
        """The optimum; False where there is none to be had."""
        answer = self._programme.solve(primal=primal)
        if answer is None:
            return False
        self.parts, self.value = answer.values[self._slack :], answer.value
        return True

    def devices(self) -> Floats:
        weights = np.bincount(self.group, weights=self.parts, minlength=self.groups)
        return np.asarray(weights, dtype=np.float64)

    def _add_slack(self) -> int:
        """What may lack, at its price."""
        usd = self.problem.unserved_usd
        demand = np.flatnonzero(self.problem.rate_rps > 0)
        floors = self.rules.floors
        floor_usd = usd[floors.workload] * floors.weight
        row = np.concatenate([demand, self._floor_at + np.arange(len(floor_usd))])
        cost, every = np.concatenate([usd[demand], floor_usd]), np.arange(len(row))
        self._programme.add(Columns.of(cost, column=every, row=row, value=np.ones(len(row))))
        return len(row)

    def _columns(self, judged: Judged, group: Whole) -> Columns:
        rules = self.rules
        at, place = np.nonzero(judged.rows.variants >= 0)
        work = rules.judge.workload[judged.rows.variants[at, place]]
        rate = self.problem.rate_rps[work]
        asked = np.flatnonzero(rate > 0)
        own = Entries(
            row=np.concatenate([work[asked], self.demands + group]),
            pattern=np.concatenate([at[asked], np.arange(len(group))]),
            value=np.concatenate([judged.capacity_rps[at, place][asked] / rate[asked], np.ones(len(group))]),
        )
        return rules.columns(judged, own, self._rule_at, rules.floors.least)


def _keys(rows: Patterns, group: Whole) -> Whole:
    return np.hstack([group[:, None], rows.kind[:, None], rows.variants, rows.shares_pct])
