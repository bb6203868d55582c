"""Turns a plan into what every node must hold, and for a while still may, and makes that the target; and tells which
workloads nodes were told otherwise than their documents say now.

Nothing is chosen here: every number comes from the plan, the snapshot it was made for, or the documents of the
workloads it names. Which replicas may go on for a while and for how long is `solvers.cycle.target`'s; what of them
does not fit beside the plan ends at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from sqlalchemy.orm import Session

from agents.wire import DeviceTarget, NodeTarget, ReplicaTarget, WarmUpTarget, WorkerTarget, decode, encode
from app import kinds
from app.store import documents, targets, tasks
from app.store.engine import Database
from app.store.targets import ToldWorkload
from solvers.cycle.record import CycleRecord
from solvers.cycle.target import leaving
from solvers.domain.codec import Plain, digest, from_plain
from solvers.domain.device import Device, DeviceMode
from solvers.domain.ids import DeviceId, Digest, Generation, JobId, NodeId, ServiceId, TaskId, WorkloadId
from solvers.domain.ownership import owners_of
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.worker import WorkerCommand
from solvers.domain.workload import OfflineTask, Service, SloKind, SloScope, TrainingJob, WorkloadKind
from solvers.errors import InvariantError


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


def still_leaving(documents: Iterable[NodeTarget], since_s: float) -> Iterator[tuple[DeviceId, ReplicaTarget]]:
    """What earlier targets let go on, with the time that is left of it."""
    devices = [device for document in documents for device in document.devices]
    for uuid, replica in ((device.uuid, replica) for device in devices for replica in device.replicas):
        left_s = (replica.retire_after_s or 0.0) - max(0.0, since_s)
        if left_s > 0.0:
            yield DeviceId(uuid), replace(replica, retire_after_s=left_s)


def with_leaving(
    wanted: tuple[NodeTarget, ...], going: Iterable[tuple[DeviceId, ReplicaTarget]], snapshot: Snapshot
) -> tuple[NodeTarget, ...]:
    """The node targets with what may go on added, where it fits beside everything else."""
    by_device: dict[str, list[ReplicaTarget]] = defaultdict(list)
    for device, replica in going:
        by_device[device].append(replica)
    known = snapshot.devices_by_id()
    return tuple(
        replace(
            node,
            devices=tuple(
                _beside(device, node, by_device[device.uuid], known[DeviceId(device.uuid)]) for device in node.devices
            ),
        )
        for node in wanted
    )


def _beside(target: DeviceTarget, node: NodeTarget, going: list[ReplicaTarget], device: Device) -> DeviceTarget:
    if not going or DeviceMode(target.mode) is DeviceMode.DEDICATED:
        return target
    named = {replica.replica for each in node.devices for replica in each.replicas}
    share_pct = sum(replica.share_pct_sm for replica in target.replicas)
    memory_mib = sum(replica.memory_mib_limit for replica in target.replicas)
    unlimited = DeviceMode(target.mode) is DeviceMode.TIME_SLICED
    kept = []
    for replica in going:
        fits = unlimited or share_pct + replica.share_pct_sm <= 100
        fits = fits and memory_mib + replica.memory_mib_limit <= device.memory_mib
        if fits and replica.replica not in named:
            share_pct += replica.share_pct_sm
            memory_mib += replica.memory_mib_limit
            kept.append(replica)
    return replace(target, replicas=(*target.replicas, *kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who promotes: the leader with its fencing token, or a person without one."""

    name: str
    fencing: int | None = None


class StoreActuator:
    """Promotes in the database; implements the cycle's Actuator port."""

    def __init__(self, database: Database, cluster: str, author: Author) -> None:
        self._database = database
        self._cluster = cluster
        self._author = author

    def promote(self, record: CycleRecord, plan: Plan) -> Generation:
        """Make the plan the target with all its node targets, in one transaction.

        Raises SupersededError when the parent is no longer current, LeaseLostError when a newer leader is known.
        """
        return promote(self._database, self._cluster, plan, record.snapshot, self._author)


def promote(database: Database, cluster: str, plan: Plan, snapshot: Snapshot, author: Author) -> Generation:
    """Make a plan the target of the nodes in a snapshot."""
    plan_id = digest(plan)
    wanted = node_targets(plan, plan_id, snapshot, Generation(plan.parent + 1))
    going = tuple(going_on(plan, snapshot))
    with database.transaction() as session:
        earlier = [decode(NodeTarget, document) for document in targets.documents_with_retiring(session)]
        since_s = snapshot.taken_at_s - snapshot.target.promoted_at_s
        whole = with_leaving(wanted, (*going, *still_leaving(earlier, since_s)), snapshot)
        promotion = targets.Promotion(
            cluster=cluster,
            plan_id=plan_id,
            parent_generation=plan.parent,
            promoted_by=author.name,
            node_documents={target.node: cast("Mapping[str, Plain]", encode(target)) for target in whole},
            fencing_token=author.fencing,
        )
        generation = targets.promote(session, promotion)
        for kind, project, name in evicted(plan, snapshot):
            tasks.count_eviction(session, kind, project, name)
        return generation


def going_on(plan: Plan, snapshot: Snapshot) -> Iterator[tuple[DeviceId, ReplicaTarget]]:
    """Replicas that may go on for a while where the plan no longer has them; not those of deleted workloads."""
    terms = _SnapshotTerms(snapshot)
    for item in leaving(plan, snapshot):
        if terms.known(item.assignment):
            target = terms.replica_target(item.assignment)
            yield item.assignment.device, replace(target, retire_after_s=item.retire_after_s)


