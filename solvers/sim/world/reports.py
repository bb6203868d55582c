"""What a node of a simulated world tells of itself: replicas, readings of devices and of replicas.

Owns the reading of meters; reading starts them anew. It refuses to add noise: what is reported is what was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from solvers.domain.ids import ReplicaId
from solvers.domain.snapshot import Replica, ReplicaState
from solvers.domain.telemetry import DeviceTelemetry, ReplicaTelemetry
from solvers.sim.serving.serving import Served
from solvers.sim.truth.truth import memory_mib
from solvers.sim.world.loads import Load, Loads
from solvers.sim.world.metrics import BINS, percentile_ms
from solvers.sim.world.state import Cell, Host, Meter, Process, State

_NO_ANSWERS = np.zeros(BINS)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node at a moment."""

    at_s: float
    generation: int
    replicas: tuple[Replica, ...]
    devices: tuple[DeviceTelemetry, ...]
    readings: tuple[ReplicaTelemetry, ...]

    def aged(self, now_s: float) -> NodeReport:
        """The same, seen later."""
        age_s = round(now_s - self.at_s, 6)
        if age_s <= 0.0:
            return self
        return replace(
            self,
            devices=tuple(replace(each, age_s=age_s) for each in self.devices),
            readings=tuple(replace(each, age_s=age_s) for each in self.readings),
        )


def read_node(state: State, loads: Loads, host: Host) -> NodeReport:
    """Read everything on a node."""
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
    item = process.item
    return Replica(
        id=item.replica,
        kind=item.kind,
        workload=item.workload,
        model=item.model,
        device=process.cell.id,
        share_pct_sm=item.share_pct_sm,
        memory_mib_limit=item.memory_mib_limit,
        batch=process.batch,
        state=process.state if process.state is not ReplicaState.FAILED else ReplicaState.DRAINING,
    )


def _device(cell: Cell, load: Load | None) -> DeviceTelemetry:
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
