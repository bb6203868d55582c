"""A solution as arrays, its constraints and its worth.

`Rules` are the constraints over a whole layout as rows over patterns: devices, watts, quotas, budgets, numbers of
replicas. A power cap that covers part of a pool lets the rest of the pool draw what it may; seating keeps the cap
itself. A budget is price x share of a workload's replicas. A `Solution` is worth the cost of its devices, a workload's
`unserved_usd` for the part of its rate that lacks, and as much again for the part of its least replicas that lack: by
that sum every step is accepted or refused. Solutions are never changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.problems.patterns import Judged, Layout, Patterns

SERVED = 1e-9
"""Part of a rate that may lack for the sake of rounding."""


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

    def usage(self, judged: Judged, counts: Whole) -> Floats:
        found = self.rows.columns(judged)
        total = np.bincount(found.row, weights=found.value * counts[found.number], minlength=self.rows.count)
        return np.asarray(total[self.rows.pool_at : self.rows.floor_at], dtype=np.float64)

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
        return self.judged.served_rps(self.rules.judge.problem, self.counts)

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
