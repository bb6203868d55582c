"""The target that a plan becomes where nobody else writes one."""

from __future__ import annotations

from solvers.domain.change import Target
from solvers.domain.codec import digest
from solvers.domain.ids import Generation
from solvers.domain.plan import Plan
from solvers.errors import SupersededError


def next_target(standing: Target, plan: Plan, at_s: float) -> Target:
    """The next generation. Raises SupersededError when the plan was made for another."""
    if plan.parent != standing.generation:
        raise SupersededError("the target is newer than the plan's parent", generation=standing.generation)
    return Target(
        generation=Generation(standing.generation + 1),
        plan=digest(plan),
        promoted_at_s=at_s,
        assignments=plan.assignments,
        settings=plan.settings,
    )
