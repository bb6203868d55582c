"""HetSev's programme: by how many instances of each type one service should grow or shrink.

Growth and shrinkage are two whole numbers for each type, because risk is paid for growth only; interchangeable things
share one number, because a binary for each of them makes the same search many times as long. Beside the linear form
stand the plain rules it is measured against and falls back on: growth by one type, by one type after the other,
shrinkage by one instance. Any integer engine will do: an answer is judged here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.base import Engine, EngineAnswer, Limits, Program, ProgrammeRows

GROWTH_MAX = 100_000
DUST = 1e-9


class Direction(StrEnum):
    """Which changes one decision may mix."""

    FREE = "free"
    """Running instances may be traded for others."""
    OUT = "out"
    IN = "in"


@dataclass(frozen=True, kw_only=True)
class CountScaling:
    """One service on several instance types. Symbols of the paper: C usd, O launch_s, T rate_rps, L latency_ms, R
    needs, N running, W wanted_rps, S limit_ms, lambda risk_per_s; X is the change of counts.
    """

    usd: Floats
    launch_s: Floats
    rate_rps: Floats
    latency_ms: Floats
    needs: Floats
    """Resource x type: of one instance."""
    limits: Floats
    """By resource, for everything that stands then."""
    running: Whole
    wanted_rps: float
    limit_ms: float = float("inf")
    risk_per_s: float = 0.0
    """What a second of launching counts, as a part of the instance's cost."""
    direction: Direction = Direction.FREE

    @cached_property
    def may_grow(self) -> Flags:
        """Types that may be started: fast enough, and growing is allowed."""
        return (self.latency_ms <= self.limit_ms) & (self.direction is not Direction.IN)

    @property
    def may_shrink(self) -> bool:
        """Whether running instances may be stopped."""
        return self.direction is not Direction.OUT

    def objective(self, change: Whole) -> float:
        """Cost of a change: what it adds, and what its launches risk."""
        return float(self.usd @ (change + self.risk_per_s * self.launch_s * np.maximum(change, 0)))

    def feasible(self, change: Whole) -> bool:
        standing = self.running + change
        return bool(
            (standing >= 0).all()
            and (change[~self.may_grow] <= 0).all()
            and (self.may_shrink or (change >= 0).all())
            and self.rate_rps @ standing >= self.wanted_rps * (1 - DUST)
            and (self.needs @ standing <= self.limits * (1 + DUST)).all()
        )


def program_of(problem: CountScaling) -> Program:
    """Growth columns, then shrinkage columns."""
    rows = ProgrammeRows()
    risk = 1 + problem.risk_per_s * problem.launch_s
    # Rate and resources bound growth as well; the number only keeps the columns finite.
    most = min(GROWTH_MAX, math.ceil(problem.wanted_rps / float(problem.rate_rps.min())) + int(problem.running.sum()))
    growth = rows.add_columns(problem.usd * risk, np.where(problem.may_grow, float(most), 0.0))
    shrinkage = rows.add_columns(
        -problem.usd, problem.running.astype(np.float64) if problem.may_shrink else np.zeros(len(problem.usd))
    )
    standing_rps = float(problem.rate_rps @ problem.running)
    (rate,) = rows.add_rows(np.array([problem.wanted_rps - standing_rps]), np.array([np.inf]))
    rows.enter(rate, growth, problem.rate_rps)
    rows.enter(rate, shrinkage, -problem.rate_rps)
    room = problem.limits - problem.needs @ problem.running
    resources = rows.add_rows(np.full(len(room), -np.inf), room)
    rows.enter(resources[:, None], growth[None, :], problem.needs)
    rows.enter(resources[:, None], shrinkage[None, :], -problem.needs)
    return rows.program()


def scale(problem: CountScaling, engine: Engine, limits: Limits) -> tuple[Whole | None, EngineAnswer]:
    """The best change of counts, None where there is none (or none was found), and the engine's answer."""
    answer = engine.solve(program_of(problem), limits)
    if answer.values is None:
        return None, answer
    types = len(problem.usd)
    change = np.rint(answer.values[:types] - answer.values[types:]).astype(np.int64)
    return (change if problem.feasible(change) else None), answer


def scale_one_type(problem: CountScaling) -> Whole | None:
    """The paper's plain rule: grow one type only, the cheapest way; of equals the faster type. None where no single
    type can do it.
    """
    missing = problem.wanted_rps - float(problem.rate_rps @ problem.running)
    nothing = np.zeros(len(problem.usd), dtype=np.int64)
    if missing <= 0:
        return nothing if problem.feasible(nothing) else None
    best: Whole | None = None
    for number in np.argsort(-problem.rate_rps, kind="stable"):
        change = nothing.copy()
        change[number] = math.ceil(missing / problem.rate_rps[number] - DUST)
        if problem.feasible(change) and (best is None or problem.objective(change) < problem.objective(best) - DUST):
            best = change
    return best


def scale_type_by_type(problem: CountScaling) -> Whole:
    """The plain rule for growth where no type can do it alone: as many as fit of the one that would be cheapest, and
    again with the demand that is left, until nothing fits.
    """
    alone = scale_one_type(problem)
    if alone is not None:
        return alone
    change = np.zeros(len(problem.usd), dtype=np.int64)
    for _ in range(len(problem.usd)):
        missing = problem.wanted_rps - float(problem.rate_rps @ (problem.running + change))
        fitting = np.where(problem.may_grow, _most(problem, change), 0)
        if missing <= 0 or not fitting.any():
            break
        wanted = np.ceil(missing / problem.rate_rps - DUST)
        cost = wanted * problem.usd * (1 + problem.risk_per_s * problem.launch_s)
        best = int(np.lexsort((-problem.rate_rps, np.where(fitting > 0, cost, np.inf)))[0])
        change[best] += int(min(fitting[best], wanted[best]))
    return change


def _most(problem: CountScaling, change: Whole) -> Whole:
    """How many more of each type the resources take by themselves."""
    room = problem.limits - problem.needs @ (problem.running + change)
    each = np.where(problem.needs > 0, problem.needs, 1.0)
    times = np.where(problem.needs > 0, np.floor(room[:, None] / each + DUST), GROWTH_MAX)
    return np.asarray(np.clip(times.min(axis=0, initial=GROWTH_MAX), 0, GROWTH_MAX), dtype=np.int64)


def shrink_by_one(problem: CountScaling) -> Whole:
    """The plain rule for shrinkage: the dearest instance that the rate can do without; nothing where there is none."""
    for number in np.lexsort((problem.rate_rps, -problem.usd)):
        change = np.zeros(len(problem.usd), dtype=np.int64)
        change[number] = -1
        if problem.feasible(change):
            return change
    return np.zeros(len(problem.usd), dtype=np.int64)
