"""Workloads' processes in the words of the wire, and which of them nodes were told otherwise."""

from __future__ import annotations

import json

from sqlalchemy.orm import Session

from agents.wire import WarmUpTarget, WorkerTarget, encode
from app.store import documents, targets
from app.store.documents import Kind
from solvers.domain.codec import Plain, from_plain
from solvers.domain.ids import WorkloadId
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


def outdated(session: Session) -> tuple[WorkloadId, ...]:
    """Standing workloads whose documents say something else of their process than nodes were told."""
    told = targets.workers_told(session)
    if not told:
        return ()
    said = {
        f"{stored.spec['project']}/{stored.spec['name']}": _as_told(stored.spec.get("worker"))
        for kind in (Kind.SERVICE, Kind.JOB, Kind.TASK)
        for stored in documents.all_specs(session, kind)
    }
    return tuple(
        sorted({WorkloadId(workload) for workload, worker in told if workload in said and said[workload] != worker})
    )


def _as_told(worker: Plain) -> Plain:
    """A description as it stands in a node's target."""
    if worker is None:
        return None
    found: Plain = json.loads(json.dumps(encode(worker_target(from_plain(WorkerCommand, worker)))))
    return found
