"""The immutable picture a cycle plans from: fleet, work, beliefs, demand, what stands and what was asked for.

Its id is the digest of its canonical form; `taken_at_s` is data, no clock.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from solvers.domain.change import Target
from solvers.domain.device import Device, GpuType, Node, Offer, PowerCap, offered_nodes
from solvers.domain.evidence import Reason
from solvers.domain.ids import (
    ClusterName,
    DeviceId,
    GpuTypeName,
    ModelName,
    NodeId,
    ReplicaId,
    ServiceId,
    TaskId,
    WorkloadId,
)
from solvers.domain.part import Along, Axis, Cut, FieldRule, cut_by
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile, TokenProfile
from solvers.domain.telemetry import Demand, DeviceTelemetry, ReplicaTelemetry
from solvers.domain.value import distinct, late, value, within
from solvers.domain.workload import ModelVariant, OfflineTask, Project, Service, Slo, TrainingJob, Work, WorkloadKind
from solvers.errors import FieldError

SCHEMA_VERSION = 1


class ReplicaState(StrEnum):
    """Life of a replica as agents report it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@value
class Replica:
    """A replica that stands on a device."""

    id: ReplicaId
    kind: WorkloadKind
    workload: WorkloadId
    model: ModelName
    device: DeviceId
    share_pct_sm: int
    memory_mib_limit: int
    batch: int
    state: ReplicaState


@value
class NodeStatus:
    """How a node is doing: seconds since its last report (None: never reported) and the generation it has applied."""

    node: NodeId
    age_s: float | None
    generation_applied: int


@value
class JobStatus:
    """Progress of a training job or offline task."""

    workload: WorkloadId
    done: int
    evictions: int = 0


@value
class Eased:
    """A service that is planned with an easier promise than its owner's, which nothing known keeps."""

    service: ServiceId
    asked: Slo
    """The owner's."""
    planned: Slo
    """The easier one, which the picture has."""
    nearest: Reason
    """The GPU type that comes nearest, and what it is believed to do at hardly any load."""


