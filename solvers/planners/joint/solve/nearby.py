"""Patterns near good ones: share moved between members, another clock, a member less, what is left over given away.

Owns the neighbourhood in which shares are whole percent; the knapsack of pricing only knows the grid. It refuses to
judge: it offers candidates and keeps those that the duals find best.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.sets import Sets, joined, ordered
from solvers.problems.joint import Floats, Whole

STEPS_PCT = (10, 3, 1)
BEST_OF_EACH = 3
PARENTS_MAX = 600


def neighbours(master: Master, parents: Whole, duals: Floats, turn: int) -> Sets:
    """The best neighbours of some columns of the pool, by reduced cost at these duals. Steps of another size come with
    every turn.
    """
    parents = parents[:PARENTS_MAX]
    sets = master.pool.sets.take(parents)
    step = max(1, master.problem.share_step_pct)
    size = step * max(1, round(STEPS_PCT[turn % len(STEPS_PCT)] / step))
    parts = list(_shares_moved(master, sets, size))
    if turn % len(STEPS_PCT) == 0:
        parts += list(_members_changed(master, sets))
    parts = [part for part in parts if len(part[1])]
    if not parts:
        return joined([], master.width)
    moved, parent = joined([part[0] for part in parts], master.width), np.concatenate([part[1] for part in parts])
    judged = master.judge.judge(moved)
    rows = np.flatnonzero(judged.ok)
    columns = master.rows.columns(moved.take(rows), judged.take(rows))
    cost = master.rows.reduced(columns, duals)
    order = np.lexsort((cost, parent[rows]))
    first = np.searchsorted(parent[rows][order], parent[rows][order])
    best = order[(np.arange(len(order)) - first < BEST_OF_EACH) & (cost[order] < 0)]
    return moved.take(rows[best])


def _shares_moved(master: Master, sets: Sets, pct: int) -> Iterator[tuple[Sets, Whole]]:
    """The same members with other shares; and the parent of each."""
    problem = master.problem
    every = np.arange(len(sets))
    least, step = int(problem.shares_pct[0]), max(1, problem.share_step_pct)
    held = (sets.member >= 0).sum(axis=1)
    spare = 100 - sets.share.sum(axis=1)
    for to in range(int(held.max(initial=0))):
        rows = every[(held > to) & (spare >= step)]
        share = sets.share[rows].copy()
        share[:, to] += spare[rows] // step * step
        yield ordered(sets.kind[rows], sets.member[rows], share), rows
        for off in range(int(held.max(initial=0))):
            able = (held > max(to, off)) & (sets.share[:, off] - pct >= least) & (off != to)
            rows = every[able]
            share = sets.share[rows].copy()
            share[:, to] += pct
            share[:, off] -= pct
            yield ordered(sets.kind[rows], sets.member[rows], share), rows


def _members_changed(master: Master, sets: Sets) -> Iterator[tuple[Sets, Whole]]:
    """A member less, or another clock; and the parent of each."""
    problem = master.problem
    every = np.arange(len(sets))
    held = (sets.member >= 0).sum(axis=1)
    for off in range(int(held.max(initial=0))):
        rows = every[held > max(1, off)]
        member, share = sets.member[rows].copy(), sets.share[rows].copy()
        member[:, off], share[:, off] = -1, 0
        yield ordered(sets.kind[rows], member, share), rows
    for other in range(problem.kinds):
        same = problem.kind_pool[sets.kind] == problem.kind_pool[other]
        rows = every[same & (sets.kind != other)]
        yield sets.take(rows).of_kind(other), rows
