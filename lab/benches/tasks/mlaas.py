"""MLaaS' reserve-and-pack: large GPUs are kept for tasks that ask for them, the others are packed onto regular ones.

Owns the rule: a heavy task goes to a high-end GPU, or to a regular one where none has room; any other task to a regular
GPU alone. A GPU has room where memory and the parts of a GPU that its tasks ask for allow it, and the most used one of
these is taken, of equally used high-end ones the first, of regular ones the last. Owners ask for the SMs that their
batch needs alone; neither affinity nor configurations are looked at. High-end are the types with the most memory of
those that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.benches.tasks.first_come import Profiled, SeatRoom
from solvers.models.base import Facts
from solvers.policies.oltunes.queues import Arrival
from solvers.policies.oltunes.tasking import InferenceTask

FULL_PCT = 100.0


@dataclass(frozen=True, slots=True)
class ReserveAndPack:
    """The rule."""

    facts: Facts

    @property
    def name(self) -> str:
        """Who it is."""
        return "mlaas"

    def ordered(self, tasks: Sequence[Arrival]) -> Iterable[Arrival]:
        """As they came."""
        return tasks

    def room_for(self, task: InferenceTask, rooms: Sequence[SeatRoom], profiled: Profiled) -> SeatRoom | None:
        """The most used of those that are meant for it."""
        memory = {room.seat.gpu_type: self.facts.gpu_types[room.seat.gpu_type].memory_mib for room in rooms}
        most = max(memory.values(), default=0)
        regular = [room for room in rooms if memory[room.seat.gpu_type] < most] or list(rooms)
        if task.heavy:
            reserved = [room for room in rooms if memory[room.seat.gpu_type] == most]
            found = _most_used(task, reserved, profiled)
            if found is not None:
                return found
        return _most_used(task, regular[::-1], profiled)


def _most_used(task: InferenceTask, rooms: Sequence[SeatRoom], profiled: Profiled) -> SeatRoom | None:
    """The first of them, where several are used alike."""
    fitting = []
    for room in rooms:
        need = profiled.need(task, room.seat.gpu_type)
        if need is None or need.config.memory_mib > room.memory_mib:
            continue
        if room.used_pct + need.share_pct <= FULL_PCT:
            fitting.append(room)
    return max(fitting, key=lambda room: room.used_pct, default=None)
