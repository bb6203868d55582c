"""Where runs happen, and how far they are: in this process, in worker processes of this machine, on a Ray cluster.

Workers are started anew rather than forked, with one pipe each; a worker that dies takes only its own run with it, is
told as that run's failure, and is replaced. They ignore the keyboard: whoever asked for the runs stops them. Ray's
cluster is the one that RAY_ADDRESS names, or one of this machine's own; scenario files and public data must lie at the
same path on every node, and planners of one's own travel by themselves.
"""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import wait
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lab.arena.running import (
    DEAF_STATUS,
    Began,
    Event,
    Finished,
    Hear,
    RunEnded,
    RunPart,
    RunTask,
    failed,
    run_task,
)
from lab.outcome import ProgressListener
from solvers.errors import EngineError

if TYPE_CHECKING:
    import ray
    from rich.progress import Progress, TaskID


if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    Pipe = Connection[Any, Any]

PART_STEP = 0.01
STOP_S = 5.0


def run_here(tasks: Sequence[RunTask], jobs: int, hear: Hear) -> None:
    """Run all: in this process, which what kills a run then ends too, or in so many workers."""
    if jobs > 1 and len(tasks) > 1:
        run_in_workers(tasks, jobs, hear)
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
        self.task = task
        self.pipe.send(task)

    def stop(self) -> None:
        self.pipe.close()
        self._process.terminate()
        self._process.join(STOP_S)

    def death(self) -> str:
        self._process.join(STOP_S)
        code = self._process.exitcode
        deaf = ", as where a planner thinks on when its time is over" if code == DEAF_STATUS else ""
        return f"its process ended with status {code}{deaf}"


def run_in_workers(tasks: Sequence[RunTask], jobs: int, hear: Hear) -> None:
    """Run all, so many at a time. Interrupted, it stops what still runs and raises on."""
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


_ERRORS_ONLY = 40
"""Ray takes the levels of logging by number."""


def run_on_ray(tasks: Sequence[RunTask], jobs: int | None, hear: Hear) -> None:
    """Run all, `jobs` at a time (None: what the cluster holds). Raises EngineError without Ray or without its
    cluster.
    """
    if find_spec("ray") is None:
        raise EngineError('the engine ray needs headroom-gpu[ray]: pip install ".[ray]" in a checkout of Headroom')
    import ray

    begun_here = not ray.is_initialized()
    try:
        ray.init(ignore_reinit_error=True, include_dashboard=False, log_to_driver=False, logging_level=_ERRORS_ONLY)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EngineError(f"no Ray cluster: {error}") from None
    try:
        _run_on_cluster(tasks, jobs, hear)
    finally:
        if begun_here:
            ray.shutdown()


def _run_on_cluster(tasks: Sequence[RunTask], jobs: int | None, hear: Hear) -> None:
    import ray

    remote = ray.remote(num_cpus=1, max_retries=1)(_run_remote)
    resources: Any = ray.cluster_resources
    cores = int(resources().get("CPU", 1))
    waiting = list(reversed(tasks))
    under_way: dict[ray.ObjectRef[Finished], RunTask] = {}
    while waiting or under_way:
        while waiting and len(under_way) < (jobs or max(1, cores)):
            task = waiting.pop()
            under_way[remote.remote(task)] = task
            hear(Began(task=task))
        done, _ = ray.wait(list(under_way))
        for future in done:
            task = under_way.pop(future)
            hear(RunEnded(task=task, finished=_result(future, task)))


def _run_remote(task: RunTask) -> Finished:
    return run_task(task, lambda _part: None)


def _result(future: ray.ObjectRef[Finished], task: RunTask) -> Finished:
    import ray

    try:
        found = ray.get(future)
    except ray.exceptions.RayError as error:
        return failed(task, f"the cluster lost it: {type(error).__name__}: {str(error).splitlines()[0]}")
    return found


def name_of(task: RunTask) -> str:
    return f"{task.scenario} × {task.entry.contender.label}, seed {task.seed}"


class ProgressLines:
    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self._done += 1
            error = event.finished.record.error
            said = f"failed: {error}" if error else f"{event.finished.wall_s:.1f} s"
            sys.stderr.write(f"[{self._done}/{self._total}] {name_of(event.task)}: {said}\n")
            sys.stderr.flush()


class Bars:
    """A bar for all runs, and one for each that is under way."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars: Progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=Console(stderr=True, highlight=False, markup=False, emoji=False), transient=False,
        )  # fmt: skip
        self._all = self._bars.add_task("runs", total=total)
        self._under_way: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        key = event.task.key
        if isinstance(event, Began):
            self._under_way[key] = self._bars.add_task(f"  {name_of(event.task)}", total=100)
        elif isinstance(event, RunPart):
            self._bars.update(self._under_way[key], completed=round(100 * event.part))
        else:
            if key in self._under_way:
                self._bars.remove_task(self._under_way.pop(key))
            self._bars.advance(self._all)
            if event.finished.record.error:
                self._bars.console.print(f"{name_of(event.task)} failed: {event.finished.record.error}")


@contextmanager
def teller(total: int) -> Iterator[Hear]:
    """What suits standard error."""
    if sys.stderr.isatty():
        with Bars(total) as bars:
            yield bars
    else:
        yield ProgressLines(total)
