"""Single exact moves while any of them pays: one device carries something else, and everything is added up anew.

The neighbourhood of a pattern is what its device could carry without a new member: share handed from one member to
another, given back or taken from what is free, a member less, another clock; shares stay multiples of the problem's
step. All moves around the devices that matter are judged at once; the best by worth are made together where they touch
no workload of each other. Every move is exact, so worth only falls, and none breaks a rule over the whole layout.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.judge import Judged, Patterns
from solvers.planners.joint.solve.solution import SERVED, Rules, Solution
from solvers.problems.joint import JointProblem

_STEPS = (1, 2, 5)
_MOVES_MAX = 400
_MOVES_PER_UNIT = 150
_LEAST_GAIN = 1e-7


def neighbours(problem: JointProblem, rows: Patterns, steps_pct: tuple[int, ...]) -> tuple[Patterns, Whole]:
    """All neighbours of some rows, and which row each comes from."""
    parts = list(_neighbours(problem, rows, steps_pct))
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return rows.take(none), none
    return Patterns.joined([item for item, _ in parts]), np.concatenate([parent for _, parent in parts])


def _neighbours(problem: JointProblem, rows: Patterns, steps_pct: tuple[int, ...]) -> Iterator[tuple[Patterns, Whole]]:
    every = np.arange(len(rows))
    members = (rows.variants >= 0).sum(axis=1)
    step = problem.share_step_pct
    free = (100 - rows.shares_pct.sum(axis=1)) // step * step
    sizes = sorted({max(step, size // step * step) for size in steps_pct})
    for place in range(rows.variants.shape[1]):
        holds = members > place
        if not holds.any():
            break
        yield from _shifts(rows, every[holds], place, sizes)
        yield _with(rows, every[holds & (free > 0)], place, free[holds & (free > 0)])
        yield _with(rows, every[holds & (members > 1)], place, -rows.shares_pct[holds & (members > 1), place])
    for kind in range(problem.kinds):
        same = (problem.kind_pool[rows.kind] == problem.kind_pool[kind]) & (rows.kind != kind)
        chosen = every[same]
        if len(chosen):
            some = rows.take(chosen)
            yield (
                Patterns(kind=np.full(len(chosen), kind), variants=some.variants, shares_pct=some.shares_pct),
                chosen,
            )


def _shifts(rows: Patterns, chosen: Whole, place: int, sizes: list[int]) -> Iterator[tuple[Patterns, Whole]]:
    """Share given back, or handed to another member."""
    for size in sizes:
        able = chosen[rows.shares_pct[chosen, place] > size]
        if not len(able):
            continue
        yield _with(rows, able, place, np.full(len(able), -size))
        for other in range(rows.variants.shape[1]):
            there = able[rows.variants[able, other] >= 0]
            if other == place or not len(there):
                continue
            some = rows.take(there)
            shares = some.shares_pct.copy()
            shares[:, place] -= size
            shares[:, other] += size
            yield Patterns(kind=some.kind, variants=some.variants, shares_pct=shares), there


def _with(rows: Patterns, chosen: Whole, place: int, change_pct: Whole) -> tuple[Patterns, Whole]:
    some = rows.take(chosen)
    shares = some.shares_pct.copy()
    shares[:, place] += change_pct
    return Patterns(kind=some.kind, variants=some.variants, shares_pct=shares), chosen


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
