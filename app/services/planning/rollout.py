"""Turns a plan into what every node must hold, and for a while still may, and makes that the target; and tells which
workloads nodes were told otherwise than their documents say now.

Nothing is chosen here: every number comes from the plan, the snapshot it was made for, or the documents of the
workloads it names. Of a workload that the promotion may not move, processes hear what they were told before: its
documents wait as it does. Which replicas may go on for a while and for how long is `solvers.cycle.target`'s; what of
them does not fit beside the plan ends at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from sqlalchemy.orm import Session

from agents.wire import OVERLAP, DeviceTarget, NodeTarget, ReplicaTarget, WarmUpTarget, WorkerTarget, decode, encode
from app import kinds
from app.kinds import Kind
from app.records import record_of
from app.store import documents, nodes, targets, tasks
from app.store.engine import Database
from app.store.targets import ToldWorkload
from solvers.cycle.ports import MODES, movable_workloads
from solvers.cycle.record import CycleRecord, Lane
from solvers.cycle.target import leaving
from solvers.domain.codec import Plain, digest
from solvers.domain.device import Device, DeviceMode
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, Digest, Generation, WorkloadId
from solvers.domain.ownership import owners_of
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.worker import WorkerCommand
from solvers.domain.workload import (
    OfflineTask,
    Service,
    ServiceMode,
    SloKind,
    SloScope,
    TrainingJob,
    Work,
    WorkloadKind,
)
from solvers.errors import InvariantError, SupersededError


def worker_target(worker: WorkerCommand) -> WorkerTarget:
    """A workload's process in the words of the wire."""
    warm_up = worker.warm_up
    return record_of(
        WorkerTarget,
        worker,
        environment=tuple((item.name, item.value) for item in worker.environment if item.value is not None),
        from_files=tuple((item.name, item.from_file) for item in worker.environment if item.from_file) or None,
        from_environment=tuple((one.name, one.from_environment) for one in worker.environment if one.from_environment)
        or None,
        from_commands=tuple((item.name, item.from_command) for item in worker.environment if item.from_command) or None,
        adapter=worker.adapter.value,
        batch_change=None if worker.batch_change is None else worker.batch_change.value,
        warm_up=None if warm_up is None else record_of(WarmUpTarget, warm_up),
    )


def latency_limit(work: Work) -> tuple[float | None, bool]:
    """What a workload's processes are told of its SLO: the limit in ms, and whether it counts execution alone."""
    if not isinstance(work, Service):
        return None, False
    limit = work.slo.latency_ms if work.slo.kind is SloKind.LATENCY else None
    return limit, work.slo.scope is SloScope.EXECUTION


def terms_of(snapshot: Snapshot, plan: Plan) -> dict[str, Digest]:
    """What promoting a plan would tell processes of the documents of workloads on approve, as a digest by workload."""
    placed = {item.workload for item in plan.assignments}
    asked = (
        work for work in snapshot.as_asked().works if work.mode is ServiceMode.APPROVE and WorkloadId(work.id) in placed
    )
    # Of the domain's worker, whose later fields leave the digests of earlier releases as they are.
    return {work.id: digest((work.worker, *_documented(work).values())) for work in asked}


def _documented(work: Work) -> dict[str, Any]:
    """What a process is told of its workload's document beside how it is started, as fields of a `ReplicaTarget`."""
    limit, alone = latency_limit(work)
    told: dict[str, Any] = {"latency_ms_limit": limit, "latency_execution_only": alone}
    if isinstance(work, OfflineTask):
        told |= {"iterations_total": work.inputs_total}
    if isinstance(work, TrainingJob):
        names = ("iterations_total", "iteration_ms_reference", "gpu_type_reference")
        told |= {name: getattr(work, name) for name in names}
    return told


def outdated(session: Session) -> tuple[WorkloadId, ...]:
    """Standing workloads whose documents say something else of their process or latency limit than nodes were told."""
    told = targets.workloads_told(session)
    if not told:
        return ()
    works: list[Work] = [work for kind in kinds.workloads() for work in documents.values(session, kind, kind.domain)]
    said = {item.workload: item for item in map(_as_told, works)}
    return tuple(sorted({WorkloadId(item.workload) for item in told if said.get(item.workload, item) != item}))


def _as_told(work: Work) -> ToldWorkload:
    """A workload in the words of a node's target."""
    limit, alone = latency_limit(work)
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
    wanted: tuple[NodeTarget, ...],
    going: Iterable[tuple[DeviceId, ReplicaTarget]],
    snapshot: Snapshot,
    overlapping: Collection[str] = (),
) -> tuple[NodeTarget, ...]:
    """The node targets with what may go on added, where its memory fits beside everything else; and its share, but on
    devices whose agents let shares overlap.
    """
    by_device: dict[str, list[ReplicaTarget]] = defaultdict(list)
    for device, replica in going:
        by_device[device].append(replica)
    known = snapshot.devices_by_id()
    return tuple(
        replace(
            node,
            devices=tuple(
                _beside(device, node, by_device[device.uuid], known[DeviceId(device.uuid)], device.uuid in overlapping)
                for device in node.devices
            ),
        )
        for node in wanted
    )


