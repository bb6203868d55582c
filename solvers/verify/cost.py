"""What a plan costs by the policy's basis, and what its devices draw. Standard library only.

By share: the price of each device times the share of it that each replica has, and the whole of it at most. By memory:
likewise with the memory that each uses with its batch, as far as that was measured, else may use, and all of it where
one has the whole share. By device: the whole price of every device in use, and the energy of its idle power and of all
that its replicas are planned to draw. Prices carry what interruptions are expected to cost. It refuses to believe a
plan's own sums.
"""

from __future__ import annotations

from solvers.domain.device import Device, DeviceMode
from solvers.domain.plan import Assignment
from solvers.domain.policy import CostBasis
from solvers.domain.workload import WorkloadKind
from solvers.verify.bounds import dynamic_power_w
from solvers.verify.picture import Picture


def usd_per_h(picture: Picture) -> float:
    """Cost of the plan."""
    hosts = [
        (picture.devices[device], items)
        for device, items in picture.on_device.items()
        if picture.host(items[0]) is not None
    ]
    return sum(_of_device(picture, device, items) for device, items in hosts)


def _of_device(picture: Picture, device: Device, items: list[Assignment]) -> float:
    """By the basis and the prices of the policy that decides there."""
    policy, price = picture.policy_at(device.id), picture.expected_usd_per_h(device)
    if policy.cost_basis is CostBasis.SHARE:
        return price * min(100, sum(item.share_pct_sm for item in items)) / 100
    if policy.cost_basis is CostBasis.MEMORY:
        alone = picture.mode(device) is not DeviceMode.TIME_SLICED and any(item.share_pct_sm >= 100 for item in items)
        used = device.memory_mib if alone else sum(_used_mib(picture, item, device) for item in items)
        return price * min(1.0, used / device.memory_mib)
    usd_per_wh = policy.usd_per_wh(picture.snapshot.taken_at_s)
    return price + usd_per_wh * draw_w(picture, device, sum(item.power_w_planned for item in items))


def _used_mib(picture: Picture, item: Assignment, device: Device) -> float:
    """Never more than its limit; its limit where nothing was measured with so small a batch, and of a training job."""
    profile = None if item.kind is WorkloadKind.JOB else picture.profiles.get((item.model, device.gpu_type))
    most = 0.0
    if profile is not None and profile.grid is not None:
        for batch, memory_mib in zip(profile.grid.batches, profile.grid.memory_mib, strict=True):
            most = max(most, memory_mib if batch <= item.batch else 0.0)
    elif profile is not None:
        for point in profile.points:
            most = max(most, point.memory_mib or 0.0 if point.batch <= item.batch else 0.0)
    return min(item.memory_mib_limit, most or item.memory_mib_limit)


def draw_w(picture: Picture, device: Device, dynamic_w: float) -> float:
    """Power of a device whose replicas add so much to its idle power: never above its limit."""
    gpu_type, part = picture.types[device.gpu_type], picture.gpu_part(device)
    setting = picture.settings.get(device.id)
    limit_w = gpu_type.power_limit_w_max * part
    if setting is not None and setting.power_limit_w is not None:
        limit_w = min(limit_w, setting.power_limit_w)
    return min(limit_w, gpu_type.idle_w * part + dynamic_w)


def reckoned_w(picture: Picture, device: Device) -> float:
    """What a device must be reckoned to draw: what its replicas are planned to add, at least what was measured."""
    if not picture.draws_power(device):
        return 0.0
    items = picture.on_device.get(device.id, [])
    return draw_w(
        picture, device, sum(max(item.power_w_planned, dynamic_power_w(picture, item, device)) for item in items)
    )
