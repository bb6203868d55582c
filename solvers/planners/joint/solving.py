"""Layouts for one reading: the whole problem, or only what has a reason to change.

Owns what a solve is told beside the problem: what stands, what was found before, how near is near enough. A narrowed
solve keeps the rest as it stands and proves nothing. It refuses to name devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from solvers.engines.deadline import Deadline
from solvers.planners.base import PlanRequest
from solvers.planners.joint.core.order import SolveOrder
from solvers.planners.joint.holding import held
from solvers.planners.joint.narrowing import narrow
from solvers.planners.joint.reading import Reading
from solvers.planners.joint.remembering import recall
from solvers.planners.joint.scope import restless_of, scope_of
from solvers.problems.joint import JointProblem
from solvers.problems.layout import Layout
from solvers.problems.patterns import Pattern

Solve = Callable[[JointProblem, SolveOrder, Deadline], Layout]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What came out, and what to begin with next time, the most useful first."""

    found: Layout
    """The solve's."""
    held: Layout | None
    """What changes least, where something stands; which of both is better shows when they are seated."""
    patterns: tuple[Pattern, ...]


def solved(solve: Solve, asked: tuple[PlanRequest, Reading], state: bytes, deadline: Deadline) -> Solved:
    """Raises EngineError as `solve` does."""
    request, reading = asked
    policy, problem, standing = request.snapshot.policy, reading.problem, reading.standing_patterns()
    order = SolveOrder(
        standing=standing,
        warm=recall(state, problem) if state else (),
        gap=policy.gap_pct_target / 100,
        seed=request.seed,
        launch_usd_per_s=policy.launch_usd_per_s,
    )
    restless = restless_of(reading, standing)
    opened = scope_of(reading, standing, restless)
    found = solve(problem, order, deadline) if opened is None else _narrowly(solve, problem, (order, opened), deadline)
    count = len(problem.workloads) if opened is None else len(opened)
    found = replace(found, facts=found.facts | {"workloads_open": float(count)})
    return Solved(
        found=found,
        held=held(problem, standing, restless) if standing else None,
        patterns=(*found.patterns, *found.columns, *order.warm),
    )


def _narrowly(
    solve: Solve, problem: JointProblem, asked: tuple[SolveOrder, frozenset[int]], deadline: Deadline
) -> Layout:
    order, opened = asked
    part = narrow(problem, order.standing, opened)
    if not (part.problem.workloads and part.problem.kinds):
        return part.widened(Layout(patterns=(), counts=()))
    warm = part.inside(order.warm)
    inner = replace(order, standing=part.open_standing(order.standing), warm=warm, proof=False)
    return part.widened(solve(part.problem, inner, deadline))