def _beside(
    target: DeviceTarget, node: NodeTarget, going: list[ReplicaTarget], device: Device, overlapping: bool
) -> DeviceTarget:
    if not going or DeviceMode(target.mode) is DeviceMode.DEDICATED:
        return target
    named = {replica.replica for each in node.devices for replica in each.replicas}
    share_pct = sum(replica.share_pct_sm for replica in target.replicas)
    memory_mib = sum(replica.memory_mib_limit for replica in target.replicas)
    unlimited = overlapping or DeviceMode(target.mode) is DeviceMode.TIME_SLICED
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
    """Who promotes: the leader with its fencing token, or a person without one, who may say why. `again`: back to a
    plan that stood before, whereupon planning by itself is held for `hold_s`.
    """

    name: str
    fencing: int | None = None
    request_id: str | None = None
    comment: str | None = None
    again: bool = False
    hold_s: float | None = None


class StoreActuator:
    """Promotes in the database; implements the cycle's Actuator port."""

    def __init__(self, database: Database, cluster: str, author: Author) -> None:
        self._database = database
        self._cluster = cluster
        self._author = author

    def promote(self, record: CycleRecord, plan: Plan) -> Generation:
        """Make the plan the target with all its node targets, in one transaction. Raises SupersededError when the
        parent is no longer current, LeaseLostError when a newer leader is known.
        """
        return promote(self._database, self._cluster, plan, record.snapshot, self._author, record.lane)


def promote(database: Database, cluster: str, plan: Plan, snapshot: Snapshot, author: Author, lane: Lane) -> Generation:
    """`lane`: whose workloads this may move, and whose documents nodes hear of."""
    plan_id, standing = digest(plan), snapshot.target
    pinned = {item.workload for item in plan.assignments} - set(movable_workloads(snapshot, lane))
    going = list(going_on(plan, snapshot))
    with database.transaction() as session:
        told = [decode(ReplicaTarget, item) for item in targets.terms_told(session, sorted(pinned))] if pinned else ()
        wanted = node_targets(plan, plan_id, snapshot, Generation(standing.generation + 1), told)
        earlier = [decode(NodeTarget, document) for document in targets.documents_with_retiring(session)]
        since_s = snapshot.taken_at_s - standing.promoted_at_s
        going += still_leaving(earlier, since_s)
        whole = with_leaving(wanted, going, snapshot, nodes.able(session, OVERLAP))
        promotion = targets.Promotion(
            cluster=cluster,
            plan_id=plan_id,
            parent_generation=standing.generation,
            parent_plan=standing.plan,
            promoted_by=author.name,
            request_id=author.request_id,
            comment=author.comment,
            again=author.again,
            hold_s=author.hold_s,
            node_documents={target.node: cast("Mapping[str, Plain]", encode(target)) for target in whole},
            fencing_token=author.fencing,
        )
        generation = targets.promote(session, promotion)
        # Behind the lock that promotions take, for which a drain waits before it tells of the node.
        _require_allowed(session, plan, snapshot, lane)
        for kind, project, name in evicted(plan, snapshot):
            tasks.count_eviction(session, kind, project, name)
        return generation


def _require_allowed(session: Session, plan: Plan, snapshot: Snapshot, lane: Lane) -> None:
    """Raise SupersededError where somebody forbade what the plan does since its picture was taken."""
    used = {item.device for item in plan.assignments}
    devices = [item for item in snapshot.devices if item.id in used and item.schedulable]
    hosts = {item.id for item in snapshot.nodes if item.schedulable} & {item.node for item in devices}
    shut = _saying(session, kinds.DEVICE, schedulable=False) & {item.id for item in devices}
    shut |= _saying(session, kinds.NODE, schedulable=False) & hosts
    if shut:
        raise SupersededError(f"taken out of use while the plan was made: {', '.join(sorted(shut))}")
    others = [(kind, mode) for kind in kinds.workloads() for mode in sorted(set(ServiceMode) - MODES[lane])]
    fixed = {name for kind, mode in others for name in _saying(session, kind, mode=mode.value)}
    if left := fixed & set(movable_workloads(snapshot, lane)):
        raise SupersededError(f"not to be moved any more when the plan was made: {', '.join(sorted(left))}")


def _saying(session: Session, kind: Kind, **said: Plain) -> set[str]:
    return {"/".join(key) for key in documents.saying(session, kind, **said)}


