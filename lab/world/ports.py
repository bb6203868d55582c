"""The ports through which the production cycle sees and changes a simulated world; the cycle cannot tell.

Planners get pictures built as production builds them: what nodes reported (a silent one as it was), demand as its mean
and its busiest bin, what is declared before anything was seen; everything as old as the world's rhythm says. Promotion
compares the target's generation. The only clock is the world's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, floor, prod
from operator import attrgetter
from typing import TypeVar

import numpy as np

from agents.wire import mirrored
from lab.outcome import Planners, TuningSetting
from lab.world.ledger import BINS, percentile_ms
from lab.world.loads import Load, WorldLoads
from lab.world.scenario import Saturating, WorldScenario
from lab.world.state import Leave, Meter, Process, ServiceLane, State, TargetByDevice, WorldDevice, WorldNode
from lab.world.targets import next_target
from solvers.cycle.memory import PAST_S, Past, memory_s
from solvers.cycle.record import CycleRecord, CycleStep
from solvers.cycle.target import leaving
from solvers.domain.change import Target
from solvers.domain.codec import canonical_json
from solvers.domain.device import DeviceMode
from solvers.domain.evidence import Reporter
from solvers.domain.ids import ClusterName, DeviceId, Generation, NodeId, ReplicaId, ServiceId
from solvers.domain.plan import Plan
from solvers.domain.policy import PlannerSetting, Policy
from solvers.domain.profile import Profile
from solvers.domain.snapshot import JobStatus, NodeStatus, Replica, ReplicaState, Snapshot
from solvers.domain.telemetry import (
    DEMAND_BIN_S,
    Demand,
    DemandOrigin,
    DeviceTelemetry,
    ReplicaTelemetry,
    surely_rps,
)
from solvers.domain.workload import OfflineTask, TrainingJob
from solvers.errors import EngineError
from solvers.models.easing import eased
from solvers.planners import registry
from solvers.planners.base import Planner, PlanRequest, Thought
from solvers.sim.serving.serving import Served
from solvers.sim.truth.truth import memory_mib

# --- What a node of a simulated world tells of itself: replicas, readings of devices and of replicas


T = TypeVar("T")
_NO_ANSWERS = np.zeros(BINS)


@dataclass(frozen=True, slots=True)
class NodeReport:
    at_s: float
    generation: int
    replicas: tuple[Replica, ...]
    devices: tuple[DeviceTelemetry, ...]
    readings: tuple[ReplicaTelemetry, ...]

    def aged(self, now_s: float) -> NodeReport:
        age_s = round(now_s - self.at_s, 6)
        if age_s <= 0.0:
            return self
        return replace(
            self,
            devices=tuple(replace(each, age_s=age_s) for each in self.devices),
            readings=tuple(replace(each, age_s=age_s) for each in self.readings),
        )


def read_node(state: State, loads: WorldLoads, host: WorldNode) -> NodeReport:
    replicas: list[Replica] = []
    readings: dict[ReplicaId, ReplicaTelemetry] = {}
    for cell in host.cells:
        load = loads.of_cell.get(cell.id)
        for process in cell.processes:
            replicas.append(_replica(process))
            reading = _reading(process, load, state.now_s)
            if process.item.replica not in readings or process.routed:
                readings[process.item.replica] = reading
    return NodeReport(
        at_s=state.now_s,
        generation=host.heard.target.generation,
        replicas=tuple(replicas),
        devices=tuple(_device(cell, loads.of_cell.get(cell.id)) for cell in host.cells),
        readings=tuple(readings.values()),
    )


def _replica(process: Process) -> Replica:
    state = process.state if process.state is not ReplicaState.FAILED else ReplicaState.DRAINING
    item = process.item
    return mirrored(Replica, item, id=item.replica, device=process.cell.id, batch=process.batch, state=state)


def _device(cell: WorldDevice, load: Load | None) -> DeviceTelemetry:
    told = load.state if load is not None else None
    idle = prod(1.0 - part for part in told.busy) if told is not None else 1.0
    if told is not None and told.iteration_ms:
        idle = 0.0
    held = sum(
        min(float(each.item.memory_mib_limit), memory_mib(each.item.model, each.batch)) for each in cell.processes
    )
    return DeviceTelemetry(
        device=cell.id,
        power_w=round(load.power_w, 6) if load is not None else 0.0,
        utilisation_pct=round(100.0 * (1.0 - max(0.0, idle)), 6),
        memory_mib_used=round(held, 3),
        clock_mhz_sm=told.clock_mhz_sm if told is not None else cell.clock_mhz,
        healthy=cell.lost == 0,
        age_s=0.0,
        repartition=cell.wanted,
    )


def _reading(process: Process, load: Load | None, now_s: float) -> ReplicaTelemetry:
    meter, process.report = process.report, Meter(since_s=now_s)
    served = load.served_by(process) if load is not None else None
    if served is not None and load is not None:
        return _fluid_reading(process, served, load.seconds)
    seconds = now_s - meter.since_s
    ended = meter.completed + meter.dropped
    histogram = meter.histogram if meter.histogram is not None else _NO_ANSWERS
    return ReplicaTelemetry(
        replica=process.item.replica,
        rate_rps=round(max(0.0, meter.arrived) / seconds, 6) if seconds > 0.0 else 0.0,
        latency_ms_p50=percentile_ms(histogram, 50.0),
        latency_ms_p99=percentile_ms(histogram, 99.0),
        queue_length=float(process.waiting),
        batch_mean=round(meter.completed / meter.batches, 6) if meter.batches > 0.0 else 0.0,
        violation_fraction=round(min(1.0, (meter.late + meter.dropped) / ended), 9) if ended > 0.0 else 0.0,
        age_s=0.0,
    )


def _fluid_reading(process: Process, served: Served, seconds: float) -> ReplicaTelemetry:
    """Of the last stretch alone."""
    ended = served.completed + served.dropped
    return ReplicaTelemetry(
        replica=process.item.replica,
        rate_rps=round(ended / seconds, 6),
        latency_ms_p50=served.latency_ms_p50,
        latency_ms_p99=served.latency_ms_p99,
        queue_length=round(served.queue, 6),
        batch_mean=round(served.batch_mean, 6),
        violation_fraction=round(min(1.0, (served.violated + served.dropped) / ended), 9) if ended > 0.0 else 0.0,
        age_s=0.0,
    )


CLUSTER = ClusterName("simulated")
LEARN_EVERY_S = 60.0
"""So often services' memories are learned anew, as production does."""


