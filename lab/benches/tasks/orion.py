"""Orion at the level of tasks: urgent tasks at once on the first GPU with room, patient ones beside them where they do
no harm.

Owns the surrogate rules: an urgent task needs memory, and SMs that no urgent task needs (patient ones give way). A
patient task joins urgent ones only if its class (compute- or memory-intensive) differs from each of theirs, its need
for SMs fits beside everybody's, and the kernels that patient tasks have outstanding take at most 2.5 % of the urgent
tasks' times; else it goes where no urgent task runs and its need fits. GPUs are taken in their order. Orion itself
decides kernel by kernel, which is not reproduced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.benches.tasks.first_come import Profiled, SeatRoom, TaskNeed
from solvers.models.base import Facts
from solvers.policies.oltunes.beliefs import MS_PER_S, character
from solvers.policies.oltunes.queues import Arrival
from solvers.policies.oltunes.scores import WorkloadClass, workload_class
from solvers.policies.oltunes.tasking import InferenceTask

OUTSTANDING_PART_MAX = 0.025
FULL_PCT = 100.0


@dataclass(frozen=True, slots=True)
class OrionRule:
    """What it knows of models: their class, and how many kernels share a batch's time."""

    facts: Facts

    @property
    def name(self) -> str:
        """Who it is."""
        return "orion"

    def ordered(self, tasks: Sequence[Arrival]) -> Iterable[Arrival]:
        """Urgent ones first, each in order of arrival."""
        return sorted(tasks, key=lambda each: not each.task.latency_critical)

    def room_for(self, task: InferenceTask, rooms: Sequence[SeatRoom], profiled: Profiled) -> SeatRoom | None:
        """The first that will do."""
        for room in rooms:
            need = profiled.need(task, room.seat.gpu_type)
            if need is None or need.config.memory_mib > room.memory_mib:
                continue
            if self._welcome(task, need, room):
                return room
        return None

    def _welcome(self, task: InferenceTask, need: TaskNeed, room: SeatRoom) -> bool:
        urgent = [each for each in room.sitting if each.task.latency_critical]
        if task.latency_critical:
            return sum(each.need.share_pct for each in urgent) + need.share_pct <= FULL_PCT
        if room.used_pct + need.share_pct > FULL_PCT:
            return False
        if any(self._class_of(each.task) is self._class_of(task) for each in urgent):
            return False
        patient = [each for each in room.sitting if not each.task.latency_critical]
        outstanding_s = self._kernel_s(task, need) + sum(self._kernel_s(each.task, each.need) for each in patient)
        shortest_s = min((each.need.config.run_s(each.task.inputs) for each in urgent), default=float("inf"))
        return outstanding_s <= OUTSTANDING_PART_MAX * shortest_s

    def _class_of(self, task: InferenceTask) -> WorkloadClass:
        return workload_class(character(self.facts, task.model).ratio)

    def _kernel_s(self, task: InferenceTask, need: TaskNeed) -> float:
        kernels = sum(layer.count for layer in self.facts.models[task.model].layers)
        return need.config.latency_ms / MS_PER_S / max(1, kernels)
