"""What a solve is asked for beside the problem: what stands, what was found before, how near is near enough."""

from __future__ import annotations

from dataclasses import dataclass

from solvers.problems.layout import Standing
from solvers.problems.patterns import Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOrder:
    """One order. All fields have a meaning when left out: a solve from nothing."""

    standing: tuple[Standing, ...] = ()
    """What stands now; to keep one of these is cheaper by the launches that it saves."""
    warm: tuple[Pattern, ...] = ()
    """Patterns to begin with, from an earlier solve; those that no longer keep their promises are left out."""
    gap: float = 0.003
    """Stop when cost and bound are this near, as a fraction of the cost."""
    seed: int = 1
    launch_usd_per_s: float = 0.0002
    """$/h that may be spent to avoid one second of launching."""
    proof: bool = True
    """Whether to keep time for a bound."""
