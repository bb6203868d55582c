"""A solution as arrays, its constraints and its worth: what local search, trimming and repair work on.

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
from solvers.planners.joint.solve.judge import Judge, Judged, Patterns
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout

_UNLIMITED = 100_000
SERVED = 1e-9
"""Part of a rate that may lack for the sake of rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """A sparse matrix: rule x pattern."""

    rule: Whole
    pattern: Whole
    value: Floats


class Rules:
    """`lower <= usage <= upper` of every rule; `usage` by patterns."""

    def __init__(self, judge: Judge) -> None:
        problem = judge.problem
        self.judge = judge
        work = problem.workloads
        self.project = _projects(problem)
        self.gpu_part = np.array([item.gpu_part for item in problem.pools], dtype=np.float64)
        inside = np.array([cap.devices for cap in problem.caps], dtype=np.float64).reshape(-1, len(problem.pools))
        self._inside = inside > 0
        outside = np.maximum(problem.pool_devices - inside, 0.0) * self._inside
        cap_w = np.array([cap.limit_w for cap in problem.caps]) - inside @ judge.idle_w
        cap_w = np.maximum(cap_w, 0.0) + outside @ (judge.limit_w - judge.idle_w)
        self.capped = np.flatnonzero([item.budget_usd_per_h < np.inf for item in work])
        self.few = np.flatnonzero([item.replicas_max < _UNLIMITED for item in work])
        self.floored = np.flatnonzero([floor_of(problem, number) > 0 for number in range(len(work))])
        self._place = [_places(len(work), item) for item in (self.capped, self.few, self.floored)]
        uppers = (
            problem.pool_devices.astype(np.float64),
            cap_w,
            np.array([limit for _, limit in problem.quotas], dtype=np.float64),
            np.array([work[number].budget_usd_per_h for number in self.capped], dtype=np.float64),
            np.array([work[number].replicas_max for number in self.few], dtype=np.float64),
        )
        self._start = np.cumsum([0, *(len(item) for item in uppers)])
        self.upper: Floats = np.concatenate(uppers)
        self.floor = np.array([floor_of(problem, int(number)) for number in self.floored], dtype=np.float64)

    def __len__(self) -> int:
        return len(self.upper)

    def entries(self, judged: Judged) -> Entries:
        """What each pattern uses of each rule."""
        rows, judge, problem = judged.rows, self.judge, self.judge.problem
        pool = problem.kind_pool[rows.kind]
        index = np.arange(len(rows))
        above_idle = judged.draw_w - judge.idle_w[pool]
        cap, of = np.nonzero(self._inside[:, pool] * above_idle[None, :])
        at, place = np.nonzero(rows.variants >= 0)
        work = judge.workload[rows.variants[at, place]]
        share = rows.shares_pct[at, place] / 100
        quota, budget = self.project[work], self._place[0][work]
        few = self._place[1][work]
        parts = [
            (pool, index, np.ones(len(rows))),
            (self._start[1] + cap, of, above_idle[of]),
            _chosen(quota, at, share * self.gpu_part[pool[at]], self._start[2]),
            _chosen(budget, at, share * judge.usd_per_h[pool[at]], self._start[3]),
            _chosen(few, at, np.ones(len(at)), self._start[4]),
        ]
        return Entries(
            rule=np.concatenate([item[0] for item in parts]),
            pattern=np.concatenate([item[1] for item in parts]),
            value=np.concatenate([item[2] for item in parts]),
        )

    def usage(self, judged: Judged, counts: Whole) -> Floats:
        """Of every rule, by a layout."""
        entries = self.entries(judged)
        weights = entries.value * counts[entries.pattern]
        return np.asarray(np.bincount(entries.rule, weights=weights, minlength=len(self)), dtype=np.float64)

    def kept(self, usage: Floats) -> bool:
        """Whether nothing is over its limit."""
        return bool(np.all(usage <= self.upper + 1e-6 * np.maximum(1.0, np.abs(self.upper))))

    def floor_entries(self, judged: Judged) -> Entries:
        """Replicas of workloads that must have a number of them: floored workload x pattern."""
        rows = judged.rows
        at, place = np.nonzero(rows.variants >= 0)
        floored = self._place[2][self.judge.workload[rows.variants[at, place]]]
        rule, pattern, value = _chosen(floored, at, np.ones(len(at)), 0)
        return Entries(rule=rule, pattern=pattern, value=value)


def floor_of(problem: JointProblem, number: int) -> int:
    """Replicas that a workload needs at least: as asked, and for as many failure domains as asked."""
    work = problem.workloads[number]
    return max(work.replicas_min, work.domains_min if work.domains_min > 1 else 0)


def _projects(problem: JointProblem) -> Whole:
    """Quota of each workload; -1 for none."""
    place = {project: number for number, (project, _) in enumerate(problem.quotas)}
    return np.array([place.get(item.project, -1) for item in problem.workloads], dtype=np.int64)


def _places(size: int, chosen: Whole) -> Whole:
    """Inverse of a choice: where each number stands in it, -1 for nowhere."""
    place = np.full(size, -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    return place


def _chosen(number: Whole, pattern: Whole, value: Floats, start: int) -> tuple[Whole, Whole, Floats]:
    fit = number >= 0
    return start + number[fit], pattern[fit], value[fit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Patterns that differ, judged, with how many devices carry each."""

    rules: Rules
    judged: Judged
    counts: Whole

    @staticmethod
    def of_rows(rules: Rules, rows: Patterns, counts: Whole) -> Solution:
        """Judge, leave out what is unlawful or empty, and put equal patterns together."""
        judged = rules.judge.judge(rows)
        stands = judged.lawful & (counts > 0) & (judged.rows.variants[:, 0] >= 0)
        kept = np.flatnonzero(stands)
        keys = judged.rows.take(kept).keys
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        total = np.bincount(inverse.ravel(), weights=counts[kept], minlength=len(first))
        return Solution(rules=rules, judged=judged.take(kept[first]), counts=total.astype(np.int64))

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
