"""From execution latency to the latency a user sees, and back to the rate a replica may be given.

The one place of the formula, for one promise and for arrays of them; only the verifier has its own, on purpose. A
server starts a batch of at most b requests as soon as its share is free, so a request waits for the batch in flight
(one execution L) and then runs (another L). Arrivals are bursty: with Poisson arrivals at utilisation r the backlog at
quantile q adds up to ln(1/(1-q)) * r / (2 (1-r) b) executions. Hence

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

from solvers.domain.arrays import Flags, Floats, Whole

UTILISATION_MIN = 0.05
"""A replica that must idle more than this to keep its promise is not worth its place."""
TOLERANCE = 1e-9
"""Part of a limit that rounding may add."""
PERCENTILE_MAX = 99.99
"""An infinite quantile has no finite queue; none can tell it from this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What must be kept: `limit_ms` None means that only throughput counts."""

    limit_ms: float | None
    percentile: float = 99.0
    end_to_end: bool = True
    utilisation_max: float = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseOutcome:
    """Element-wise: whether the promise can be kept, the planned latency at the granted rate, the granted rate."""

    feasible: Flags
    latency_ms: Floats
    capacity_rps: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Promises that broadcast over configurations: plain numbers for one of them, arrays for many."""

    limit_ms: Floats | float
    """`inf` where only throughput counts."""
    burst: Floats | float
    """ln(1/(1-quantile)); without meaning where only the execution counts."""
    end_to_end: Flags | bool
    utilisation_max: Floats | float

    def take(self, which: Whole) -> Promises:
        """Of arrays, some, with an axis for batches behind."""
        limit_ms, burst, end_to_end, busy = (
            np.asarray(values)[which][..., None]
            for values in (self.limit_ms, self.burst, self.end_to_end, self.utilisation_max)
        )
        return Promises(limit_ms=limit_ms, burst=burst, end_to_end=end_to_end, utilisation_max=busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseLoad:
    """Element-wise: how busy a replica may be, the planned latency then, and whether that keeps the promise."""

    utilisation: Floats
    latency_ms: Floats
    kept: Flags

    def rate_rps(self, batch: Floats, mean_ms: Floats) -> Floats:
        """What may be granted; 0 where the promise cannot be kept."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = self.utilisation * 1000 * batch / mean_ms
        return np.where(self.kept & np.isfinite(mean_ms), rate, 0.0)


def bearable(promises: Promises, batch: Floats, tail_ms: Floats) -> PromiseLoad:
    """The formula, and solved for the utilisation. Latencies already carry every slowdown."""
    limit, burst, most = promises.limit_ms, promises.burst, promises.utilisation_max
    queues = np.asarray(promises.end_to_end)
    busy: Floats = np.asarray(most, dtype=np.float64)
    waits: Floats = np.zeros(())
    with np.errstate(divide="ignore", invalid="ignore"):
        if queues.any():
            # Executions the promise leaves for the backlog.
            spare = 2 * batch * np.maximum(limit / tail_ms - 2, 0.0)
            borne = np.where(np.asarray(burst) > 0, spare / (burst + spare), most)
            borne = np.maximum(np.minimum(most, borne), UTILISATION_MIN)
            busy = np.where(queues & np.isfinite(limit), borne, most)
            waits = np.where(queues, 1 + burst * busy / (2 * (1 - busy) * batch), 0.0)
        latency = tail_ms * (1 + waits)
    return PromiseLoad(utilisation=busy, latency_ms=latency, kept=latency <= limit * (1 + TOLERANCE))


def settle(promise: Promise, batch: Floats, mean_ms: Floats, tail_ms: Floats) -> PromiseOutcome:
    """Apply the formula to arrays of configurations; latencies already carry the interference margin."""
    quantile = min(promise.percentile, PERCENTILE_MAX) / 100
    promises = Promises(
        limit_ms=math.inf if promise.limit_ms is None else promise.limit_ms,
        burst=math.log(1 / (1 - quantile)),
        end_to_end=promise.end_to_end,
        utilisation_max=promise.utilisation_max,
    )
    load = bearable(promises, batch, tail_ms)
    return PromiseOutcome(
        feasible=load.kept,
        latency_ms=load.latency_ms,
        capacity_rps=load.utilisation * 1000 * batch / mean_ms,
    )
