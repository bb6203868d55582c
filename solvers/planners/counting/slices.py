"""Renting whole GPUs for buckets of requests that may be spread over types (Melange's form), by counts.

Owns the search. Only as many constraints couple buckets as there are types, so the hard part is how many GPUs of each
type to rent: with slices still divisible that is a small integer programme whose bound is nearly the answer; then whole
slices are looked for within those GPUs, and only if there are none is the full programme solved. It refuses caps other
than GPUs per type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.engines.base import Answer, Engine, Limits
from solvers.engines.deadline import Deadline
from solvers.planners.counting.rows import Rows
from solvers.problems.counts import Slices, Whole

SAFETY = 1e-9
"""Kept free of every GPU, so that sums of rounded loads still fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliced:
    """Slices by bucket and type, None where none were found; cost and what no plan can go below."""

    counts: Whole | None
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """Relative."""
        if self.counts is None:
            return float("inf")
        return max(0.0, (self.objective - self.bound) / max(1e-12, self.objective))


def slice_up(problem: Slices, engine: Engine, deadline: Deadline, gap: float = 0.0) -> Sliced:
    """The cheapest whole GPUs and slices."""
    relaxed = _solve(problem, engine, Limits(time_s=deadline.left_s, gap=gap), whole=False)
    if relaxed.values is None:
        return Sliced(counts=None, objective=float("inf"), bound=relaxed.bound)
    types = len(problem.usd)
    rented = np.rint(relaxed.values[:types]).astype(np.int64)
    filled = _solve(problem, engine, Limits(time_s=max(0.05, 0.4 * deadline.left_s)), whole=True, rented=rented)
    bound = relaxed.bound
    if filled.values is None:
        filled = _solve(problem, engine, Limits(time_s=max(0.05, deadline.left_s), gap=gap), whole=True)
        bound = max(bound, filled.bound)
    if filled.values is None:
        return Sliced(counts=None, objective=float("inf"), bound=bound)
    counts = _counts(problem, filled)
    return Sliced(counts=counts, objective=problem.objective(counts), bound=bound)


def _solve(
    problem: Slices, engine: Engine, limits: Limits, *, whole: bool, rented: Whole | None = None
) -> Answer:  # fmt: skip
    """GPUs by type first, then slices by (bucket, type) where they can run."""
    able = np.isfinite(problem.load)
    bucket, gpu = np.nonzero(able)
    rows = Rows()
    most = np.full(len(problem.usd), np.inf) if problem.gpus_max is None else problem.gpus_max.astype(np.float64)
    usd = problem.usd if rented is None else np.zeros(len(problem.usd))
    gpus = rows.add_columns(usd, most if rented is None else rented.astype(np.float64))
    slices = rows.add_columns(np.zeros(len(bucket)), problem.slices[bucket].astype(np.float64), integer=whole)
    placed = rows.add_rows(problem.slices.astype(np.float64), problem.slices.astype(np.float64))
    rows.enter(placed[bucket], slices, 1.0)
    room = rows.add_rows(np.full(len(problem.usd), -np.inf), np.zeros(len(problem.usd)))
    rows.enter(room[gpu], slices, problem.load[able] * (1 + SAFETY))
    rows.enter(room, gpus, -1.0)
    return engine.solve(rows.program(), limits)


def _counts(problem: Slices, answer: Answer) -> Whole:
    assert answer.values is not None
    counts = np.zeros(problem.load.shape, dtype=np.int64)
    counts[np.isfinite(problem.load)] = np.rint(answer.values[len(problem.usd) :]).astype(np.int64)
    return counts
