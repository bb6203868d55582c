"""OLTunes' Algorithm 2: tasks that wait, the urgent (LC) and the patient (TO), groups of them, and the pace of groups.

Smallest urgency first (deadline over mean predicted latency), then the shortest, then the first that came; tasks of
failed groups before all, the last to fail ahead. No task is lost or there twice: whoever is taken is out. The window
shrinks while urgent tasks prevail and after a failure, else it grows; failures lower the size of groups, successes
restore it. What a place holds is for who keeps its books: a plan's in production, a simulated cluster's elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, Protocol, TypeVar

from solvers.domain.value import value
from solvers.policies.oltunes.parameters import Shared
from solvers.policies.oltunes.scores import Character, Record, better, patient_first, welcome


class InLine(Protocol):
    """What the order goes by. `urgent` is its own class; `order` counts arrivals."""

    @property
    def name(self) -> str:
        """Nobody else's."""

    @property
    def urgent(self) -> bool:
        """LC rather than TO."""

    @property
    def boost(self) -> int:
        """How far it was put ahead; 0: not at all."""

    @property
    def priority(self) -> float:
        """Deadline over latency."""

    @property
    def latency_s(self) -> float:
        """Mean predicted time of all of it."""

    @property
    def order(self) -> int:
        """When it came, against the others."""


T = TypeVar("T", bound=InLine)


def _rank(task: InLine) -> tuple[int, float, float, int]:
    return (-task.boost, task.priority, task.latency_s, task.order)


class Queues(Generic[T]):
    def __init__(self, urgent: Iterable[T] = (), patient: Iterable[T] = ()) -> None:
        self._urgent = sorted(urgent, key=_rank)
        self._patient = sorted(patient, key=_rank)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._patient)

    def __iter__(self) -> Iterator[T]:
        yield from self._urgent
        yield from self._patient

    @property
    def urgent(self) -> tuple[T, ...]:
        """Q_LC."""
        return tuple(self._urgent)

    @property
    def patient(self) -> tuple[T, ...]:
        """Q_TO."""
        return tuple(self._patient)

    @property
    def urgent_part(self) -> float | None:
        """Part of urgent tasks; None when nobody waits."""
        return len(self._urgent) / len(self) if len(self) else None

    @property
    def boost_max(self) -> int:
        return max((each.boost for each in self._urgent[:1]), default=0)

    def push(self, task: T) -> None:
        """Into the queue of its class; a task of a failed group into the urgent one, whatever its class."""
        urgent = task.urgent or task.boost > 0
        insort(self._urgent if urgent else self._patient, task, key=_rank)

    def first(self, count: int, known: Callable[[T], bool] | None = None) -> Iterator[T]:
        """The first of the urgent queue, then the first of the patient one, at most `count` of each; of those that are
        `known` (None: all).
        """
        for queue in (self._urgent, self._patient):
            yield from islice(queue if known is None else filter(known, queue), count)

    def take(self, names: Collection[str]) -> None:
        """These have a seat now."""
        gone = set(names)
        for queue in (self._urgent, self._patient):
            _take(queue, gone)


def _take(queue: list[T], gone: set[str]) -> None:
    """Whoever is taken stands near the front, so the search ends early."""
    index = 0
    while gone and index < len(queue):
        if queue[index].name in gone:
            gone.discard(queue.pop(index).name)
        else:
            index += 1


MS_PER_S = 1000.0
LOOKED_AT_MAX = 64
"""Of each queue, for one group."""
GROUP_RESTORED_AFTER = 10
"""After so many groups without failure a group may be larger by one again."""