def going_on(plan: Plan, snapshot: Snapshot) -> Iterator[tuple[DeviceId, ReplicaTarget]]:
    """Replicas that may go on for a while where the plan no longer has them; not those of deleted workloads."""
    terms = _Terms(snapshot)
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


def node_targets(
    plan: Plan, plan_digest: Digest, snapshot: Snapshot, generation: Generation, told: Iterable[ReplicaTarget] = ()
) -> tuple[NodeTarget, ...]:
    """What each node of the snapshot must hold under a plan: every node, with every device, also the empty ones.
    `told`: replicas of workloads whose documents wait, as nodes hold them. Raises InvariantError when the plan names
    something the snapshot does not know; the verifier should have caught it.
    """
    settings = {setting.device: setting for setting in plan.settings}
    replicas: dict[DeviceId, list[ReplicaTarget]] = defaultdict(list)
    terms = _Terms(snapshot, told)
    known, owners = snapshot.devices_by_id(), owners_of(snapshot)
    own = {name: owners.policy_at(name).governor for name in known}
    governors = {name: None if governor == snapshot.policy.governor else governor for name, governor in own.items()}
    for assignment in sorted(plan.assignments, key=lambda each: each.replica):
        if assignment.device not in known:
            raise InvariantError(f"a plan assigns {assignment.replica} to a device that is not in its snapshot")
        replicas[assignment.device].append(terms.replica_target(assignment))
    devices = grouped(snapshot.devices, lambda device: device.node)
    return tuple(
        NodeTarget(
            node=node.id,
            generation=generation,
            plan=plan_digest,
            devices=tuple(
                _device_target(device, settings.get(device.id), replicas[device.id], governors[device.id])
                for device in sorted(devices[node.id], key=lambda each: each.id)
            ),
            governor=snapshot.policy.governor,
        )
        for node in sorted(snapshot.nodes, key=lambda each: each.id)
    )


def _device_target(
    device: Device, setting: DeviceSetting | None, replicas: list[ReplicaTarget], governor: str | None
) -> DeviceTarget:
    return DeviceTarget(
        uuid=device.id,
        mode=(setting.mode if setting is not None else device.mode).value,
        clock_mhz_sm=setting.clock_mhz_sm if setting is not None else None,
        power_limit_w=setting.power_limit_w if setting is not None else None,
        replicas=tuple(replicas),
        governor=governor,
    )


class _Terms:
    """What a replica's process must know of its workload beyond its assignment, by the documents of one snapshot; of
    workloads whose documents wait, what replicas like it were told.
    """

    def __init__(self, snapshot: Snapshot, told: Iterable[ReplicaTarget] = ()) -> None:
        self._told = grouped(told, lambda item: item.workload)
        self._works: Mapping[WorkloadKind, Mapping[str, Work]] = {
            WorkloadKind.SERVICE: {item.id: item for item in snapshot.as_asked().services},
            WorkloadKind.JOB: {item.id: item for item in snapshot.jobs},
            WorkloadKind.TASK: {item.id: item for item in snapshot.tasks},
        }
        self._models = snapshot.models_by_name()

    def known(self, assignment: Assignment) -> bool:
        return assignment.workload in self._works[assignment.kind] and assignment.model in self._models

    def replica_target(self, assignment: Assignment) -> ReplicaTarget:
        """An assignment in the words of the wire. Raises InvariantError for one that is not known."""
        if not self.known(assignment):
            raise InvariantError(
                f"a plan assigns {assignment.replica} of a workload or model that is not in its snapshot"
            )
        work, envelope = self._works[assignment.kind][assignment.workload], assignment.envelope
        told = record_of(
            ReplicaTarget,
            assignment,
            kind=assignment.kind.value,
            project=work.project,
            batch_min=envelope.batch_min,
            batch_max=envelope.batch_max,
            clock_mhz_sm_min=envelope.clock_mhz_sm_min,
            clock_mhz_sm_max=envelope.clock_mhz_sm_max,
            launch_s=self._models[assignment.model].launch_s,
            worker=None if work.worker is None else worker_target(work.worker),
            **_documented(work),
        )
        held = self._told.get(assignment.workload)
        return _as_held(told, held) if held else told


def _as_held(told: ReplicaTarget, held: list[ReplicaTarget]) -> ReplicaTarget:
    """Where and how the plan has it, with what replicas of its workload hold of documents."""
    same = next((item for item in held if item.model == told.model), None)
    terms = same or held[0]
    return replace(
        told,
        launch_s=told.launch_s if same is None else same.launch_s,
        latency_ms_limit=terms.latency_ms_limit,
        latency_execution_only=terms.latency_execution_only,
        iterations_total=terms.iterations_total,
        iteration_ms_reference=terms.iteration_ms_reference,
        gpu_type_reference=terms.gpu_type_reference,
        worker=terms.worker,
    )
