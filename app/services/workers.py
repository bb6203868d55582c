"""Workloads' processes in the words of the wire."""

from __future__ import annotations

from agents.wire import WarmUpTarget, WorkerTarget
from solvers.domain.worker import WorkerCommand


def worker_target(worker: WorkerCommand) -> WorkerTarget:
    """A workload's process in the words of the wire."""
    warm_up = worker.warm_up
    return WorkerTarget(
        command=worker.command,
        environment=tuple((variable.name, variable.value) for variable in worker.environment),
        working_directory=worker.working_directory,
        adapter=worker.adapter.value,
        batch_change=None if worker.batch_change is None else worker.batch_change.value,
        ready_path=worker.ready_path,
        metrics_path=worker.metrics_path,
        metrics_port_offset=worker.metrics_port_offset,
        warm_up=None
        if warm_up is None
        else WarmUpTarget(
            path=warm_up.path,
            body=warm_up.body,
            content_type=warm_up.content_type,
            requests=warm_up.requests,
            timeout_s=warm_up.timeout_s,
        ),
        drain_s=worker.drain_s,
        stop_s=worker.stop_s,
        host_memory_mib_max=worker.host_memory_mib_max,
        processes_max=worker.processes_max,
    )
