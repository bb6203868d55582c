"""Neighbours of patterns: what one device could carry instead without taking anybody new.

Owns the list: share handed from one member to another, given back or taken from what is free, a member less, another
clock. Shares stay multiples of the problem's step. It refuses to judge and to choose.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solvers.planners.joint.solve.judge import Patterns
from solvers.problems.joint import JointProblem, Whole


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
