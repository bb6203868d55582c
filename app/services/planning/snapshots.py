"""Rows to Snapshot: the Observer of production.

Stored documents, live state and telemetry become one immutable picture, read in one transaction that sees one moment.
Measurements are clamped into their ranges, because one broken sensor must not stop planning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

from sqlalchemy.orm import Session

from agents.wire import RepartitionReport
from app import kinds, library
from app.records import record_of
from app.services.beliefs.completion import Completion, with_token_profiles
from app.services.profiles.runs import held_by_runs
from app.store import documents, nodes, profiles, targets, telemetry
from app.store.engine import Database
from app.store.sql import database_now
from app.store.telemetry import DemandRow, DeviceRow, ReplicaRow
from solvers.domain.codec import from_plain
from solvers.domain.device import Device, GpuType, Node, PowerCap
from solvers.domain.ids import ClusterName, DeviceId, NodeId, ReplicaId, ServiceId, WorkloadId
from solvers.domain.ownership import by_name
from solvers.domain.policy import DEFAULT_POLICY, Policy
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import JobStatus, NodeStatus, Replica, ReplicaState, Snapshot
from solvers.domain.telemetry import (
    DEMAND_BIN_S,
    BrokenLimit,
    Demand,
    DemandOrigin,
    DeviceTelemetry,
    RepartitionWish,
    ReplicaTelemetry,
)
from solvers.domain.workload import ModelVariant, OfflineTask, Project, Service, TrainingJob, WorkloadKind
from solvers.models.easing import eased

DEMAND_WINDOW_S = 60.0
"""The mean demand is that of this window; a service that no edge reported for so long counts as declared."""

W = TypeVar("W", Service, TrainingJob, OfflineTask)


class StoreObserver:
    """Takes the picture from the database; implements the cycle's Observer port."""

    def __init__(self, database: Database, cluster: str, completion: Completion | None = None) -> None:
        self._database = database
        self._cluster = ClusterName(cluster)
        self._completion = completion

    def observe(self) -> Snapshot:
        """A consistent snapshot of now that plans are made from. Raises TransientError when the database cannot be
        read.
        """
        return self.completed(without_idle_built_in(self.whole()))

    def whole(self) -> Snapshot:
        """A consistent snapshot of now with the whole catalogue, and with what was measured only. Raises TransientError
        when the database cannot be read.
        """
        with self._database.reading(patient=True) as session:
            return read_snapshot(session, self._cluster)

    def completed(self, snapshot: Snapshot) -> Snapshot:
        """The same with what is believed where nobody measured, and with promises eased that nothing keeps. Raises
        TransientError while beliefs are being learned.
        """
        told = with_token_profiles(snapshot)
        return eased(told if self._completion is None else self._completion.complete(told))


def read_snapshot(session: Session, cluster: ClusterName) -> Snapshot:
    """The picture as a session sees it, taken at the database's time, which all its rows bear. The session must be
    REPEATABLE READ for it to be consistent.
    """
    policy, bound = read_policy(session), read_bound_policies(session)
    silent_s = max(item.device_silent_after_s for item in (policy, *bound))
    devices = held_by_runs(session, documents.values(session, kinds.DEVICE, Device))
    services = read_services(session)
    replica_rows = sorted(telemetry.replicas(session, silent_s), key=lambda row: (row.replica, row.uuid))
    device_rows = sorted(telemetry.devices(session, silent_s), key=lambda row: row.uuid)
    known_devices = {device.id for device in devices}
    known = [row for row in replica_rows if row.kind in set(WorkloadKind) and row.state in set(ReplicaState)]
    target = targets.current(session, cluster)
    wished = nodes.wishes(session, target.generation)
    return Snapshot(
        cluster=cluster,
        taken_at_s=database_now(session).timestamp(),
        policy=policy,
        projects=documents.values(session, kinds.PROJECT, Project),
        gpu_types=documents.values(session, kinds.GPU_TYPE, GpuType),
        nodes=documents.values(session, kinds.NODE, Node),
        node_statuses=_node_statuses(session),
        devices=devices,
        power_caps=documents.values(session, kinds.POWER_CAP, PowerCap),
        models=documents.values(session, kinds.MODEL, ModelVariant),
        services=services,
        jobs=_by_id(documents.values(session, kinds.JOB, TrainingJob)),
        tasks=_by_id(documents.values(session, kinds.TASK, OfflineTask)),
        job_statuses=_job_statuses(session),
        profiles=_profiles(session),
        demands=read_demands(session, services),
        replicas=tuple(map(_replica, known)),
        device_telemetry=tuple(
            _device_telemetry(row, wished.get(row.uuid)) for row in device_rows if DeviceId(row.uuid) in known_devices
        ),
        replica_telemetry=_replica_telemetry(replica_rows),
        target=target,
        policies=bound,
    )


