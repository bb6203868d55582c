"""One layout for one reading: the whole problem, or only what has a reason to change.

Owns what a solve is told beside the problem: what stands, what was found before, how near is near enough. A narrowed
solve keeps the rest as it stands and proves nothing. It refuses to name devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from solvers.engines.deadline import Deadline
from solvers.planners.base import PlanRequest
from solvers.planners.joint.core.order import SolveOrder
from solvers.planners.joint.narrowing import narrow
from solvers.planners.joint.reading import Reading
from solvers.planners.joint.remembering import recall
from solvers.planners.joint.scope import scope_of
from solvers.problems.joint import JointProblem
from solvers.problems.layout import Layout

Solve = Callable[[JointProblem, SolveOrder, Deadline], Layout]


def solved(solve: Solve, asked: tuple[PlanRequest, Reading], state: bytes, deadline: Deadline) -> Layout:
    """The layout to seat. Raises EngineError as `solve` does."""
    request, reading = asked
    policy, problem, standing = request.snapshot.policy, reading.problem, reading.standing_patterns()
    order = SolveOrder(
        standing=standing,
        warm=recall(state, problem) if state else (),
        gap=policy.gap_pct_target / 100,
        seed=request.seed,
        launch_usd_per_s=policy.launch_usd_per_s,
    )
    opened = scope_of(reading, standing)
    if opened is None:
        layout = solve(problem, order, deadline)
        return replace(layout, facts=layout.facts | {"workloads_open": float(len(problem.workloads))})
    part = narrow(problem, standing, opened)
    layout = Layout(patterns=(), counts=())
    if part.problem.workloads and part.problem.kinds:
        inner = replace(order, standing=part.open_standing(standing), warm=part.inside(order.warm))
        layout = solve(part.problem, inner, deadline)
    widened = part.widened(layout)
    return replace(widened, facts=widened.facts | {"workloads_open": float(len(opened))})