@value
class Snapshot:
    """Everything a planner may know. All tuples are ordered by id, so equal worlds have equal digests."""

    # Beside each field stands what a part of the picture keeps of it.

    schema_version: Annotated[int, FieldRule.WHOLE, within(0, SCHEMA_VERSION)] = SCHEMA_VERSION
    cluster: Annotated[ClusterName, FieldRule.WHOLE]
    taken_at_s: Annotated[float, FieldRule.WHOLE]
    policy: Annotated[Policy, FieldRule.SAID]
    projects: Annotated[tuple[Project, ...], FieldRule.SAID] = ()
    gpu_types: Annotated[tuple[GpuType, ...], FieldRule.WHOLE, distinct("name")] = ()
    nodes: Annotated[tuple[Node, ...], Along(Axis.NODES, "id"), distinct("id")] = ()
    node_statuses: Annotated[tuple[NodeStatus, ...], Along(Axis.NODES, "node")] = ()
    devices: Annotated[tuple[Device, ...], Along(Axis.DEVICES, "id"), distinct("id")] = ()
    power_caps: Annotated[tuple[PowerCap, ...], FieldRule.SAID] = ()
    models: Annotated[tuple[ModelVariant, ...], FieldRule.WHOLE, distinct("name")] = ()
    services: Annotated[tuple[Service, ...], Along(Axis.WORKLOADS, "id"), distinct("id")] = ()
    jobs: Annotated[tuple[TrainingJob, ...], Along(Axis.WORKLOADS, "id"), distinct("id")] = ()
    tasks: Annotated[tuple[OfflineTask, ...], Along(Axis.WORKLOADS, "id"), distinct("id")] = ()
    job_statuses: Annotated[tuple[JobStatus, ...], Along(Axis.WORKLOADS, "workload")] = ()
    profiles: Annotated[tuple[Profile, ...], Along(Axis.GPU_TYPES, "gpu_type"), distinct("model", "gpu_type")] = ()
    demands: Annotated[tuple[Demand, ...], Along(Axis.WORKLOADS, "service"), distinct("service")] = ()
    replicas: Annotated[tuple[Replica, ...], Along(Axis.DEVICES, "device")] = ()
    device_telemetry: Annotated[tuple[DeviceTelemetry, ...], Along(Axis.DEVICES, "device")] = ()
    replica_telemetry: Annotated[tuple[ReplicaTelemetry, ...], Along(Axis.REPLICAS, "replica")] = ()
    target: Annotated[Target, FieldRule.CUT] = Target()
    offers: Annotated[tuple[Offer, ...], FieldRule.SAID] = ()
    token_profiles: Annotated[tuple[TokenProfile, ...], Along(Axis.GPU_TYPES, "gpu_type")] = ()
    policies: Annotated[tuple[Policy, ...], FieldRule.SAID] = late(())
    """Those that have a pool of devices, by name; `policy` decides on all the rest."""
    eased: Annotated[tuple[Eased, ...], Along(Axis.WORKLOADS, "service"), distinct("service")] = late(())
    """Whose promise in this picture is not the owner's."""

    def __post_init__(self) -> None:
        nodes, types = {node.id for node in self.nodes}, {item.name for item in self.gpu_types}
        for number, device in enumerate(self.devices):
            for name, known in (("node", nodes), ("gpu_type", types)):
                if getattr(device, name) not in known:
                    raise FieldError(f"devices/{number}/{name}", f"there is no {name} {getattr(device, name)}")

    def part(self, cut: Cut) -> Snapshot:
        """The picture of some devices and workloads alone, by the rule that stands beside each field."""
        mine = [device for device in self.devices if device.id in cut.devices]
        return cut_by(
            self,
            cut,
            {
                Axis.DEVICES: cut.devices,
                Axis.NODES: {device.node for device in mine},
                Axis.GPU_TYPES: {device.gpu_type for device in mine} | {offer.gpu_type for offer in cut.offers},
                Axis.WORKLOADS: cut.workloads | {item.workload for item in cut.assignments},
                Axis.REPLICAS: {item.replica for item in cut.assignments},
            },
        )

    def with_offers(self) -> Snapshot:
        """The same with every offered GPU standing ready; itself when there are no offers. For planning and verifying
        only: its digest is not the snapshot's.
        """
        if not self.offers:
            return self
        types = self.gpu_types_by_name()
        added = [
            pair
            for offer in self.offers
            if offer.gpu_type in types
            for pair in offered_nodes(offer, types[offer.gpu_type])
        ]
        statuses = (NodeStatus(node=node.id, age_s=0.0, generation_applied=0) for node, _ in added)
        return replace(
            self,
            offers=(),
            nodes=tuple(sorted((*self.nodes, *(node for node, _ in added)), key=lambda item: item.id)),
            devices=tuple(sorted((*self.devices, *(device for _, device in added)), key=lambda item: item.id)),
            node_statuses=tuple(sorted((*self.node_statuses, *statuses), key=lambda item: item.node)),
        )

    @property
    def works(self) -> tuple[Work, ...]:
        return (*self.services, *self.jobs, *self.tasks)

    def gpu_types_by_name(self) -> dict[GpuTypeName, GpuType]:
        return {gpu_type.name: gpu_type for gpu_type in self.gpu_types}

    def nodes_by_id(self) -> dict[NodeId, Node]:
        return {node.id: node for node in self.nodes}

    def devices_by_id(self) -> dict[DeviceId, Device]:
        return {device.id: device for device in self.devices}

    def models_by_name(self) -> dict[ModelName, ModelVariant]:
        return {model.name: model for model in self.models}

    def services_by_id(self) -> dict[ServiceId, Service]:
        return {service.id: service for service in self.services}

    def tasks_by_id(self) -> dict[TaskId, OfflineTask]:
        return {task.id: task for task in self.tasks}

    def profiles_by_key(self) -> dict[tuple[ModelName, GpuTypeName], Profile]:
        return {(profile.model, profile.gpu_type): profile for profile in self.profiles}

    def slo_asked(self, service: Service) -> Slo:
        """Its owner's, where the picture has an easier one."""
        return next((item.asked for item in self.eased if item.service == service.id), service.slo)

    def as_asked(self) -> Snapshot:
        """With the owners' promises, but of services whose promise is another than the eased one by now."""
        if not self.eased:
            return self
        before = {(item.service, item.planned): item.asked for item in self.eased}
        services = tuple(replace(item, slo=before.get((item.id, item.slo), item.slo)) for item in self.services)
        return replace(self, services=services, eased=())

    def demands_by_service(self) -> dict[ServiceId, Demand]:
        return {demand.service: demand for demand in self.demands}
