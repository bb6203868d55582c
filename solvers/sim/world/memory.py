"""Training memory of a simulated world that moves between a device and its host while jobs run.

Owns the hook by which a running job is given another memory limit, and its simulated implementation: what goes out goes
at once and keeps the job from working for as long as it takes, what may come in comes when there is room. A process
that starts and lacks nothing but memory gets it from jobs, the coldest first: those whose iterations are longest touch
theirs most seldom. Only jobs move that say how little of their memory they can live with. It refuses to decide who gets
how much for good: a plan's memory limit is what is resident, and what a start took comes back when there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from solvers.domain.plan import Assignment
from solvers.domain.workload import OfflineTask, TrainingJob
from solvers.sim.truth.truth import swap_s
from solvers.sim.world.state import Process, State, Work, WorldDevice


class MemoryHook(Protocol):
    """What stands between a training job and its device's memory. A real one sits in the job's own process; agents know
    none, and start a job anew with its new limit.
    """

    def resize(self, told: Sequence[tuple[Process, Assignment]], *, growing: bool) -> None:
        """Bring these running jobs to the limits that they are told, either those that grow or those that shrink."""
        ...

    def make_room(self, cell: WorldDevice, needed_mib: int) -> None:
        """Take so much from the jobs on a device for now, or nothing where they cannot give as much."""
        ...


@dataclass(slots=True)
class SwappedMemory:
    """The simulated one. `moved_mib`: what went over the link since it was asked last."""

    state: State
    moved_mib: float = 0.0

    def resize(self, told: Sequence[tuple[Process, Assignment]], *, growing: bool) -> None:
        """See the hook."""
        for process, item in told:
            more = item.memory_mib_limit - process.item.memory_mib_limit
            crowded = process.cell.memory_mib_held + more > process.cell.device.memory_mib
            if more and (more > 0) is growing and not (growing and crowded):
                self._move(process, more)

    def make_room(self, cell: WorldDevice, needed_mib: int) -> None:
        """See the hook."""
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
        process.item = replace(process.item, memory_mib_limit=process.item.memory_mib_limit + more_mib)
        process.pause_s += swap_s(process.cell.truth, abs(more_mib))
        self.moved_mib += abs(more_mib)
        self.state.touch(process.cell)


def may_swap(work: Work | None) -> bool:
    """Whether a workload's memory can move while it runs."""
    return work is not None and isinstance(work.item, TrainingJob) and work.item.memory_mib_resident_min is not None


def swapped_mib(job: TrainingJob | OfflineTask, resident_mib: int) -> float:
    """What of a job's memory is on its host under a memory limit."""
    if not isinstance(job, TrainingJob) or job.memory_mib_resident_min is None:
        return 0.0
    return float(max(0, job.memory_mib - resident_mib))
