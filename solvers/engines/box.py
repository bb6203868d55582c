"""What rows imply about single columns: finite boxes for engines that count through whole numbers.

Owns one propagation over arrays. It refuses to search: what rows do not bound by themselves stays infinite.
"""

from __future__ import annotations

import numpy as np

from solvers.domain.arrays import Floats
from solvers.engines.base import Program

ROUNDS = 10
"""Enough for chains of rows seen here; further rounds only tighten."""
ROUNDING = 1e-6
"""Part of a unit by which a computed bound of a whole number may be off."""


def implied_box(program: Program) -> tuple[Floats, Floats]:
    """Lower and upper bounds of every column, tightened by the rows; those of whole columns are whole. May cross."""
    column = np.repeat(np.arange(program.columns), np.diff(program.start))
    lower, upper = _whole(program, program.lower, program.upper)
    for _ in range(ROUNDS):
        above, below = _implied(program, column, lower, upper)
        new_lower, new_upper = lower.copy(), upper.copy()
        np.maximum.at(new_lower, column, below)
        np.minimum.at(new_upper, column, above)
        new_lower, new_upper = _whole(program, new_lower, new_upper)
        if np.array_equal(new_lower, lower) and np.array_equal(new_upper, upper):
            break
        lower, upper = new_lower, new_upper
    return lower, upper


def box_bound(program: Program, lower: Floats, upper: Floats) -> float:
    """The least that the objective can be within a box: a bound that needs no search."""
    ends = np.where(program.cost > 0, lower, upper)
    terms = program.cost * np.where(program.cost == 0, 0.0, ends)
    return float(terms.sum()) + program.offset


def _whole(program: Program, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    return (
        np.where(program.integer, np.ceil(lower - ROUNDING), lower),
        np.where(program.integer, np.floor(upper + ROUNDING), upper),
    )


def _implied(program: Program, column: np.ndarray, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """Upper and lower bound that each entry's row puts on its column."""
    rising = program.value > 0
    least = program.value * np.where(rising, lower[column], upper[column])
    most = program.value * np.where(rising, upper[column], lower[column])
    room = program.row_upper[program.row] - _others(program, least, -np.inf)
    need = program.row_lower[program.row] - _others(program, most, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_room, by_need = room / program.value, need / program.value
    above = np.where(rising, by_room, by_need)
    below = np.where(rising, by_need, by_room)
    nothing = program.value == 0
    return np.where(nothing, np.inf, above), np.where(nothing, -np.inf, below)


def _others(program: Program, terms: Floats, unknown: float) -> Floats:
    """For each entry, the sum of the other terms of its row; `unknown` where one of them is infinite."""
    finite = np.isfinite(terms)
    known = np.where(finite, terms, 0.0)
    total = np.bincount(program.row, weights=known, minlength=program.rows)
    infinite = np.bincount(program.row, weights=~finite, minlength=program.rows)
    alone = infinite[program.row] - ~finite == 0
    return np.where(alone, total[program.row] - known, unknown)