def deciding_policies(session: Session, services: Iterable[Service]) -> dict[ServiceId, Policy]:
    """The policy that decides on each service."""
    default, bound = read_policy(session), {policy.name: policy for policy in read_bound_policies(session)}
    named = ((service.id, service.policy) for service in services)
    return {name: default if policy is None else bound.get(policy, default) for name, policy in named}


def nodes_heard(session: Session) -> tuple[tuple[str, ...], ...]:
    """Nodes that report, by each time after which some policy calls a node's devices silent."""
    policies = (read_policy(session), *read_bound_policies(session))
    limits_s = {policy.device_silent_after_s for policy in policies}
    return tuple(telemetry.live_nodes(session, limit_s) for limit_s in sorted(limits_s))


def without_idle_built_in(snapshot: Snapshot) -> Snapshot:
    """The picture without built-in GPU types and models that nothing in it is about: every cycle stores its picture."""
    works = snapshot.works
    models = {work.model for work in works} | {name for service in snapshot.services for name in service.alternatives}
    models |= {profile.model for profile in snapshot.profiles} | {replica.model for replica in snapshot.replicas}
    models |= {item.model for item in snapshot.target.assignments}
    types = {device.gpu_type for device in snapshot.devices} | {profile.gpu_type for profile in snapshot.profiles}
    types |= {name for work in works for name in work.gpu_types_allowed}
    types |= {job.gpu_type_reference for job in snapshot.jobs}
    built_in = library.facts()
    return replace(
        snapshot,
        gpu_types=tuple(
            item for item in snapshot.gpu_types if item.name in types or built_in.gpu_types.get(item.name) != item
        ),
        models=tuple(item for item in snapshot.models if item.name in models or built_in.models.get(item.name) != item),
    )


def read_policy(session: Session) -> Policy:
    """The cluster's policy: the document `default`, or the built-in defaults when there is none."""
    stored = documents.find(session, kinds.POLICY, (DEFAULT_POLICY,))
    return from_plain(Policy, stored.spec) if stored is not None else Policy(name=DEFAULT_POLICY)


def read_bound_policies(session: Session) -> tuple[Policy, ...]:
    """The policies that have a pool of devices, by name."""
    found = (policy for policy in documents.values(session, kinds.POLICY, Policy) if policy.name != DEFAULT_POLICY)
    return by_name(found)


def read_services(session: Session) -> tuple[Service, ...]:
    return _by_id(documents.values(session, kinds.SERVICE, Service))


def _by_id(works: Iterable[W]) -> tuple[W, ...]:
    return tuple(sorted(works, key=lambda work: work.id))


def read_demands(session: Session, services: Sequence[Service]) -> tuple[Demand, ...]:
    """Demand of every service: observed when any edge reported it within the window, else as declared. The upper one is
    that of the busiest bin of the time that the policy that decides on it looks back, or of less where that was learned
    to do: capacity grows with the first busy bin, and shrinks only when demand has been lower for so long.
    """
    policies, memories_s = deciding_policies(session, services), telemetry.memories_s(session)
    looked_back_s: dict[str, float] = {}
    for service in services:
        policy, whole_s = policies[service.id], policies[service.id].demand_lookback_s
        learned_s = memories_s.get(service.id, whole_s) if policy.demand_lookback_learned else whole_s
        looked_back_s[service.id] = min(learned_s, whole_s)
    most_s = max(looked_back_s.values(), default=DEMAND_WINDOW_S)
    rows = telemetry.demand(
        session, window_s=DEMAND_WINDOW_S, lookback_s=most_s, bin_s=DEMAND_BIN_S, shorter_s=looked_back_s
    )
    observed = {row.service: row for row in rows}
    return tuple(_demand(service, observed.get(service.id)) for service in services)


