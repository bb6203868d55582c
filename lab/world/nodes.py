"""Nodes of a simulated world: from what they are told to the processes that stand on their devices.

Changes keep the promises of the real agents: a process that must be replaced goes on until its replacement is ready,
wherever memory lets both stand; where it does not, and nothing else is about to make room, one process makes room
first; what goes drains before it ends, for a few seconds at most. A training job has no shadow: it stops, and goes
on elsewhere after its launch; only its memory may move while it runs. What waited at a process that ended is handed
back to its service's router.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agents.devices.base import needed_pct_sm
from lab.world.ledger import Usage
from lab.world.queues import Carried
from lab.world.state import BilledStretch, Priority, Process, State, TargetByDevice, WorldDevice, WorldNode, may_swap
from solvers.domain.device import DeviceMode
from solvers.domain.ids import ReplicaId, ServiceId
from solvers.domain.plan import Assignment
from solvers.domain.snapshot import ReplicaState
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.sim.truth.truth import swap_s

# --- Training memory that moves between a device and its host while jobs run
#
# What goes out goes at once and keeps the job from working for as long as it takes, what may come in comes when there
# is room. A process that starts and lacks nothing but memory gets it from jobs, the coldest first: those whose
# iterations are longest touch theirs most seldom. Only jobs move that say how little of their memory they can live
# with.


@dataclass(slots=True)
class SwappedMemory:
    """Gives running jobs another memory limit. `moved_mib`: what went over the link since it was asked last."""

    state: State
    moved_mib: float = 0.0

    def resize(self, told: Sequence[tuple[Process, Assignment]], *, growing: bool) -> None:
        """Bring these running jobs to the limits that they are told, either those that grow or those that shrink."""
        for process, item in told:
            more = item.memory_mib_limit - process.item.memory_mib_limit
            crowded = process.cell.memory_mib_held + more > process.cell.device.memory_mib
            if more and (more > 0) is growing and not (growing and crowded):
                self._move(process, more)

    def make_room(self, cell: WorldDevice, needed_mib: int) -> None:
        """Take so much from the jobs on a device for now, or nothing where they cannot give as much."""
        giving = []
        for process in cell.processes:
            work = self.state.works.get(process.item.workload)
            if work is None or not isinstance(work.item, TrainingJob) or work.item.memory_mib_resident_min is None:
                continue
            spare_mib = process.item.memory_mib_limit - work.item.memory_mib_resident_min
            giving.append((-work.item.iteration_ms_reference, process.serial, max(0, spare_mib), process))
        if sum(spare_mib for _, _, spare_mib, _ in giving) < needed_mib:
            return
        for _, _, spare_mib, process in sorted(giving, key=lambda each: each[:2]):
            part_mib = min(spare_mib, needed_mib)
            needed_mib -= part_mib
            if part_mib > 0:
                self._move(process, -part_mib)

    def taken(self) -> float:
        """What was moved, counted once."""
        moved, self.moved_mib = self.moved_mib, 0.0
        return moved

    def _move(self, process: Process, more_mib: int) -> None:
        item = replace(process.item, memory_mib_limit=process.item.memory_mib_limit + more_mib)
        process.become(item, process.batch, self.state.now_s)
        process.pause_s += swap_s(process.cell.truth, abs(more_mib))
        self.moved_mib += abs(more_mib)
        self.state.touch(process.cell)


# --- Processes

DRAIN_S_MAX = 10.0
"""How long a process may work off its queue before it ends."""
DRAIN_LOOK_S = 1.0
DUST = 1e-3
"""A queue shorter than this is empty: in fluid mode requests are fractions."""
MIB_PER_GB = 1000.0**3 / 1024.0**2
SECONDS_PER_HOUR = 3600.0


@dataclass(slots=True)
class _SortedProcesses:
    keep: dict[ReplicaId, Process] = field(default_factory=dict)
    standing: dict[ReplicaId, Process] = field(default_factory=dict)
    retiring: list[Process] = field(default_factory=list)
    under_way: int = 0
    """How many will make room by themselves."""


@dataclass(slots=True)
class WorldNodes:
    """All agents of the fleet. `launch_s` says how long a model takes to start on a device."""

    state: State
    launch_s: Callable[[str, WorldDevice], float]
    memory_mib: Callable[[str, int], float]
    queue_of: Callable[[Process], float]
    """What waits at a process in fluid mode."""
    on_change: Callable[[WorldDevice], None]
    """Hears of every device that was told something, or whose processes changed."""
    starts: int = 0
    stops: int = 0
    usages: list[Usage] = field(default_factory=list)
    memory: SwappedMemory = field(init=False)
    in_turns: set[int] = field(default_factory=set)
    """Processes that began on a device in time slices, by serial: none of them has its GPU to itself."""

    def __post_init__(self) -> None:
        self.memory = SwappedMemory(self.state)

    def hear(self, host: WorldNode, wish: TargetByDevice, *, instantly: bool = False) -> None:
        """A node that can be reached learns what it shall hold and sets about it; `instantly`: it is done at once."""
        if not host.reachable or wish.target.generation < host.heard.target.generation:
            return
        host.heard = wish
        for cell in host.cells:
            cell.setting = wish.settings.get(cell.id)
            self.reconcile(cell, instantly=instantly)

    def reconcile(self, cell: WorldDevice, *, instantly: bool = False) -> None:
        """Take every step that can be taken now on a device."""
        if cell.gone:
            return
        wanted = self._wanted(cell)
        if wanted or cell.processes:
            found = self._sort(cell, wanted, instantly=instantly)
            moving = [(each, wanted[each.item.replica]) for each in found.keep.values()]
            self.memory.resize(moving, growing=False)
            self._start(cell, wanted, found, instantly=instantly)
            self.memory.resize(moving, growing=True)
        self.on_change(cell)
        self.state.touch(cell)

    def end(self, process: Process) -> None:
        """A process is gone; what waited at it goes back to the router."""
        cell, item = process.cell, process.item
        cell.processes.remove(process)
        self.state.replicas[item.replica].remove(process)
        if not self.state.replicas[item.replica]:
            del self.state.replicas[item.replica]
        self.stops += 1
        self.usages += self._usages(process, self.state.now_s)
        work = self.state.works.get(item.workload)
        if work is not None and work.ended_s is None and process.state is not ReplicaState.STARTING:
            work.evictions += 1
        lane = self.state.lanes.get(ServiceId(item.workload))
        if lane is not None and process in lane.processes:
            lane.processes.remove(process)
            lane.waiting_s = np.sort(np.concatenate((lane.waiting_s, np.array(process.carried.waiting_s))))
            lane.waiting += self.queue_of(process)
            process.carried, process.queue = Carried(), 0.0
        process.state = ReplicaState.FAILED
        self.state.touch(cell)

    def standing_usages(self) -> list[Usage]:
        """What has not ended, as if it ended now."""
        now_s = self.state.now_s
        standing = (each for cell in self.state.cells.values() for each in cell.processes)
        return [usage for process in standing for usage in self._usages(process, now_s)]

    def _wanted(self, cell: WorldDevice) -> dict[ReplicaId, Assignment]:
        items = cell.host.heard.by_device.get(cell.id, {})
        works = self.state.works
        return {
            replica: item
            for replica, item in items.items()
            if item.workload not in works or works[item.workload].ended_s is None
        }

    def _sort(self, cell: WorldDevice, wanted: dict[ReplicaId, Assignment], *, instantly: bool) -> _SortedProcesses:
        found = _SortedProcesses()
        usable = [
            each for each in cell.processes if each.state is not ReplicaState.DRAINING and self._fits(each, wanted)
        ]
        for process in sorted(usable, key=lambda each: (each.state is not ReplicaState.READY, each.serial)):
            found.keep.setdefault(process.item.replica, process)
        kept = {each.serial for each in found.keep.values()}
        for process in tuple(cell.processes):
            if process.serial in kept:
                # Its memory moves later, and only where there is room.
                item = replace(wanted[process.item.replica], memory_mib_limit=process.item.memory_mib_limit)
                process.become(item, item.batch, self.state.now_s)
                if instantly:
                    self._ready(process)
            elif instantly:
                self.end(process)
            elif process.state is ReplicaState.DRAINING:
                found.under_way += 1
            else:
                self._send_off(process, wanted, found)
        return found

    def _fits(self, process: Process, wanted: dict[ReplicaId, Assignment]) -> bool:
        """Whether a process can be the wanted one; what else differs is changed while it runs."""
        item = wanted.get(process.item.replica)
        if item is None:
            return False
        held = process.item
        if may_swap(self.state.works.get(held.workload)):
            held = replace(held, memory_mib_limit=item.memory_mib_limit)
        return _fixed(held) == _fixed(item)

    def _send_off(self, process: Process, wanted: dict[ReplicaId, Assignment], found: _SortedProcesses) -> None:
        """How a process that is not kept ends: at once, after draining, or when its replacement is ready."""
        replica = process.item.replica
        replacement = found.keep.get(replica)
        replaced = replacement is not None and replacement.routed
        leave = process.cell.host.heard.leaving.get(process.cell.id, {}).get(replica)
        awaited = replica in wanted or self._awaited_elsewhere(process)
        if process.state is not ReplicaState.READY or process.item.kind is WorkloadKind.JOB:
            self.end(process)
        elif leave is not None and self.state.now_s < leave.until_s and _fixed(leave.item) == _fixed(process.item):
            found.retiring.append(process)
        elif awaited and not replaced and replica not in found.standing:
            found.standing[replica] = process
            found.under_way += replacement is not None
        else:
            found.under_way += self.drain(process)

    def _awaited_elsewhere(self, process: Process) -> bool:
        """Whether its replica belongs on another device of this node, and is not ready there."""
        replica = process.item.replica
        place = self.state.wish.places.get(replica)
        if place is None or place == process.cell.id:
            return False
        cell = self.state.cells[place]
        if cell.gone or cell.host is not process.cell.host:
            return False
        return not any(each.cell is cell and each.routed for each in self.state.replicas[replica])

    def _start(
        self, cell: WorldDevice, wanted: dict[ReplicaId, Assignment], found: _SortedProcesses, *, instantly: bool
    ) -> None:
        """Start what fits, what frees most first; when nothing fits and nothing makes room, one process does."""

        def growth(replica: ReplicaId) -> tuple[int, str]:
            standing = found.standing.get(replica)
            held = standing.item.share_pct_sm if standing is not None else 0
            return (wanted[replica].share_pct_sm - held if replica in wanted else -held, replica)

        waiting = sorted((replica for replica in wanted if replica not in found.keep), key=growth)
        started = 0
        for replica in waiting:
            item = wanted[replica]
            short_mib = cell.memory_mib_held + item.memory_mib_limit - cell.device.memory_mib
            if short_mib > 0 and item.kind is not WorkloadKind.JOB and share_fits(cell, item):
                self.memory.make_room(cell, short_mib)
            if cell.memory_mib_held + item.memory_mib_limit <= cell.device.memory_mib and share_fits(cell, item):
                self._launch(cell, item, instantly=instantly)
                started += 1
        stuck = bool(waiting) and not started and not found.under_way
        if stuck and found.retiring:
            for process in found.retiring:
                self.drain(process)
        elif stuck and found.standing and all(each.routed for each in found.keep.values()):
            self.drain(found.standing[min(found.standing, key=growth)])

    def _launch(self, cell: WorldDevice, item: Assignment, *, instantly: bool) -> None:
        state = self.state
        process = Process(
            serial=state.serial,
            item=item,
            cell=cell,
            state=ReplicaState.STARTING,
            batch=item.batch,
            begun_s=state.now_s,
        )
        state.serial += 1
        self.starts += 1
        if cell.mode is DeviceMode.TIME_SLICED:
            self.in_turns.add(process.serial)
        cell.processes.append(process)
        state.replicas.setdefault(item.replica, []).append(process)
        took_s = 0.0 if instantly else self.launch_s(item.model, cell)
        if took_s <= 0.0:
            self._ready(process)
        else:
            state.kernel.at(state.now_s + took_s, Priority.READY, lambda: self._launched(process))

    def _ready(self, process: Process) -> None:
        if process.state is not ReplicaState.STARTING:
            return
        process.state = ReplicaState.READY
        now_s = self.state.now_s
        process.report.since_s = process.period.since_s = now_s
        lane = self.state.lanes.get(ServiceId(process.item.workload))
        if lane is not None:
            lane.processes.append(process)
            lane.processes.sort(key=lambda each: each.serial)
        work = self.state.works.get(process.item.workload)
        if work is not None and work.begun_s is None:
            work.begun_s = now_s
        self.state.touch(process.cell)

    def _launched(self, process: Process) -> None:
        """It takes over: those that stood in for it may go."""
        if process.state is not ReplicaState.STARTING:
            return
        self._ready(process)
        cells = {each.cell.id: each.cell for each in self.state.replicas[process.item.replica]}
        for cell in cells.values():
            self.reconcile(cell)

    def drain(self, process: Process) -> bool:
        """No new requests; it ends when its queue is empty, or its time is over. False: it had none, and is gone."""
        lane = self.state.lanes.get(ServiceId(process.item.workload))
        if lane is None:
            self.end(process)
            return False
        process.state = ReplicaState.DRAINING
        process.drain_until_s = self.state.now_s + DRAIN_S_MAX
        self.state.touch(process.cell)
        # Not here and now: this may be in the middle of putting its device in order.
        self.state.kernel.at(self.state.now_s, Priority.READY, lambda: self._look(process))
        return True

    def _look(self, process: Process) -> None:
        if process.state is not ReplicaState.DRAINING:
            return
        now_s = self.state.now_s
        done_s = max(now_s, process.carried.free_s)
        if (process.waiting <= DUST and done_s <= now_s) or now_s >= process.drain_until_s:
            self.end(process)
            self.reconcile(process.cell)
            return
        at_s = done_s if process.waiting <= DUST else now_s + DRAIN_LOOK_S
        self.state.kernel.at(min(at_s, process.drain_until_s), Priority.READY, lambda: self._look(process))

    def _usages(self, process: Process, end_s: float) -> list[Usage]:
        """One for each stretch of its time in which it held the same."""
        held = (*process.before, BilledStretch(end_s, process.item.memory_mib_limit, process.batch))
        begins_s = (process.begun_s, *(each.until_s for each in process.before))
        return [self._usage(process, begin_s, each) for begin_s, each in zip(begins_s, held, strict=True)]

    def _usage(self, process: Process, begin_s: float, held: BilledStretch) -> Usage:
        item, cell = process.item, process.cell
        memory_gb = cell.device.memory_mib / MIB_PER_GB
        used = min(float(held.memory_mib_limit), self.memory_mib(item.model, held.batch))
        return Usage(
            gpu=cell.id,
            price_per_gb_s=cell.usd_per_h / SECONDS_PER_HOUR / memory_gb,
            memory_gb_gpu=memory_gb,
            memory_gb_reserved=held.memory_mib_limit / MIB_PER_GB,
            memory_gb_used=used / MIB_PER_GB,
            begin_s=begin_s,
            end_s=held.until_s,
            whole_gpu=process.serial not in self.in_turns
            and (item.share_pct_sm >= 100 or cell.mode is DeviceMode.DEDICATED),
        )


def share_fits(cell: WorldDevice, item: Assignment) -> bool:
    """Whether a process may start next to what stands on a device, memory aside."""
    if cell.mode is DeviceMode.DEDICATED:
        return not cell.processes
    held = [(each.replica, each.share_pct_sm) for each in (item, *(process.item for process in cell.processes))]
    return cell.mode is DeviceMode.TIME_SLICED or needed_pct_sm(held, cell.host.heard.by_device[cell.id]) <= 100


def _fixed(item: Assignment) -> tuple[object, ...]:
    return (item.kind, item.workload, item.model, item.share_pct_sm, item.memory_mib_limit)
