"""Checks of each device and each power domain: shares, memory, clients, settings, watts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from solvers.domain.device import Device, DeviceMode, PowerScope
from solvers.domain.evidence import Finding, FindingCode
from solvers.domain.ids import DeviceId
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.workload import WorkloadKind
from solvers.verify.bounds import dynamic_power_w, reckoned_w
from solvers.verify.picture import Picture, about, fatal

TOLERANCE_W = 0.01
ROUNDING_W = 0.001
"""Planned watts of a replica are rounded up to this."""


def check_devices(picture: Picture) -> Iterator[Finding]:
    for item in picture.plan.assignments:
        yield from _share(picture, item)
        yield from _power(picture, item)
    for device_id, items in sorted(picture.on_device.items()):
        device = picture.devices[device_id]
        if device.gpu_type in picture.types:
            yield from _sums(picture, device, items)
    for device_id, count in sorted(Counter(setting.device for setting in picture.plan.settings).items()):
        if count > 1:
            yield fatal(FindingCode.SETTING_DUPLICATE, device_id, count=float(count))
    standing = frozenset(picture.snapshot.target.settings)
    for setting in picture.plan.settings:
        yield from _setting(picture, setting, stands=setting in standing)
    yield from _power_caps(picture)


def _share(picture: Picture, item: Assignment) -> Iterator[Finding]:
    low, high = 1, 100
    job = picture.jobs.get(item.workload)
    if item.kind is WorkloadKind.JOB and job is not None:
        low, high = job.share_pct_sm_min, job.share_pct_sm_max
    if not low <= item.share_pct_sm <= high:
        yield about(picture, FindingCode.SHARE_INVALID, item.replica, [item], share_pct_sm=float(item.share_pct_sm))


def _power(picture: Picture, item: Assignment) -> Iterator[Finding]:
    """A plan that says less than was measured would look cheaper than it is, and pass caps that it breaks."""
    if picture.host(item) is None or not picture.known(item.kind, item.workload):
        return
    least_w = dynamic_power_w(picture, item, picture.devices[item.device])
    if not item.power_w_planned >= least_w - TOLERANCE_W:
        yield about(
            picture,
            FindingCode.POWER_UNDERSTATED,
            item.replica,
            [item],
            power_w=least_w,
            power_w_planned=item.power_w_planned,
        )


def _sums(picture: Picture, device: Device, items: list[Assignment]) -> Iterator[Finding]:
    policy, gpu_type = picture.policy_at(device.id), picture.types[device.gpu_type]
    share = sum(item.share_pct_sm for item in items)
    if share > 100 and picture.mode(device) is not DeviceMode.TIME_SLICED:
        yield about(picture, FindingCode.SHARE_EXCEEDED, device.id, items, share_pct_sm=float(share))
    memory = sum(item.memory_mib_limit for item in items)
    if memory + policy.memory_margin_mib > device.memory_mib:
        yield about(
            picture,
            FindingCode.MEMORY_EXCEEDED,
            device.id,
            items,
            memory_mib=float(memory),
            memory_mib_margin=float(policy.memory_margin_mib),
            memory_mib_device=float(device.memory_mib),
        )
    part = device.sm_count / gpu_type.sm_count if device.mig is not None else 1.0
    clients = max(1, min(policy.replicas_per_device_max, int(gpu_type.mps_clients_max * part)))
    if len(items) > clients:
        yield about(picture, FindingCode.CLIENTS_EXCEEDED, device.id, items, replicas=float(len(items)))


def _setting(picture: Picture, setting: DeviceSetting, *, stands: bool) -> Iterator[Finding]:
    device = picture.devices.get(setting.device)
    if device is None or device.gpu_type not in picture.types:
        return
    gpu_type, items = picture.types[device.gpu_type], picture.on_device.get(setting.device, [])
    if stands and not any(item.workload in picture.movable for item in items):
        return
    if setting.clock_mhz_sm is not None and setting.clock_mhz_sm not in gpu_type.clocks_mhz_sm:
        yield fatal(FindingCode.CLOCK_UNSUPPORTED, device.id, clock_mhz_sm=float(setting.clock_mhz_sm))
    limit_w = setting.power_limit_w
    if limit_w is not None and not gpu_type.power_limit_w_min <= limit_w <= gpu_type.power_limit_w_max:
        yield fatal(FindingCode.POWER_LIMIT_OUT_OF_RANGE, device.id, power_limit_w=limit_w)
    yield from _limit_below_draw(picture, device, limit_w, items)
    if setting.mode is DeviceMode.DEDICATED and len(items) > 1:
        yield about(picture, FindingCode.DEDICATED_BROKEN, device.id, items, mode=setting.mode.value)


def _limit_below_draw(
    picture: Picture, device: Device, limit_w: float | None, items: list[Assignment]
) -> Iterator[Finding]:
    """Under a limit below what its replicas draw a device runs slower than anybody measured at the planned clock."""
    gpu_type, part = picture.types[device.gpu_type], picture.gpu_part(device)
    if limit_w is None or limit_w >= gpu_type.power_limit_w_max:
        return
    planned_w = gpu_type.idle_w * part + sum(
        max(item.power_w_planned, dynamic_power_w(picture, item, device)) for item in items
    )
    if not planned_w <= limit_w + TOLERANCE_W + ROUNDING_W * len(items):
        code = FindingCode.POWER_LIMIT_TOO_LOW
        yield about(picture, code, device.id, items, power_w=round(planned_w, 3), power_limit_w=limit_w)


def _power_caps(picture: Picture) -> Iterator[Finding]:
    snapshot = picture.snapshot
    draw_w = {device.id: reckoned_w(picture, device) for device in snapshot.devices}
    members: dict[tuple[PowerScope, str], list[DeviceId]] = defaultdict(list)
    for device in snapshot.devices:
        rack = picture.nodes[device.node].rack if device.node in picture.nodes else ""
        members[PowerScope.DEVICE, device.id].append(device.id)
        members[PowerScope.NODE, device.node].append(device.id)
        members[PowerScope.RACK, rack].append(device.id)
        members[PowerScope.CLUSTER, snapshot.cluster].append(device.id)
    for cap in snapshot.power_caps:
        inside = members.get((cap.scope, cap.subject), [])
        power_w = sum(draw_w[device] for device in inside)
        involved = [item for device in inside for item in picture.on_device.get(device, [])]
        if not power_w <= cap.limit_w + TOLERANCE_W + ROUNDING_W * len(involved):
            yield about(
                picture,
                FindingCode.POWER_CAP_EXCEEDED,
                f"{cap.scope.value}/{cap.subject}",
                involved,
                power_w=round(power_w, 3),
                limit_w=cap.limit_w,
            )
