"""The heart of a simulated world: what happens next, and when.

Owns the order of events: by time, then by kind, then by the order in which they were planned, so that ties depend on
nothing else. It refuses to know what an event does, and it never goes back in time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from solvers.errors import InvariantError

Deed = Callable[[], None]


class Priority(IntEnum):
    """What comes first of things that happen at one moment: the world changes, nodes act, then people look at it."""

    FAULT = 0
    WORK = 1
    READY = 2
    APPLY = 3
    GOVERN = 4
    REPORT = 5
    CYCLE = 6


@dataclass(slots=True)
class Kernel:
    """Planned events over a clock that only rises."""

    now_s: float = 0.0
    _heap: list[tuple[float, Priority, int, Deed]] = field(default_factory=list)
    _planned: int = 0

    def at(self, at_s: float, priority: Priority, deed: Deed) -> None:
        """Plan an event. Raises InvariantError for one that lies in the past."""
        if at_s < self.now_s:
            raise InvariantError(f"an event at {at_s:g} s was planned at {self.now_s:g} s")
        heapq.heappush(self._heap, (at_s, priority, self._planned, deed))
        self._planned += 1

    def next_s(self) -> float:
        """When the next event is; infinity when there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def move(self, now_s: float) -> None:
        """Let time pass. Raises InvariantError when that would skip an event or go back."""
        if now_s < self.now_s or now_s > self.next_s():
            raise InvariantError(f"time cannot go from {self.now_s:g} s to {now_s:g} s")
        self.now_s = now_s

    def happen(self) -> int:
        """Let everything happen that is planned for now, what it plans for now included; how many events that were."""
        count = 0
        while self._heap and self._heap[0][0] <= self.now_s:
            heapq.heappop(self._heap)[3]()
            count += 1
        return count
