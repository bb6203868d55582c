"""What of shared caps and quotas is left to a part of a fleet while others hold what they hold.

Owns the watts and the GPUs of others, by the definitions that planners and the verifier share: a device draws its idle
power and what its replicas are planned to add, up to its limit; a slice counts by its part of the memory. It refuses to
know policies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from solvers.domain.device import Device, PowerCap, PowerScope
from solvers.domain.ids import DeviceId, NodeId
from solvers.domain.offer import is_offered
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Project

CAP_W_LEAST = 1e-3
"""A cap of which nothing is left; no limit can be zero."""
CAP_W_SPARED = 0.05
"""Kept back of a cap that others draw under, so that what everybody rounds does not add up to more."""


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """The whole fleet, the devices of the part, and what others hold on the rest."""

    fleet: Snapshot
    devices: frozenset[DeviceId]
    others: tuple[Assignment, ...]
    settings: dict[DeviceId, DeviceSetting]

    def quotas(self) -> tuple[Project, ...]:
        """Every project with what is left of its quota."""
        used: dict[str, float] = defaultdict(float)
        for item in self.others:
            used[item.workload.split("/", 1)[0]] += item.share_pct_sm / 100 * self._parts.get(item.device, 0.0)
        return tuple(
            item if item.quota_gpus is None else replace(item, quota_gpus=max(0.0, item.quota_gpus - used[item.name]))
            for item in self.fleet.projects
        )

    def caps(self) -> Iterator[PowerCap]:
        """Every cap over a device of the part, with what is left of it."""
        for cap in self.fleet.power_caps:
            under = [device for device in self.fleet.devices if self._covers(cap, device)]
            if not any(device.id in self.devices for device in under):
                continue
            others_w = sum(self._drawn_w.get(device.id, 0.0) for device in under)
            spared_w = CAP_W_SPARED if others_w > 0.0 else 0.0
            yield replace(cap, limit_w=max(CAP_W_LEAST, cap.limit_w - others_w - spared_w))

    def _covers(self, cap: PowerCap, device: Device) -> bool:
        if cap.scope is PowerScope.CLUSTER:
            return cap.subject == self.fleet.cluster
        subjects: dict[PowerScope, str] = {
            PowerScope.DEVICE: device.id,
            PowerScope.NODE: device.node,
            PowerScope.RACK: self._racks.get(device.node, ""),
        }
        return cap.subject == subjects[cap.scope]

    @cached_property
    def _racks(self) -> dict[NodeId, str]:
        return {node.id: node.rack for node in self.fleet.nodes}

    @cached_property
    def _parts(self) -> dict[DeviceId, float]:
        """Part of a whole GPU by device."""
        types = self.fleet.gpu_types_by_name()
        return {item.id: types[item.gpu_type].part_of(item) for item in self.fleet.devices if item.gpu_type in types}

    @cached_property
    def _drawn_w(self) -> dict[DeviceId, float]:
        """Watts of every device of others that draws any."""
        types = self.fleet.gpu_types_by_name()
        parents = {item.mig.parent for item in self.fleet.devices if item.mig is not None}
        added_w: dict[DeviceId, float] = defaultdict(float)
        for item in self.others:
            added_w[item.device] += item.power_w_planned
        found = {}
        for device in self.fleet.devices:
            unused = is_offered(device.node) and device.id not in added_w
            if device.id in self.devices | parents or device.gpu_type not in types or unused:
                continue
            gpu_type, part, setting = types[device.gpu_type], self._parts[device.id], self.settings.get(device.id)
            limit_w = gpu_type.power_limit_w_max * part
            if setting is not None and setting.power_limit_w is not None:
                limit_w = min(limit_w, setting.power_limit_w)
            found[device.id] = min(limit_w, gpu_type.idle_w * part + added_w[device.id])
        return found