def _profiles(session: Session) -> tuple[Profile, ...]:
    found = sorted(profiles.all_profiles(session), key=attrgetter("model", "gpu_type"))
    order = attrgetter("neighbours", "clock_mhz_sm", "share_pct_sm", "batch")
    fixed = {name for name in {each.gpu_type for each in found} if nodes.refuse(session, "set_clock", gpu_type=name)}
    return tuple(
        replace(each, points=tuple(sorted(_reachable(each, fixed=each.gpu_type in fixed), key=order))) for each in found
    )


def _reachable(profile: Profile, *, fixed: bool) -> Iterable[ProfilePoint]:
    """Its points, but those of lower clocks that no agent may set on any device of the type."""
    if not fixed:
        return profile.points
    own_mhz = max((point.clock_mhz_sm for point in profile.points), default=0)
    return (point for point in profile.points if point.clock_mhz_sm == own_mhz)


def _node_statuses(session: Session) -> tuple[NodeStatus, ...]:
    return tuple(
        NodeStatus(
            node=NodeId(state.node_id),
            # A clock step of the server may put a report a little into its future.
            age_s=max(state.age_s, 0.0) if state.age_s is not None else None,
            generation_applied=state.generation_applied,
        )
        for state in sorted(nodes.all_states(session), key=lambda state: state.node_id)
    )


def _job_statuses(session: Session) -> tuple[JobStatus, ...]:
    statuses = (
        JobStatus(workload=WorkloadId(f"{row.project}/{row.name}"), done=int(row.done), evictions=row.evictions)
        for row in telemetry.progress(session)
    )
    return tuple(sorted(statuses, key=lambda status: status.workload))


def _demand(service: Service, row: DemandRow | None) -> Demand:
    if row is None:
        return Demand.declared(service.id, service.rate_rps_declared)
    window_s, age_s = max(row.window_s, 0.0), max(row.age_s, 0.0)
    return record_of(Demand, row, origin=DemandOrigin.OBSERVED, window_s=window_s, age_s=age_s)


def _replica(row: ReplicaRow) -> Replica:
    return record_of(
        Replica,
        row,
        id=ReplicaId(row.replica),
        kind=WorkloadKind(row.kind),
        device=DeviceId(row.uuid),
        state=ReplicaState(row.state),
    )


def _device_telemetry(row: DeviceRow, wish: RepartitionReport | None) -> DeviceTelemetry:
    return record_of(
        DeviceTelemetry,
        row,
        device=DeviceId(row.uuid),
        power_w=max(row.power_w, 0.0),
        utilisation_pct=min(max(row.utilisation_pct, 0.0), 100.0),
        memory_mib_used=max(row.memory_mib_used, 0.0),
        age_s=max(row.age_s, 0.0),
        repartition=None if wish is None else record_of(RepartitionWish, wish, cause=BrokenLimit(wish.cause)),
    )


def _replica_telemetry(rows: Sequence[ReplicaRow]) -> tuple[ReplicaTelemetry, ...]:
    """One reading per replica: while it moves it stands on two devices, and the one that is ready speaks for it."""
    chosen: dict[str, ReplicaRow] = {}
    for row in rows:
        if row.replica not in chosen or row.state == ReplicaState.READY:
            chosen[row.replica] = row
    return tuple(_reading(row) for _, row in sorted(chosen.items()))


def _reading(row: ReplicaRow) -> ReplicaTelemetry:
    ended = row.completed + row.dropped
    missed = row.violated / ended if ended > 0 else 0.0
    return record_of(
        ReplicaTelemetry,
        row,
        rate_rps=max(row.arrived / row.interval_s, 0.0) if row.interval_s > 0 else 0.0,
        queue_length=max(row.queue_length, 0.0),
        batch_mean=max(row.batch_mean, 0.0),
        violation_fraction=min(max(missed, 0.0), 1.0),
        age_s=max(row.age_s, 0.0),
    )
