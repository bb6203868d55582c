"""Ruin and recreate: a few related devices are packed anew, again and again, until the deadline.

Owns the choice of devices (those that share workloads with one that lacks something or was drawn), the acceptance
(annealing on cost plus the price of what lacks) and the best so far, which is what it returns: never worse than what it
began with. It ends when nothing better was found for long. It refuses to know how a hole is filled.
"""

from __future__ import annotations

import numpy as np

from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.descent import descend
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.packs import Packs
from solvers.planners.joint.solve.patch import Patch, hole_of
from solvers.planners.joint.solve.rules import Rules
from solvers.planners.joint.solve.sheet import Sheet
from solvers.problems.joint import Floats, JointProblem, Whole
from solvers.problems.layout import Layout, Prices

_DEVICES = 8
"""Taken out at once."""
_SHORT_FIRST = 0.7
"""How often the search begins at a workload that lacks something, while there is any."""
_LACKING = 300
"""Workloads that lack something elsewhere and are looked after in the same hole."""
_HEAT = 2e-5
"""Part of the worth that a step may lose at the beginning."""
_LEAST_GAIN = 1e-7
_UNITS = 25
"""Of work that one trial takes."""
_PATIENCE = 20
"""Trials in a row without anything better after which it ends by itself, and one more for every so many devices:"""
_PATIENCE_DEVICES = 4


def repair(
    problem: JointProblem, layout: Layout, prices: Prices | None, deadline: Deadline, rng: np.random.Generator
) -> Layout:
    """A layout worth at least as much."""
    return _searched(problem, layout, prices, (deadline, False), rng)


def mend(
    problem: JointProblem, layout: Layout, prices: Prices | None, deadline: Deadline, rng: np.random.Generator
) -> Layout:
    """As `repair`, and done as soon as nothing lacks."""
    return _searched(problem, layout, prices, (deadline, True), rng)


def _searched(
    problem: JointProblem,
    layout: Layout,
    prices: Prices | None,
    end: tuple[Deadline, bool],
    rng: np.random.Generator,
) -> Layout:
    deadline, until_served = end
    rules = Rules(Judge(problem))
    sheet = Sheet.of_layout(rules, layout)
    usd = prices.demand_usd if prices is not None else _guessed(sheet)
    patch = Patch(rules, Packs(rules.judge), usd)
    best = current = descend(sheet, deadline)
    worth = best_worth = current.worth()
    in_vain, patience = 0, _PATIENCE + int(current.counts.sum()) // _PATIENCE_DEVICES
    while not deadline.over and in_vain < patience:
        lacking = rng.permutation(np.flatnonzero(current.lacking() > 0))[:_LACKING]
        if not len(lacking) and (until_served or not len(current.counts)):
            break
        deadline.spend(_UNITS)
        in_vain += 1
        hole = hole_of(current, _related(current, rng), lacking)
        bearable = _HEAT * deadline.left_part * best_worth * rng.random()
        tried = patch.refill(hole, hole.usd + bearable - _LEAST_GAIN, rng)
        if tried is None or (current.kept() and not tried.kept()):
            continue
        tried_worth = tried.worth()
        if tried_worth > worth + bearable:
            continue
        current, worth = tried, tried_worth
        if worth < best_worth - _LEAST_GAIN:
            in_vain = 0
        if worth < best_worth:
            best, best_worth = current, worth
    return best.layout(layout)


def _guessed(sheet: Sheet) -> Floats:
    """What each whole rate is worth, by what its replicas' share of the devices costs."""
    at, place, work = sheet.members()
    rows = sheet.judged.rows
    part = rows.shares_pct[at, place] / np.maximum(rows.shares_pct.sum(axis=1)[at], 1)
    usd = part * sheet.judged.usd_per_h[at] * sheet.counts[at]
    problem = sheet.rules.judge.problem
    total = np.bincount(work, weights=usd, minlength=len(problem.workloads))
    return np.asarray(np.where(total > 0, total, problem.unserved_usd))


def _related(sheet: Sheet, rng: np.random.Generator) -> Whole:
    """Patterns of the sheet, as often as devices of theirs are taken out."""
    at, _, work = sheet.members()
    lacking = np.flatnonzero(sheet.lacking() > 0)
    hosted = np.unique(work)
    if not len(hosted):
        return hosted
    short = np.intersect1d(lacking, hosted)
    names = short if len(short) and rng.random() < _SHORT_FIRST else hosted
    first = int(rng.choice(names))
    taken = np.zeros(len(sheet.counts), dtype=np.int64)
    ring = np.zeros(len(sheet.rules.judge.problem.workloads), dtype=bool)
    ring[first] = True
    for turn in range(_DEVICES):
        # Devices that share the most with what is taken out already, chance deciding among them.
        near = np.bincount(at, weights=ring[work], minlength=len(taken))
        score = np.where(sheet.counts > taken, near * rng.uniform(0.5, 1.0, len(near)), 0.0)
        row = int(np.argmax(score))
        if score[row] <= 0:
            break
        taken[row] += 1
        if turn:
            ring[work[at == row]] = True
    return np.repeat(np.arange(len(taken)), taken)
