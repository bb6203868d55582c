"""OLTunes' scheduler: tasks arrive, are grouped for the least utilised GPUs within a window, tuned, launched, learned.

Tasks are collected for a window since the last tick that launched, or until there are as many as a group may have; then
every seat on offer gets its group. A task that comes after a quiet time does not wait. Groups are formed by the code
that production plans by (`solvers.policies.oltunes.queues`), on the books of seats; those who run on a seat already
count for the size of the group that joins them. A failed group goes back whole, to the urgent queue, ahead of
everybody, each task's own class kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from lab.benches.tasks.contract import (
    Config,
    Ended,
    Ending,
    InferenceTask,
    Launch,
    OltunesBeliefs,
    PlacedTask,
    SchedulerParameters,
    TaskChoice,
    TaskScheduler,
    TaskSeat,
)
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName
from solvers.domain.value import value
from solvers.policies.oltunes.memory import PendingLessons, SeenOutcome
from solvers.policies.oltunes.queues import Grouping, Queues, WindowPace
from solvers.policies.oltunes.scores import Character, Record, character_of, urgency


@value
class WaitingTask:
    """A task with its choices, best first for each GPU type. `failures` counts failed groups; `boost` is how far it was
    put ahead by the last of them.
    """

    task: InferenceTask
    at_s: float
    order: int
    choices: tuple[TaskChoice, ...]
    priority: float
    latency_s: float
    boost: int = 0
    failures: int = 0

    @property
    def name(self) -> str:
        return self.task.id

    @property
    def urgent(self) -> bool:
        return self.task.latency_critical

    def on(self, gpu_type: GpuTypeName) -> tuple[Config, ...]:
        return tuple(each.config for each in self.choices if each.gpu_type == gpu_type)


def offered(seats: Sequence[TaskSeat], parameters: SchedulerParameters) -> tuple[TaskSeat, ...]:
    """Seats that may get a group, least utilised first. Of each type of GPU: the empty ones; while there are none,
    those nearly free or nearly done; while there are none of these, the one that is done soonest. An empty GPU of a
    type that nobody wants would be no reason to wait.
    """
    by_type: dict[GpuTypeName, list[TaskSeat]] = {}
    for seat in seats:
        by_type.setdefault(seat.gpu_type, []).append(seat)
    found = [seat for some in by_type.values() for seat in _of_type(some, parameters)]
    return tuple(sorted(found, key=lambda seat: (seat.utilisation_pct, len(seat.running), seat.id)))


def _of_type(seats: Sequence[TaskSeat], parameters: SchedulerParameters) -> Sequence[TaskSeat]:
    empty = [seat for seat in seats if not seat.running]
    if empty:
        return empty
    roomy = [seat for seat in seats if len(seat.running) < parameters.group_max]
    nearly = [seat for seat in roomy if _nearly_free(seat, parameters.nearly_free)]
    if nearly or not roomy:
        return nearly
    return [min(roomy, key=lambda seat: (max(each.left_s for each in seat.running), seat.id))]


def _nearly_free(seat: TaskSeat, part: float) -> bool:
    """Room is the scarcer of memory and SMs."""
    room = min(seat.memory_mib_free / seat.memory_mib_total, 1.0 - seat.utilisation_pct / 100.0)
    longest = max(seat.running, key=lambda each: (each.config.run_s(each.task.inputs), each.task.id))
    return room > part or longest.progress > part


@dataclass(slots=True)
class SeatedTask:
    waiting: WaitingTask
    config: Config
    seat: TaskSeat


@dataclass(slots=True, kw_only=True)
class SeatBooks(Grouping[WaitingTask, TaskSeat, SeatedTask]):
    """One tick's groups on the seats of a cluster: affinity is asked within the new group alone."""

    parameters: SchedulerParameters
    characters: Mapping[ModelName, Character]
    formed: dict[DeviceId, list[SeatedTask]] = field(default_factory=dict)

    def launch(self, queues: Queues[WaitingTask], seat: TaskSeat) -> list[SeatedTask]:
        """The group for a seat; it may be empty."""
        members = self.group(queues, seat, anybody=not self.parameters.with_affinity)
        if self.parameters.with_tuning:
            self.tune(members, urgent=[each.waiting.urgent for each in members])
        return members

    def spare_mib(self, seat: TaskSeat) -> float:
        taken_mib = sum(each.config.memory_mib for each in self.formed.get(seat.id, ()))
        return seat.memory_mib_free - self.parameters.memory_margin_mib - taken_mib

    def configurations(self, task: WaitingTask, place: TaskSeat) -> Sequence[int]:
        return range(len(task.on(place.gpu_type)))

    def fitting(self, task: WaitingTask, place: TaskSeat) -> Sequence[int]:
        room_mib = self.spare_mib(place)
        return [row for row, each in enumerate(task.on(place.gpu_type)) if each.memory_mib < room_mib]

    def size(self, task: WaitingTask, place: TaskSeat) -> int:  # noqa: ARG002 - everybody counts
        return len(place.running) + len(self.formed.get(place.id, ()))

    def sitting(self, place: TaskSeat) -> Sequence[Character]:
        return [self.character(each.waiting) for each in self.formed.get(place.id, ())]

    def character(self, task: WaitingTask) -> Character:
        return self.characters[task.task.model]

    def join(self, task: WaitingTask, place: TaskSeat, configurations: Sequence[int]) -> SeatedTask:
        member = SeatedTask(task, task.on(place.gpu_type)[configurations[0]], place)
        self.formed.setdefault(place.id, []).append(member)
        return member

    def choices(self, member: SeatedTask) -> tuple[Record, Sequence[Record]]:
        own, *others = (
            Record(batch=each.batch, run=each.run_s(member.waiting.task.inputs), throughput_rps=each.throughput_rps)
            for each in (member.config, *member.waiting.on(member.seat.gpu_type))
        )
        return own, others

    def exchange(self, member: SeatedTask, choice: int) -> bool:
        wanted, seat = member.waiting.on(member.seat.gpu_type)[choice], member.seat
        fits = wanted.memory_mib <= member.config.memory_mib + self.spare_mib(seat)
        if fits:
            member.config = wanted
        return fits


