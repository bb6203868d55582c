"""What stands in a simulated world at a moment: devices, processes on them, services, jobs, the target.

Everything is kept in an order that follows from names and from the order of creation, so that a run never depends on
hashing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from lab.world.clients import Clients
from lab.world.ledger import ServiceBook
from lab.world.queues import Carried
from lab.world.scenario import Traffic
from solvers.cycle.alarm import JumpWatch
from solvers.domain.arrays import Floats
from solvers.domain.change import Target
from solvers.domain.device import Device, DeviceMode, GpuType, Node
from solvers.domain.ids import DeviceId, NodeId, ReplicaId, ServiceId, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.snapshot import ReplicaState
from solvers.domain.telemetry import RepartitionWish, surely_rps
from solvers.domain.workload import OfflineTask, TrainingJob, WorkloadKind
from solvers.errors import InvariantError
from solvers.sim.serving.serving import QUEUE_S_MAX
from solvers.sim.truth.truth import GpuTruth

# --- Time: events by their moment, then by kind, then by the order in which they were planned

Deed = Callable[[], None]


class Priority(IntEnum):
    """What comes first of things that happen at one moment: the world changes, nodes act, then people look at it."""

    FAULT = 0
    WORK = 1
    READY = 2
    APPLY = 3
    GOVERN = 4
    REPORT = 5
    CYCLE = 6


@dataclass(slots=True)
class Kernel:
    now_s: float = 0.0
    _heap: list[tuple[float, Priority, int, Deed]] = field(default_factory=list)
    _planned: int = 0

    def at(self, at_s: float, priority: Priority, deed: Deed) -> None:
        """Plan an event. Raises InvariantError for one that lies in the past."""
        if at_s < self.now_s:
            raise InvariantError(f"an event at {at_s:g} s was planned at {self.now_s:g} s")
        heapq.heappush(self._heap, (at_s, priority, self._planned, deed))
        self._planned += 1

    def next_s(self) -> float:
        """When the next event is; infinity when there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def move(self, now_s: float) -> None:
        """Let time pass. Raises InvariantError when that would skip an event or go back."""
        if now_s < self.now_s or now_s > self.next_s():
            raise InvariantError(f"time cannot go from {self.now_s:g} s to {now_s:g} s")
        self.now_s = now_s

    def happen(self) -> None:
        """Let everything happen that is planned for now, what it plans for now included."""
        while self._heap and self._heap[0][0] <= self.now_s:
            heapq.heappop(self._heap)[3]()


# --- What stands


@dataclass(slots=True)
class Meter:
    since_s: float = 0.0
    arrived: float = 0.0
    completed: float = 0.0
    late: float = 0.0
    dropped: float = 0.0
    batches: float = 0.0
    busy_s: float = 0.0
    histogram: Floats | None = None
    """Only single requests have one."""


@dataclass(frozen=True, slots=True)
class BilledStretch:
    """What a process held until a moment, from the end of the one before or from its begin."""

    until_s: float
    memory_mib_limit: int
    batch: int


@dataclass(slots=True, eq=False)
class Process:
    """One process of a replica. `batch` is what it has been told last, `queue` what waits in fluid mode."""

    serial: int
    item: Assignment
    cell: WorldDevice
    state: ReplicaState
    batch: int
    begun_s: float
    drain_until_s: float = float("inf")
    carried: Carried = field(default_factory=Carried)
    queue: float = 0.0
    exec_ms: tuple[float, ...] = ()
    """Mean times of its batches in the stretch that is simulated."""
    answer_shift_ms: float = 0.0
    """By how much its answers then take longer than its batches: only where a full batch is always waiting."""
    pause_s: float = 0.0
    """How long a job still waits for its memory to move."""
    lately: tuple[float, float] = (0.0, 0.0)
    """Seconds at work and batches on the meter before the stretch that is simulated."""
    report: Meter = field(default_factory=Meter)
    period: Meter = field(default_factory=Meter)
    before: list[BilledStretch] = field(default_factory=list)
    """What it held before what it holds now: each is billed for its own time."""

    def become(self, item: Assignment, batch: int, now_s: float) -> None:
        """Take another item or batch while it runs; what it held for no time is forgotten."""
        since_s = self.before[-1].until_s if self.before else self.begun_s
        if (item.memory_mib_limit, batch) != (self.item.memory_mib_limit, self.batch) and now_s > since_s:
            self.before.append(BilledStretch(now_s, self.item.memory_mib_limit, self.batch))
        self.item, self.batch = item, batch

    @property
    def waiting(self) -> float:
        return self.queue + len(self.carried.waiting_s)

    @property
    def routed(self) -> bool:
        return self.state is ReplicaState.READY

    @property
    def working(self) -> bool:
        return self.state in (ReplicaState.READY, ReplicaState.DRAINING)


