"""The answer to a joint problem: how many devices carry which pattern, what that leaves unserved, costs and is worth.

The values between the solver, which knows pools, and the seating of patterns on named devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What stands now, seen as patterns: to keep one saves its launches."""

    pattern: Pattern
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Duals at the best bound, $/h."""

    demand_usd: Floats
    """By workload: for its whole rate."""
    pool_usd: Floats
    """By pool: what one more device would save (0 or more)."""
    cap_usd: Floats
    """By power cap: what one more watt would save."""
    quota_usd: Floats
    """By quota: what one more GPU would save."""
    most_usd: Floats
    """By workload: what one more replica allowed would save."""
    fewest_usd: Floats
    """By workload: what one replica fewer asked for would save."""
    budget_usd: Floats
    """By workload: what $1/h more of budget would save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Patterns with how many devices carry each; counts are at least 1."""

    patterns: tuple[Pattern, ...]
    counts: tuple[int, ...]
    bound_usd_per_h: float | None = None
    """Proven lower bound on the cost of any layout that leaves no more unserved (unserved demand priced in)."""
    prices: Prices | None = None
    columns: tuple[Pattern, ...] = ()
    """Patterns that the next solve had better begin with, beside those in use."""
    facts: dict[str, float] = field(default_factory=dict)
    """Columns, rounds, seconds by phase."""

    @property
    def usd_per_h(self) -> float:
        """Cost of all devices in use."""
        return float(sum(item.usd_per_h * count for item, count in zip(self.patterns, self.counts, strict=True)))

    def served_rps(self, problem: JointProblem) -> Floats:
        """Capacity of each workload."""
        total = np.zeros(len(problem.workloads))
        for item, count in zip(self.patterns, self.counts, strict=True):
            for variant, capacity in zip(item.variants, item.capacity_rps, strict=True):
                total[problem.variants[variant].workload] += count * capacity
        return total

    def devices(self, problem: JointProblem) -> Floats:
        """Devices in use of each pool."""
        total = np.zeros(len(problem.pools))
        for item, count in zip(self.patterns, self.counts, strict=True):
            total[int(problem.kind_pool[item.kind])] += count
        return total
