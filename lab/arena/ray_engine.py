"""Runs on a Ray cluster: the same tasks as on this machine, the same results.

Owns the connection (to the cluster that RAY_ADDRESS names, or to one of this machine's own) and the order in which
results come in. Scenario files and public data must lie at the same path on every node; planners of one's own travel
by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lab.arena.running import Began, Finished, Hear, RunEnded, RunTask, failed, run_task
from solvers.errors import EngineError

if TYPE_CHECKING:
    import ray

_ERRORS_ONLY = 40
"""Ray takes the levels of logging by number."""


def run_on_ray(tasks: Sequence[RunTask], jobs: int | None, hear: Hear) -> None:
    """Run all, `jobs` at a time (None: what the cluster holds). Raises EngineError without Ray or without its
    cluster.
    """
    if find_spec("ray") is None:
        raise EngineError('the engine ray needs headroom[ray]: pip install "headroom[ray]"')
    import ray

    begun_here = not ray.is_initialized()
    try:
        ray.init(ignore_reinit_error=True, include_dashboard=False, log_to_driver=False, logging_level=_ERRORS_ONLY)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EngineError(f"no Ray cluster: {error}") from None
    try:
        _run(tasks, jobs, hear)
    finally:
        if begun_here:
            ray.shutdown()


def _run(tasks: Sequence[RunTask], jobs: int | None, hear: Hear) -> None:
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
    """What a node of the cluster runs."""
    return run_task(task, lambda _part: None)


def _result(future: ray.ObjectRef[Finished], task: RunTask) -> Finished:
    import ray

    try:
        found = ray.get(future)
    except ray.exceptions.RayError as error:
        return failed(task, f"the cluster lost it: {type(error).__name__}: {str(error).splitlines()[0]}")
    return found