@dataclass(frozen=True, slots=True)
class Leave:
    """A replica that is not planned where it is any more, and until when it may go on there."""

    item: Assignment
    until_s: float


@dataclass(frozen=True, slots=True)
class TargetByDevice:
    target: Target = field(default_factory=Target)
    by_device: Mapping[DeviceId, Mapping[ReplicaId, Assignment]] = field(default_factory=dict)
    settings: Mapping[DeviceId, DeviceSetting] = field(default_factory=dict)
    places: Mapping[ReplicaId, DeviceId] = field(default_factory=dict)
    leaving: Mapping[DeviceId, Mapping[ReplicaId, Leave]] = field(default_factory=dict)
    """What may go on for a while beside it."""

    @classmethod
    def of(cls, target: Target, leaving: Mapping[DeviceId, Mapping[ReplicaId, Leave]] | None = None) -> TargetByDevice:
        by_device: dict[DeviceId, dict[ReplicaId, Assignment]] = {}
        for item in target.assignments:
            by_device.setdefault(item.device, {})[item.replica] = item
        settings = {item.device: item for item in target.settings}
        places = {item.replica: item.device for item in target.assignments}
        return cls(target, by_device, settings, places, leaving or {})


@dataclass(slots=True, eq=False)
class WorldNode:
    """A node: what it was told last, and how it fares."""

    node: Node
    cells: list[WorldDevice] = field(default_factory=list)
    heard: TargetByDevice = field(default_factory=TargetByDevice)
    lost: int = 0
    silent: int = 0
    """How many faults of each kind hold."""

    @property
    def reachable(self) -> bool:
        return not self.lost and not self.silent


@dataclass(slots=True, eq=False)
class WorldDevice:
    """A device with what is on it. `clock_mhz` is what it is told to run at."""

    device: Device
    gpu_type: GpuType
    truth: GpuTruth
    host: WorldNode
    usd_per_h: float
    gpu_part: float
    """Part of a whole GPU: less than 1 for MIG slices."""
    cap_w: float | None = None
    """The power cap of the device alone."""
    domains: tuple[int, ...] = ()
    """Numbers of the other power caps that count it."""
    setting: DeviceSetting | None = None
    governed_clock_mhz: int | None = None
    processes: list[Process] = field(default_factory=list)
    lost: int = 0
    slow: float = 1.0
    limit_factor: float = 1.0
    limit_settable: bool = True
    wanted: RepartitionWish | None = None
    """What its controller asks planners for."""
    actors: tuple[Process, ...] = ()
    """What executes, in the order in which its load names it: tenants by name, then training jobs."""

    @property
    def id(self) -> DeviceId:
        return self.device.id

    @property
    def gone(self) -> bool:
        return self.lost > 0 or self.host.lost > 0

    @property
    def mode(self) -> DeviceMode:
        return self.setting.mode if self.setting is not None else self.device.mode

    @property
    def clock_mhz(self) -> int:
        if self.governed_clock_mhz is not None:
            return self.governed_clock_mhz
        told = self.setting.clock_mhz_sm if self.setting is not None else None
        return told or self.truth.clock_mhz_sm_max

    @property
    def power_limit_w(self) -> float:
        told = self.setting.power_limit_w if self.setting is not None and self.limit_settable else None
        return (told or self.truth.tdp_w) * self.limit_factor

    @property
    def memory_mib_held(self) -> int:
        return sum(process.item.memory_mib_limit for process in self.processes)


