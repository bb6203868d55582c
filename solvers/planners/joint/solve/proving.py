"""How cheap anything can be: duals moved until what they prove is near the relaxed optimum.

Owns the rounds: look for patterns that are worth more than they cost at the duals, state what follows from the highest
ceilings, add what was found, solve again and go on between the best duals so far and the new ones. The best statement
counts. It refuses to choose devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.engines.columns import Relaxed
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.bound import Bound, Ceilings, lagrangian
from solvers.planners.joint.solve.generate import Pace, generate
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.nearby import STEPS_PCT, neighbours
from solvers.planners.joint.solve.pricing import Pricing
from solvers.planners.joint.solve.rows import Rows
from solvers.problems.joint import Floats, JointProblem

TARGETS = (0.02, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005, 0.002, 0.002, 0.001, 0.001)
"""Parts of a device's price that ceilings may be above it, round by round."""
TARGETS_AT = (0.04, 0.02, 0.01)
CELLS_MAX = 12_000_000
"""Looking at so many at once takes more than a GiB."""
NEAR_ENOUGH = 0.001
"""Of the relaxed optimum."""
STEADY = 0.5
ROUNDS = 4
"""Of ordinary pricing between two looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The best bound, the duals that prove it, and the relaxed optimum over all that was found."""

    usd_per_h: float
    duals: Floats
    relaxed: Relaxed


Search = tuple[Master, Pricing, Relaxed]


def proven(search: Search, deadline: Deadline, until_part: float) -> Proof | None:
    """None where there was no time for any proof. Adds columns to the master."""
    master, pricing, relaxed = search
    problem = master.problem
    bound = Bound(problem, master.judge, master.rows)
    scale = scale_of(problem)
    best: Proof | None = None
    duals, level = relaxed.row_duals, 0
    while level < len(TARGETS) and deadline.left_part > until_part:
        target = TARGETS[level] * scale
        ceilings = bound.ceilings(duals, target, deadline, until_part)
        value = lagrangian(master.rows, duals, ceilings.worth)
        if np.isfinite(value) and (best is None or value > best.usd_per_h):
            best = Proof(usd_per_h=value, duals=duals, relaxed=relaxed)
        level += 1 if len(ceilings.seen) else 2
        if best is None or deadline.left_part <= until_part:
            break
        pace = Pace(rounds=ROUNDS, until_part=until_part, thorough=False, prior=duals)
        relaxed = _added((master, pricing, relaxed), ceilings, deadline, pace)
        best = replace(best, relaxed=relaxed)
        if best.usd_per_h >= relaxed.value - NEAR_ENOUGH * abs(relaxed.value):
            break
        duals = STEADY * best.duals + (1 - STEADY) * relaxed.row_duals
    return best


def proven_at(rows: Rows, judge: Judge, duals: Floats, deadline: Deadline, until_part: float) -> float | None:
    """The best bound that these duals alone prove; None where there was no time for any, or no memory."""
    bound, scale = Bound(rows.problem, judge, rows), scale_of(rows.problem)
    if bound.sorts.size > CELLS_MAX:
        return None
    best = -np.inf
    for part in TARGETS_AT:
        worth = bound.ceilings(duals, part * scale, deadline, until_part).worth
        best = max(best, lagrangian(rows, duals, worth))
        if deadline.left_part <= until_part:
            break
    return float(best) if np.isfinite(best) else None


def plain(master: Master) -> Master:
    """The same columns without cuts: those make duals that prove little."""
    if not len(master.rows.cut_work):
        return master
    other = Master(master.problem, master.judge)
    other.adopt(master.pool.judged)
    return other


def scale_of(problem: JointProblem) -> Floats:
    """By pool what a device costs, whole."""
    return np.array([max(problem.idle_usd_per_h(at), pool.usd_per_h) for at, pool in enumerate(problem.pools)])


def _added(search: Search, ceilings: Ceilings, deadline: Deadline, pace: Pace) -> Relaxed:
    """The relaxed optimum with what was seen, its neighbours, and what they make worth adding."""
    master, pricing, relaxed = search
    first = len(master.pool)
    if not master.offer(ceilings.seen):
        return relaxed
    duals = relaxed.row_duals if pace.prior is None else pace.prior
    for turn in range(len(STEPS_PCT)):
        master.offer(neighbours(master, np.arange(first, len(master.pool)), duals, turn), relaxed.row_duals)
    found = generate(master, pricing, deadline, pace)
    return relaxed if found is None else found.best
