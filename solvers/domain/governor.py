"""What controllers promise, as data: whoever judges a plan asks this, never which controller it is.

The controllers themselves are in `solvers.control`, which knows nothing of the domain; a test holds both together, by
what each controller does.
"""

from __future__ import annotations

from solvers.domain.value import value


@value
class GovernorSpec:
    """A controller that moves batches and clocks inside their envelopes between plans."""

    name: str
    keeps_latency: bool
    """Whether it makes batches smaller for as long as a replica is late, and so comes back to what was planned."""
    clock_alone: bool = False
    """Whether it keeps a limit by the clock and by nothing else."""


GOVERNORS = (
    GovernorSpec(name="morak", keeps_latency=True),
    GovernorSpec(name="clipper_l", keeps_latency=True),
    GovernorSpec(name="clipper_p", keeps_latency=False),
    GovernorSpec(name="dfs", keeps_latency=False, clock_alone=True),
    GovernorSpec(name="batchdvfs", keeps_latency=False),
)


def governor_of(name: str) -> GovernorSpec:
    """By name; of a controller that nobody knows nothing is expected."""
    return next((item for item in GOVERNORS if item.name == name), GovernorSpec(name=name, keeps_latency=False))
