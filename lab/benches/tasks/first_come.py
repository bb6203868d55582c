"""Schedulers that place tasks one by one as they come, each by a rule of its own: the frame of Orion and of MLaaS.

The need for SMs is as it was profiled: the least share at which a batch is hardly slower than on the whole GPU. A task
runs with its owner's own batch and no limit on its SMs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.benches.tasks.contract import (
    BATCHES,
    MS_PER_S,
    Arrival,
    Config,
    Ended,
    Ending,
    InferenceTask,
    Launch,
    OltunesBeliefs,
    PlacedTask,
    TaskScheduler,
    TaskSeat,
)
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.models.base import Facts
from solvers.policies.oltunes.scores import character_of

OUTSTANDING_PART_MAX = 0.025
FULL_PCT = 100.0
COMPUTE_RATIO_MIN = 1.2
"""From this ratio of Eq. 1 of OLTunes on a model is compute-intensive."""


@dataclass(frozen=True, slots=True)
class OrionRule:
    """What it knows of models: their class, and how many kernels share a batch's time."""

    facts: Facts
    name: str = "orion"

    def ordered(self, tasks: Sequence[Arrival]) -> Iterable[Arrival]:
        """Urgent ones first, each in order of arrival."""
        return sorted(tasks, key=lambda each: not each.task.latency_critical)

    def room_for(self, task: InferenceTask, rooms: Sequence[SeatRoom], profiled: Profiled) -> SeatRoom | None:
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
        if any(self._presses_compute(each.task) is self._presses_compute(task) for each in urgent):
            return False
        patient = [each for each in room.sitting if not each.task.latency_critical]
        outstanding_s = self._kernel_s(task, need) + sum(self._kernel_s(each.task, each.need) for each in patient)
        shortest_s = min((each.need.config.run_s(each.task.inputs) for each in urgent), default=float("inf"))
        return outstanding_s <= OUTSTANDING_PART_MAX * shortest_s

    def _presses_compute(self, task: InferenceTask) -> bool:
        return character_of(self.facts.models[task.model]).ratio >= COMPUTE_RATIO_MIN

    def _kernel_s(self, task: InferenceTask, need: TaskNeed) -> float:
        kernels = sum(layer.count for layer in self.facts.models[task.model].layers)
        return need.config.latency_ms / MS_PER_S / max(1, kernels)


@dataclass(frozen=True, slots=True)
class ReserveAndPack:
    facts: Facts
    name: str = "mlaas"

    def ordered(self, tasks: Sequence[Arrival]) -> Iterable[Arrival]:
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


SLOWER_BORNE = 1.1
"""A batch needs the least share at which it takes at most this much of its time on the whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNeed:
    """What a task takes of a GPU type: its configuration and the SMs it needs, in percent."""

    config: Config
    share_pct: float


@dataclass(frozen=True, slots=True)
class Sitting:
    task: InferenceTask
    need: TaskNeed


@dataclass(slots=True)
class SeatRoom:
    """A seat while a tick is decided. It changes as tasks are put into it."""

    seat: TaskSeat
    memory_mib: float
    sitting: list[Sitting]

    @property
    def used_pct(self) -> float:
        return sum(each.need.share_pct for each in self.sitting)

    def put(self, task: InferenceTask, need: TaskNeed) -> None:
        self.sitting.append(Sitting(task, need))
        self.memory_mib -= need.config.memory_mib


class Profiled:
    """Needs of models by GPU type and batch, predicted from what was profiled offline."""

    def __init__(self, beliefs: OltunesBeliefs) -> None:
        self._beliefs = beliefs
        self._needs: dict[tuple[ModelName, GpuTypeName, int], TaskNeed | None] = {}

    def need(self, task: InferenceTask, gpu_type: GpuTypeName) -> TaskNeed | None:
        """None: its batch fits no GPU of this type. Batches are those that were looked at, rounded down."""
        if task.gpu_types_allowed and gpu_type not in task.gpu_types_allowed:
            return None
        batch = max(each for each in BATCHES if each <= task.batch_declared)
        key = (task.model, gpu_type, batch)
        if key not in self._needs:
            self._needs[key] = self._needed(*key)
        return self._needs[key]

    def _needed(self, model: ModelName, gpu_type: GpuTypeName, batch: int) -> TaskNeed | None:
        table = self._beliefs.table(model, (gpu_type,))
        rows = [row for row in range(len(table.queries)) if int(table.queries.batch[row]) == batch]
        if not rows:
            return None
        whole = rows[-1]
        enough = [row for row in rows if table.latency_ms[row] <= SLOWER_BORNE * table.latency_ms[whole]]
        return TaskNeed(config=table.config(whole), share_pct=float(table.queries.share_pct[enough[0]]))


class ArrivalLine(TaskScheduler[Arrival]):
    """Tasks of failed groups first: for schedulers that look at one task after the other."""

    _due_s: float | None = None

    @property
    def wake_s(self) -> float | None:
        """At once when somebody came or went."""
        return self._due_s

    def arrive(self, task: InferenceTask, now_s: float) -> None:
        super().arrive(task, now_s)
        self._due_s = now_s if self._due_s is None else self._due_s

    def ended(self, outcome: Ended, now_s: float) -> None:
        """Room is there again; who failed goes to the front."""
        known = self._landed(outcome)
        if outcome.ending is Ending.FAILED:
            self._main[:0] = sorted(known, key=lambda each: each.order)
            self._waiting |= {each.task.id for each in known}
        if self._main:
            self._due_s = now_s

    def _launch(self, arrival: Arrival) -> None:
        self._flying[arrival.task.id] = arrival
        self._waiting.discard(arrival.task.id)

    def _launched(self) -> None:
        self._main = [each for each in self._main if each.task.id not in self._flying]


class FirstCome(ArrivalLine):
    """A `TaskScheduler` with a rule."""

    def __init__(self, rule: OrionRule | ReserveAndPack, beliefs: OltunesBeliefs) -> None:
        super().__init__(beliefs)
        self._rule, self._profiled, self.name = rule, Profiled(beliefs), rule.name

    def tick(self, seats: tuple[TaskSeat, ...], now_s: float) -> tuple[Launch, ...]:  # noqa: ARG002
        """Everybody who has room goes, each as a launch of its own."""
        self._due_s = None
        rooms = [self._room(seat) for seat in seats]
        launches: list[Launch] = []
        hopeless: set[tuple[object, ...]] = set()
        for each in self._rule.ordered(self._main):
            kind = _kind(each.task)
            if kind in hopeless:
                continue
            room = self._rule.room_for(each.task, rooms, self._profiled)
            need = None if room is None else self._profiled.need(each.task, room.seat.gpu_type)
            if room is None or need is None:
                hopeless.add(kind)
                continue
            room.put(each.task, need)
            self._launch(each)
            launches.append(Launch(seat=room.seat.id, group=(PlacedTask(task=each.task, config=need.config),)))
        self._launched()
        return tuple(launches)

    def _room(self, seat: TaskSeat) -> SeatRoom:
        needs = ((each.task, self._profiled.need(each.task, seat.gpu_type)) for each in seat.running)
        sitting = [Sitting(task, need) for task, need in needs if need is not None]
        return SeatRoom(seat, seat.memory_mib_free, sitting)


def _kind(task: InferenceTask) -> tuple[object, ...]:
    """Tasks of one kind find room alike."""
    return (task.model, task.latency_critical, task.batch_declared, task.heavy, task.gpu_types_allowed)
