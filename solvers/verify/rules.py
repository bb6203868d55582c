"""Checks of placement rules: who may stand where and beside whom, and that a policy's workloads stay on its devices.

What stands on a device of another policy may stay there only while the plan may not move it, or says that its workload
is short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from solvers.domain.device import ColocationClass, DeviceMode, Taint
from solvers.domain.evidence import Finding, FindingCode
from solvers.domain.ids import GpuTypeName
from solvers.domain.plan import Assignment
from solvers.domain.workload import AntiAffinity, WorkloadKind
from solvers.verify.picture import Picture
from solvers.verify.report import about, promise


def check_rules(picture: Picture) -> Iterator[Finding]:
    """All placement rules."""
    ages = {status.node: status.age_s for status in picture.snapshot.node_statuses}
    sick = {reading.device for reading in picture.snapshot.device_telemetry if not reading.healthy}
    for item in picture.plan.assignments:
        host = picture.host(item)
        if host is None:
            continue
        device, _, node = host
        allowed, tolerated = _owner_rules(picture, item)
        if allowed and device.gpu_type not in allowed:
            yield about(picture, FindingCode.TYPE_NOT_ALLOWED, item.replica, [item], gpu_type=device.gpu_type)
        if not {*device.taints, *node.taints} <= tolerated:
            yield about(picture, FindingCode.TAINT_NOT_TOLERATED, item.replica, [item], device=device.id)
        unfit = ColocationClass.INFERENCE if item.kind is WorkloadKind.JOB else ColocationClass.TRAINING
        if device.colocation is unfit:
            yield about(picture, FindingCode.COLOCATION_CLASS_BROKEN, item.replica, [item], device=device.id)
        if not device.schedulable or not node.schedulable or device.id in sick or device.id in picture.parents:
            yield about(picture, FindingCode.DEVICE_UNSCHEDULABLE, device.id, [item], replica=item.replica)
        if picture.known(item.kind, item.workload):
            yield from _owner(picture, item)
        age_s = ages.get(device.node)
        if age_s is None or age_s > picture.policy_at(device.id).device_silent_after_s:
            yield about(picture, FindingCode.DEVICE_SILENT, device.id, [item], replica=item.replica)
    for device_id, items in sorted(picture.on_device.items()):
        yield from _neighbours(picture, device_id, items)


def _owner(picture: Picture, item: Assignment) -> Iterator[Finding]:
    mine, its = picture.policy_for(item.workload).name, picture.policy_at(item.device).name
    if mine != its:
        yield promise(picture, FindingCode.FOREIGN_DEVICE, item, device=item.device, policy=mine, owner=its)


def _owner_rules(picture: Picture, item: Assignment) -> tuple[tuple[GpuTypeName, ...], set[Taint]]:
    """Allowed types and tolerated taints of the workload; nothing is known of an unknown one."""
    owner = picture.services.get(item.workload) or picture.jobs.get(item.workload) or picture.tasks.get(item.workload)
    return ((), set()) if owner is None else (owner.gpu_types_allowed, set(owner.tolerations))


def _neighbours(picture: Picture, device_id: str, items: list[Assignment]) -> Iterator[Finding]:
    counts = Counter(item.workload for item in items)
    for item in items:
        service = picture.services.get(item.workload)
        if service is None or item.kind is not WorkloadKind.SERVICE:
            continue
        twins = [other for other in items if other.workload == item.workload]
        if service.affinity.anti_affinity is AntiAffinity.HARD and counts[item.workload] > 1 and item is twins[0]:
            yield about(picture, FindingCode.ANTI_AFFINITY_BROKEN, device_id, twins, service=item.workload)
        avoided: set[str] = set(service.affinity.avoid_services)
        disliked = [other for other in items if other.workload in avoided]
        if disliked:
            yield about(picture, FindingCode.AVOIDED_NEIGHBOUR, device_id, [item, *disliked], service=item.workload)
        if service.affinity.dedicated and len(items) > 1:
            yield about(picture, FindingCode.DEDICATED_BROKEN, device_id, items, service=item.workload)
    if picture.devices[items[0].device].mode is DeviceMode.DEDICATED and len(items) > 1:
        yield about(picture, FindingCode.DEDICATED_BROKEN, device_id, items, replicas=float(len(items)))
