"""Workers that die or never get ready, and when another one may be started.

Owns the count of deaths of every replica and the back-off between its workers: doubling from a second to a minute with
jitter, forgiven after a worker has been ready for a while. It refuses to start or end anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agents.devices.base import WorkerReading, WorkerState
from agents.loop.wanted import overdue

BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 60.0
FORGIVEN_AFTER_S = 120.0
"""A worker that has been ready for so long clears its replica's name."""


@dataclass(slots=True)
class _Record:
    deaths: int
    not_before_s: float
    problem: str
    worker: str
    """Who died last."""


class Restarts:
    """Counts deaths by device and replica. Not thread-safe."""

    def __init__(self, now_s: Callable[[], float], jitter: random.Random) -> None:
        self._now_s = now_s
        self._jitter = jitter
        self._records: dict[tuple[str, str], _Record] = {}
        self._counted: set[str] = set()
        self._ready: dict[tuple[str, str], str] = {}
        """The newest ready worker of each replica at the last look."""

    def observe(self, workers: Iterable[WorkerReading]) -> None:
        """Count whoever has died since the last look, once, and forgive whoever has been well for long."""
        found = set()
        self._ready = {}
        for worker in workers:
            found.add(worker.worker)
            key = (worker.uuid, worker.spec.replica)
            if worker.state is WorkerState.READY:
                self._ready[key] = max(worker.worker, self._ready.get(key, ""))
            if worker.state is WorkerState.READY and worker.state_s >= FORGIVEN_AFTER_S:
                self._records.pop(key, None)
            problem = _fate(worker)
            if problem and worker.worker not in self._counted:
                self._counted.add(worker.worker)
                self._count(key, problem, worker.worker)
        self._counted &= found

    def delayed(self, uuid: str) -> frozenset[str]:
        """Replicas of a device whose next worker must wait."""
        now_s = self._now_s()
        return frozenset(
            replica
            for (device, replica), record in self._records.items()
            if device == uuid and now_s < record.not_before_s
        )

    def keep(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Forget everybody but these devices' replicas."""
        keys = set(wanted)
        for key in [key for key in self._records if key not in keys]:
            del self._records[key]

    def problems(self) -> list[str]:
        """One sentence for each replica that died lately."""
        return [
            f"{uuid} {replica}: {record.deaths} {'worker' if record.deaths == 1 else 'workers'} failed, "
            f"the last one: {record.problem}{self._standing((uuid, replica), record)}"
            for (uuid, replica), record in sorted(self._records.items())
        ]

    def _standing(self, key: tuple[str, str], record: _Record) -> str:
        """Whether the one that was to be replaced is still there."""
        return "; the one before it goes on" if "" < self._ready.get(key, "") < record.worker else ""

    def _count(self, key: tuple[str, str], problem: str, worker: str) -> None:
        before = self._records.get(key)
        deaths = 1 if before is None else before.deaths + 1
        longest_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** (deaths - 1))
        not_before_s = self._now_s() + longest_s * self._jitter.uniform(0.5, 1.0)
        self._records[key] = _Record(deaths, not_before_s, problem, worker)


def _fate(worker: WorkerReading) -> str:
    """How a worker failed; empty when it did not."""
    if worker.state is WorkerState.FAILED:
        return worker.problem or "the process failed"
    if worker.state is WorkerState.STARTING and overdue(worker):
        return f"not ready in time{': ' + worker.problem if worker.problem else ''}"
    return ""
