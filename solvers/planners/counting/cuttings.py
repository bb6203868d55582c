"""Fewest GPUs cut into pieces so that every demand is covered (MIG), by counts of pieces and of cuttings.

Owns the programme and the cuttings an A100 allows. Equal GPUs and equal pieces share one whole number each, so a
scenario is solved to the end in milliseconds. It refuses to know what runs in a piece: `rate` says what its best
configuration covers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from solvers.engines.base import Engine, Limits
from solvers.planners.counting.rows import Rows
from solvers.problems.counts import Cuttings, Whole

MIG_SIZES = (1, 2, 3, 4, 7)
"""Compute slices (GPCs) of an A100's instances."""
_MEMORY_SLICES = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
_STARTS = {1: (0, 1, 2, 3, 4, 5, 6), 2: (0, 2, 4), 3: (0, 4), 4: (0,), 7: (0,)}
SLOTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Pieces by demand and size, GPUs by cutting (None where there is no plan), and what no plan can go below."""

    pieces: Whole | None
    gpus: Whole | None
    objective: float
    bound: float


def a100_cuttings() -> Whole:
    """Every way of cutting one A100 that leaves no room for another piece: cutting x size of `MIG_SIZES`."""
    found = {tuple(counts) for counts in _fill(frozenset(range(SLOTS)), (0,) * len(MIG_SIZES), 0)}
    largest = [
        counts
        for counts in found
        if not any(other != counts and all(a <= b for a, b in zip(counts, other, strict=True)) for other in found)
    ]
    return np.array(sorted(largest), dtype=np.int64)


def _fill(free: frozenset[int], counts: tuple[int, ...], begin: int) -> Iterator[tuple[int, ...]]:
    """Counts of every set of pieces in the free memory slots, starts rising."""
    yield counts
    for number, size in enumerate(MIG_SIZES):
        for start in _STARTS[size]:
            taken = frozenset(range(start, start + _MEMORY_SLICES[size]))
            if start >= begin and taken <= free:
                more = tuple(count + (place == number) for place, count in enumerate(counts))
                yield from _fill(free - taken, more, start + 1)


def cut(problem: Cuttings, engine: Engine, limits: Limits) -> Cut:
    """The cheapest pieces and GPUs."""
    able = problem.rate > 0
    demand, size = np.nonzero(able)
    rows = Rows()
    needed = np.ceil(problem.demand[demand] / problem.rate[able])
    pieces = rows.add_columns(np.zeros(len(demand)), needed)
    gpus = rows.add_columns(np.full(len(problem.cuttings), problem.usd), np.full(len(problem.cuttings), np.inf))
    covered = rows.add_rows(np.ones(len(problem.demand)), np.full(len(problem.demand), np.inf))
    # A piece that covers more than all covers all: a tighter relaxation.
    rows.enter(covered[demand], pieces, np.minimum(1.0, problem.rate[able] / problem.demand[demand]))
    given = rows.add_rows(np.zeros(problem.cuttings.shape[1]), np.full(problem.cuttings.shape[1], np.inf))
    cutting, piece = np.nonzero(problem.cuttings)
    rows.enter(given[piece], gpus[cutting], problem.cuttings[cutting, piece].astype(np.float64))
    rows.enter(given[size], pieces, -1.0)
    answer = engine.solve(rows.program(), limits)
    if answer.values is None:
        return Cut(pieces=None, gpus=None, objective=float("inf"), bound=answer.bound)
    chosen = np.zeros(problem.rate.shape, dtype=np.int64)
    chosen[able] = np.rint(answer.values[pieces]).astype(np.int64)
    used = np.rint(answer.values[gpus]).astype(np.int64)
    if not problem.feasible(chosen, used):
        return Cut(pieces=None, gpus=None, objective=float("inf"), bound=answer.bound)
    return Cut(pieces=chosen, gpus=used, objective=problem.usd * float(used.sum()), bound=answer.bound)
