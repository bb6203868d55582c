"""A layout as arrays, and what it is worth: cost plus the price of what it leaves unserved.

Owns that sum, by which every step here is accepted or refused: cost of the devices in use, a workload's `unserved_usd`
for the part of its rate that lacks, and as much again for the part of its least replicas that lack. It refuses to
change anything in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.planners.joint.solve.judge import Judged, Patterns
from solvers.planners.joint.solve.rules import Rules
from solvers.problems.joint import Floats, Whole
from solvers.problems.layout import Layout

SERVED = 1e-9
"""Part of a rate that may lack for the sake of rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Patterns that differ, judged, with how many devices carry each."""

    rules: Rules
    judged: Judged
    counts: Whole

    @staticmethod
    def of_rows(rules: Rules, rows: Patterns, counts: Whole) -> Sheet:
        """Judge, leave out what is unlawful or empty, and put equal patterns together."""
        judged = rules.judge.judge(rows)
        return Sheet.of_verdicts(rules, judged, counts)

    @staticmethod
    def of_verdicts(rules: Rules, judged: Judged, counts: Whole) -> Sheet:
        """As `of_rows`, of rows that were judged."""
        stands = judged.lawful & (counts > 0) & (judged.rows.variants[:, 0] >= 0)
        kept = np.flatnonzero(stands)
        rows = judged.rows
        keys = np.hstack([rows.kind[kept, None], rows.variants[kept], rows.shares_pct[kept]])
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        total = np.bincount(inverse.ravel(), weights=counts[kept], minlength=len(first))
        return Sheet(rules=rules, judged=judged.take(kept[first]), counts=total.astype(np.int64))

    @staticmethod
    def of_layout(rules: Rules, layout: Layout) -> Sheet:
        """A layout's patterns, judged again."""
        rows = Patterns.of(layout.patterns, rules.judge.width)
        return Sheet.of_rows(rules, rows, np.array(layout.counts, dtype=np.int64))

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
        """By workload."""
        at, place, work = self.members()
        weights = self.judged.capacity_rps[at, place] * self.counts[at]
        size = len(self.rules.judge.problem.workloads)
        return np.asarray(np.bincount(work, weights=weights, minlength=size), dtype=np.float64)

    def replicas(self) -> Floats:
        """By workload."""
        at, _, work = self.members()
        size = len(self.rules.judge.problem.workloads)
        return np.asarray(np.bincount(work, weights=self.counts[at], minlength=size), dtype=np.float64)

    def lacking(self) -> Floats:
        """By workload: part of the rate, plus part of the least replicas, that is not there."""
        return lack(self.rules, self.served_rps(), self.replicas())

    def usd_per_h(self) -> float:
        """Of the devices in use."""
        return float(self.judged.usd_per_h @ self.counts)

    def worth(self) -> float:
        """What every step must not raise, $/h."""
        return self.usd_per_h() + float(self.lacking() @ self.rules.judge.problem.unserved_usd)

    def kept(self) -> bool:
        """Whether every rule over the whole layout is kept."""
        return self.rules.kept(self.rules.usage(self.judged, self.counts))


def lack(rules: Rules, served_rps: Floats, replicas: Floats) -> Floats:
    """Part of each workload's rate, plus part of its least replicas, that is not there."""
    rate = rules.judge.problem.rate_rps
    part = np.maximum(0.0, 1 - served_rps / np.where(rate > 0, rate, 1.0))
    part = np.where((rate > 0) & (part > SERVED), part, 0.0)
    missing = np.maximum(0.0, rules.floor - replicas[rules.floored]) / np.maximum(rules.floor, 1.0)
    part[rules.floored] += missing
    return np.asarray(part)
