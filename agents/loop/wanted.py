"""What the target of a replica asks of a process, and how long that process may take for what.

Owns the comparison of a running worker with the one that is wanted, and the deadlines of launching and draining. Pure;
it refuses to decide what is done about any of it.
"""

from __future__ import annotations

from agents.crew.adapters import restart_needed
from agents.devices.base import WorkerReading, WorkerSpec
from agents.wire import ReplicaTarget

DRAIN_S_MAX = 30.0
"""A worker whose workload says nothing about it may drain for so long."""
LAUNCH_S_MIN = 60.0
LAUNCH_FACTOR = 10.0
"""A worker that is not ready after this many times its expected launch time has failed."""


def spec_of(replica: ReplicaTarget) -> WorkerSpec:
    """The worker a replica's target asks for."""
    return WorkerSpec(
        replica=replica.replica,
        kind=replica.kind,
        workload=replica.workload,
        project=replica.project,
        model=replica.model,
        share_pct_sm=replica.share_pct_sm,
        memory_mib_limit=replica.memory_mib_limit,
        batch=replica.batch,
        latency_ms_limit=replica.latency_ms_limit,
        launch_s=replica.launch_s,
        iterations_total=replica.iterations_total,
        iteration_ms_reference=replica.iteration_ms_reference,
        gpu_type_reference=replica.gpu_type_reference,
        latency_execution_only=replica.latency_execution_only,
        worker=replica.worker,
    )


def same_process(held: WorkerSpec, wanted: WorkerSpec) -> bool:
    """Whether a running process can be the wanted one; what else differs can be changed while it runs."""
    fixed = (held.replica, held.kind, held.workload, held.model, held.share_pct_sm, held.memory_mib_limit)
    same = fixed == (
        wanted.replica,
        wanted.kind,
        wanted.workload,
        wanted.model,
        wanted.share_pct_sm,
        wanted.memory_mib_limit,
    )
    return same and not restart_needed(held, wanted)


def overdue(worker: WorkerReading) -> bool:
    """Whether a worker that starts should long be ready."""
    return worker.state_s > max(LAUNCH_S_MIN, LAUNCH_FACTOR * worker.spec.launch_s)


def drain_over(worker: WorkerReading, route_grace_s: float) -> bool:
    """Whether a worker that drains has had its time, which begins when the routers have forgotten it."""
    allowed_s = DRAIN_S_MAX if worker.spec.worker is None else worker.spec.worker.drain_s + route_grace_s
    return worker.drained or worker.state_s > allowed_s
