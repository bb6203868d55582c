"""What a simulated run was worth: requests and their latencies by service, money, energy, use and training over time.

Owns the sums and the ratios read off them; both modes fill the same books, so that their numbers can be compared. A
request is violated when it is answered late or dropped. It refuses to keep single requests: percentiles come from a
histogram with steps of 2 %, so a book costs the same after a minute and after a month.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from solvers.domain.ids import ServiceId
from solvers.domain.workload import Service, SloKind, SloScope
from solvers.sim.outcome import ServiceOutcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP = 1.02
_LEAST_MS = 0.01
BINS = 1200
"""Up to 0.01 ms times 1.02 ** 1200, which is more than two days."""
JOULES_PER_KWH = 3.6e6


def bin_of(latency_ms: float) -> int:
    """Where a latency stands in a histogram."""
    return min(BINS - 1, int(math.log(max(latency_ms, _LEAST_MS) / _LEAST_MS) / math.log(_STEP)))


def bins_of(latency_ms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Where latencies stand in a histogram."""
    index = (np.log(np.maximum(latency_ms, _LEAST_MS) / _LEAST_MS) / math.log(_STEP)).astype(np.int64)
    return np.minimum(index, BINS - 1)


def percentile_ms(histogram: NDArray[np.float64], percentile: float) -> float | None:
    """Latency that this percentage of answers keeps, up to 2 % too high; None without answers."""
    total = float(histogram.sum())
    if total <= 0.0:
        return None
    index = int(np.searchsorted(np.cumsum(histogram), total * percentile / 100.0 - 1e-9 * total))
    return float(_LEAST_MS * _STEP ** (min(index, BINS - 1) + 1))


@dataclass(slots=True)
class Flow:
    """What became of a service's requests in a stretch."""

    asked: float = 0.0
    completed: float = 0.0
    late: float = 0.0
    dropped: float = 0.0


@dataclass(slots=True)
class ServiceBook:
    """One service over a run. Latencies are of what its SLO speaks of: the execution alone, or the whole request."""

    service: ServiceId
    limit_ms: float | None
    percentile: float
    execution_only: bool
    rps_min: float | None = None
    total: Flow = field(default_factory=Flow)
    window: Flow = field(default_factory=Flow)
    windows: int = 0
    windows_violation_pct: float = 0.0
    """Summed over windows."""
    histogram: NDArray[np.float64] = field(default_factory=lambda: np.zeros(BINS))

    @classmethod
    def of(cls, service: Service) -> ServiceBook:
        """An empty one."""
        slo = service.slo
        return cls(
            service=service.id,
            limit_ms=slo.latency_ms if slo.kind is SloKind.LATENCY else None,
            percentile=slo.percentile,
            execution_only=slo.scope is SloScope.EXECUTION,
            rps_min=slo.throughput_rps_min,
        )

    def take(self, flow: Flow) -> None:
        """Add a stretch; its latencies go straight into the histogram."""
        for sums in (self.total, self.window):
            sums.asked += flow.asked
            sums.completed += flow.completed
            sums.late += flow.late
            sums.dropped += flow.dropped

    def close_window(self) -> Flow:
        """End a window; what it saw. Windows in which nothing was asked or nothing ended do not count."""
        flow, self.window = self.window, Flow()
        ended = flow.completed + flow.dropped
        if flow.asked > 0.0 and ended > 0.0:
            self.windows += 1
            self.windows_violation_pct += 100.0 * (flow.late + flow.dropped) / ended
        return flow

    def begin_anew(self) -> None:
        """Nothing so far counts."""
        self.total, self.window = Flow(), Flow()
        self.windows, self.windows_violation_pct = 0, 0.0
        self.histogram = np.zeros(BINS)

    def outcome(self, span_s: float) -> ServiceOutcome:
        """The whole run in numbers."""
        total = self.total
        ended = total.completed + total.dropped
        bad = (total.late + total.dropped) / ended if ended > 0.0 else 0.0
        enough = self.rps_min is None or total.completed / span_s >= self.rps_min
        starved = ended <= 0.0 < total.asked
        return ServiceOutcome(
            service=self.service,
            asked=total.asked,
            completed=total.completed,
            late=total.late,
            dropped=total.dropped,
            latency_ms_p50=percentile_ms(self.histogram, 50.0),
            latency_ms_p95=percentile_ms(self.histogram, 95.0),
            latency_ms_p99=percentile_ms(self.histogram, 99.0),
            windows=self.windows,
            windows_violation_pct_mean=self.windows_violation_pct / self.windows if self.windows else 0.0,
            attained=enough and not starved and bad <= 1.0 - self.percentile / 100.0 + 1e-12,
        )


@dataclass(slots=True)
class Sums:
    """Everything that adds up over time but requests; each field is an amount, or an amount times seconds."""

    seconds: float = 0.0
    gpu_s: float = 0.0
    """Rented, in whole GPUs."""
    device_s: float = 0.0
    replica_s: float = 0.0
    """Ready."""
    device_usd: float = 0.0
    energy_usd: float = 0.0
    energy_j: float = 0.0
    busy_gpu_s: float = 0.0
    """Shares at work, in whole GPUs."""
    kernels_gpu_s: float = 0.0
    """With kernels running, in whole GPUs."""
    capacity_requests: float = 0.0
    """What full batches of all services' ready processes would have answered, as devices ran."""
    iterations: float = 0.0
    memory_mib_s: float = 0.0
    """Held on devices by memory limits; counted only where training memory may move."""
    swapped_mib: float = 0.0
    caps_s: float = 0.0
    """Every power cap for as long as it holds."""
    caps_over_s: float = 0.0
    limits_s: float = 0.0
    """Every replica that executes and has a latency limit, for as long as it does."""
    limits_over_s: float = 0.0

    def add(self, other: Sums) -> None:
        """All fields."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_SUMMED = tuple(item.name for item in fields(Sums))


def over_part(sigma: float, mean_ms: float, limit_ms: float | None) -> float:
    """Part of log-normal times of this mean and spread that are above a limit."""
    if limit_ms is None:
        return 0.0
    if sigma <= 0.0:
        return float(mean_ms > limit_ms * (1.0 + 1e-9))
    return 0.5 * math.erfc((math.log(limit_ms / mean_ms) / sigma + 0.5 * sigma) / math.sqrt(2.0))


_NINTHS = (-1.593, -0.967, -0.589, -0.282, 0.0, 0.282, 0.589, 0.967, 1.593)
"""Middles of nine equal parts of a standard normal number."""


def spread_bins(sigma: float, mean_ms: float) -> tuple[int, ...]:
    """Bins of nine equal parts of log-normal times of this mean and spread."""
    return tuple(bin_of(mean_ms * math.exp(sigma * each - 0.5 * sigma * sigma)) for each in _NINTHS)
