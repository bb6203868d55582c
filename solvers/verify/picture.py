"""Snapshot and plan side by side, with the look-ups that checks need. Standard library only.

Owns no judgement but two: whether a replica of the plan stands already exactly so, and whether it is pinned (stands,
and may not move).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from solvers.domain.device import Device, GpuType, Node
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, NodeId, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.profile import ProfilePoint
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import OfflineTask, Service, TrainingJob, WorkloadKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything a check may look at."""

    snapshot: Snapshot
    plan: Plan
    movable: frozenset[WorkloadId]
    standing: Mapping[ReplicaId, Assignment]
    devices: Mapping[DeviceId, Device]
    parents: frozenset[DeviceId]
    """GPUs cut into slices: they host nothing themselves."""
    nodes: Mapping[NodeId, Node]
    types: Mapping[GpuTypeName, GpuType]
    services: Mapping[str, Service]
    jobs: Mapping[str, TrainingJob]
    tasks: Mapping[str, OfflineTask]
    points: Mapping[tuple[ModelName, GpuTypeName], tuple[ProfilePoint, ...]]
    """Solo points only."""
    settings: Mapping[DeviceId, DeviceSetting]
    on_device: Mapping[DeviceId, list[Assignment]]
    """Known devices only."""
    of_workload: Mapping[WorkloadId, list[Assignment]]
    short_rps: Mapping[str, float]
    """Declared shortage by workload."""

    @staticmethod
    def of(snapshot: Snapshot, plan: Plan, movable: Iterable[WorkloadId]) -> Picture:
        """Index both once."""
        devices = snapshot.devices_by_id()
        on_device: dict[DeviceId, list[Assignment]] = defaultdict(list)
        of_workload: dict[WorkloadId, list[Assignment]] = defaultdict(list)
        for item in plan.assignments:
            of_workload[item.workload].append(item)
            if item.device in devices:
                on_device[item.device].append(item)
        short_rps: dict[str, float] = defaultdict(float)
        for unplaced in plan.unplaced:
            short_rps[unplaced.workload] += max(0.0, unplaced.rate_rps_short)
        return Picture(
            snapshot=snapshot,
            plan=plan,
            movable=frozenset(movable),
            standing={item.replica: item for item in snapshot.target.assignments},
            devices=devices,
            parents=frozenset(item.mig.parent for item in snapshot.devices if item.mig is not None),
            nodes=snapshot.nodes_by_id(),
            types=snapshot.gpu_types_by_name(),
            services={str(item.id): item for item in snapshot.services},
            jobs={str(item.id): item for item in snapshot.jobs},
            tasks={str(item.id): item for item in snapshot.tasks},
            points={
                (item.model, item.gpu_type): tuple(point for point in item.points if not point.neighbours)
                for item in snapshot.profiles
            },
            settings={setting.device: setting for setting in plan.settings},
            on_device=dict(on_device),
            of_workload=dict(of_workload),
            short_rps=dict(short_rps),
        )

    def known(self, kind: WorkloadKind, workload: str) -> bool:
        """Whether the workload exists, as this kind."""
        table = {WorkloadKind.SERVICE: self.services, WorkloadKind.JOB: self.jobs, WorkloadKind.TASK: self.tasks}[kind]
        return workload in table

    def stands(self, item: Assignment) -> bool:
        """Whether the standing target has this replica with the very same knobs."""
        before = self.standing.get(item.replica)
        return before is not None and knobs(before) == knobs(item)

    def pinned(self, item: Assignment) -> bool:
        """Whether the plan had no say in this replica."""
        return item.workload not in self.movable and self.stands(item)

    def host(self, item: Assignment) -> tuple[Device, GpuType, Node] | None:
        """Device, type and node of a replica; None when any of them is unknown."""
        device = self.devices.get(item.device)
        if device is None or device.gpu_type not in self.types or device.node not in self.nodes:
            return None
        return device, self.types[device.gpu_type], self.nodes[device.node]

    def clock_mhz_sm(self, device: Device) -> int:
        """The clock the plan runs a device at."""
        setting = self.settings.get(device.id)
        if setting is not None and setting.clock_mhz_sm is not None:
            return setting.clock_mhz_sm
        return self.types[device.gpu_type].clocks_mhz_sm[-1]

    def price_usd_per_h(self, device: Device) -> float:
        """Price of the device: a MIG slice pays by its part of the memory."""
        gpu_type, node = self.types[device.gpu_type], self.nodes[device.node]
        price = gpu_type.price_usd_per_h(self.snapshot.policy.price_kind or node.price_kind, node.region) or 0.0
        return price * self.gpu_part(device)

    def gpu_part(self, device: Device) -> float:
        """Part of a whole GPU, for price, power and quota."""
        return device.memory_mib / self.types[device.gpu_type].memory_mib if device.mig is not None else 1.0

    def share_of_gpu_pct(self, item: Assignment, device: Device) -> float:
        """Share in percent of a whole GPU's SMs, which is what profiles measure."""
        part = device.sm_count / self.types[device.gpu_type].sm_count if device.mig is not None else 1.0
        return item.share_pct_sm * part


def knobs(item: Assignment) -> tuple[object, ...]:
    """What an agent would have to do something about."""
    return (
        item.kind,
        item.workload,
        item.model,
        item.device,
        item.share_pct_sm,
        item.memory_mib_limit,
        item.batch,
        item.envelope,
    )
