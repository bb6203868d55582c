"""Tasks that wait: the main queue as they come, and the queues of urgent (LC) and patient (TO) tasks.

Owns the order, for the scheduler's tasks and for what a plan is short of: smallest urgency first (deadline over mean
predicted latency), then the shortest, then the first that came; tasks of failed groups before all, the last to fail
ahead. No task is lost or there twice: whoever is taken is out. It refuses to predict.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Generic, Protocol, TypeVar

from solvers.domain.ids import GpuTypeName
from solvers.domain.value import value
from solvers.policies.oltunes.tasking import Config, InferenceTask


class InLine(Protocol):
    """What the order goes by. `urgent` is its own class; `order` counts arrivals."""

    @property
    def name(self) -> str:
        """Nobody else's."""
        ...

    @property
    def urgent(self) -> bool:
        """LC rather than TO."""
        ...

    @property
    def boost(self) -> int:
        """How far it was put ahead; 0: not at all."""
        ...

    @property
    def priority(self) -> float:
        """Deadline over latency."""
        ...

    @property
    def latency_s(self) -> float:
        """Mean predicted time of all of it."""
        ...

    @property
    def order(self) -> int:
        """When it came, against the others."""
        ...


T = TypeVar("T", bound=InLine)


@value
class Arrival:
    """A task in the main queue. `order` counts arrivals."""

    task: InferenceTask
    at_s: float
    order: int


@value
class TaskChoice:
    """One of the configurations kept for a task (Eq. 6)."""

    gpu_type: GpuTypeName
    config: Config


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
        """Of its task."""
        return self.task.id

    @property
    def urgent(self) -> bool:
        """By its lambda."""
        return self.task.latency_critical

    def on(self, gpu_type: GpuTypeName) -> tuple[Config, ...]:
        """Its choices on a type."""
        return tuple(each.config for each in self.choices if each.gpu_type == gpu_type)


def _rank(task: InLine) -> tuple[int, float, float, int]:
    return (-task.boost, task.priority, task.latency_s, task.order)


class Queues(Generic[T]):
    """Both sorted queues."""

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
        """Of everybody who waits."""
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
