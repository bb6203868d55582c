"""Every combination of a tiny all-integer programme tried: the engine that the others are checked against.

At most `COMBINATIONS_MAX` combinations are enumerated, after rows have bounded the columns. Exact and slow. It
refuses continuous columns and anything larger; work is counted in combinations.
"""

from __future__ import annotations

import math

import numpy as np

from solvers.domain.arrays import Floats
from solvers.engines.base import EngineAnswer, EngineStatus, Limits, Program
from solvers.engines.deadline import Deadline
from solvers.engines.judgement import (
    FEASIBILITY,
    LibraryClaim,
    box_bound,
    implied_box,
    refuse_nonsense,
    settled_early,
    verdict,
)

COMBINATIONS_MAX = 1_000_000
_CHUNK = 16_384


class Exhaustive:
    """See the module."""

    name = "exhaustive"

    def solve(self, program: Program, limits: Limits, hint: Floats | None = None) -> EngineAnswer:
        """Answer within the limits. Raises EngineError for nonsense."""
        refuse_nonsense(program, self.name)
        early = settled_early(program)
        if early is not None:
            return early
        if not program.integer.all():
            return EngineAnswer(status=EngineStatus.FAILED, note="continuous columns cannot be enumerated")
        lower, upper = implied_box(program)
        widths = upper - lower + 1
        if (widths <= 0).any():
            return EngineAnswer(status=EngineStatus.INFEASIBLE, note="rows leave a column no value")
        combinations = float(np.prod(widths))
        if not combinations <= COMBINATIONS_MAX:
            return EngineAnswer(status=EngineStatus.FAILED, note=f"more than {COMBINATIONS_MAX} combinations")
        claim = _tried(program, lower, tuple(int(width) for width in widths), limits)
        return verdict(program, limits, claim, hint)


def _tried(program: Program, lower: Floats, widths: tuple[int, ...], limits: Limits) -> LibraryClaim:
    total = math.prod(widths)
    clock = Deadline(limits.clock_s, None if limits.work is None else int(limits.work))
    column = np.repeat(np.arange(program.columns), np.diff(program.start))
    matrix = np.zeros((program.columns, program.rows))
    np.add.at(matrix, (column, program.row), program.value)
    best: Floats | None = None
    best_cost, done = np.inf, 0
    while done < total and not clock.over:
        numbers = np.arange(done, min(done + _CHUNK, total))
        values = np.stack(np.unravel_index(numbers, widths), axis=1) + lower
        costs = np.where(_keeps(program, matrix, values), values @ program.cost, np.inf)
        place = int(np.argmin(costs))
        if costs[place] < best_cost:
            best, best_cost = values[place], float(costs[place])
        done += len(numbers)
        clock.spend(len(numbers))
    if done < total:
        bound = box_bound(program, lower, lower + np.array(widths) - 1)
        return LibraryClaim(values=best, bound=bound, work=done, note="cut off")
    if best is None:
        return LibraryClaim(otherwise=EngineStatus.INFEASIBLE, work=done)
    return LibraryClaim(otherwise=EngineStatus.OPTIMAL, values=best, bound=best_cost + program.offset, work=done)


def _keeps(program: Program, matrix: Floats, values: Floats) -> np.ndarray:
    """Which combinations keep every row, by the same scale as `Program.violation`."""
    activity = values @ matrix
    scale = np.maximum(1.0, np.abs(values) @ np.abs(matrix))
    over = np.maximum(program.row_lower - activity, activity - program.row_upper) / scale
    return np.asarray((over <= FEASIBILITY).all(axis=1))
