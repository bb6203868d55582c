"""A stretch of a simulated world at request level: every service, request by request.

Owns how a service's load is split over devices before they settle: by the weights of its processes, with what already
waits at each. It refuses amounts: those are the fluid mode's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from solvers.domain.ids import ServiceId
from solvers.domain.workload import WorkloadKind
from solvers.sim.arrivals import Source
from solvers.sim.scenario import Closed, Open, Saturating, WorldScenario
from solvers.sim.world.asking import Times
from solvers.sim.world.closed_loop import Clients
from solvers.sim.world.loads import Load, WorldLoads
from solvers.sim.world.metrics import Flow, Sums
from solvers.sim.world.requests import Span, serve_clients_of, serve_full, serve_lane
from solvers.sim.world.state import Process, ServiceLane, State

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOBODY: NDArray[np.float64] = np.empty(0)


@dataclass(slots=True)
class Requests:
    """All services of a world, served one by one."""

    state: State
    loads: WorldLoads
    asking: dict[ServiceId, Times] = field(default_factory=dict)
    lately: dict[ServiceId, float] = field(default_factory=dict)
    """Rates of closed loops in the last stretch."""
    _weights: dict[int, float] = field(default_factory=dict)
    """Of processes, by serial."""

    @classmethod
    def of(cls, scenario: WorldScenario, state: State, loads: WorldLoads, seed: int) -> Requests:
        """Of a scenario."""
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
        """Which of the processes that executed took longer than they may."""
        for lane in self.state.lanes.values():
            if lane.limit_ms is None:
                continue
            for process in lane.processes:
                mean_ms = executed_ms(process)
                if mean_ms is not None:
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

    def _serve(self, lane: ServiceLane, span: Span, arrivals_s: NDArray[np.float64]) -> Flow:
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
                flow = serve_full(process, lane, span)
                total.asked += flow.asked
                total.completed += flow.completed
                total.late += flow.late
        return total


def executed_ms(process: Process) -> float | None:
    """Mean time of the answers to batches of the last stretch; None when there were none."""
    busy_s, batches = process.lately
    count = process.report.batches - batches
    if count <= 0.0:
        return None
    return 1000.0 * (process.report.busy_s - busy_s) / count + process.answer_shift_ms
