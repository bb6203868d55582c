"""The books of a simulated run: stretches into windows, windows into the numbers by which contenders are compared.

Owns what counts from the end of the warm-up on, the windows, and the names of the metrics. It refuses to look at the
world: it is handed sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from solvers.sim.outcome import Better, JobOutcome, Metric, RunWindow, ServiceOutcome, metric
from solvers.sim.world.accounting import Usage, bill
from solvers.sim.world.metrics import JOULES_PER_KWH, ServiceBook, Sums

SECONDS_PER_HOUR = 3600.0
_UP, _DOWN, _NEITHER = Better.HIGHER, Better.LOWER, Better.NEITHER


@dataclass(frozen=True, slots=True)
class Count:
    """Things that happened so often."""

    starts: int = 0
    stops: int = 0
    promotions: int = 0
    cycles: int = 0
    unsound_plans: int = 0
    planner_failures: int = 0

    def since(self, before: Count) -> Count:
        """What came after."""
        return Count(
            starts=self.starts - before.starts,
            stops=self.stops - before.stops,
            promotions=self.promotions - before.promotions,
            cycles=self.cycles - before.cycles,
            unsound_plans=self.unsound_plans - before.unsound_plans,
            planner_failures=self.planner_failures - before.planner_failures,
        )


@dataclass(slots=True)
class Ledger:
    """Sums over what counts. `fleet_gpus`: GPUs in the whole fleet."""

    window_s: float
    fleet_gpus: float
    fleet_memory_mib: float = 0.0
    """Of all devices, where training memory may move between them and their hosts; else 0, and memory is not told."""
    total: Sums = field(default_factory=Sums)
    open: Sums = field(default_factory=Sums)
    windows: list[RunWindow] = field(default_factory=list)
    power_w_peak: float = 0.0
    gpus_peak: float = 0.0

    def take(self, sums: Sums, gpus: float, power_w: float) -> None:
        """Add a stretch."""
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
        """The warm-up is over: begin anew."""
        self.total, self.open = Sums(), Sums()
        self.windows.clear()
        self.power_w_peak = self.gpus_peak = 0.0
        for book in books:
            book.begin_anew()

    def metrics(
        self,
        services: tuple[ServiceOutcome, ...],
        jobs: tuple[JobOutcome, ...],
        usages: Iterable[Usage],
        count: Count,
    ) -> tuple[Metric, ...]:
        """All of them by name."""
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
