"""Layouts for one reading: the whole problem, or only what has a reason to change.

Owns what a solve is told beside the problem: what stands, what was found before, how near is near enough. A narrowed
solve keeps the rest as it stands and proves nothing. It refuses to name devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from solvers.engines.deadline import Deadline
from solvers.planners.base import PlanRequest
from solvers.planners.joint.change.holding import held
from solvers.planners.joint.change.narrowing import narrow
from solvers.planners.joint.change.remembering import NOTHING, recall
from solvers.planners.joint.change.scope import restless_of, scope_of
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.solve.phases import SolveOrder
from solvers.problems.joint import JointProblem
from solvers.problems.layout import Layout
from solvers.problems.patterns import Pattern

SHORT_DUST = 1e-6
Solve = Callable[[JointProblem, SolveOrder, Deadline], Layout]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What came out, and what to begin with next time, the most useful first."""

    found: Layout
    """The solve's."""
    held: Layout | None
    """What changes least, where something stands; which of both is better shows when they are seated."""
    patterns: tuple[Pattern, ...]
    full_at_s: float | None
    """When the last full solve was, this one or an earlier one."""


def solved(solve: Solve, asked: tuple[PlanRequest, Reading], state: bytes, deadline: Deadline) -> Solved:
    """Raises EngineError as `solve` does."""
    request, reading = asked
    policy, problem, standing = request.snapshot.policy, reading.problem, reading.standing_patterns()
    kept = recall(state, problem) if state else NOTHING
    order = SolveOrder(
        standing=standing,
        warm=kept.patterns,
        gap=policy.gap_pct_target / 100,
        seed=request.seed,
        launch_usd_per_s=policy.launch_usd_per_s,
    )
    restless = restless_of(reading, standing)
    opened = scope_of(reading, standing, restless, kept.full_at_s)
    found = solve(problem, order, deadline) if opened is None else _narrowly(solve, problem, (order, opened), deadline)
    count = len(problem.workloads) if opened is None else len(opened)
    found = replace(found, facts=found.facts | {"workloads_open": float(count)})
    return Solved(
        found=found,
        held=held(problem, standing, restless) if standing else None,
        patterns=(*found.patterns, *found.columns, *order.warm),
        full_at_s=request.snapshot.taken_at_s if opened is None else kept.full_at_s,
    )


def _narrowly(
    solve: Solve, problem: JointProblem, asked: tuple[SolveOrder, frozenset[int]], deadline: Deadline
) -> Layout:
    order, opened = asked
    part = narrow(problem, order.standing, opened)
    layout = Layout(patterns=(), counts=())
    if part.problem.workloads and part.problem.kinds:
        warm = part.inside(order.warm)
        inner = replace(order, standing=part.open_standing(order.standing), warm=warm, proof=False)
        layout = solve(part.problem, inner, deadline)
    found = part.widened(layout)
    missing_usd = _missing_usd(problem, found)
    if missing_usd <= 0.0 or len(opened) == len(problem.workloads):
        return found
    # What those need who are short may be held by others that were not opened: a device, a quota, a cap.
    whole = solve(problem, replace(order, proof=False), deadline)
    return whole if _missing_usd(problem, whole) < missing_usd else found


def _missing_usd(problem: JointProblem, layout: Layout) -> float:
    """What the demand counts, $/h, that must be served and is not; headroom and dust are nothing."""
    served = layout.served_rps(problem)
    missing_usd = 0.0
    for work, rate_rps in zip(problem.workloads, served, strict=True):
        short_rps = work.rate_least_rps - float(rate_rps)
        if short_rps > SHORT_DUST * work.rate_least_rps:
            missing_usd += work.unserved_usd * short_rps / work.rate_rps
    return missing_usd
