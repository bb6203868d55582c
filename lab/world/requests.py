"""One service of a simulated world over one stretch, request by request.

Requests that nobody can take wait at the router and are dropped when hopeless: when they have waited longer than their
limit, or for half a minute where they have none. A batch that runs over the end of a stretch is answered in it; what
its process does afterwards does not change that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from lab.world.arrivals import BLOCK_S, ArrivalPattern, Source, arrival_times_s
from lab.world.clients import Clients, serve_clients
from lab.world.ledger import BINS, Flow, Sums, bins_of, over_part, spread_bins
from lab.world.loads import Load, WorldLoads
from lab.world.queues import ReplicaServer, RequestsOutcome, Stretch, serve_requests
from lab.world.scenario import Closed, Open, Saturating, WorldScenario
from lab.world.state import Meter, Process, ServiceLane, State
from solvers.domain.arrays import Floats, Streams, Whole
from solvers.domain.ids import ServiceId
from solvers.domain.workload import WorkloadKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a run: when it is, which number it has, and where its noise comes from."""

    from_s: float
    until_s: float
    index: int
    streams: Streams
    sigma: float

    @property
    def seconds(self) -> float:
        return self.until_s - self.from_s

    def draw(self, purpose: str) -> np.random.Generator:
        return self.streams.stream(f"{purpose}/{self.index}")


_server = lru_cache(maxsize=65536)(ReplicaServer)


def serve_lane(lane: ServiceLane, span: Span, arrivals_s: Floats, weights: list[float]) -> Flow:
    """Serve a service; `weights` are those of its processes. Their mean times are in their `exec_ms`."""
    flow = Flow(asked=float(len(arrivals_s)))
    if len(lane.waiting_s):
        arrivals_s = np.concatenate((lane.waiting_s, arrivals_s))
    lane.waiting_s = np.empty(0)
    if not any(weight > 0.0 for weight in weights):
        arrivals_s, lane.waiting_s = np.empty(0), arrivals_s
    idle = not any(each.carried.waiting_s or each.carried.free_s for each in lane.processes)
    if lane.processes and (len(arrivals_s) or not idle):
        stretch = _stretch(lane, span, arrivals_s, weights)
        _read(lane, serve_requests(stretch, span.draw(f"requests/{lane.id}")), span.sigma, flow)
    flow.dropped += _drop_hopeless(lane, span.until_s)
    return flow


def serve_clients_of(lane: ServiceLane, clients: Clients, span: Span, weights: list[float]) -> Flow:
    """Serve a service whose clients wait for their answers. Who waited at a process that is gone gives up, and comes
    again as a new client.
    """
    given_up, lane.waiting_s = len(lane.waiting_s), np.empty(0)
    waited = sum(len(each.carried.waiting_s) for each in lane.processes)
    stretch = _stretch(lane, span, np.empty(0), weights)
    outcome, lane.clients = serve_clients(stretch, clients, span.draw(f"clients/{lane.id}"))
    flow = Flow(asked=float(len(outcome.arrival_s) - waited), dropped=float(given_up))
    flow.dropped += float(np.count_nonzero(outcome.dropped & (outcome.replica < 0)))
    _read(lane, outcome, span.sigma, flow)
    return flow


def _stretch(lane: ServiceLane, span: Span, arrivals_s: Floats, weights: list[float]) -> Stretch:
    processes = lane.processes
    servers = (_server(exec_ms=each.exec_ms, weight=of) for each, of in zip(processes, weights, strict=True))
    return Stretch(
        from_s=span.from_s,
        until_s=span.until_s,
        arrivals_s=arrivals_s,
        servers=tuple(servers),
        carried=tuple(each.carried for each in processes),
        router=lane.traffic.routing,
        limit_ms=lane.drop_limit_ms,
        noise_sigma=span.sigma,
    )


def _drop_hopeless(lane: ServiceLane, now_s: float) -> float:
    """Give up what has waited at the router too long; how many that were."""
    kept = lane.waiting_s[now_s - lane.waiting_s <= lane.patience_s]
    dropped = len(lane.waiting_s) - len(kept)
    lane.waiting_s = kept
    return float(dropped)