def evicted(plan: Plan, snapshot: Snapshot) -> tuple[tuple[WorkloadKind, str, str], ...]:
    """Unfinished jobs and tasks that stand now and get no place in the plan: kind, project, name."""
    standing = {item.workload for item in snapshot.target.assignments} - {item.workload for item in plan.assignments}
    done = {status.workload: status.done for status in snapshot.job_statuses}
    open_jobs = [job for job in snapshot.jobs if done.get(WorkloadId(job.id), 0) < job.iterations_total]
    open_tasks = [task for task in snapshot.tasks if done.get(WorkloadId(task.id), 0) < task.inputs_total]
    return (
        *((WorkloadKind.JOB, job.project, job.name) for job in open_jobs if WorkloadId(job.id) in standing),
        *((WorkloadKind.TASK, task.project, task.name) for task in open_tasks if WorkloadId(task.id) in standing),
    )


def node_targets(plan: Plan, plan_digest: Digest, snapshot: Snapshot, generation: Generation) -> tuple[NodeTarget, ...]:
    """What each node of the snapshot must hold under a plan: every node, with every device, also the empty ones.

    Raises InvariantError when the plan names something the snapshot does not know; the verifier should have caught it.
    """
    settings = {setting.device: setting for setting in plan.settings}
    replicas: dict[DeviceId, list[ReplicaTarget]] = defaultdict(list)
    terms = _SnapshotTerms(snapshot)
    known, owners = snapshot.devices_by_id(), owners_of(snapshot)
    for assignment in sorted(plan.assignments, key=lambda each: each.replica):
        if assignment.device not in known:
            raise InvariantError(f"a plan assigns {assignment.replica} to a device that is not in its snapshot")
        replicas[assignment.device].append(terms.replica_target(assignment))
    devices: dict[NodeId, list[Device]] = defaultdict(list)
    for device in snapshot.devices:
        devices[device.node].append(device)
    return tuple(
        NodeTarget(
            node=node.id,
            generation=generation,
            plan=plan_digest,
            devices=tuple(
                replace(
                    _device_target(device, settings.get(device.id), tuple(replicas[device.id])),
                    governor=_own_governor(snapshot, owners.policy_at(device.id)),
                )
                for device in sorted(devices[node.id], key=lambda each: each.id)
            ),
            governor=snapshot.policy.governor,
        )
        for node in sorted(snapshot.nodes, key=lambda each: each.id)
    )


def _own_governor(snapshot: Snapshot, policy: Policy) -> str | None:
    """The controller of a device where it is not the node's."""
    return None if policy.governor == snapshot.policy.governor else policy.governor


def _device_target(device: Device, setting: DeviceSetting | None, replicas: tuple[ReplicaTarget, ...]) -> DeviceTarget:
    return DeviceTarget(
        uuid=device.id,
        mode=(setting.mode if setting is not None else device.mode).value,
        clock_mhz_sm=setting.clock_mhz_sm if setting is not None else None,
        power_limit_w=setting.power_limit_w if setting is not None else None,
        replicas=replicas,
    )


@dataclass(frozen=True, slots=True)
class _WorkloadTerms:
    """What a replica's process must know of its workload beyond its assignment."""

    project: str
    latency_ms_limit: float | None
    iterations_total: int | None = None
    iteration_ms_reference: float | None = None
    gpu_type_reference: str | None = None
    latency_execution_only: bool = False
    worker: WorkerCommand | None = None


class _SnapshotTerms:
    """Looks up the workloads of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._services = snapshot.services_by_id()
        self._jobs = snapshot.jobs_by_id()
        self._tasks = snapshot.tasks_by_id()
        self._models = snapshot.models_by_name()

    def known(self, assignment: Assignment) -> bool:
        """Whether its workload and its model still exist."""
        return self._terms(assignment) is not None and assignment.model in self._models

    def replica_target(self, assignment: Assignment) -> ReplicaTarget:
        terms = self._terms(assignment)
        model = self._models.get(assignment.model)
        if terms is None or model is None:
            raise InvariantError(
                f"a plan assigns {assignment.replica} of a workload or model that is not in its snapshot"
            )
        return ReplicaTarget(
            replica=assignment.replica,
            kind=assignment.kind.value,
            workload=assignment.workload,
            project=terms.project,
            model=assignment.model,
            share_pct_sm=assignment.share_pct_sm,
            memory_mib_limit=assignment.memory_mib_limit,
            batch=assignment.batch,
            batch_min=assignment.envelope.batch_min,
            batch_max=assignment.envelope.batch_max,
            clock_mhz_sm_min=assignment.envelope.clock_mhz_sm_min,
            clock_mhz_sm_max=assignment.envelope.clock_mhz_sm_max,
            latency_ms_limit=terms.latency_ms_limit,
            launch_s=model.launch_s,
            iterations_total=terms.iterations_total,
            iteration_ms_reference=terms.iteration_ms_reference,
            gpu_type_reference=terms.gpu_type_reference,
            latency_execution_only=terms.latency_execution_only,
            worker=None if terms.worker is None else worker_target(terms.worker),
        )

    def _terms(self, assignment: Assignment) -> _WorkloadTerms | None:
        if assignment.kind is WorkloadKind.SERVICE:
            service = self._services.get(ServiceId(assignment.workload))
            if service is None:
                return None
            limit, alone = latency_limit(service)
            return _WorkloadTerms(service.project, limit, latency_execution_only=alone, worker=service.worker)
        if assignment.kind is WorkloadKind.JOB:
            job = self._jobs.get(JobId(assignment.workload))
            if job is None:
                return None
            reference = job.gpu_type_reference
            return _WorkloadTerms(
                job.project, None, job.iterations_total, job.iteration_ms_reference, reference, worker=job.worker
            )
        task = self._tasks.get(TaskId(assignment.workload))
        return _WorkloadTerms(task.project, None, task.inputs_total, worker=task.worker) if task is not None else None
