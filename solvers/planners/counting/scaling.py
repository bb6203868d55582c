"""HetSev's programme: by how many instances of each type a service should grow or shrink.

Owns the linear form (growth and shrinkage as two whole numbers for each type, because risk is paid for growth only) and
the single-type rule it is measured against. Any integer engine will do. It refuses to place instances.
"""

from __future__ import annotations

import math

import numpy as np

from solvers.engines.base import Answer, Engine, Limits, Program, Whole
from solvers.planners.counting.rows import Rows
from solvers.problems.counts import DUST, Scaling

GROWTH_MAX = 100_000


def program_of(problem: Scaling) -> Program:
    """Growth columns, then shrinkage columns."""
    rows = Rows()
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


def scale(problem: Scaling, engine: Engine, limits: Limits) -> tuple[Whole | None, Answer]:
    """The best change of counts, None where there is none (or none was found), and the engine's answer."""
    answer = engine.solve(program_of(problem), limits)
    if answer.values is None:
        return None, answer
    types = len(problem.usd)
    change = np.rint(answer.values[:types] - answer.values[types:]).astype(np.int64)
    return (change if problem.feasible(change) else None), answer


def scale_one_type(problem: Scaling) -> Whole | None:
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