@dataclass(frozen=True, slots=True)
class PastReport:
    at_s: float
    nodes: dict[NodeId, NodeReport]
    demands: tuple[Demand, ...]
    statuses: tuple[JobStatus, ...]


@dataclass(slots=True)
class WorldObserver:
    scenario: WorldScenario
    state: State
    loads: WorldLoads
    policy: Policy
    profiles: tuple[Profile, ...]
    _known: dict[NodeId, NodeReport] = field(default_factory=dict)
    _reports: deque[PastReport] = field(default_factory=deque)
    _first: Snapshot | None = None
    _memories_s: dict[ServiceId, float] = field(default_factory=dict)
    """How long each service's busiest moment is remembered, as learned last."""
    _learned_at_s: float = 0.0

    def report(self) -> None:
        if self.policy.demand_lookback_learned and self.state.now_s >= self._learned_at_s + LEARN_EVERY_S:
            self._learned_at_s = self.state.now_s
            self._memories_s = {lane.id: self._memory_s(lane) for lane in self.state.lanes.values()}
        for host in self.state.hosts.values():
            if host.reachable:
                self.freeze(host)
        statuses = (
            JobStatus(workload=work.id, done=int(work.done), evictions=work.evictions)
            for work in self.state.works.values()
            if work.at_s <= self.state.now_s
        )
        self._reports.append(
            PastReport(
                at_s=self.state.now_s,
                nodes=dict(self._known),
                demands=tuple(self._demand(lane) for lane in self.state.lanes.values()),
                statuses=_ordered(statuses, "workload"),
            )
        )

    def freeze(self, host: WorldNode) -> None:
        """Take down what a node says now: the last that is heard of it, should it fall silent."""
        self._known[host.node.id] = read_node(self.state, self.loads, host)

    def count(self) -> bool:
        """As gateways do every second: whether something jumped."""
        now_s = self.state.now_s
        jumped = [
            lane.edge.count(lane.asked, now_s)
            for lane in self.state.lanes.values()
            if not isinstance(lane.traffic.load, Saturating)
        ]
        return any(jumped)

    @property
    def coming(self) -> PastReport:
        """The oldest report that is on its way."""
        return self._reports[0]

    def observe(self) -> Snapshot:
        """Its picture."""
        report = self._reports.popleft()
        now_s, silent_s = self.state.now_s, self.policy.device_silent_after_s
        heard = {node: found for node, found in sorted(report.nodes.items()) if now_s - found.at_s <= silent_s}
        readings = [each.aged(now_s) for each in heard.values()]
        open_works = self.state.open_works
        picture = replace(
            self._still(),
            taken_at_s=now_s,
            node_statuses=tuple(self._status(host, report) for _, host in sorted(self.state.hosts.items())),
            jobs=_ordered((each.item for each in open_works if isinstance(each.item, TrainingJob)), "id"),
            tasks=_ordered((each.item for each in open_works if isinstance(each.item, OfflineTask)), "id"),
            job_statuses=report.statuses,
            demands=report.demands,
            replicas=_ordered((item for each in readings for item in each.replicas), "id", "device"),
            device_telemetry=_ordered((item for each in readings for item in each.devices), "device"),
            replica_telemetry=_ordered(
                {item.replica: item for each in readings for item in each.readings}.values(), "replica"
            ),
            target=self.state.target,
            policies=self.scenario.policies_at(now_s),
        )
        return eased(picture)

    def _still(self) -> Snapshot:
        """What never changes, in the order of pictures."""
        if self._first is None:
            scenario = self.scenario
            self._first = Snapshot(
                cluster=CLUSTER,
                taken_at_s=0.0,
                policy=self.policy,
                projects=_ordered(scenario.projects, "name"),
                gpu_types=_ordered(scenario.fleet.gpu_types, "name"),
                nodes=_ordered(scenario.fleet.nodes, "id"),
                devices=_ordered(scenario.fleet.devices, "id"),
                power_caps=_ordered(scenario.fleet.power_caps, "scope", "subject"),
                models=_ordered(scenario.models, "name"),
                services=scenario.services,
                profiles=self.profiles,
                offers=_ordered(scenario.fleet.offers, "name"),
            )
        return self._first

    def _status(self, host: WorldNode, report: PastReport) -> NodeStatus:
        found = report.nodes.get(host.node.id)
        return NodeStatus(
            node=host.node.id,
            age_s=None if found is None else round(self.state.now_s - found.at_s, 6),
            generation_applied=0 if found is None else found.generation,
        )

    def _demand(self, lane: ServiceLane) -> Demand:
        """As gateways count it; whose queue is always full has no rate but the declared one."""
        service, rhythm, now_s = lane.traffic.service, self.scenario.rhythm, self.state.now_s
        if now_s <= 0.0 or isinstance(lane.traffic.load, Saturating):
            return Demand.declared(service.id, service.rate_rps_declared)
        lookback_s = min(now_s, self._memories_s.get(service.id, self.policy.demand_lookback_s))
        window_s = min(now_s, rhythm.demand_window_s)
        mean = (asked_until(lane, now_s) - asked_until(lane, now_s - window_s)) / window_s
        # A gateway that told of a jump tells of all again after half a bin.
        jump_rps = lane.edge.jump_rps if now_s - lane.edge.jumped_s < DEMAND_BIN_S / 2.0 else 0.0
        busiest = max((mean, jump_rps, *_bins_rps(lane, now_s - lookback_s, now_s)))
        # What no demand looks back to any more.
        looked_back_s = max(self.policy.demand_lookback_s, PAST_S if self.policy.demand_lookback_learned else 0.0)
        index = bisect_right(lane.asked_until, (now_s - looked_back_s, float("inf"))) - 1
        if index > 64:
            del lane.asked_until[:index]
        return Demand(
            service=service.id,
            rate_rps_mean=round(mean, 6),
            rate_rps_upper=round(busiest, 6),
            origin=DemandOrigin.OBSERVED,
            window_s=lookback_s,
            age_s=rhythm.report_delay_s,
        )

    def _memory_s(self, lane: ServiceLane) -> float:
        """By what was asked of it so far."""
        service, half_s, now_s = lane.traffic.service, DEMAND_BIN_S / 2.0, self.state.now_s
        launch_s = next(model.launch_s for model in self.scenario.models if model.name == service.model)
        marks = np.arange(ceil(max(0.0, now_s - PAST_S) / half_s), floor(now_s / half_s) + 1)
        counts = np.diff(np.interp(half_s * marks, *np.array(lane.asked_until).T))
        return memory_s(Past.of(counts), service, self.policy, launch_s)


