"""Single exact moves while any of them pays: one device carries something else, and everything is added up anew.

Owns the descent. All moves around the devices that matter are judged at once; the best by worth is made, those of the
same pattern are forgotten, and what the changed device could do next is added. Every move is exact, so worth only
falls. It refuses moves that break a rule over the whole layout.
"""

from __future__ import annotations

import numpy as np

from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.judge import Judged, Patterns
from solvers.planners.joint.solve.moves import neighbours
from solvers.planners.joint.solve.rules import Rules
from solvers.planners.joint.solve.sheet import SERVED, Sheet
from solvers.problems.joint import Flags, Floats, Whole

_STEPS = (1, 2, 5)
_MOVES_MAX = 400
_MOVES_PER_UNIT = 150
_LEAST_GAIN = 1e-7


def descend(sheet: Sheet, deadline: Deadline) -> Sheet:
    """Moves around the devices of workloads that lack something, until none pays."""
    best = sheet
    for _ in range(_MOVES_MAX):
        lacking = best.lacking()
        if deadline.over or not lacking.any():
            break
        tried = _step(best, lacking > 0, deadline)
        if tried is None:
            break
        best = tried
    return best


def _step(sheet: Sheet, short: Flags, deadline: Deadline) -> Sheet | None:
    """As many moves as do not touch each other's workloads, best first; None when no move pays."""
    rows, rules = sheet.judged.rows, sheet.rules
    stands = rows.variants >= 0
    work = np.where(stands, rules.judge.workload[np.where(stands, rows.variants, 0)], -1)
    hosts = np.flatnonzero((short[work] & stands).any(axis=1))
    if not len(hosts):
        return None
    found, parent = neighbours(rules.judge.problem, rows.take(hosts), _STEPS)
    deadline.spend(2 + len(parent) // _MOVES_PER_UNIT)
    moves = Moves(sheet, rules.judge.judge(found), hosts[parent])
    served = sheet.served_rps()
    gains = moves.gains(served)
    chosen = moves.apart(np.argsort(-gains, kind="stable")[: np.count_nonzero(gains > _LEAST_GAIN)])
    while len(chosen):
        tried = moves.made(chosen)
        better = tried.worth() < sheet.worth() - _LEAST_GAIN
        if better and (tried.kept() or not sheet.kept()):
            return tried
        chosen = chosen[: len(chosen) // 2]
    return None


class Moves:
    """One device each: from a row of the sheet to another content."""

    def __init__(self, sheet: Sheet, judged: Judged, parent: Whole) -> None:
        fit = np.flatnonzero(judged.lawful)
        self.sheet, self.judged, self.parent = sheet, judged.take(fit), parent[fit]
        rules = sheet.rules
        before = sheet.judged.take(self.parent)
        self.usd = self.judged.usd_per_h - before.usd_per_h
        self.work, self.net_rps = net_of(rules, before, self.judged)

    def gains(self, served_rps: Floats) -> Floats:
        """What each is worth by itself, $/h; least replicas are looked at when it is made."""
        problem = self.sheet.rules.judge.problem
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

    def made(self, chosen: Whole) -> Sheet:
        """The sheet after these moves, one device each."""
        sheet = self.sheet
        counts = sheet.counts.copy()
        np.subtract.at(counts, self.parent[chosen], 1)
        rows = Patterns.joined([sheet.judged.rows, self.judged.rows.take(chosen)])
        return Sheet.of_rows(sheet.rules, rows, np.concatenate([counts, np.ones(len(chosen), dtype=np.int64)]))


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