def _read(lane: ServiceLane, outcome: RequestsOutcome, sigma: float, flow: Flow) -> None:
    """From what the kernel says to the service's books and its processes' meters."""
    processes, count = lane.processes, len(lane.processes)
    done = outcome.batch > 0
    by, sizes = outcome.replica[done], outcome.batch[done]
    latency_ms = 1000.0 * (outcome.finish_s[done] - outcome.arrival_s[done])
    completed = np.bincount(by, minlength=count)
    dropped = np.bincount(outcome.replica[outcome.dropped & (outcome.replica >= 0)], minlength=count)
    arrived = completed + dropped + [len(each.waiting_s) for each in outcome.carried]
    arrived = arrived - [len(each.carried.waiting_s) for each in processes]
    if lane.book.execution_only:
        histograms, late = _executions(lane, sigma, by, sizes)
    else:
        index = by * BINS + bins_of(latency_ms)
        histograms = np.bincount(index, minlength=count * BINS).reshape(count, BINS).astype(np.float64)
        limit_ms = np.inf if lane.limit_ms is None else lane.limit_ms * (1.0 + 1e-9)
        late = np.bincount(by[latency_ms > limit_ms], minlength=count).astype(np.float64)
    for place, process in enumerate(processes):
        process.carried = outcome.carried[place]
        for meter in (process.report, process.period):
            meter.arrived += float(arrived[place])
            meter.completed += float(completed[place])
            meter.dropped += float(dropped[place])
            meter.late += float(late[place])
            meter.batches += float(outcome.batches[place])
            meter.busy_s += float(outcome.busy_s[place])
            add_histogram(meter, histograms[place])
    flow.completed += float(completed.sum())
    flow.late += float(late.sum())
    flow.dropped += float(dropped.sum())
    lane.book.histogram += histograms.sum(axis=0)


def add_histogram(meter: Meter, counts: Floats) -> None:
    meter.histogram = counts.copy() if meter.histogram is None else meter.histogram + counts


def _executions(lane: ServiceLane, sigma: float, by: Whole, sizes: Whole) -> tuple[Floats, Floats]:
    """How long batches took, weighted by their requests: histograms and late parts by process."""
    count = len(lane.processes)
    histograms, late = np.zeros((count, BINS)), np.zeros(count)
    largest = max((len(each.exec_ms) for each in lane.processes), default=1) + 1
    matrix = np.bincount(by * largest + sizes, minlength=count * largest).reshape(count, largest)
    for place, size in zip(*np.nonzero(matrix), strict=True):
        requests = float(matrix[place, size])
        late[place] += requests * execution_into(
            histograms[place], sigma, (lane.processes[place].exec_ms[size - 1], requests), lane.limit_ms
        )
    return histograms, late


def execution_into(histogram: Floats, sigma: float, batch: tuple[float, float], limit_ms: float | None) -> float:
    """Enter so many requests whose batches take this mean time; the part of them above the limit."""
    mean_ms, requests = batch
    for place in spread_bins(sigma, mean_ms):
        histogram[place] += requests / 9.0
    return over_part(sigma, mean_ms, limit_ms)


def serve_full(process: Process, lane: ServiceLane, span: Span) -> Flow:
    """A process that always finds a full batch: completions by its mean cycle, latency by the batch's own way alone."""
    mean_ms, answer_ms = process.exec_ms[-1], process.exec_ms[-1] + process.answer_shift_ms
    completed = 1000.0 * span.seconds / mean_ms * len(process.exec_ms)
    counts = np.zeros(BINS)
    late = completed * execution_into(counts, span.sigma, (answer_ms, completed), lane.limit_ms)
    batches = completed / len(process.exec_ms)
    drift = span.sigma * float(span.draw(f"full/{process.item.replica}").standard_normal()) / max(1.0, batches) ** 0.5
    for meter in (process.report, process.period):
        meter.arrived += completed
        meter.completed += completed
        meter.late += late
        meter.batches += batches
        meter.busy_s += span.seconds * float(np.exp(drift))
        add_histogram(meter, counts)
    lane.book.histogram += counts
    return Flow(asked=completed, completed=completed, late=late)


# --- A stretch: every service, its load split over devices before they settle, then served request by request

_NOBODY: Floats = np.empty(0)


