"""A solution as arrays, its constraints and its worth, and single exact moves while any of them pays.

`Rules` are the constraints over a whole layout as rows over patterns: devices, watts, quotas, budgets, numbers of
replicas. A power cap that covers part of a pool lets the rest of the pool draw what it may; seating keeps the cap
itself. A budget is price x share of a workload's replicas. A `Solution` is worth the cost of its devices, a workload's
`unserved_usd` for the part of its rate that lacks, and as much again for the part of its least replicas that lack: by
that sum every step is accepted or refused. Solutions are never changed in place.

The neighbourhood of a pattern is what its device could carry without a new member: share handed from one member to
another, given back or taken from what is free, a member less, another clock; shares stay multiples of the problem's
step. All moves around the devices that matter are judged at once; the best by worth are made together where they touch
no workload of each other. Every move is exact, so worth only falls, and none breaks a rule over the whole layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.deadline import Deadline
from solvers.engines.highs import Columns
from solvers.planners.joint.solve.judge import Judge, Judged, Patterns
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout

_UNLIMITED = 100_000
SERVED = 1e-9
"""Part of a rate that may lack for the sake of rounding."""
_STEPS = (1, 2, 5)
_MOVES_MAX = 400
_MOVES_PER_UNIT = 150
_LEAST_GAIN = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """A sparse matrix: row x pattern."""

    row: Whole
    pattern: Whole
    value: Floats


class Rules:
    """`usage <= upper` of every rule; `usage` by patterns. Rows behind the rules count replicas of workloads that must
    have a number of them.
    """

    def __init__(self, judge: Judge) -> None:
        problem = judge.problem
        self.judge = judge
        work = problem.workloads
        projects = {project: number for number, (project, _) in enumerate(problem.quotas)}
        self.project = np.array([projects.get(item.project, -1) for item in work], dtype=np.int64)
        """Quota of each workload; -1 for none."""
        self._gpu_part = np.array([item.gpu_part for item in problem.pools], dtype=np.float64)
        inside = np.array([cap.devices for cap in problem.caps], dtype=np.float64).reshape(-1, len(problem.pools))
        self._inside = inside > 0
        outside = np.maximum(problem.pool_devices - inside, 0.0) * self._inside
        cap_w = np.array([cap.limit_w for cap in problem.caps]) - inside @ judge.idle_w
        cap_w = np.maximum(cap_w, 0.0) + outside @ (judge.limit_w - judge.idle_w)
        budget_usd = np.array([item.budget_usd_per_h for item in work], dtype=np.float64)
        most = np.array([item.replicas_max for item in work], dtype=np.float64)
        budgeted, few = np.flatnonzero(budget_usd < np.inf), np.flatnonzero(most < _UNLIMITED)
        self.floored = np.flatnonzero(problem.replicas_floor > 0)
        self.floor = problem.replicas_floor[self.floored].astype(np.float64)
        quotas = np.array([limit for _, limit in problem.quotas], dtype=np.float64)
        uppers = (problem.pool_devices.astype(np.float64), cap_w, quotas, budget_usd[budgeted], most[few])
        start = np.cumsum([0, *(len(item) for item in uppers)])
        self.upper: Floats = np.concatenate(uppers)
        self.size = len(self.upper)
        self._cap_at = start[1]
        self._quota = np.where(self.project >= 0, start[2] + self.project, -1)
        self._budget, self._few, self._floor = (
            _numbered(len(work), chosen, first)
            for chosen, first in ((budgeted, start[3]), (few, start[4]), (self.floored, self.size))
        )

    def entries(self, judged: Judged) -> Entries:
        """What each pattern uses of each row."""
        rows, judge = judged.rows, self.judge
        pool = judge.problem.kind_pool[rows.kind]
        above_idle = judged.draw_w - judge.idle_w[pool]
        cap, of = np.nonzero(self._inside[:, pool] * above_idle[None, :])
        at, place = np.nonzero(rows.variants >= 0)
        work = judge.workload[rows.variants[at, place]]
        share, ones = rows.shares_pct[at, place] / 100, np.ones(len(at))
        row, pattern = [pool, self._cap_at + cap], [np.arange(len(pool)), of]
        value = [np.ones(len(pool)), above_idle[of]]
        for number, amount in (
            (self._quota, share * self._gpu_part[pool[at]]),
            (self._budget, share * judge.usd_per_h[pool[at]]),
            (self._few, ones),
            (self._floor, ones),
        ):
            some = number[work] >= 0
            row.append(number[work[some]])
            pattern.append(at[some])
            value.append(amount[some])
        return Entries(row=np.concatenate(row), pattern=np.concatenate(pattern), value=np.concatenate(value))

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
        """Of every rule, by a layout."""
        entries = self.entries(judged)
        total = np.bincount(entries.row, weights=entries.value * counts[entries.pattern], minlength=self.size)
        return np.asarray(total[: self.size], dtype=np.float64)

    def kept(self, usage: Floats) -> bool:
        """Whether nothing is over its limit."""
        return bool(np.all(usage <= self.upper + 1e-6 * np.maximum(1.0, np.abs(self.upper))))


def _numbered(size: int, chosen: Whole, first: int) -> Whole:
    """Rows from `first` on for what is chosen, -1 elsewhere."""
    row = np.full(size, -1, dtype=np.int64)
    row[chosen] = first + np.arange(len(chosen))
    return row


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


def descend(solution: Solution, deadline: Deadline) -> Solution:
    """Moves around the devices of workloads that lack something, until none pays."""
    best = solution
    for _ in range(_MOVES_MAX):
        lacking = best.lacking()
        if deadline.over or not lacking.any():
            break
        tried = _step(best, lacking > 0, deadline)
        if tried is None:
            break
        best = tried
    return best


def _step(solution: Solution, short: Flags, deadline: Deadline) -> Solution | None:
    """As many moves as do not touch each other's workloads, best first; None when no move pays."""
    rows, rules = solution.judged.rows, solution.rules
    stands = rows.variants >= 0
    work = np.where(stands, rules.judge.workload[np.where(stands, rows.variants, 0)], -1)
    hosts = np.flatnonzero((short[work] & stands).any(axis=1))
    if not len(hosts):
        return None
    found, parent = neighbours(rules.judge.problem, rows.take(hosts), _STEPS)
    deadline.spend(2 + len(parent) // _MOVES_PER_UNIT)
    moves = Moves(solution, rules.judge.judge(found), hosts[parent])
    served = solution.served_rps()
    gains = moves.gains(served)
    chosen = moves.apart(np.argsort(-gains, kind="stable")[: np.count_nonzero(gains > _LEAST_GAIN)])
    while len(chosen):
        tried = moves.made(chosen)
        better = tried.worth() < solution.worth() - _LEAST_GAIN
        if better and (tried.kept() or not solution.kept()):
            return tried
        chosen = chosen[: len(chosen) // 2]
    return None


class Moves:
    """One device each: from a row of the solution to another content."""

    def __init__(self, solution: Solution, judged: Judged, parent: Whole) -> None:
        fit = np.flatnonzero(judged.lawful)
        self.solution, self.judged, self.parent = solution, judged.take(fit), parent[fit]
        rules = solution.rules
        before = solution.judged.take(self.parent)
        self.usd = self.judged.usd_per_h - before.usd_per_h
        self.work, self.net_rps = net_of(rules, before, self.judged)

    def gains(self, served_rps: Floats) -> Floats:
        """What each is worth by itself, $/h; least replicas are looked at when it is made."""
        problem = self.solution.rules.judge.problem
        rate = problem.rate_rps[self.work]
        asked = (rate > 0) & (self.work >= 0)
        rate = np.where(asked, rate, 1.0)
        before = np.maximum(0.0, 1 - served_rps[self.work] / rate)
        after = np.maximum(0.0, 1 - (served_rps[self.work] + self.net_rps) / rate)
        before, after = (np.where(part > SERVED, part, 0.0) for part in (before, after))
        change = np.where(asked, (before - after) * problem.unserved_usd[self.work], 0.0)
        return np.asarray(change.sum(axis=1) - self.usd)

    def apart(self, order: Whole) -> Whole:
        """The first of these moves and those after it that share neither a workload nor a row with one before."""
        workloads: set[int] = set()
        parents: set[int] = set()
        chosen = []
        for move in order.tolist():
            own = {int(work) for work, net in zip(self.work[move], self.net_rps[move], strict=True) if net != 0.0}
            if int(self.parent[move]) in parents or workloads & own:
                continue
            chosen.append(move)
            parents.add(int(self.parent[move]))
            workloads |= own
        return np.array(chosen, dtype=np.int64)

    def made(self, chosen: Whole) -> Solution:
        """The solution after these moves, one device each."""
        solution = self.solution
        counts = solution.counts.copy()
        np.subtract.at(counts, self.parent[chosen], 1)
        rows = Patterns.joined([solution.judged.rows, self.judged.rows.take(chosen)])
        return Solution.of_rows(solution.rules, rows, np.concatenate([counts, np.ones(len(chosen), dtype=np.int64)]))


def net_of(rules: Rules, before: Judged, after: Judged) -> tuple[Whole, Floats]:
    """Workloads that each change touches and what they gain: change x place, -1 and 0 where there is nothing more."""
    works, rates = [], []
    for judged, sign in ((before, -1.0), (after, 1.0)):
        stands = judged.rows.variants >= 0
        works.append(np.where(stands, rules.judge.workload[np.where(stands, judged.rows.variants, 0)], -1))
        rates.append(sign * judged.capacity_rps)
    work, rate = np.hstack(works), np.hstack(rates)
    same = work[:, :, None] == work[:, None, :]
    first = np.argmax(same, axis=2) == np.arange(work.shape[1])
    net = np.where(first & (work >= 0), (same * rate[:, None, :]).sum(axis=2), 0.0)
    return np.where(first, work, -1), net
