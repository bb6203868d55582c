"""Renting whole GPUs for buckets of requests that may be spread over types (Melange's form), by counts.

Owns the search. Only as many constraints couple buckets as there are types, so the hard part is how many GPUs of each
type to rent: with slices still divisible that is a small integer programme whose bound is nearly the answer. Whole
slices are then looked for by placing anew only the few buckets that were split, then more of them. What is left between
such a plan and the bound is searched whole, without the slices that are too dear to be in any better plan. It refuses
caps other than GPUs per type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.engines.base import Answer, Engine, Flags, Floats, Limits
from solvers.engines.deadline import Deadline
from solvers.planners.counting.rows import Rows
from solvers.problems.counts import Slices, Whole

PROVEN = 1e-9
FREED = (0, 20, 60)
"""Buckets whose slices are placed anew, in turn: those that are split always are."""
SPLIT = 1e-6
FILL_PART = 0.15
"""Of the time left, for one try."""
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
    dear = _dearness(problem)
    relaxed = _solve(problem, engine, _Ask(limits=Limits(time_s=deadline.left_s, gap=gap)))
    if relaxed.values is None:
        return Sliced(counts=None, objective=float("inf"), bound=relaxed.bound)
    found = _filled(problem, engine, relaxed, deadline)
    objective = float("inf") if found is None else problem.objective(found)
    bound = relaxed.bound
    if objective - bound > max(gap, PROVEN) * abs(bound) and not deadline.over:
        rest = _Ask(
            limits=Limits(time_s=deadline.left_s, gap=gap),
            whole=True,
            keep=dear <= objective - _least_usd(problem) + PROVEN,
            usd_least=bound * (1 - PROVEN),
        )
        answer = _solve(problem, engine, rest)
        bound = max(bound, min(objective, answer.bound))
        if answer.values is not None and answer.objective < objective:
            found = _counts(problem, answer, rest.keep)
            objective = problem.objective(found)
    return Sliced(counts=found, objective=objective, bound=bound)


def _least_usd(problem: Slices) -> float:
    """With parts of GPUs for rent, every slice goes where it is cheapest: no plan costs less."""
    return float((problem.usd * problem.load).min(axis=1) @ problem.slices)


def _dearness(problem: Slices) -> Floats:
    """What one slice costs more than where it is cheapest; `inf` where it cannot run."""
    usd = problem.usd * problem.load
    return np.asarray(usd - usd.min(axis=1)[:, None])


def _filled(problem: Slices, engine: Engine, relaxed: Answer, deadline: Deadline) -> Whole | None:
    """Whole slices: what the divisible answer places whole stays; more and more buckets are placed anew."""
    assert relaxed.values is not None
    divisible = np.zeros(problem.load.shape)
    divisible[np.isfinite(problem.load)] = relaxed.values[len(problem.usd) :]
    split = (np.abs(divisible - np.rint(divisible)) > SPLIT).any(axis=1)
    second = np.sort(_dearness(problem), axis=1)[:, min(1, problem.load.shape[1] - 1)]
    likely = np.argsort(np.where(split, -1.0, second), kind="stable")
    best: Whole | None = None
    for free in FREED:
        fixed = np.ones(len(problem.slices), dtype=np.bool_)
        fixed[likely[: max(free, int(split.sum()))]] = False
        limits = Limits(time_s=max(0.05, FILL_PART * deadline.left_s))
        ask = _Ask(
            limits=limits,
            whole=True,
            fixed=np.where(fixed[:, None], np.rint(divisible), -1.0),
            usd_least=relaxed.bound * (1 - PROVEN),
        )
        answer = _solve(problem, engine, ask)
        if answer.values is not None:
            found = _counts(problem, answer, None)
            if best is None or problem.objective(found) < problem.objective(best):
                best = found
        if best is not None and problem.objective(best) <= relaxed.bound * (1 + PROVEN):
            break
        if deadline.over or fixed.sum() == 0:
            break
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One programme: divisible or whole slices, some perhaps placed already."""

    limits: Limits
    whole: bool = False
    fixed: Floats | None = None
    """Bucket x type: slices that are placed already; negative where they are to be placed."""
    keep: Flags | None = None
    """Bucket x type: slices that may be there."""
    usd_least: float = 0.0


def _solve(problem: Slices, engine: Engine, ask: _Ask) -> Answer:
    """GPUs by type first, then slices by (bucket, type) where they can run."""
    able = np.isfinite(problem.load) if ask.keep is None else ask.keep & np.isfinite(problem.load)
    bucket, gpu = np.nonzero(able)
    types = len(problem.usd)
    rows = Rows()
    most = np.full(types, np.inf) if problem.gpus_max is None else problem.gpus_max.astype(np.float64)
    gpus = rows.add_columns(problem.usd, most)
    upper = problem.slices[bucket].astype(np.float64)
    if ask.fixed is not None:
        # What must add up to all slices of a bucket, each at most as many as are placed, is placed.
        upper = np.where(ask.fixed[able] >= 0, ask.fixed[able], upper)
    slices = rows.add_columns(np.zeros(len(bucket)), upper, integer=ask.whole)
    placed = rows.add_rows(problem.slices.astype(np.float64), problem.slices.astype(np.float64))
    rows.enter(placed[bucket], slices, 1.0)
    room = rows.add_rows(np.full(types, -np.inf), np.zeros(types))
    rows.enter(room[gpu], slices, problem.load[able] * (1 + SAFETY))
    rows.enter(room, gpus, -1.0)
    if ask.usd_least:
        (least,) = rows.add_rows(np.array([ask.usd_least]), np.array([np.inf]))
        rows.enter(least, gpus, problem.usd)
    return engine.solve(rows.program(), ask.limits)


def _counts(problem: Slices, answer: Answer, keep: Flags | None) -> Whole:
    assert answer.values is not None
    able = np.isfinite(problem.load) if keep is None else keep & np.isfinite(problem.load)
    counts = np.zeros(problem.load.shape, dtype=np.int64)
    counts[able] = np.rint(answer.values[len(problem.usd) :]).astype(np.int64)
    return counts
