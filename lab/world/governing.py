"""Controllers of a simulated world: what moves batches and clocks inside their envelopes between plans.

Translated both ways, as real nodes do it: from what a device was told to its envelope, from meters to a reading, from a
decision back to batches and the clock. What a plan fixed, training jobs and processes on their way out stay as planned.
`solvers.control` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lab.world.ledger import percentile_ms
from lab.world.loads import Load, WorldLoads
from lab.world.state import Meter, Process, State, WorldDevice
from solvers.control.controllers import Controller, controller
from solvers.control.judging import coming_part
from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    ProcessReading,
    ReplicaEnvelope,
    ReplicaReading,
    Setting,
)
from solvers.domain.ids import DeviceId, ReplicaId, ServiceId
from solvers.domain.plan import Assignment
from solvers.domain.snapshot import ReplicaState
from solvers.domain.telemetry import BrokenLimit, RepartitionWish
from solvers.domain.workload import WorkloadKind


@dataclass(slots=True)
class _Governed:
    name: str
    loop: Controller
    envelope: DeviceEnvelope
    state: DeviceState
    power_w: float = 0.0
    """Peak of the period."""
    capped: bool = False
    beside: bool = False
    """Whether somebody on the way out worked here in the period."""
    fresh: bool = False
    """Whether a whole period passed under the present setting."""


@dataclass(slots=True)
class FleetGoverning:
    state: State
    loads: WorldLoads
    governor_of: Callable[[DeviceId], str]
    """Name of the controller of a device."""
    governed: dict[DeviceId, _Governed] = field(default_factory=dict)
    loops: dict[str, Controller] = field(default_factory=dict)

    def take(self, cell: WorldDevice) -> None:
        """A device was told something, or a process of it became ready: what is still inside its envelope stays."""
        envelope = envelope_of(self.state, cell)
        standing = self.governed.get(cell.id)
        if envelope is None:
            self.governed.pop(cell.id, None)
            cell.governed_clock_mhz, cell.wanted = None, None
            return
        name = self.governor_of(cell.id)
        if standing is None or standing.envelope != envelope or standing.name != name:
            planned, loop = _planned(cell, envelope), self.loops.setdefault(name, controller(name))
            if standing is None:
                begun = loop.first(envelope, planned)
            else:
                begun = loop.fitted(envelope, standing.state, planned)
            self.governed[cell.id] = _Governed(name, loop, envelope, begun)
        self._apply(cell, self.governed[cell.id])

    def watch(self) -> None:
        for device, governed in self.governed.items():
            load = self.loads.of_cell.get(device)
            if load is not None and load.state is not None:
                governed.power_w = max(governed.power_w, load.power_w)
                governed.capped |= load.state.clock_mhz_sm < load.base.clock_mhz_sm
            processes = self.state.cells[device].processes
            governed.beside = governed.beside or any(_leaves(each, governed.state) for each in processes)

    def period(self) -> None:
        for device, governed in self.governed.items():
            cell = self.state.cells[device]
            reading = self._reading(cell, governed)
            for process in cell.processes:
                process.period = Meter(since_s=self.state.now_s)
            governed.power_w, governed.capped, governed.beside = 0.0, False, False
            if cell.gone or not governed.fresh:
                governed.fresh = True
                continue
            decision = governed.loop.step(governed.envelope, governed.state, reading)
            governed.state = decision.state
            _wish(cell, decision)
            self._apply(cell, governed)

    def _apply(self, cell: WorldDevice, governed: _Governed) -> None:
        state = governed.state
        for process in cell.processes:
            if process.item.replica in state.replicas and process.state is not ReplicaState.DRAINING:
                batch = state.batch(process.item.replica)
                if batch != process.batch:
                    process.become(process.item, batch, self.state.now_s)
                    self.state.touch(cell)
        if governed.envelope.clocks_mhz_sm and cell.clock_mhz != state.setting.clock_mhz_sm:
            cell.governed_clock_mhz = state.setting.clock_mhz_sm
            self.state.touch(cell)

    def _reading(self, cell: WorldDevice, governed: _Governed) -> DeviceReading:
        load = self.loads.of_cell.get(cell.id)
        found = []
        for replica in governed.envelope.replicas:
            ready = [each for each in cell.processes if each.routed and each.item.replica == replica.replica]
            if ready:
                told = [_told(process, load, replica.execution_only) for process in ready]
                found.append(ReplicaReading.of(replica.replica, told))
        return DeviceReading(
            power_w=governed.power_w if governed.power_w > 0.0 else None,
            replicas=tuple(found),
            power_capped=governed.capped and governed.envelope.power_w_cap is not None,
            stale=cell.lost > 0,
            beside=governed.beside,
            coming_part=coming_part(
                [_held(each) for each in cell.processes if each.state is ReplicaState.STARTING],
                [_held(each) for each in cell.processes if each.working],
            ),
        )


def _held(process: Process) -> tuple[str, int]:
    return process.item.replica, process.item.share_pct_sm


def _leaves(process: Process, state: DeviceState) -> bool:
    """Whether a process works that no target of its device has, or that drains."""
    ready = process.state is ReplicaState.READY and process.item.replica not in state.replicas
    return ready or process.state is ReplicaState.DRAINING


def _told(process: Process, load: Load | None, execution_only: bool) -> ProcessReading:
    """A process in a period: by its meter, in fluid mode by the last stretch."""
    meter = process.period
    if meter.histogram is not None:
        mean_ms = 1000.0 * meter.busy_s / meter.batches if meter.batches > 0.0 else None
        return ProcessReading(
            batch=process.batch,
            execution_ms=mean_ms + process.answer_shift_ms if mean_ms is not None else None,
            latency_ms_p99=percentile_ms(meter.histogram, 99.0),
            batch_mean=meter.completed / meter.batches if meter.batches > 0.0 else 0.0,
            queue=process.waiting,
            arrived=meter.arrived,
            dropped=meter.dropped,
            execution_only=execution_only,
        )
    served = load.served_by(process) if load is not None else None
    return ProcessReading(
        batch=process.batch,
        execution_ms=served.execution_ms or None if served is not None else None,
        latency_ms_p99=served.latency_ms_p99 if served is not None else None,
        batch_mean=served.batch_mean if served is not None else 0.0,
        queue=served.queue if served is not None else process.waiting,
        arrived=served.completed + served.dropped if served is not None else 0.0,
        dropped=served.dropped if served is not None else 0.0,
        execution_only=execution_only,
    )


def envelope_of(state: State, cell: WorldDevice) -> DeviceEnvelope | None:
    """What may be moved on a device; None when nothing may."""
    items = sorted(cell.host.heard.by_device.get(cell.id, {}).values(), key=lambda each: each.replica)
    items = [item for item in items if item.workload not in state.works or state.works[item.workload].ended_s is None]
    replicas = tuple(_replica_envelope(state, item) for item in items)
    clocks: tuple[int, ...] = ()
    if items:
        low = max(item.envelope.clock_mhz_sm_min for item in items)
        high = min(item.envelope.clock_mhz_sm_max for item in items)
        clocks = tuple(clock for clock in cell.gpu_type.clocks_mhz_sm if low <= clock <= high)
    if len(clocks) < 2 and all(replica.fixed for replica in replicas):
        return None
    limits = [cell.cap_w, cell.setting.power_limit_w if cell.setting is not None else None]
    return DeviceEnvelope(
        uuid=cell.id,
        power_w_cap=min((limit for limit in limits if limit is not None), default=None),
        clocks_mhz_sm=clocks if len(clocks) > 1 else (),
        replicas=replicas,
        cap_held=cell.limit_settable,
    )


def _replica_envelope(state: State, item: Assignment) -> ReplicaEnvelope:
    low, high = item.envelope.batch_min, item.envelope.batch_max
    if item.kind is WorkloadKind.JOB or not low <= item.batch <= high:
        low = high = item.batch
    lane = state.lanes.get(ServiceId(item.workload))
    return ReplicaEnvelope(
        replica=item.replica,
        batch_min=low,
        batch_max=high,
        latency_ms_limit=lane.limit_ms if lane is not None else None,
        share_pct_sm=item.share_pct_sm,
        execution_only=lane is not None and lane.book.execution_only,
    )


def _planned(cell: WorldDevice, envelope: DeviceEnvelope) -> Setting:
    batches = {item.replica: item.batch for item in cell.host.heard.by_device[cell.id].values()}
    clocks, told = envelope.clocks_mhz_sm, cell.setting.clock_mhz_sm if cell.setting is not None else None
    return Setting(
        batches=tuple(batches[ReplicaId(replica.replica)] for replica in envelope.replicas),
        clock_mhz_sm=told or (clocks[-1] if clocks else 0),
    )


def _wish(cell: WorldDevice, decision: GovernorDecision) -> None:
    """What planners shall hear of it: what it asks for, until a period is good again."""
    asked = decision.repartition
    if asked is not None:
        cell.wanted = RepartitionWish(
            cause=BrokenLimit(asked.cause.value),
            replica=ReplicaId(asked.replica),
            donor=ReplicaId(asked.donor) if asked.donor else None,
            share_pct_sm=asked.share_pct_sm,
        )
    elif not decision.held and not decision.bad:
        cell.wanted = None
