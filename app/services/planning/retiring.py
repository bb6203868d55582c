"""What nodes are told of replicas that may go on for a while although the plan no longer has them where they are.

Owns their place in node targets, beside the plan and beside what earlier targets let go on; which they are and for how
long is `solvers.cycle.leaving`'s. It refuses to take room from anything planned: what does not fit beside the plan ends
at once, as it always did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from agents.wire import DeviceTarget, NodeTarget, ReplicaTarget
from solvers.domain.device import Device, DeviceMode
from solvers.domain.ids import DeviceId
from solvers.domain.snapshot import Snapshot


def still_leaving(documents: Iterable[NodeTarget], since_s: float) -> Iterator[tuple[DeviceId, ReplicaTarget]]:
    """What earlier targets let go on, with the time that is left of it."""
    devices = [device for document in documents for device in document.devices]
    for uuid, replica in ((device.uuid, replica) for device in devices for replica in device.replicas):
        left_s = (replica.retire_after_s or 0.0) - max(0.0, since_s)
        if left_s > 0.0:
            yield DeviceId(uuid), replace(replica, retire_after_s=left_s)


def with_leaving(
    wanted: tuple[NodeTarget, ...], going: Iterable[tuple[DeviceId, ReplicaTarget]], snapshot: Snapshot
) -> tuple[NodeTarget, ...]:
    """The node targets with what may go on added, where it fits beside everything else."""
    by_device: dict[str, list[ReplicaTarget]] = defaultdict(list)
    for device, replica in going:
        by_device[device].append(replica)
    known = snapshot.devices_by_id()
    return tuple(
        replace(
            node,
            devices=tuple(
                _beside(device, node, by_device[device.uuid], known[DeviceId(device.uuid)]) for device in node.devices
            ),
        )
        for node in wanted
    )


def _beside(target: DeviceTarget, node: NodeTarget, going: list[ReplicaTarget], device: Device) -> DeviceTarget:
    if not going or DeviceMode(target.mode) is DeviceMode.DEDICATED:
        return target
    named = {replica.replica for each in node.devices for replica in each.replicas}
    share_pct = sum(replica.share_pct_sm for replica in target.replicas)
    memory_mib = sum(replica.memory_mib_limit for replica in target.replicas)
    unlimited = DeviceMode(target.mode) is DeviceMode.TIME_SLICED
    kept = []
    for replica in going:
        fits = unlimited or share_pct + replica.share_pct_sm <= 100
        fits = fits and memory_mib + replica.memory_mib_limit <= device.memory_mib
        if fits and replica.replica not in named:
            share_pct += replica.share_pct_sm
            memory_mib += replica.memory_mib_limit
            kept.append(replica)
    return replace(target, replicas=(*target.replicas, *kept))