@dataclass(slots=True)
class Times:
    pattern: ArrivalPattern
    source: Source
    _block: int = -1
    _times_s: Floats = field(default_factory=lambda: np.empty(0))

    def between(self, from_s: float, until_s: float) -> Floats:
        parts = []
        for block in range(int(from_s // BLOCK_S), int(np.ceil(until_s / BLOCK_S))):
            if block != self._block:
                self._block = block
                self._times_s = arrival_times_s(self.pattern, self.source, block * BLOCK_S, (block + 1) * BLOCK_S)
            first, last = np.searchsorted(self._times_s, (from_s, until_s))
            parts.append(self._times_s[first:last])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(slots=True)
class Requests:
    state: State
    loads: WorldLoads
    asking: dict[ServiceId, Times] = field(default_factory=dict)
    lately: dict[ServiceId, float] = field(default_factory=dict)
    """Rates of closed loops in the last stretch."""
    _weights: dict[int, float] = field(default_factory=dict)
    """Of processes, by serial."""

    @classmethod
    def of(cls, scenario: WorldScenario, state: State, loads: WorldLoads, seed: int) -> Requests:
        made = cls(state, loads)
        for traffic in scenario.traffic:
            service = traffic.service.id
            if isinstance(traffic.load, Open):
                made.asking[service] = Times(traffic.load.pattern, Source(name=service, seed=seed))
            elif isinstance(traffic.load, Closed):
                state.lanes[service].clients = Clients(traffic.load)
                made.lately[service] = traffic.service.rate_rps_declared
        return made

    def next_edge_s(self, now_s: float) -> float:  # noqa: ARG002 - the fluid mode asks this too
        """Single requests need no cuts."""
        return math.inf

    def serve(self, span: Span) -> dict[ServiceId, Flow]:
        """Settle every device under what it is about to get, and serve every service."""
        arrivals = {service: times.between(span.from_s, span.until_s) for service, times in sorted(self.asking.items())}
        rates = self.lately | {service: len(times_s) / span.seconds for service, times_s in arrivals.items()}
        for load in self.loads.by_key.values():
            if load.seats:
                self._settle(load, rates, span.seconds)
        return {lane.id: self._serve(lane, span, arrivals.get(lane.id, _NOBODY)) for lane in self.state.lanes.values()}

    def account(self, sums: Sums, span: Span) -> None:
        """Which of the processes that executed in the last stretch took longer than they may, with answers' ways."""
        for lane in self.state.lanes.values():
            if lane.limit_ms is None:
                continue
            for process in lane.processes:
                busy_s, batches = process.lately
                count = process.report.batches - batches
                if count > 0.0:
                    mean_ms = 1000.0 * (process.report.busy_s - busy_s) / count + process.answer_shift_ms
                    sums.limits_s += span.seconds
                    sums.limits_over_s += span.seconds * (mean_ms > lane.limit_ms * (1.0 + 1e-9))

    def _settle(self, load: Load, rates: dict[ServiceId, float], seconds: float) -> None:
        actors = load.example.actors
        tenants = actors[: len(load.base.tenants)]
        asked = []
        for process, seat in zip(tenants, load.seats, strict=False):
            service = ServiceId(seat.workload)
            if seat.kind is WorkloadKind.TASK or self._is_full(service):
                asked.append(math.inf)
                continue
            total = self.loads.weights.get(service, 0.0)
            part = seat.weight / total if total > 0.0 else 0.0
            router = len(self.state.lanes[service].waiting_s)
            asked.append((rates.get(service, 0.0) + router / seconds) * part + process.waiting / seconds)
        state = self.loads.settle(load, tuple(asked))
        told = zip(tenants, load.seats, asked, state.exec_ms, state.answer_shift_ms, strict=False)
        for process, seat, rate, table, shift_ms in told:
            process.exec_ms = table
            process.answer_shift_ms = shift_ms if math.isinf(rate) else 0.0
            self._weights[process.serial] = seat.weight

    def _is_full(self, service: ServiceId) -> bool:
        return isinstance(self.state.lanes[service].traffic.load, Saturating)

    def _serve(self, lane: ServiceLane, span: Span, arrivals_s: Floats) -> Flow:
        weights = [self._weights[each.serial] for each in lane.processes]
        for process in lane.processes:
            process.lately = (process.report.busy_s, process.report.batches)
        if lane.clients is not None:
            flow = serve_clients_of(lane, lane.clients, span, weights)
            self.lately[lane.id] = flow.asked / span.seconds
            return flow
        if not self._is_full(lane.id):
            return serve_lane(lane, span, arrivals_s, weights)
        total = Flow()
        for process in lane.processes:
            if process.routed:
                total.add(serve_full(process, lane, span))
        return total
