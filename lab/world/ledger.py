"""The books of a simulated run: requests and their latencies by service, money, energy, use and training over time;
stretches into windows, windows into the numbers by which contenders are compared.

Both modes fill the same books, so that their numbers can be compared. Percentiles come from a histogram with steps of
2 %, so a book costs the same after a minute and after a month.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace

import numpy as np

from agents.wire import mirrored
from lab.outcome import Better, JobOutcome, Metric, RunWindow, ServiceOutcome, metric
from solvers.domain.arrays import Floats, Whole
from solvers.domain.ids import ServiceId
from solvers.domain.workload import Service, SloKind, SloScope

# --- Sums: a request is violated when it is answered late or dropped

_STEP = 1.02
_LEAST_MS = 0.01
BINS = 1200
"""Up to 0.01 ms times 1.02 ** 1200, which is more than two days."""
JOULES_PER_KWH = 3.6e6


def bin_of(latency_ms: float) -> int:
    return min(BINS - 1, int(math.log(max(latency_ms, _LEAST_MS) / _LEAST_MS) / math.log(_STEP)))


def bins_of(latency_ms: Floats) -> Whole:
    index = (np.log(np.maximum(latency_ms, _LEAST_MS) / _LEAST_MS) / math.log(_STEP)).astype(np.int64)
    return np.minimum(index, BINS - 1)


def percentile_ms(histogram: Floats, percentile: float) -> float | None:
    """Latency that this percentage of answers keeps, up to 2 % too high; None without answers."""
    total = float(histogram.sum())
    if total <= 0.0:
        return None
    index = int(np.searchsorted(np.cumsum(histogram), total * percentile / 100.0 - 1e-9 * total))
    return float(_LEAST_MS * _STEP ** (min(index, BINS - 1) + 1))


@dataclass(slots=True)
class Flow:
    asked: float = 0.0
    completed: float = 0.0
    late: float = 0.0
    dropped: float = 0.0

    def add(self, other: Flow) -> None:
        self.asked += other.asked
        self.completed += other.completed
        self.late += other.late
        self.dropped += other.dropped


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
    histogram: Floats = field(default_factory=lambda: np.zeros(BINS))

    @classmethod
    def of(cls, service: Service) -> ServiceBook:
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
        self.total.add(flow)
        self.window.add(flow)

    def close_window(self) -> Flow:
        """End a window; what it saw. Windows in which nothing was asked or nothing ended do not count."""
        flow, self.window = self.window, Flow()
        ended = flow.completed + flow.dropped
        if flow.asked > 0.0 and ended > 0.0:
            self.windows += 1
            self.windows_violation_pct += 100.0 * (flow.late + flow.dropped) / ended
        return flow

    def begin_anew(self) -> None:
        self.total, self.window = Flow(), Flow()
        self.windows, self.windows_violation_pct = 0, 0.0
        self.histogram = np.zeros(BINS)

    def outcome(self, span_s: float) -> ServiceOutcome:
        total = self.total
        ended = total.completed + total.dropped
        bad = (total.late + total.dropped) / ended if ended > 0.0 else 0.0
        enough = self.rps_min is None or total.completed / span_s >= self.rps_min
        starved = ended <= 0.0 < total.asked
        p50, p95, p99 = (percentile_ms(self.histogram, percentile) for percentile in (50.0, 95.0, 99.0))
        return mirrored(
            ServiceOutcome,
            total,
            self,
            latency_ms_p50=p50,
            latency_ms_p95=p95,
            latency_ms_p99=p99,
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


# --- What instances cost under three rules of accounting, side by side
#
# `paper`: whoever shares GPUs pays for the memory that its instances use, whoever takes GPUs whole pays for all their
# memory (HetSev's published comparison). `reserved`: everybody pays for the memory that is reserved. `occupied`:
# everybody pays for whole GPUs as long as anything runs on them, however many instances share them. Prices are per GB
# of GPU memory and second, in any one unit.


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One instance on one GPU from a moment to another."""

    gpu: str
    price_per_gb_s: float
    memory_gb_gpu: float
    memory_gb_reserved: float
    memory_gb_used: float
    begin_s: float
    end_s: float
    whole_gpu: bool = False
    """Whether its policy takes GPUs whole."""

    @property
    def seconds(self) -> float:
        return max(0.0, self.end_s - self.begin_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    paper: float
    reserved: float
    occupied: float


def bill(usages: Iterable[Usage]) -> Bill:
    """What these instances cost together."""
    items = list(usages)
    by_gpu: dict[str, list[Usage]] = defaultdict(list)
    for item in items:
        by_gpu[item.gpu].append(item)
    return Bill(
        paper=sum(
            item.price_per_gb_s * (item.memory_gb_gpu if item.whole_gpu else item.memory_gb_used) * item.seconds
            for item in items
        ),
        reserved=sum(item.price_per_gb_s * item.memory_gb_reserved * item.seconds for item in items),
        occupied=sum(
            together[0].price_per_gb_s * together[0].memory_gb_gpu * _busy_s(together)
            for together in (by_gpu[gpu] for gpu in sorted(by_gpu))
        ),
    )


def _busy_s(items: list[Usage]) -> float:
    busy, reached = 0.0, float("-inf")
    for item in sorted(items, key=lambda item: (item.begin_s, item.end_s)):
        busy += max(0.0, item.end_s - max(item.begin_s, reached))
        reached = max(reached, item.end_s)
    return busy


# --- From the end of the warm-up on

SECONDS_PER_HOUR = 3600.0
_UP, _DOWN, _NEITHER = Better.HIGHER, Better.LOWER, Better.NEITHER


@dataclass(frozen=True, slots=True)
class Count:
    starts: int = 0
    stops: int = 0
    promotions: int = 0
    cycles: int = 0
    unsound_plans: int = 0
    planner_failures: int = 0

    def since(self, before: Count) -> Count:
        names = (item.name for item in fields(Count))
        return Count(**{name: getattr(self, name) - getattr(before, name) for name in names})


@dataclass(slots=True)
class Ledger:
    """Sums over what counts. `fleet_gpus`: GPUs in the whole fleet."""

    fleet_gpus: float
    fleet_memory_mib: float = 0.0
    """Of all devices, where training memory may move between them and their hosts; else 0, and memory is not told."""
    total: Sums = field(default_factory=Sums)
    open: Sums = field(default_factory=Sums)
    windows: list[RunWindow] = field(default_factory=list)
    power_w_peak: float = 0.0
    gpus_peak: float = 0.0

    def take(self, sums: Sums, gpus: float, power_w: float) -> None:
        self.total.add(sums)
        self.open.add(sums)
        self.power_w_peak = max(self.power_w_peak, power_w)
        self.gpus_peak = max(self.gpus_peak, gpus)

    def close_window(self, now_s: float, books: Iterable[ServiceBook]) -> None:
        """End the window that ends now; one in which no time passed is none."""
        sums, self.open = self.open, Sums()
        flows = [book.close_window() for book in books]
        seconds = sums.seconds
        if seconds <= 0.0:
            return
        violated = sum(flow.late + flow.dropped for flow in flows)
        self.windows.append(
            RunWindow(
                from_s=round(now_s - seconds, 9),
                until_s=now_s,
                asked_rps=sum(flow.asked for flow in flows) / seconds,
                in_time_rps=sum(flow.completed - flow.late for flow in flows) / seconds,
                violated_rps=violated / seconds,
                devices_used=sums.device_s / seconds,
                replicas=sums.replica_s / seconds,
                usd_per_h=(sums.device_usd + sums.energy_usd) * SECONDS_PER_HOUR / seconds,
                power_w=sums.energy_j / seconds,
                utilisation_pct=_pct(sums.busy_gpu_s, sums.gpu_s),
                iterations=sums.iterations,
                kernels_pct=_pct(sums.kernels_gpu_s, sums.gpu_s),
            )
        )

    def forget(self, books: Iterable[ServiceBook]) -> None:
        self.total, self.open = Sums(), Sums()
        self.windows.clear()
        self.power_w_peak = self.gpus_peak = 0.0
        for book in books:
            book.begin_anew()

    def metrics(
        self, services: tuple[ServiceOutcome, ...], jobs: tuple[JobOutcome, ...], usages: Iterable[Usage], count: Count
    ) -> tuple[Metric, ...]:
        total, span_s = self.total, self.total.seconds
        asked = sum(each.completed + each.dropped for each in services)
        in_time = sum(each.completed - each.late for each in services)
        tails = [each.latency_ms_p99 for each in services if each.latency_ms_p99 is not None]
        done = [each.took_s for each in jobs if each.took_s is not None]
        bills = bill(usages)
        found = [
            metric("violation_pct", _pct(asked - in_time, asked), _DOWN),
            metric("windows_violation_pct", _mean([each.windows_violation_pct_mean for each in services]), _DOWN),
            metric("attained_pct", _pct(sum(each.attained for each in services), len(services), empty=100.0), _UP),
            metric("throughput_rps", in_time / span_s, _UP),
            metric("completed_rps", sum(each.completed for each in services) / span_s, _UP),
            metric("capacity_rps", total.capacity_requests / span_s, _UP),
            metric("latency_ms_p99_mean", _mean(tails), _DOWN),
            metric("cost_usd", total.device_usd + total.energy_usd, _DOWN),
            metric("cost_device_usd", total.device_usd, _DOWN),
            metric("cost_paper_usd", bills.paper, _DOWN),
            metric("cost_reserved_usd", bills.reserved, _DOWN),
            metric("cost_occupied_usd", bills.occupied, _DOWN),
            metric("energy_kwh", total.energy_j / JOULES_PER_KWH, _DOWN),
            metric("energy_j_per_request", total.energy_j / in_time if in_time > 0.0 else 0.0, _DOWN),
            metric("gpu_hours", total.gpu_s / SECONDS_PER_HOUR, _DOWN),
            metric("gpus_mean", total.gpu_s / span_s, _DOWN),
            metric("gpus_peak", self.gpus_peak, _DOWN),
            metric("utilisation_pct", _pct(total.busy_gpu_s, total.gpu_s), _UP),
            metric("fleet_utilisation_pct", _pct(total.busy_gpu_s, self.fleet_gpus * span_s), _UP),
            metric("power_w_peak", self.power_w_peak, _DOWN),
            metric("power_over_cap_pct", _pct(total.caps_over_s, total.caps_s), _DOWN),
            metric("execution_over_limit_pct", _pct(total.limits_over_s, total.limits_s), _DOWN),
            metric("iterations", total.iterations, _UP),
            metric("jobs_done", len(done), _UP),
            metric("job_took_s_mean", _mean(done), _DOWN),
            metric("starts", count.starts, _DOWN),
            metric("stops", count.stops, _DOWN),
            metric("promotions", count.promotions, _NEITHER),
            metric("cycles", count.cycles, _NEITHER),
            metric("unsound_plans", count.unsound_plans, _DOWN),
            metric("planner_failures", count.planner_failures, _DOWN),
        ]
        if self.fleet_memory_mib:
            held_pct = _pct(total.memory_mib_s, self.fleet_memory_mib * span_s)
            found += [metric("fleet_memory_pct", held_pct, _UP), metric("swapped_gib", total.swapped_mib / 1024.0)]
        return tuple(sorted(found, key=lambda each: each.name))


def clipped(usages: Iterable[Usage], from_s: float) -> list[Usage]:
    """Usages without what was before a moment."""
    return [replace(each, begin_s=max(from_s, each.begin_s)) for each in usages if each.end_s > from_s]


def _pct(part: float, whole: float, empty: float = 0.0) -> float:
    return 100.0 * part / whole if whole > 0.0 else empty


def _mean(items: list[float]) -> float:
    return sum(items) / len(items) if items else 0.0
