"""Patterns near good ones: share moved between members, another clock, a member less, what is left over given away.

Owns the neighbourhood in which shares are whole percent; the knapsack of pricing only knows the grid. It refuses to
judge: it offers candidates and keeps those that the duals find best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from solvers.planners.joint.solve.judge import Patterns
from solvers.planners.joint.solve.master import Master
from solvers.problems.joint import Floats, Whole

STEPS_PCT = (10, 3, 1)
BEST_OF_EACH = 3
PARENTS_MAX = 600


def neighbours(master: Master, parents: Whole, duals: Floats, turn: int) -> Patterns:
    """The best neighbours of some columns of the pool, by reduced cost at these duals. Steps of another size come with
    every turn.
    """
    parents = parents[:PARENTS_MAX]
    rows = master.pool.judged.rows.take(parents)
    step = max(1, master.problem.share_step_pct)
    size = step * max(1, round(STEPS_PCT[turn % len(STEPS_PCT)] / step))
    parts = list(_shares_moved(master, rows, size))
    if turn % len(STEPS_PCT) == 0:
        parts += list(_members_changed(master, rows))
    parts = [part for part in parts if len(part[1])]
    if not parts:
        return Patterns.none(master.width)
    judged = master.judge.judge(Patterns.joined([part[0] for part in parts]))
    lawful = np.flatnonzero(judged.lawful)
    judged, parent = judged.take(lawful), np.concatenate([part[1] for part in parts])[lawful]
    cost = master.rows.reduced(master.rows.columns(judged), duals)
    order = np.lexsort((cost, parent))
    first = np.searchsorted(parent[order], parent[order])
    return judged.rows.take(order[(np.arange(len(order)) - first < BEST_OF_EACH) & (cost[order] < 0)])


def _shares_moved(master: Master, rows: Patterns, pct: int) -> Iterator[tuple[Patterns, Whole]]:
    """The same members with other shares; and the parent of each."""
    problem = master.problem
    every = np.arange(len(rows))
    least, step = int(problem.shares_pct[0]), max(1, problem.share_step_pct)
    held = (rows.variants >= 0).sum(axis=1)
    spare = 100 - rows.shares_pct.sum(axis=1)
    for to in range(int(held.max(initial=0))):
        chosen = every[(held > to) & (spare >= step)]
        share = rows.shares_pct[chosen].copy()
        share[:, to] += spare[chosen] // step * step
        yield replace(rows.take(chosen), shares_pct=share), chosen
        for off in range(int(held.max(initial=0))):
            able = (held > max(to, off)) & (rows.shares_pct[:, off] - pct >= least) & (off != to)
            chosen = every[able]
            share = rows.shares_pct[chosen].copy()
            share[:, to] += pct
            share[:, off] -= pct
            yield replace(rows.take(chosen), shares_pct=share), chosen


def _members_changed(master: Master, rows: Patterns) -> Iterator[tuple[Patterns, Whole]]:
    """A member less, or another clock; and the parent of each."""
    problem = master.problem
    every = np.arange(len(rows))
    held = (rows.variants >= 0).sum(axis=1)
    for off in range(int(held.max(initial=0))):
        chosen = every[held > max(1, off)]
        member, share = rows.variants[chosen].copy(), rows.shares_pct[chosen].copy()
        member[:, off], share[:, off] = -1, 0
        yield Patterns(kind=rows.kind[chosen], variants=member, shares_pct=share), chosen
    for other in range(problem.kinds):
        same = problem.kind_pool[rows.kind] == problem.kind_pool[other]
        chosen = every[same & (rows.kind != other)]
        yield rows.take(chosen).of_kind(other), chosen
