"""The hard limits a target must respect to be accepted by a node.

Owns nothing but the check; whoever asks for more than a device has, for an unknown device, or for something older than
what is held, gets a TargetRefusedError.
"""

from __future__ import annotations

from collections.abc import Mapping

from agents.devices.base import Mode
from agents.devices.specs import held_mib, held_pct_sm
from agents.errors import TargetRefusedError
from agents.wire import DeviceInventory, DeviceTarget, NodeTarget


def check_target(
    target: NodeTarget,
    node: str,
    held: NodeTarget | None,
    inventory: Mapping[str, DeviceInventory],
    *,
    resumed: bool = False,
) -> None:
    """Refuse what this node must not hold. Of a target that is resumed, devices may be missing: one that was lost while
    no agent ran must not cost the others their workers. Raises TargetRefusedError.
    """
    if target.node != node:
        raise TargetRefusedError(f"the target is for node {target.node}, this is {node}")
    if held is not None and target.generation < held.generation:
        raise TargetRefusedError(
            f"generation {target.generation} is older than {held.generation}, which this node holds"
        )
    if held is not None and target.generation == held.generation:
        raise TargetRefusedError(f"generation {target.generation} has already been told with another content")
    names = [replica.replica for device in target.devices for replica in device.replicas]
    if len(names) != len(set(names)):
        raise TargetRefusedError("a replica is named twice")
    if len({device.uuid for device in target.devices}) != len(target.devices):
        raise TargetRefusedError("a device is named twice")
    for device in target.devices:
        if device.uuid in inventory:
            _check_device(device, inventory[device.uuid])
        elif not resumed:
            raise TargetRefusedError(f"this node has no device {device.uuid}")


def _check_device(device: DeviceTarget, inventory: DeviceInventory) -> None:
    if device.mode not in set(Mode):
        raise TargetRefusedError(f"{device.uuid}: unknown mode {device.mode!r}")
    if device.mode == Mode.DEDICATED and len(device.replicas) > 1:
        raise TargetRefusedError(f"{device.uuid}: {len(device.replicas)} replicas on a dedicated device")
    for replica in device.replicas:
        if not 1 <= replica.share_pct_sm <= 100 or replica.memory_mib_limit < 1 or replica.batch < 1:
            raise TargetRefusedError(f"{replica.replica}: share, memory limit or batch is out of range")
    share = sum(held_pct_sm(replica) for replica in device.replicas)
    if share > 100 and device.mode != Mode.TIME_SLICED:
        raise TargetRefusedError(f"{device.uuid}: shares sum to {share} %")
    memory = sum(held_mib(replica) for replica in device.replicas)
    if memory > inventory.memory_mib:
        raise TargetRefusedError(f"{device.uuid}: memory limits sum to {memory} of {inventory.memory_mib} MiB")
