"""What devices of a simulated world have to carry, put together, and how they run under it.

Devices that hold the same under the same settings are one load and are worked out once; at request level every device
is a load of its own, for its queues are its own. Settled states are kept by what is carried and by rates in steps of a
hundredth, so that nothing is settled twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from lab.world.device import DeviceLoad, Tenant, Trainee, TrueDeviceState, kernels_part, settle
from lab.world.state import Process, State, WorldDevice, swapped_mib
from solvers.domain.ids import DeviceId, JobId, ServiceId, WorkloadId
from solvers.domain.snapshot import ReplicaState
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.errors import InputError
from solvers.sim.serving.serving import Served
from solvers.sim.truth.truth import Resident, gpu_truth, idle_power_w

KEPT_MAX = 300_000
"""Settled states that are remembered."""
RATE_STEPS = 100.0
"""Steps of a rate's natural logarithm."""
WEIGHT_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class LoadSeat:
    """One that executes on a device: whose it is and what it is worth to the router; 0: it only drains."""

    workload: WorkloadId
    kind: WorkloadKind
    weight: float


@dataclass(slots=True, eq=False)
class Load:
    """Devices that carry the same. `seats` are tenants first, then trainees; `queues` are of one device each."""

    base: DeviceLoad
    number: int
    """Of what is carried, whoever it belongs to."""
    seats: tuple[LoadSeat, ...]
    example: WorldDevice
    rented: bool
    holds: bool
    """Whether any process stands on it, be it only starting."""
    cells: dict[DeviceId, WorldDevice] = field(default_factory=dict)
    queues: list[float] = field(default_factory=list)
    state: TrueDeviceState | None = None
    served: list[Served | None] = field(default_factory=list)
    seconds: float = 0.0
    """How long the stretch was that was served last, in fluid mode."""

    @property
    def power_w(self) -> float:
        """Of one of the devices, in the stretch that was settled last."""
        if self.example.gone:
            return 0.0
        if self.state is not None:
            return self.state.power_w
        return idle_power_w(self.base.gpu, _STANDING if self.holds else ())

    def served_by(self, process: Process) -> Served | None:
        """The last stretch of one that executes on one of the devices, in fluid mode."""
        actors = process.cell.actors
        place = actors.index(process) if process in actors else len(self.served)
        return self.served[place] if place < len(self.served) else None

    @property
    def busy_part(self) -> float:
        """Of one of the devices: shares at work, 1 for all of it."""
        if self.state is None:
            return 0.0
        shares = [each.share_pct_sm for each in self.base.tenants] + [each.share_pct_sm for each in self.base.trainees]
        parts = (*self.state.busy, *(1.0 for _ in self.base.trainees))
        return min(1.0, sum(share * part for share, part in zip(shares, parts, strict=True)) / 100.0)

    @property
    def kernels_part(self) -> float:
        """Of one of the devices: the part of the time in which kernels of anybody run."""
        return 0.0 if self.state is None else kernels_part(self.base, self.state)

    @property
    def capacity_rps(self) -> float:
        """Of one of the devices: what full batches of services' processes that take requests would carry."""
        tables = () if self.state is None else self.state.exec_ms
        return sum(
            1000.0 * len(table) / table[-1]
            for seat, table in zip(self.seats, tables, strict=False)
            if seat.kind is WorkloadKind.SERVICE and seat.weight > 0.0
        )


_STANDING = (Resident(model="-", share_pct_sm=100),)


