"""OLTunes' scheduler: tasks arrive, are grouped for the least utilised GPUs within a window, tuned, launched, learned.

Owns the course of a tick and everything that lasts between ticks, as one value that can be written down. Tasks are
collected for a window since the last tick that launched, or until there are as many as a group may have; then every
seat on offer gets its group. A task that comes after a quiet time does not wait.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from lab.benches.tasks.beliefs import OltunesBeliefs, check_known
from lab.benches.tasks.contract import Ended, Ending, InferenceTask, Launch, TaskSeat
from lab.benches.tasks.grouping import (
    Arrival,
    Flying,
    GroupingRules,
    TaskGroup,
    WaitingTask,
    form,
    offered,
    put_back,
    slice_wish,
    tuned,
)
from lab.benches.tasks.parameters import SchedulerParameters
from solvers.domain.codec import Plain, from_plain, to_plain
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.value import value
from solvers.errors import InputError
from solvers.models.base import Facts, Samples
from solvers.models.parts.seen import part
from solvers.policies.oltunes.learned import LearnedSolo, loaded, predictor
from solvers.policies.oltunes.memory import PendingLessons, SeenOutcome
from solvers.policies.oltunes.queues import Queues, WindowPace, group_is_done
from solvers.policies.oltunes.scores import Character, character_of, urgency


@value
class Book:
    """What lasts between ticks, the queues and the predictor apart."""

    pace: WindowPace
    lessons: PendingLessons = PendingLessons()
    submitted_s: float | None = None
    """When groups were formed last: the window begins there."""
    urgent: bool = False
    """A tick is due at once."""
    arrivals: int = 0
    groups: int = 0
    failures: int = 0
    utilisation: float = 0.0
    """Mean over the seats of the last tick, 0…1."""


@value
class Saved:
    """All of a scheduler but its predictor."""

    book: Book
    main: tuple[Arrival, ...] = ()
    lc: tuple[WaitingTask, ...] = ()
    to: tuple[WaitingTask, ...] = ()
    flying: tuple[Flying, ...] = ()


class OltunesScheduler:
    """A `TaskScheduler`. `samples` were profiled offline and teach the predictor before the first task."""

    def __init__(
        self,
        facts: Facts,
        parameters: SchedulerParameters | None = None,
        samples: Samples | None = None,
        seed: int = 0,
        solo: LearnedSolo | None = None,
    ) -> None:
        self.parameters = parameters or SchedulerParameters()
        chosen = solo or predictor(self.parameters.predictor, facts, seed)
        self._beliefs = OltunesBeliefs(facts, chosen.fit(samples) if samples is not None else chosen, self.parameters)
        self._book = Book(pace=WindowPace.first(self.parameters))
        self._main: list[Arrival] = []
        self._queues: Queues[WaitingTask] = Queues()
        self._flying: dict[str, Flying] = {}
        self._waiting: set[str] = set()
        self._characters: dict[ModelName, Character] = {}

    @property
    def name(self) -> str:
        """Who it is."""
        return "oltunes"

    @property
    def book(self) -> Book:
        """Window, size, counts: for reports."""
        return self._book

    @property
    def queued(self) -> tuple[int, int]:
        """Lengths of the urgent and the patient queue."""
        return len(self._queues.urgent), len(self._queues.patient)

    @property
    def waiting(self) -> int:
        """Tasks without a seat."""
        return len(self._waiting)

    @property
    def wake_s(self) -> float | None:
        """At the end of the window, or at once when enough for a group wait."""
        if not self._waiting:
            return None
        return self._book.pace.wake_s(self._book.submitted_s, full=self._book.urgent)

    def arrive(self, task: InferenceTask, now_s: float) -> None:
        """Into the main queue."""
        check_known(self._beliefs.facts, task)
        if task.id in self._waiting or task.id in self._flying:
            raise InputError(f"task {task.id} is here already", task=task.id)
        self._waiting.add(task.id)
        self._main.append(Arrival(task=task, at_s=now_s, order=self._book.arrivals))
        full = len(self._waiting) >= self._book.pace.group_max
        self._book = replace(self._book, arrivals=self._book.arrivals + 1, urgent=self._book.urgent or full)

    def tick(self, seats: tuple[TaskSeat, ...], now_s: float) -> tuple[Launch, ...]:
        """Queue what came, form groups for the seats on offer, launch those that are ready."""
        self._book = replace(self._book, urgent=False, utilisation=_utilisation(seats))
        self._learn_characters(running.task.model for seat in seats for running in seat.running)
        self._drain(tuple(sorted({seat.gpu_type for seat in seats})))
        launches = self._launches(seats)
        pace = self._book.pace.after_tick(self._queues.urgent_part, self.parameters)
        self._book = replace(self._book, submitted_s=now_s, pace=pace)
        return launches

    def ended(self, outcome: Ended, now_s: float) -> None:  # noqa: ARG002
        """Learn, make room, or put back."""
        known = [self._flying.pop(name) for name in dict.fromkeys(outcome.tasks) if name in self._flying]
        if outcome.ending is Ending.FAILED and known:
            put_back(known, self._queues)
            self._waiting |= {each.waiting.task.id for each in known}
            pace = self._book.pace.after_failure(self.parameters)
            self._book = replace(self._book, pace=pace, failures=self._book.failures + 1)
        if outcome.ending is Ending.DONE:
            for each in known:
                self._done(each, outcome.batch_ms)
        self._book = replace(self._book, urgent=len(self._waiting) >= self._book.pace.group_max)

    def withdraw(self, task: str) -> None:
        """Forget a task that waits."""
        self._main = [each for each in self._main if each.task.id != task]
        self._queues.take({task})
        self._waiting.discard(task)

    def state(self) -> bytes:
        """Everything but facts and parameters."""
        saved = Saved(
            book=self._book,
            main=tuple(self._main),
            lc=self._queues.urgent,
            to=self._queues.patient,
            flying=tuple(self._flying.values()),
        )
        plain: Plain = {
            "predictor": self.parameters.predictor,
            "solo": self._beliefs.solo.dump(),
            "saved": to_plain(saved),
        }
        return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def restore(state: bytes, facts: Facts, parameters: SchedulerParameters | None = None) -> OltunesScheduler:
        """From what `state` wrote. Another predictor than then begins with nothing learned. Raises InputError where a
        task's model is not described any more.
        """
        plain: Plain = json.loads(state)
        wanted = parameters or SchedulerParameters()
        same = part(plain, "predictor") == wanted.predictor
        solo = loaded(wanted.predictor, part(plain, "solo"), facts) if same else None
        made = OltunesScheduler(facts, wanted, solo=solo)
        made.resume(from_plain(Saved, part(plain, "saved")))
        return made

    def resume(self, saved: Saved) -> None:
        """Go on from there."""
        self._book = saved.book
        self._main = list(saved.main)
        self._queues = Queues(saved.lc, saved.to)
        self._flying = {each.waiting.task.id: each for each in saved.flying}
        self._waiting = {each.task.id for each in saved.main}
        self._waiting |= {each.task.id for each in self._queues}
        for each in self._queues:
            check_known(self._beliefs.facts, each.task)
        self._learn_characters(each.task.model for each in self._queues)

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
        if group_is_done(each.group, (other.group for other in self._flying.values())):
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


def _utilisation(seats: Sequence[TaskSeat]) -> float:
    return fmean(seat.utilisation_pct for seat in seats) / 100.0 if seats else 0.0
