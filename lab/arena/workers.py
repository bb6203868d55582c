"""Runs on this machine: in this process, or in worker processes that take one run after the other.

Owns the workers: started anew rather than forked, one pipe each; a worker that dies takes only its own run with it, is
told as that run's failure, and is replaced. They ignore the keyboard: whoever asked for the runs stops them.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from lab.arena.running import Began, Finished, Hear, RunEnded, RunPart, RunTask, failed, run_task
from solvers.sim.outcome import ProgressListener

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    Pipe = Connection[Any, Any]

PART_STEP = 0.01
STOP_S = 5.0


def run_here(tasks: Sequence[RunTask], jobs: int, hear: Hear) -> None:
    """Run all: in this process, or in so many workers. Interrupted, it stops what still runs and raises on."""
    if jobs > 1 and len(tasks) > 1:
        _run_in_workers(tasks, min(jobs, len(tasks)), hear)
        return
    for task in tasks:
        hear(Began(task=task))
        hear(RunEnded(task=task, finished=run_task(task, steps(_part_of(task, hear)))))


class _Worker:
    """A process that runs one task after the other, and what it is at."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, far = context.Pipe()
        self._process = context.Process(target=_work, args=(far,), daemon=True)
        self._process.start()
        far.close()
        self.task: RunTask | None = None

    def give(self, task: RunTask) -> None:
        """Let it run a task."""
        self.task = task
        self.pipe.send(task)

    def stop(self) -> None:
        """End it, whatever it is at."""
        self.pipe.close()
        self._process.terminate()
        self._process.join(STOP_S)

    def death(self) -> str:
        """How it died, once its pipe has ended."""
        self._process.join(STOP_S)
        return f"its process ended with status {self._process.exitcode}"


def _run_in_workers(tasks: Sequence[RunTask], jobs: int, hear: Hear) -> None:
    waiting = deque(tasks)
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                worker = idle.pop() if idle else _Worker()
                busy.append(worker)
                task = waiting.popleft()
                worker.give(task)
                hear(Began(task=task))
            ready = set(wait([worker.pipe for worker in busy]))
            for worker in [each for each in busy if each.pipe in ready]:
                _hear_of(worker, busy, idle, hear)
    finally:
        for worker in (*busy, *idle):
            worker.stop()


def _hear_of(worker: _Worker, busy: list[_Worker], idle: list[_Worker], hear: Hear) -> None:
    """One message of a worker: how far it is, its result, or its death."""
    task = worker.task
    assert task is not None
    try:
        told: float | Finished = worker.pipe.recv()
    except (EOFError, OSError):
        busy.remove(worker)
        death = worker.death()
        worker.stop()
        hear(RunEnded(task=task, finished=failed(task, death)))
        return
    if isinstance(told, Finished):
        busy.remove(worker)
        idle.append(worker)
        hear(RunEnded(task=task, finished=told))
    else:
        hear(RunPart(task=task, part=told))


def _work(pipe: Pipe) -> None:
    """A worker's life: until the other end of its pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError):
        while True:
            pipe.send(run_task(pipe.recv(), steps(pipe.send)))


def steps(tell: Callable[[float], None]) -> ProgressListener:
    """Tells of whole steps only."""
    told = 0.0

    def hear(part: float) -> None:
        nonlocal told
        if part >= told + PART_STEP:
            told = part
            tell(part)

    return hear


def _part_of(task: RunTask, hear: Hear) -> Callable[[float], None]:
    return lambda part: hear(RunPart(task=task, part=part))
