"""A solution as arrays, its rules and its worth.

The rules over a whole layout are the master's rows behind the demands, up to those that count replicas of workloads
that must have some. A `Solution` is worth the cost of its devices, a workload's `unserved_usd` for the part of its rate
that lacks, and as much again for the part of its least replicas that lack: by that sum every step is accepted or
refused. Solutions are never changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.problems.patterns import EMPTY, Judged, Layout, Patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Patterns that differ, judged, with how many devices carry each."""

    judge: Judge
    judged: Judged
    counts: Whole

    @staticmethod
    def of_rows(judge: Judge, rows: Patterns, counts: Whole) -> Solution:
        """What is lawful of so many devices of each row."""
        judged, total = judge.devices(rows, counts)
        return Solution(judge=judge, judged=judged, counts=total)

    @staticmethod
    def of_layout(judge: Judge, layout: Layout) -> Solution:
        """A layout's patterns, judged again."""
        rows = Patterns.of(layout.patterns, judge.width)
        return Solution.of_rows(judge, rows, np.array(layout.counts, dtype=np.int64))

    def layout(self, like: Layout = EMPTY) -> Layout:
        """As patterns; bound, prices and facts of another layout are kept."""
        patterns = tuple(self.judge.patterns(self.judged))
        return replace(like, patterns=patterns, counts=tuple(self.counts.tolist()))

    def lacking(self) -> Floats:
        """By workload: part of the rate, plus part of the least replicas, that is not there."""
        problem, layout = self.judge.problem, self.layout()
        return layout.missing(problem) + layout.fewer(problem)

    def usd_per_h(self) -> float:
        return float(self.judged.usd_per_h @ self.counts)

    def worth(self) -> float:
        """What every step must not raise, $/h."""
        return self.usd_per_h() + float(self.lacking() @ self.judge.problem.unserved_usd)

    def kept(self) -> bool:
        """Whether nothing is over the limit of its row."""
        rows = Rows(self.judge.problem)
        rules = slice(rows.pool_at, rows.floor_at)
        usage, upper = rows.activity(self.judged, self.counts)[rules], rows.upper[rules]
        return bool(np.all(usage <= upper + 1e-6 * np.maximum(1.0, np.abs(upper))))
