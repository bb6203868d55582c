"""What a plan costs by the policy's basis, and what its devices draw. Standard library only.

By share: the price of each device times the share of it that each replica has, and the whole of it at most. By device:
the whole price of every device in use, and the energy of its idle power and of all that its replicas are planned to
draw. Prices carry what interruptions are expected to cost. It refuses to believe a plan's own sums.
"""

from __future__ import annotations

from solvers.domain.device import Device
from solvers.domain.plan import Assignment
from solvers.domain.policy import CostBasis
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
    usd_per_wh = policy.usd_per_wh(picture.snapshot.taken_at_s)
    return price + usd_per_wh * draw_w(picture, device, sum(item.power_w_planned for item in items))


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
