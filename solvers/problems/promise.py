"""From execution latency to the latency a user sees, and back to the rate a replica may be given.

Owns one formula. A server starts a batch of at most b requests as soon as its share is free, so a request waits for the
batch in flight (one execution L) and then runs (another L). Arrivals are bursty: with Poisson arrivals at utilisation r
the backlog at quantile q adds up to ln(1/(1-q)) * r / (2 (1-r) b) executions. Hence

    latency(r) = L * (2 + ln(1/(1-q)) * r / (2 (1-r) b))         end to end
    latency(r) = L                                               execution only

L is the measured p99 where there is one, else the mean, times the interference margin when the device may be shared.
The rate granted is r * 1000 b / L_mean with the largest r that keeps the promise and is not above the policy's
`utilisation_max`; below `UTILISATION_MIN` the promise counts as out of reach. So an end-to-end promise below 2 L can
never be kept (L <= SLO/2). Measured against the simulator's batching server the formula is close for small batches and
careful for large ones. Nothing here knows tokens: SLOs of kind `tokens` are the business of
`models.serving.token_plans`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UTILISATION_MIN = 0.05
"""A replica that must idle more than this to keep its promise is not worth its place."""
PERCENTILE_MAX = 99.99
"""An infinite quantile has no finite queue; nobody can tell it from this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What must be kept: `limit_ms` None means that only throughput counts."""

    limit_ms: float | None
    percentile: float = 99.0
    end_to_end: bool = True
    utilisation_max: float = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Element-wise: whether the promise can be kept, the planned latency at the granted rate, the granted rate."""

    feasible: NDArray[np.bool_]
    latency_ms: Floats
    capacity_rps: Floats


def settle(promise: Promise, batch: Floats, mean_ms: Floats, tail_ms: Floats) -> Outcome:
    """Apply the formula to arrays of configurations; latencies already carry the interference margin."""
    utilisation = np.full(np.shape(mean_ms), promise.utilisation_max, dtype=np.float64)
    waits = np.zeros(np.shape(mean_ms))
    if promise.end_to_end:
        quantile = min(promise.percentile, PERCENTILE_MAX) / 100
        burst = math.log(1 / (1 - quantile))
        if promise.limit_ms is not None:
            # Executions the promise leaves for the backlog; the formula solved for r.
            spare = np.maximum(promise.limit_ms / tail_ms - 2, 0.0)
            bearable = 2 * batch * spare / (burst + 2 * batch * spare)
            utilisation = np.maximum(np.minimum(utilisation, bearable), UTILISATION_MIN)
        waits = 1 + burst * utilisation / (2 * (1 - utilisation) * batch)
    latency = tail_ms * (1 + waits)
    limit = math.inf if promise.limit_ms is None else promise.limit_ms
    return Outcome(
        feasible=latency <= limit * (1 + 1e-9),
        latency_ms=latency,
        capacity_rps=utilisation * 1000 * batch / mean_ms,
    )