@dataclass(slots=True)
class GatewayCount:
    """What a gateway counted of a service: the sum until it counted last, and the last jump."""

    at_s: float = 0.0
    asked: float = 0.0
    watch: JumpWatch = field(default_factory=JumpWatch)
    jumped_s: float = -math.inf
    jump_rps: float = 0.0

    def count(self, asked: float, now_s: float) -> bool:
        """Whether it jumped since."""
        count, seconds = asked - self.asked, now_s - self.at_s
        if seconds <= 0.0:
            return False
        self.asked, self.at_s = asked, now_s
        jumped = self.watch.take(count, seconds, now_s)
        if jumped:
            self.jumped_s, self.jump_rps = now_s, surely_rps(count, seconds)
        return jumped


@dataclass(slots=True, eq=False)
class ServiceLane:
    """A service with its traffic, what waits at its router, and what was asked of it so far."""

    traffic: Traffic
    book: ServiceBook
    processes: list[Process] = field(default_factory=list)
    """Those that can execute, in order of their creation."""
    waiting_s: Floats = field(default_factory=lambda: np.empty(0))
    waiting: float = 0.0
    """In fluid mode."""
    clients: Clients | None = None
    """Of a closed loop, request by request."""
    asked_until: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    """Sums of what was asked until moments, the oldest first."""
    asked: float = 0.0
    completed: float = 0.0
    dropped: float = 0.0
    edge: GatewayCount = field(default_factory=GatewayCount)

    @property
    def id(self) -> ServiceId:
        return self.traffic.service.id

    @property
    def limit_ms(self) -> float | None:
        return self.book.limit_ms

    @property
    def drop_limit_ms(self) -> float | None:
        """Beyond it a request is hopeless and dropped; None: none is."""
        return self.limit_ms if self.traffic.drop and not self.book.execution_only else None

    @property
    def patience_s(self) -> float:
        """How long a request waits at the router while nobody is ready."""
        return QUEUE_S_MAX if self.drop_limit_ms is None else self.drop_limit_ms / 1000.0

    @property
    def queued(self) -> float:
        return self.waiting + len(self.waiting_s) + sum(process.waiting for process in self.processes)


@dataclass(slots=True, eq=False)
class Work:
    """A training job or an offline task on its way."""

    item: TrainingJob | OfflineTask
    kind: WorkloadKind
    at_s: float
    total: float
    done: float = 0.0
    begun_s: float | None = None
    ended_s: float | None = None
    evictions: int = 0

    @property
    def id(self) -> WorkloadId:
        return WorkloadId(self.item.id)


@dataclass(slots=True)
class State:
    kernel: Kernel
    hosts: dict[NodeId, WorldNode]
    cells: dict[DeviceId, WorldDevice]
    lanes: dict[ServiceId, ServiceLane]
    works: dict[WorkloadId, Work]
    wish: TargetByDevice = field(default_factory=TargetByDevice)
    planner_down: int = 0
    serial: int = 0
    replicas: dict[ReplicaId, list[Process]] = field(default_factory=dict)
    """All processes by replica, the oldest first."""
    changed: dict[DeviceId, WorldDevice] = field(default_factory=dict)
    """Devices whose load has to be put together anew."""

    @property
    def now_s(self) -> float:
        return self.kernel.now_s

    @property
    def target(self) -> Target:
        return self.wish.target

    @property
    def open_works(self) -> list[Work]:
        """Jobs and tasks that came and did not end."""
        return [each for each in self.works.values() if each.at_s <= self.now_s and each.ended_s is None]

    def touch(self, cell: WorldDevice) -> None:
        self.changed[cell.id] = cell


def may_swap(work: Work | None) -> bool:
    return work is not None and isinstance(work.item, TrainingJob) and work.item.memory_mib_resident_min is not None


def swapped_mib(job: TrainingJob | OfflineTask, resident_mib: int) -> float:
    """What of a job's memory is on its host under a memory limit."""
    if not isinstance(job, TrainingJob) or job.memory_mib_resident_min is None:
        return 0.0
    return float(max(0, job.memory_mib - resident_mib))