@dataclass(slots=True)
class WorldLoads:
    """All loads of a world. `apart`: every device is its own."""

    state: State
    apart: bool
    by_key: dict[tuple[object, ...], Load] = field(default_factory=dict)
    of_cell: dict[DeviceId, Load] = field(default_factory=dict)
    weights: dict[ServiceId, float] = field(default_factory=dict)
    """Sum of the weights of all processes of a service."""
    _numbers: dict[DeviceLoad, int] = field(default_factory=dict)
    _settled: dict[tuple[int, tuple[int, ...]], TrueDeviceState] = field(default_factory=dict)

    def refresh(self) -> None:
        if not self.state.changed:
            return
        changed, self.state.changed = self.state.changed, {}
        for cell in changed.values():
            self._leave(cell)
            self._join(cell)
        self.weights = {}
        for load in self.by_key.values():
            for seat in load.seats:
                if seat.kind is WorkloadKind.SERVICE and seat.weight > 0.0:
                    service = ServiceId(seat.workload)
                    self.weights[service] = self.weights.get(service, 0.0) + seat.weight * len(load.cells)

    def queue_of(self, process: Process) -> float:
        load, actors = self.of_cell.get(process.cell.id), process.cell.actors
        if load is None or process not in actors:
            return process.queue
        place = actors.index(process)
        return load.queues[place] if place < len(load.queues) else 0.0

    def queued(self, service: ServiceId) -> float:
        """What waits at all processes of a service in fluid mode."""
        return sum(
            queue * len(load.cells)
            for load in self.by_key.values()
            for seat, queue in zip(load.seats, load.queues, strict=False)
            if ServiceId(seat.workload) == service
        )

    def capacity_rps(self, service: ServiceId) -> float:
        """What full batches of all that a service has would carry, as devices were settled last."""
        return sum(
            1000.0 * len(table) / table[-1] * len(load.cells)
            for load in self.by_key.values()
            for seat, table in zip(load.seats, load.state.exec_ms if load.state is not None else (), strict=False)
            if ServiceId(seat.workload) == service and seat.weight > 0.0
        )

    def settle(self, load: Load, rates: tuple[float, ...]) -> TrueDeviceState:
        """How the load's devices run at these rates of its tenants."""
        steps = tuple(map(_step, rates))
        key = (load.number, steps)
        found = self._settled.get(key)
        if found is None:
            if len(self._settled) >= KEPT_MAX:
                self._settled.clear()
            tenants = tuple(
                replace(tenant, rate_rps=_rate(step)) for tenant, step in zip(load.base.tenants, steps, strict=True)
            )
            found = self._settled[key] = settle(replace(load.base, tenants=tenants))
        load.state = found
        return found

    def _leave(self, cell: WorldDevice) -> None:
        load = self.of_cell.pop(cell.id, None)
        if load is None:
            return
        for process, queue in zip(cell.actors, load.queues, strict=False):
            process.queue = queue if process.working else process.queue
        del load.cells[cell.id]
        if not load.cells:
            self.by_key = {key: each for key, each in self.by_key.items() if each is not load}
        elif load.example is cell:
            load.example = next(iter(load.cells.values()))

    def _join(self, cell: WorldDevice) -> None:
        working = [] if cell.gone else [each for each in cell.processes if each.working]
        cell.actors = tuple(
            sorted(working, key=lambda each: (each.item.kind is WorkloadKind.JOB, each.item.workload, each.serial))
        )
        tenants = [each for each in cell.actors if each.item.kind is not WorkloadKind.JOB]
        base = self._base(cell, tenants, cell.actors[len(tenants) :])
        number = self._numbers.setdefault(base, len(self._numbers))
        seats = tuple(map(_seat, cell.actors))
        rented = bool(cell.processes) or cell.id in self.state.wish.by_device
        key: tuple[object, ...] = (
            number,
            seats,
            (rented, bool(cell.processes), cell.gone),
            (cell.usd_per_h, cell.gpu_part, cell.cap_w, cell.domains),
            tuple(round(each.drain_until_s, 3) for each in tenants if each.state is ReplicaState.DRAINING),
            cell.id if self.apart else None,
        )
        load = self.by_key.get(key)
        if load is None:
            load = Load(base, number, seats, cell, rented, bool(cell.processes), queues=[0.0] * len(tenants))
            load.served = [None] * len(tenants)
            self.by_key[key] = load
        count = len(load.cells)
        # Queues of those that join are pooled with those that are there: sums are kept, which is what a fluid is about.
        load.queues = [
            (queue * count + process.queue) / (count + 1) for queue, process in zip(load.queues, tenants, strict=True)
        ]
        load.cells[cell.id] = cell
        self.of_cell[cell.id] = load

    def _base(self, cell: WorldDevice, tenants: list[Process], trainees: tuple[Process, ...]) -> DeviceLoad:
        return DeviceLoad(
            gpu=cell.truth,
            clock_mhz_sm=cell.clock_mhz,
            power_limit_w=cell.power_limit_w,
            tenants=tuple(
                Tenant(model=each.item.model, share_pct_sm=each.item.share_pct_sm, batch=each.batch, rate_rps=0.0)
                for each in tenants
            ),
            trainees=tuple(self._trainee(each) for each in trainees),
            slow=cell.slow,
        )

    def _trainee(self, process: Process) -> Trainee:
        job = self.state.works[WorkloadId(JobId(process.item.workload))].item
        reference = gpu_truth(job.gpu_type_reference) if isinstance(job, TrainingJob) else None
        if not isinstance(job, TrainingJob) or reference is None:
            raise InputError(f"{process.item.workload} refers to hardware that no simulated world has")
        return Trainee(
            model=job.model,
            share_pct_sm=process.item.share_pct_sm,
            iteration_ms_reference=job.iteration_ms_reference,
            gpu_reference=reference,
            swapped_mib=swapped_mib(job, process.item.memory_mib_limit),
        )


def _seat(process: Process) -> LoadSeat:
    item = process.item
    weight = max(WEIGHT_LEAST, item.capacity_rps) if process.routed else 0.0
    return LoadSeat(item.workload, item.kind, weight)


def _step(rate_rps: float) -> int:
    """A rate in steps; infinity and nothing have steps of their own."""
    if rate_rps <= 1e-6:
        return -1_000_000
    return 1_000_000 if math.isinf(rate_rps) else math.floor(math.log(rate_rps) * RATE_STEPS)


def _rate(step: int) -> float:
    """The middle of a step."""
    if step == -1_000_000:
        return 0.0
    return math.inf if step == 1_000_000 else math.exp((step + 0.5) / RATE_STEPS)
