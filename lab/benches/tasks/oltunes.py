"""OLTunes' scheduler: tasks arrive, are grouped for the least utilised GPUs within a window, tuned, launched, learned.

Tasks are collected for a window since the last tick that launched, or until there are as many as a group may have; then
every seat on offer gets its group. A task that comes after a quiet time does not wait. Groups follow the printed rules
with their repairs: urgent tasks first, each in the order of its queue; whoever does not fit in memory, knows no
configuration on this type of GPU, or gets on badly with the group is skipped and stays in the queue. Those who run on a
seat already count for the size of the group that joins them. A failed group goes back whole, to the urgent queue, ahead
of everybody, each task's own class kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    SliceWish,
    TaskChoice,
    TaskScheduler,
    TaskSeat,
)
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName
from solvers.domain.value import value
from solvers.policies.oltunes.memory import PendingLessons, SeenOutcome
from solvers.policies.oltunes.queues import Queues, WindowPace
from solvers.policies.oltunes.scores import (
    Character,
    Record,
    better,
    character_of,
    patient_first,
    urgency,
    welcome,
    worth_a_slice,
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingRules:
    """What grouping goes by: parameters, the size allowed by now, and what is known of models."""

    parameters: SchedulerParameters
    group_max: int
    characters: Mapping[ModelName, Character]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """Tasks for a seat in the order of joining."""

    members: tuple[WaitingTask, ...]
    configs: tuple[Config, ...]

    @property
    def memory_mib(self) -> float:
        return sum(config.memory_mib for config in self.configs)

    def placed(self) -> tuple[PlacedTask, ...]:
        return tuple(
            PlacedTask(task=each.task, config=config) for each, config in zip(self.members, self.configs, strict=True)
        )


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


def form(seat: TaskSeat, candidates: Iterable[WaitingTask], rules: GroupingRules) -> TaskGroup:
    """The group for a seat out of waiting tasks in their order; it may be empty. Its size, memory, or want of tasks
    that match close it.
    """
    members: list[WaitingTask] = []
    configs: list[Config] = []
    sitting: list[Character] = []
    room_mib = seat.memory_mib_free - rules.parameters.memory_margin_mib
    room = rules.group_max - len(seat.running)
    alike = not rules.parameters.with_affinity
    for task in candidates:
        if len(members) >= room:
            break
        config = next((each for each in task.on(seat.gpu_type) if _fits(each, seat, room_mib)), None)
        who = rules.characters[task.task.model]
        if config is None or not (alike or welcome(who, sitting, rules.parameters.threshold_affinity)):
            continue
        members.append(task)
        configs.append(config)
        sitting.append(who)
        room_mib -= config.memory_mib
    return TaskGroup(members=tuple(members), configs=tuple(configs))


def _fits(config: Config, seat: TaskSeat, room_mib: float) -> bool:
    return config.memory_mib < room_mib and config.share_pct <= seat.share_pct_total


def tuned(group: TaskGroup, seat: TaskSeat, parameters: SchedulerParameters) -> TaskGroup:
    """The group with at most one task enlarged into the memory that is left."""
    spare_mib = seat.memory_mib_free - parameters.memory_margin_mib - group.memory_mib
    for place in patient_first([member.urgent for member in group.members]):
        current = group.configs[place]
        found = _better(group.members[place], current, seat, current.memory_mib + spare_mib)
        if found is not None:
            configs = (*group.configs[:place], found, *group.configs[place + 1 :])
            return replace(group, configs=configs)
    return group


def _better(task: WaitingTask, current: Config, seat: TaskSeat, room_mib: float) -> Config | None:
    configs = task.on(seat.gpu_type)
    inputs = task.task.inputs
    order = better(_record(current, inputs), [_record(each, inputs) for each in configs], urgent=task.urgent)
    fitting = (configs[place] for place in order if configs[place].memory_mib <= room_mib)
    return next((each for each in fitting if each.share_pct <= seat.share_pct_total), None)


def _record(config: Config, inputs: float) -> Record:
    return Record(batch=config.batch, run=config.run_s(inputs), throughput_rps=config.throughput_rps)


def slice_wish(group: TaskGroup, seat: TaskSeat, parameters: SchedulerParameters) -> SliceWish | None:
    """What the group of an empty GPU keeps, where the rest is worth a slice."""
    if seat.running or seat.sm_part < 1.0:
        return None
    spare_mib = seat.memory_mib_free - parameters.memory_margin_mib - group.memory_mib
    share_pct = sum(config.share_pct for config in group.configs)
    if not worth_a_slice(share_pct, spare_mib, parameters.slice_spare_mib):
        return None
    return SliceWish(share_pct=share_pct, memory_mib=group.memory_mib + parameters.memory_margin_mib)


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
        rules = GroupingRules(
            parameters=self.parameters, group_max=self._book.pace.group_max, characters=self._characters
        )
        found: list[Launch] = []
        for seat in offered(seats, self.parameters):
            if not len(self._queues):
                break
            group = form(seat, self._queues.first(self.parameters.looked_at_max), rules)
            if group.members:
                found.append(self._launch(group, seat))
        return tuple(found)

    def _launch(self, group: TaskGroup, seat: TaskSeat) -> Launch:
        chosen = tuned(group, seat, self.parameters) if self.parameters.with_tuning else group
        names = [each.task.id for each in chosen.members]
        self._queues.take(names)
        self._waiting.difference_update(names)
        for waiting, config in zip(chosen.members, chosen.configs, strict=True):
            self._flying[waiting.task.id] = Flying(
                waiting=replace(waiting, boost=0),
                config=config,
                seat=seat.id,
                gpu_type=seat.gpu_type,
                group=self._book.groups,
            )
        self._book = replace(self._book, groups=self._book.groups + 1)
        wish = slice_wish(chosen, seat, self.parameters)
        return Launch(seat=seat.id, group=chosen.placed(), wish=wish)

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
