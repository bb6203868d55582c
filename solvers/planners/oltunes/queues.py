"""Tasks that wait: the main queue as they come, and the queues of urgent (LC) and patient (TO) tasks.

Owns the order: smallest urgency first (deadline over mean predicted latency), then the shortest, then the first that
came; tasks of failed groups before all, the last to fail ahead. No task is lost or there twice: whoever is taken is
out. It refuses to predict.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from solvers.domain.ids import GpuTypeName
from solvers.domain.value import value
from solvers.planners.oltunes.tasking import Config, Task


@value
class Arrival:
    """A task in the main queue. `order` counts arrivals."""

    task: Task
    at_s: float
    order: int


@value
class Choice:
    """One of the configurations kept for a task (Eq. 6)."""

    gpu_type: GpuTypeName
    config: Config


@value
class Waiting:
    """A task with its choices, best first for each GPU type. `failures` counts failed groups; `boost` is how far it was
    put ahead by the last of them.
    """

    task: Task
    at_s: float
    order: int
    choices: tuple[Choice, ...]
    priority: float
    latency_s: float
    boost: int = 0
    failures: int = 0

    def on(self, gpu_type: GpuTypeName) -> tuple[Config, ...]:
        """Its choices on a type."""
        return tuple(each.config for each in self.choices if each.gpu_type == gpu_type)


def _rank(task: Waiting) -> tuple[int, float, float, int]:
    return (-task.boost, task.priority, task.latency_s, task.order)


class Queues:
    """Both sorted queues."""

    def __init__(self, urgent: Iterable[Waiting] = (), patient: Iterable[Waiting] = ()) -> None:
        self._urgent = sorted(urgent, key=_rank)
        self._patient = sorted(patient, key=_rank)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._patient)

    def __iter__(self) -> Iterator[Waiting]:
        yield from self._urgent
        yield from self._patient

    @property
    def urgent(self) -> tuple[Waiting, ...]:
        """Q_LC."""
        return tuple(self._urgent)

    @property
    def patient(self) -> tuple[Waiting, ...]:
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

    def push(self, task: Waiting) -> None:
        """Into the queue of its class; a task of a failed group into the urgent one, whatever its class."""
        urgent = task.task.latency_critical or task.boost > 0
        insort(self._urgent if urgent else self._patient, task, key=_rank)

    def first(self, count: int) -> Iterator[Waiting]:
        """The first of the urgent queue, then the first of the patient one, at most `count` of each."""
        yield from islice(self._urgent, count)
        yield from islice(self._patient, count)

    def take(self, names: Collection[str]) -> None:
        """These have a seat now."""
        gone = set(names)
        for queue in (self._urgent, self._patient):
            _take(queue, gone)


def _take(queue: list[Waiting], gone: set[str]) -> None:
    """Whoever is taken stands near the front, so the search ends early."""
    index = 0
    while gone and index < len(queue):
        if queue[index].task.id in gone:
            gone.discard(queue.pop(index).task.id)
        else:
            index += 1
