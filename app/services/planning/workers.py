"""Workloads' processes in the words of the wire, and which of them nodes were told otherwise."""

from __future__ import annotations

import json

from sqlalchemy.orm import Session

from agents.wire import WarmUpTarget, WorkerTarget, encode
from app import kinds
from app.store import documents, targets
from app.store.targets import ToldWorkload
from solvers.domain.codec import Plain, from_plain
from solvers.domain.ids import WorkloadId
from solvers.domain.worker import WorkerCommand
from solvers.domain.workload import OfflineTask, Service, SloKind, SloScope, TrainingJob


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


def latency_limit(service: Service) -> tuple[float | None, bool]:
    """What a service's processes are told of its SLO: the limit in ms, and whether it counts execution alone."""
    limit = service.slo.latency_ms if service.slo.kind is SloKind.LATENCY else None
    return limit, service.slo.scope is SloScope.EXECUTION


def outdated(session: Session) -> tuple[WorkloadId, ...]:
    """Standing workloads whose documents say something else of their process or latency limit than nodes were told."""
    told = targets.workloads_told(session)
    if not told:
        return ()
    said = {
        item.workload: item
        for kind in kinds.workloads()
        for item in (_as_told(from_plain(kind.domain, stored.spec)) for stored in documents.all_specs(session, kind))
    }
    return tuple(sorted({WorkloadId(item.workload) for item in told if said.get(item.workload, item) != item}))


def _as_told(work: Service | TrainingJob | OfflineTask) -> ToldWorkload:
    """A workload in the words of a node's target."""
    limit, alone = latency_limit(work) if isinstance(work, Service) else (None, False)
    worker: Plain = None
    if work.worker is not None:
        worker = json.loads(json.dumps(encode(worker_target(work.worker))))
    return ToldWorkload(workload=work.id, worker=worker, latency_ms_limit=limit, execution_only=alone)