def _ordered(items: Iterable[T], *fields: str) -> tuple[T, ...]:
    """In the order of pictures."""
    return tuple(sorted(items, key=attrgetter(*fields)))


def _bins_rps(lane: ServiceLane, from_s: float, until_s: float) -> Iterator[float]:
    """Rates of the whole bins of a time: the newest, and those that begin every half bin by the clock; and what is sure
    of half bins. Bins counted back from now alone cut a burst elsewhere at every look: its rate would fall and rise
    while it is remembered.
    """
    half_s = DEMAND_BIN_S / 2.0
    marks = range(ceil(from_s / half_s - 1e-9), floor(until_s / half_s + 1e-9) + 1)
    sums = [asked_until(lane, mark * half_s) for mark in marks]
    yield from ((after - before) / DEMAND_BIN_S for before, after in zip(sums, sums[2:], strict=False))
    yield from (surely_rps(after - before, half_s) for before, after in pairwise(sums))
    newest = asked_until(lane, until_s)
    if until_s - from_s >= half_s:
        yield surely_rps(newest - asked_until(lane, until_s - half_s), half_s)
    if until_s - from_s >= DEMAND_BIN_S:
        yield (newest - asked_until(lane, until_s - DEMAND_BIN_S)) / DEMAND_BIN_S


