"""Morak against its baselines in simulated worlds: plans, verified envelopes and controllers as they run in production.

Owns which scenarios stand for which claim, and what is read of them. In these worlds boards hold no cap, so that who
ignores power exceeds it; latencies nobody can break, because a plan opens no batch that would. What lies outside
verified envelopes, and single knobs switched off, is judged on boards alone (`morak_runs`).
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.claims.base import Effort
from lab.claims.morak.runs import BASELINES
from lab.claims.runs import mean_metric, outcomes

THROUGHPUT, ENERGY = "morak-150w-100ms", "morak-150w-300ms"
CAPS_AND_LIMITS = (THROUGHPUT, ENERGY, "morak-110w-100ms", "morak-200w-100ms", "morak-150w-50ms")
UNPARTITIONED = "whole_gpu@morak"
"""Morak's controller on whole GPUs."""


def measured(scenario: str, metric: str, effort: Effort, contenders: Sequence[str] = ()) -> dict[str, float]:
    """Means over seeds of Morak, of its baselines and of further contenders."""
    runs = outcomes(scenario, ("morak", *BASELINES, *contenders), effort)
    return {name: mean_metric(some, metric) for name, some in runs.items()}


def gains_pct(found: dict[str, float]) -> dict[str, float]:
    """Morak over everybody else."""
    return {name: 100.0 * (found["morak"] / number - 1.0) for name, number in found.items() if name != "morak"}


def over_cap_pct(effort: Effort) -> dict[str, float]:
    """The worst of all scenarios: how much of the time of devices was above their caps, by contender."""
    every = [measured(scenario, "power_over_cap_pct", effort) for scenario in CAPS_AND_LIMITS]
    return {name: max(found[name] for found in every) for name in every[0]}
