"""A stretch of a simulated world in fluid mode: services as rates, devices by load, queues as amounts.

Every tenant's closed form is kept by what goes in, in steps of a hundredth, so that what does not change costs nothing;
sums are exact whatever the steps. The spread of a stretch's latencies is told by three of its percentiles.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field, replace

from lab.world.arrivals import ArrivalPattern, Source, rate_path
from lab.world.ledger import Flow, ServiceBook, Sums, bin_of, over_part
from lab.world.loads import Load, LoadSeat, WorldLoads
from lab.world.requests import Span, execution_into
from lab.world.scenario import Closed, Open, Saturating, WorldScenario
from lab.world.state import ServiceLane, State
from solvers.domain.ids import ServiceId
from solvers.domain.snapshot import ReplicaState
from solvers.domain.workload import WorkloadKind
from solvers.sim.serving.serving import Served, serve

EDGE_S_MIN = 1.0
"""Rates that change within less than this are told by their mean."""
KEPT_MAX = 300_000
STEPS = 100.0
"""Steps of an amount's natural logarithm."""
LEAST = 1e-6
_IDLE = Served(completed=0.0, violated=0.0, dropped=0.0, queue=0.0, batch_mean=0.0, busy=0.0, execution_ms=0.0)


@dataclass(slots=True)
class Amounts:
    """Expected requests until a moment, and where the rate changes."""

    edges_s: list[float]
    totals: list[float]
    rates_rps: list[float]

    @classmethod
    def of(cls, pattern: ArrivalPattern, source: Source, until_s: float) -> Amounts:
        path = rate_path(pattern, source, until_s)
        return cls(path.edges_s.tolist(), path.totals.tolist(), path.rates_rps.tolist())

    def between(self, from_s: float, until_s: float) -> float:
        return self._until(until_s) - self._until(from_s)

    def next_edge_s(self, after_s: float) -> float:
        """When the rate changes next; infinity when it does not."""
        index = bisect_right(self.edges_s, after_s)
        return self.edges_s[index] if index < len(self.edges_s) - 1 else float("inf")

    def _until(self, at_s: float) -> float:
        index = min(bisect_right(self.edges_s, at_s) - 1, len(self.rates_rps) - 1)
        return self.totals[index] + (at_s - self.edges_s[index]) * self.rates_rps[index]


@dataclass(slots=True)
class Fluid:
    state: State
    loads: WorldLoads
    asking: dict[ServiceId, Amounts] = field(default_factory=dict)
    _kept: dict[tuple[object, ...], Served] = field(default_factory=dict)
    _answer_s: dict[ServiceId, float] = field(default_factory=dict)
    """How long clients of a closed loop waited for their answers lately."""

    @classmethod
    def of(cls, scenario: WorldScenario, state: State, loads: WorldLoads, seed: int) -> Fluid:
        made = cls(state, loads)
        for traffic in scenario.traffic:
            service = traffic.service.id
            if isinstance(traffic.load, Open):
                source = Source(name=service, seed=seed)
                made.asking[service] = Amounts.of(traffic.load.pattern, source, scenario.span_s)
        return made

    def next_edge_s(self, now_s: float) -> float:
        edges = (amounts.next_edge_s(now_s + EDGE_S_MIN) for amounts in self.asking.values())
        return min(edges, default=math.inf)

    def serve(self, span: Span) -> dict[ServiceId, Flow]:
        flows = {lane.id: self._asked(lane, span) for lane in self.state.lanes.values()}
        rates = {service: self._routed(self.state.lanes[service], flow, span) for service, flow in flows.items()}
        for load in self.loads.by_key.values():
            if load.seats:
                self._load(load, rates, flows, span)
        for lane in self.state.lanes.values():
            if isinstance(lane.traffic.load, Closed):
                self._listen(lane, flows[lane.id])
        return flows

    def account(self, sums: Sums, span: Span) -> None:
        """Which of the tenants that executed took longer than they may."""
        for load in self.loads.by_key.values():
            for seat, served in zip(load.seats, load.served, strict=False):
                lane = self.state.lanes.get(ServiceId(seat.workload))
                if served is None or lane is None or lane.limit_ms is None or served.execution_ms <= 0.0:
                    continue
                seconds = len(load.cells) * span.seconds
                sums.limits_s += seconds
                sums.limits_over_s += seconds * (served.execution_ms > lane.limit_ms * (1.0 + 1e-9))

    def _asked(self, lane: ServiceLane, span: Span) -> Flow:
        load = lane.traffic.load
        if isinstance(load, Open):
            return Flow(asked=self.asking[lane.id].between(span.from_s, span.until_s))
        if isinstance(load, Saturating):
            return Flow()
        clients = ([0] + [step.clients for step in load.steps if step.from_s <= span.from_s])[-1]
        waiting = lane.waiting + self.loads.queued(lane.id)
        # Each client asks once in a turn; those that wait ask again only when they are answered.
        turn_s = max(LEAST, load.think_s_mean + self._answer_s.get(lane.id, 0.0))
        answered = self.loads.capacity_rps(lane.id) * span.seconds
        return Flow(asked=min(clients * span.seconds / turn_s, max(0.0, clients - waiting) + answered))

    def _listen(self, lane: ServiceLane, flow: Flow) -> None:
        """How long an answer took lately, by the last stretch's middle request."""
        found = [
            served.latency_ms_p50 / 1000.0
            for load in self.loads.by_key.values()
            for seat, served in zip(load.seats, load.served, strict=False)
            if ServiceId(seat.workload) == lane.id and served is not None and served.latency_ms_p50 is not None
        ]
        if found and flow.completed > 0.0:
            self._answer_s[lane.id] = sum(found) / len(found)

    def _routed(self, lane: ServiceLane, flow: Flow, span: Span) -> float:
        """Requests per second and weight that the router hands on; without anybody ready they wait at it."""
        if isinstance(lane.traffic.load, Saturating):
            return math.inf
        weight = self.loads.weights.get(lane.id, 0.0)
        if weight > 0.0:
            coming, lane.waiting = flow.asked + lane.waiting, 0.0
            return coming / span.seconds / weight
        lane.waiting += flow.asked
        most = flow.asked / span.seconds * lane.patience_s
        flow.dropped = max(0.0, lane.waiting - most)
        lane.waiting -= flow.dropped
        return 0.0

    def _load(self, load: Load, rates: dict[ServiceId, float], flows: dict[ServiceId, Flow], span: Span) -> None:
        tenants = len(load.base.tenants)
        offered, asked = [], []
        for place, seat in enumerate(load.seats[:tenants]):
            rate = math.inf
            if seat.kind is WorkloadKind.SERVICE:
                rate = rates[ServiceId(seat.workload)]
                rate = (math.inf if seat.weight > 0.0 else 0.0) if math.isinf(rate) else rate * seat.weight
            offered.append(rate)
            asked.append(rate + load.queues[place] / span.seconds)
        state = self.loads.settle(load, tuple(asked))
        load.seconds = span.seconds
        for place, rate in enumerate(offered):
            seat, table = load.seats[place], state.exec_ms[place]
            if seat.kind is WorkloadKind.TASK:
                continue
            lane = self.state.lanes[ServiceId(seat.workload)]
            if math.isinf(rate):
                served = _full(table, state.answer_shift_ms[place], lane, span)
            else:
                coming = (load.queues[place], rate * span.seconds)
                served = self._served(coming, table, lane, span.seconds)
            load.served[place], load.queues[place] = served, served.queue
            _enter(flows[lane.id], lane, served, len(load.cells), span.sigma)
            if math.isinf(rate):
                flows[lane.id].asked += served.completed * len(load.cells)
            if seat.weight <= 0.0:
                _tell(load, place, seat)

    def _served(
        self, coming: tuple[float, float], table: tuple[float, ...], lane: ServiceLane, seconds: float
    ) -> Served:
        """The closed form at the steps next to these amounts, scaled to the amounts themselves."""
        queue, arrived = coming
        limit_ms = None if lane.book.execution_only else lane.limit_ms
        drop = lane.drop_limit_ms is not None
        if queue + arrived <= LEAST:
            return _IDLE
        steps = (_step(queue), _step(arrived))
        key = (table, steps, limit_ms, drop, round(seconds, 6))
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            found = serve(_amount(steps[0]), _amount(steps[1]), seconds, table, limit_ms, drop=drop)
            self._kept[key] = found
        total = _amount(steps[0]) + _amount(steps[1])
        scale = (queue + arrived) / total if total > 0.0 else 0.0
        return replace(
            found,
            completed=found.completed * scale,
            violated=found.violated * scale,
            dropped=found.dropped * scale,
            queue=found.queue * scale,
        )