def asked_until(lane: ServiceLane, at_s: float) -> float:
    """Requests until a moment, evenly spread within stretches."""
    told = lane.asked_until
    index = bisect_right(told, (at_s, float("inf"))) - 1
    if index < 0:
        return told[0][1]
    before_s, before = told[index]
    if index + 1 == len(told):
        return before
    after_s, after = told[index + 1]
    return before + (after - before) * (at_s - before_s) / (after_s - before_s)


@dataclass(slots=True)
class WorldActuator:
    """Makes a plan the target, and has the nodes told."""

    state: State
    spread: Callable[[TargetByDevice, CycleRecord], None]

    def promote(self, record: CycleRecord, plan: Plan) -> Generation:
        """Compare-and-set on the plan's parent. Raises SupersededError."""
        target = next_target(self.state.target, plan, self.state.now_s)
        self.spread(TargetByDevice.of(target, self._leaving(plan, record.snapshot)), record)
        return target.generation

    def _leaving(self, plan: Plan, snapshot: Snapshot) -> dict[DeviceId, dict[ReplicaId, Leave]]:
        """What may go on for a while, from this plan on or from an earlier one, where it fits beside the plan."""
        now_s, cells = self.state.now_s, self.state.cells
        going = [Leave(each.assignment, now_s + each.retire_after_s) for each in leaving(plan, snapshot)]
        earlier = [leave for by in self.state.wish.leaving.values() for leave in by.values() if leave.until_s > now_s]
        beside = TargetByDevice.of(Target(assignments=plan.assignments)).by_device
        found: dict[DeviceId, dict[ReplicaId, Leave]] = {}
        for leave in (*going, *earlier):
            cell, replica = cells[leave.item.device], leave.item.replica
            kept = found.setdefault(cell.id, {})
            held = [*beside.get(cell.id, {}).values(), *(each.item for each in kept.values()), leave.item]
            fits = sum(each.memory_mib_limit for each in held) <= cell.device.memory_mib
            planned_here = any(replica in beside.get(each.id, {}) for each in cell.host.cells)
            if fits and not planned_here and replica not in kept and cell.mode is not DeviceMode.DEDICATED:
                kept[replica] = leave
        return found


@dataclass(slots=True)
class InProcessRunner:
    """Runs planners here and now: a contender's, the first of them tuned; where it says nothing, as the scenario's
    policy has it. Those of a policy with a pool are as that says, whoever contends.
    """

    planners: Planners
    tuned: str
    settings: tuple[TuningSetting, ...]
    reporter: Reporter
    policy_settings: tuple[PlannerSetting, ...] = ()
    _made: dict[tuple[str, tuple[TuningSetting, ...]], Planner] = field(default_factory=dict)

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        """Its answer. Raises EngineError when the planner is unknown, or fails."""
        made = planner, self._said(planner, request.snapshot.policy)
        if made not in self._made:
            self._made[made] = self.planners(*made)
        try:
            return registry.think(self._made[made], request, state, self.reporter)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"planner {planner} failed: {error}", planner=planner) from error

    def _said(self, planner: str, policy: Policy) -> tuple[TuningSetting, ...]:
        settings = self.policy_settings if policy.pool is None else policy.planner_settings
        own = {item.name: item for item in settings if item.planner == planner}
        said = {name: TuningSetting(name=name, value=canonical_json(item.value)) for name, item in own.items()}
        if policy.pool is None and planner == self.tuned:
            said |= {item.name: item for item in self.settings}
        return tuple(said[name] for name in sorted(said))


@dataclass(frozen=True, slots=True)
class WorldClock:
    state: State

    def now_s(self) -> float:
        return self.state.now_s

    def elapsed_ms(self) -> float:
        """Thinking takes no time of the world's."""
        return 0.0


@dataclass(slots=True)
class CountingReporter:
    counts: dict[str, int] = field(default_factory=dict)

    def event(self, name: str, **facts: str | float) -> None:  # noqa: ARG002 - the port names them
        self.counts[name] = self.counts.get(name, 0) + 1


@dataclass(slots=True)
class LastRecord:
    """Journal: keeps the newest record and how many there were."""

    closed: int = 0
    record: CycleRecord | None = None

    def step(self, step: CycleStep) -> None:
        """Steps take no time here."""

    def draft(self, record: CycleRecord) -> None:
        """The record comes whole a moment later."""

    def close(self, record: CycleRecord) -> None:
        self.closed += 1
        self.record = record


@dataclass(slots=True)
class StateMemory:
    kept: dict[str, bytes] = field(default_factory=dict)

    def recall(self, planner: str) -> bytes | None:
        return self.kept.get(planner)

    def keep(self, planner: str, state: bytes) -> None:
        self.kept[planner] = state
