"""Whose device it is and whose workload, read from the snapshot again. Standard library only.

Owns the verifier's own reading of pools: a board has one owner with all its slices, the first by name of those whose
pool means any of them; all else is the default policy's. It refuses to judge.
"""

from __future__ import annotations

from solvers.domain.device import Device, Node
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import OfflineTask, Service, TrainingJob


def read_owners(snapshot: Snapshot) -> tuple[dict[str, Policy], dict[str, Policy]]:
    """Policies by device and by workload, the default one left out."""
    pools = {policy.name: policy for policy in snapshot.policies if policy.pool is not None}
    pools.pop(snapshot.policy.name, None)
    nodes = {node.id: node for node in snapshot.nodes}
    boards: dict[str, Policy] = {}
    for name in sorted(pools, reverse=True):
        for device in snapshot.devices:
            if _means(pools[name], device, nodes.get(device.node)):
                boards[_board(device)] = pools[name]
    devices = {str(item.id): boards[_board(item)] for item in snapshot.devices if _board(item) in boards}
    works: tuple[Service | TrainingJob | OfflineTask, ...] = (*snapshot.services, *snapshot.jobs, *snapshot.tasks)
    named = {str(work.id): work.policy for work in works if work.policy is not None}
    return devices, {work: pools[policy] for work, policy in named.items() if policy in pools}


def _board(device: Device) -> str:
    return device.id if device.mig is None else device.mig.parent


def _means(policy: Policy, device: Device, node: Node | None) -> bool:
    pool = policy.pool
    if pool is None:
        return False
    labels = set() if node is None else {(label.key, label.value) for label in node.labels}
    named = (
        (device.id, pool.devices),
        (device.node, pool.nodes),
        (device.gpu_type, pool.gpu_types),
    )
    return all(not names or subject in names for subject, names in named) and all(
        (label.key, label.value) in labels for label in pool.labels
    )