def late_part(served: Served, book: ServiceBook, sigma: float) -> float:
    if book.limit_ms is None or served.completed <= 0.0:
        return 0.0
    if book.execution_only:
        return over_part(sigma, served.execution_ms, book.limit_ms)
    return min(1.0, served.violated / served.completed)


def _enter(flow: Flow, lane: ServiceLane, served: Served, count: int, sigma: float) -> None:
    """A tenant's stretch into its service's, as often as there are such devices."""
    completed = served.completed * count
    flow.completed += completed
    flow.dropped += served.dropped * count
    flow.late += completed * late_part(served, lane.book, sigma)
    if completed <= 0.0:
        return
    histogram = lane.book.histogram
    if lane.book.execution_only:
        execution_into(histogram, sigma, (served.execution_ms, completed), None)
        return
    told = ((served.latency_ms_p50, 0.5), (served.latency_ms_p95, 0.45), (served.latency_ms_p99, 0.05))
    for latency_ms, part in told:
        if latency_ms is not None:
            histogram[bin_of(latency_ms)] += part * completed


def _tell(load: Load, place: int, seat: LoadSeat) -> None:
    """Those that drain must know when they are done."""
    for cell in load.cells.values():
        process = cell.actors[place]
        if process.state is ReplicaState.DRAINING and process.item.workload == seat.workload:
            process.queue = load.queues[place]


def _full(table: tuple[float, ...], shift_ms: float, lane: ServiceLane, span: Span) -> Served:
    """Always a full batch, whose latency is that of its own way alone."""
    answer_ms = table[-1] + shift_ms
    completed = 1000.0 * span.seconds / table[-1] * len(table)
    return Served(
        completed=completed,
        violated=completed * over_part(span.sigma, answer_ms, lane.limit_ms),
        dropped=0.0,
        queue=0.0,
        batch_mean=float(len(table)),
        busy=1.0,
        execution_ms=answer_ms,
        latency_ms_p50=answer_ms,
        latency_ms_p95=answer_ms * math.exp(1.645 * span.sigma),
        latency_ms_p99=answer_ms * math.exp(2.326 * span.sigma),
    )


def _step(amount: float) -> int | None:
    return None if amount <= LEAST else math.floor(math.log(amount) * STEPS)


def _amount(step: int | None) -> float:
    """The lower end of a step: what waits must not look like more than it is."""
    return 0.0 if step is None else math.exp(step / STEPS)