@value
class WindowPace:
    """W_time in milliseconds, the group's largest size, and groups that worked since that last fell."""

    window_ms: float
    group_max: int
    succeeded: int = 0

    @staticmethod
    def first(parameters: Shared) -> WindowPace:
        return WindowPace(window_ms=parameters.window_ms_first, group_max=parameters.group_max)

    def wake_s(self, submitted_s: float | None, *, full: bool) -> float:
        """When groups are formed: a window after they were formed last; at once where they never were, or `full`, where
        as many wait as a group may have.
        """
        if submitted_s is None:
            return 0.0
        return submitted_s if full else submitted_s + self.window_ms / MS_PER_S

    def after_tick(self, urgent_part: float | None, parameters: Shared) -> WindowPace:
        """One step; None: both queues are empty, which changes nothing."""
        if urgent_part is None:
            return self
        shrinks = urgent_part > parameters.rho_lc
        return replace(self, window_ms=self._moved(-1 if shrinks else 1, parameters))

    def after_failure(self, parameters: Shared) -> WindowPace:
        return replace(self, window_ms=self._moved(-1, parameters), group_max=max(1, self.group_max - 1), succeeded=0)

    def after_success(self, parameters: Shared) -> WindowPace:
        """Larger by one after enough of them; otherwise size could only fall."""
        if self.group_max >= parameters.group_max:
            return self
        if self.succeeded + 1 < GROUP_RESTORED_AFTER:
            return replace(self, succeeded=self.succeeded + 1)
        return replace(self, group_max=self.group_max + 1, succeeded=0)

    def _moved(self, sign: int, parameters: Shared) -> float:
        moved = self.window_ms + sign * parameters.window_ms_step
        return min(max(moved, parameters.window_ms_min), parameters.window_ms_max)


P = TypeVar("P")
M = TypeVar("M")


@dataclass(slots=True, kw_only=True)
class Grouping(ABC, Generic[T, P, M]):
    """Steps 2 and 3 of Algorithm 2, of tasks T that become members M of groups on places P."""

    group_max: int
    affinity_min: float
    looked_at_max: int = LOOKED_AT_MAX

    @abstractmethod
    def configurations(self, task: T, place: P) -> Sequence[int]:
        """Those that were kept for this type of GPU, best first; none: it is not looked at."""

    @abstractmethod
    def fitting(self, task: T, place: P) -> Sequence[int]:
        """Those of them for which there is room."""

    @abstractmethod
    def size(self, task: T, place: P) -> int:
        """How many count for the size of a group that it would join."""

    @abstractmethod
    def sitting(self, place: P) -> Sequence[Character]:
        """Whom it would have to get on with."""

    @abstractmethod
    def character(self, task: T) -> Character:
        """What affinity knows of it."""

    @abstractmethod
    def join(self, task: T, place: P, configurations: Sequence[int]) -> M | None:
        """Give it its place, in the first of these that works; None: none does."""

    def served(self, task: T) -> bool:  # noqa: ARG002 - most need one place
        """Whether it needs no place any more."""
        return True

    @abstractmethod
    def choices(self, member: M) -> tuple[Record, Sequence[Record]]:
        """Its configuration and all that were kept for it there."""

    @abstractmethod
    def exchange(self, member: M, choice: int) -> bool:
        """Give it another of them, if that fits."""

    def welcomes(self, task: T, place: P) -> bool:
        return welcome(self.character(task), self.sitting(place), self.affinity_min)

    def group(self, queues: Queues[T], place: P, *, anybody: bool = False) -> list[M]:
        """Who joins there, of the first of both queues (lines 12 to 20); `anybody`: affinity is not asked."""
        members, placed = list[M](), list[T]()
        for task in queues.first(self.looked_at_max, lambda each: bool(self.configurations(each, place))):
            found = self.fitting(task, place)
            if not found or self.size(task, place) >= self.group_max:
                continue
            member = self.join(task, place, found) if anybody or self.welcomes(task, place) else None
            if member is not None:
                members.append(member)
                placed.append(task)
        queues.take([task.name for task in placed if self.served(task)])
        return members

    def tune(self, members: Sequence[M], *, urgent: Sequence[bool]) -> None:
        """Spare room for at most one of a group: a patient one with a larger batch that serves more, else an urgent one
        that is done sooner (lines 21 to 23).
        """
        for place in patient_first(urgent):
            current, records = self.choices(members[place])
            order = better(current, records, urgent=urgent[place])
            if any(self.exchange(members[place], choice) for choice in order):
                return
