"""What-if changes of the fleet itself: nodes and devices lost and added, power caps, prices, offers.

Owns what such a change means for a picture: a node that is lost is one that has long been silent, so that plans treat
it as they would in earnest; a new one stands ready and empty. It refuses to plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from app.services.whatif.changes import Changes, NodesAdded, PriceChange
from app.services.whatif.faults import Faults, merged
from solvers.domain.device import Device, GpuType, Node, PowerScope, PriceRow
from solvers.domain.ids import DeviceId, NodeId
from solvers.domain.snapshot import NodeStatus, Snapshot

SILENT_TIMES = 100.0
"""A lost node has been silent for so many times what counts as silent."""
ADDED = "added"


def reporting(snapshot: Snapshot, new: Iterable[NodeId]) -> tuple[NodeStatus, ...]:
    """Statuses with those of nodes that have just reported."""
    fresh = (NodeStatus(node=name, age_s=0.0, generation_applied=0) for name in new)
    return merged(snapshot.node_statuses, fresh, lambda item: item.node)


def lose(snapshot: Snapshot, changes: Changes, faults: Faults) -> Snapshot:
    """Nodes that fall silent and devices that break."""
    nodes, devices = [item.id for item in snapshot.nodes], [item.id for item in snapshot.devices]
    for index, name in enumerate(changes.nodes_lost):
        faults.known("node", name, nodes, f"/nodes_lost/{index}")
    for index, uuid in enumerate(changes.devices_lost):
        faults.known("device", uuid, devices, f"/devices_lost/{index}")
    lost, sick = set(changes.nodes_lost), set(changes.devices_lost)
    dark = sick | {item.id for item in snapshot.devices if item.node in lost}
    silent_s = SILENT_TIMES * snapshot.policy.device_silent_after_s
    return replace(
        snapshot,
        node_statuses=tuple(
            replace(item, age_s=silent_s) if item.node in lost else item for item in snapshot.node_statuses
        ),
        devices=tuple(replace(item, schedulable=False) if item.id in sick else item for item in snapshot.devices),
        device_telemetry=tuple(
            replace(item, healthy=item.healthy and item.device not in dark) for item in snapshot.device_telemetry
        ),
        replicas=tuple(item for item in snapshot.replicas if item.device not in dark),
    )


def add_nodes(snapshot: Snapshot, changes: Changes, faults: Faults) -> Snapshot:
    """Nodes that stand ready and empty."""
    types = snapshot.gpu_types_by_name()
    for index, wish in enumerate(changes.nodes_added):
        if faults.known("GPU type", wish.gpu_type, types, f"/nodes_added/{index}/gpu_type"):
            snapshot = with_nodes(snapshot, wish, types[wish.gpu_type], f"{ADDED}-{index}")
    return snapshot


def with_nodes(snapshot: Snapshot, wish: NodesAdded, gpu_type: GpuType, prefix: str) -> Snapshot:
    """The picture with these nodes standing ready and empty."""
    nodes = [
        Node(
            id=NodeId(f"{prefix}-{number:05d}"),
            rack=wish.rack,
            failure_domain=wish.failure_domain,
            region=wish.region,
            price_kind=wish.price_kind,
        )
        for number in range(wish.count)
    ]
    devices = [
        Device(
            id=DeviceId(f"{node.id}.gpu-{index}"),
            node=node.id,
            gpu_type=gpu_type.name,
            index=index,
            memory_mib=gpu_type.memory_mib,
            sm_count=gpu_type.sm_count,
        )
        for node in nodes
        for index in range(wish.gpus_per_node)
    ]
    return replace(
        snapshot,
        nodes=merged(snapshot.nodes, nodes, lambda item: item.id),
        node_statuses=reporting(snapshot, (node.id for node in nodes)),
        devices=merged(snapshot.devices, devices, lambda item: item.id),
    )


def caps(snapshot: Snapshot, changes: Changes, faults: Faults) -> Snapshot:
    """Power caps that are new, other or gone."""
    caps = {(item.scope, item.subject): item for item in snapshot.power_caps}
    for index, name in enumerate(changes.power_caps_removed):
        if caps.pop((name.scope, name.subject), None) is None:
            told = f"there is no power cap {name.scope.value}/{name.subject}"
            faults.add(f"/power_caps_removed/{index}", told, "reference-unknown")
    subjects: Mapping[PowerScope, set[str]] = {
        PowerScope.DEVICE: {item.id for item in snapshot.devices},
        PowerScope.NODE: {item.id for item in snapshot.nodes},
        PowerScope.RACK: {item.rack for item in snapshot.nodes},
        PowerScope.CLUSTER: {snapshot.cluster},
    }
    for index, cap in enumerate(changes.power_caps):
        if faults.known(cap.scope.value, cap.subject, subjects[cap.scope], f"/power_caps/{index}/subject"):
            caps[cap.scope, cap.subject] = cap
    return replace(snapshot, power_caps=tuple(caps[key] for key in sorted(caps)))


def prices(snapshot: Snapshot, changes: Changes, faults: Faults) -> Snapshot:
    """Other prices of GPU types."""
    types = snapshot.gpu_types_by_name()
    for index, change in enumerate(changes.prices):
        place = f"/prices/{index}"
        if faults.known("GPU type", change.gpu_type, types, f"{place}/gpu_type"):
            types[change.gpu_type] = _priced(types[change.gpu_type], change, faults, place)
    return replace(snapshot, gpu_types=tuple(types[item.name] for item in snapshot.gpu_types))


def _priced(gpu_type: GpuType, change: PriceChange, faults: Faults, place: str) -> GpuType:
    rows = {(row.kind, row.region): row for row in gpu_type.prices}
    row = rows.get((change.kind, change.region))
    if row is None and change.usd_per_h is None:
        faults.add(place, f"{gpu_type.name} has no price {change.kind.value} in {change.region} to change")
        return gpu_type
    before = row or PriceRow(kind=change.kind, usd_per_h=0.0, region=change.region, source="what-if")
    usd_per_h = change.usd_per_h if change.usd_per_h is not None else before.usd_per_h * (change.factor or 0.0)
    if change.usd_per_h is None and change.factor is None:
        usd_per_h = before.usd_per_h
    often = before.interruptions_per_h if change.interruptions_per_h is None else change.interruptions_per_h
    rows[change.kind, change.region] = replace(before, usd_per_h=usd_per_h, interruptions_per_h=often, source="what-if")
    return replace(gpu_type, prices=tuple(rows.values()))


def offers(snapshot: Snapshot, changes: Changes, faults: Faults) -> Snapshot:
    """GPUs that could be rented."""
    types = snapshot.gpu_types_by_name()
    for index, offer in enumerate(changes.offers):
        faults.known("GPU type", offer.gpu_type, types, f"/offers/{index}/gpu_type")
    return replace(snapshot, offers=merged(snapshot.offers, changes.offers, lambda item: item.name))