@value
class Flying:
    """A launched task. `group` numbers launches."""

    waiting: WaitingTask
    config: Config
    seat: DeviceId
    gpu_type: GpuTypeName
    group: int


@value
class Book:
    """What lasts between ticks, the queues and the predictor apart."""

    pace: WindowPace
    lessons: PendingLessons = PendingLessons()
    submitted_s: float | None = None
    """When groups were formed last: the window begins there."""
    urgent: bool = False
    """A tick is due at once."""
    groups: int = 0
    failures: int = 0
    utilisation: float = 0.0
    """Mean over the seats of the last tick, 0…1."""


class OltunesScheduler(TaskScheduler[Flying]):
    name = "oltunes"

    def __init__(self, beliefs: OltunesBeliefs) -> None:
        super().__init__(beliefs)
        self.parameters = beliefs.parameters
        self._book = Book(pace=WindowPace.first(self.parameters))
        self._queues: Queues[WaitingTask] = Queues()
        self._characters: dict[ModelName, Character] = {}

    @property
    def book(self) -> Book:
        return self._book

    @property
    def queued(self) -> tuple[int, int]:
        return len(self._queues.urgent), len(self._queues.patient)

    @property
    def wake_s(self) -> float | None:
        """At the end of the window, or at once when enough for a group wait."""
        if not self._waiting:
            return None
        return self._book.pace.wake_s(self._book.submitted_s, full=self._book.urgent)

    def arrive(self, task: InferenceTask, now_s: float) -> None:
        super().arrive(task, now_s)
        full = len(self._waiting) >= self._book.pace.group_max
        self._book = replace(self._book, urgent=self._book.urgent or full)

    def tick(self, seats: tuple[TaskSeat, ...], now_s: float) -> tuple[Launch, ...]:
        """Queue what came, form groups for the seats on offer, launch those that are ready."""
        mean_pct = fmean(seat.utilisation_pct for seat in seats) if seats else 0.0
        self._book = replace(self._book, urgent=False, utilisation=mean_pct / 100.0)
        self._learn_characters(running.task.model for seat in seats for running in seat.running)
        self._drain(tuple(sorted({seat.gpu_type for seat in seats})))
        launches = self._launches(seats)
        pace = self._book.pace.after_tick(self._queues.urgent_part, self.parameters)
        self._book = replace(self._book, submitted_s=now_s, pace=pace)
        return launches

    def ended(self, outcome: Ended, now_s: float) -> None:  # noqa: ARG002
        known = self._landed(outcome)
        if outcome.ending is Ending.FAILED and known:
            # Ahead of everybody who waits.
            boost = self._queues.boost_max + 1
            for task in sorted((each.waiting for each in known), key=lambda task: task.order):
                self._queues.push(replace(task, boost=boost, failures=task.failures + 1))
            self._waiting |= {each.waiting.task.id for each in known}
            pace = self._book.pace.after_failure(self.parameters)
            self._book = replace(self._book, pace=pace, failures=self._book.failures + 1)
        if outcome.ending is Ending.DONE:
            for each in known:
                self._done(each, outcome.batch_ms)
        self._book = replace(self._book, urgent=len(self._waiting) >= self._book.pace.group_max)

    def _drain(self, gpu_types: tuple[GpuTypeName, ...]) -> None:
        """The main queue into those of the classes; nobody can be judged while there is no seat at all."""
        if not gpu_types:
            return
        for each in self._main:
            choices, latency_s = self._beliefs.choices(each.task, gpu_types, self._book.utilisation)
            task = WaitingTask(
                task=each.task,
                at_s=each.at_s,
                order=each.order,
                choices=choices,
                priority=urgency(each.task.deadline_s, latency_s) if choices else 0.0,
                latency_s=latency_s,
            )
            self._queues.push(task)
        self._learn_characters(each.task.model for each in self._main)
        self._main = []

    def _learn_characters(self, models: Iterable[ModelName]) -> None:
        for model in models:
            if model not in self._characters:
                self._characters[model] = character_of(self._beliefs.facts.models[model])

    def _launches(self, seats: Sequence[TaskSeat]) -> tuple[Launch, ...]:
        books = SeatBooks(
            group_max=self._book.pace.group_max,
            affinity_min=self.parameters.threshold_affinity,
            looked_at_max=self.parameters.looked_at_max,
            parameters=self.parameters,
            characters=self._characters,
        )
        groups = ((seat, books.launch(self._queues, seat)) for seat in offered(seats, self.parameters))
        return tuple(self._launch(members) for _, members in groups if members)

    def _launch(self, members: Sequence[SeatedTask]) -> Launch:
        for each in members:
            self._waiting.discard(each.waiting.name)
            self._flying[each.waiting.name] = Flying(
                waiting=replace(each.waiting, boost=0),
                config=each.config,
                seat=each.seat.id,
                gpu_type=each.seat.gpu_type,
                group=self._book.groups,
            )
        self._book = replace(self._book, groups=self._book.groups + 1)
        placed = tuple(PlacedTask(task=each.waiting.task, config=each.config) for each in members)
        return Launch(seat=members[0].seat.id, group=placed)

    def _done(self, each: Flying, batch_ms: float | None) -> None:
        if all(other.group != each.group for other in self._flying.values()):
            self._book = replace(self._book, pace=self._book.pace.after_success(self.parameters))
        if batch_ms is None:
            return
        outcome = SeenOutcome(
            model=each.waiting.task.model,
            gpu_type=each.gpu_type,
            batch=each.config.batch,
            share_pct=each.config.share_pct,
            batch_ms=batch_ms,
        )
        lessons = self._book.lessons.seen(outcome, each.config.latency_ms, self.parameters.theta)
        if len(lessons.pending) >= self.parameters.learned_at_once:
            solo, lessons = lessons.learned(self._beliefs.solo)
            self._beliefs = OltunesBeliefs(self._beliefs.facts, solo, self.parameters)
        self._book = replace(self._book, lessons=lessons)
