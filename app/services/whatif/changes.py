"""What-if changes as values, and applied to a snapshot: what is put, removed, scaled, lost, added or priced otherwise.

Documents are those that `headroom apply` reads; everything else is said by its difference. A rate is scaled in demand
and declaration alike; what is removed still stands in the target and has to be stopped; a node that is lost is one that
has long been silent, so that plans treat it as they would in earnest; a new one stands ready and empty. Every change
that names something unknown is refused with a pointer, and all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field, replace
from difflib import get_close_matches
from functools import partial
from typing import TypeVar, cast

from app import kinds
from app.errors import Fault, FieldsError
from solvers.domain.codec import Plain, from_plain, to_plain
from solvers.domain.device import Device, GpuType, Node, Offer, PowerCap, PowerScope, PriceKind, PriceRow
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId, ServiceId, WorkloadId
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.telemetry import Demand
from solvers.domain.value import check_name, check_not_negative, check_range, check_text, value
from solvers.domain.workload import ModelVariant, OfflineTask, Project, Service, TrainingJob
from solvers.errors import FieldError
from solvers.planners import registry

FACTOR_MAX = 1e6
NODES_MAX = 20_000
GPUS_PER_NODE_MAX = 64
GPUS_ADDED_MAX = 40_000
"""Nodes and offers together."""


@value
class RateChange:
    """Another rate of one service: a multiple of what it is, or requests per second."""

    service: ServiceId
    factor: float | None = None
    rate_rps: float | None = None

    def __post_init__(self) -> None:
        check_range("factor", self.factor, 0, FACTOR_MAX)
        check_range("rate_rps", self.rate_rps, 0, 1e9)
        if (self.factor is None) == (self.rate_rps is None):
            raise FieldError("factor", "say either factor or rate_rps")


@value
class NodesAdded:
    """New nodes, all alike, with GPUs of one type."""

    gpu_type: GpuTypeName
    count: int = 1
    gpus_per_node: int = 1
    price_kind: PriceKind = PriceKind.ON_DEMAND
    region: str = "default"
    rack: str = "added"
    failure_domain: str = "zone-0"

    def __post_init__(self) -> None:
        check_name("gpu_type", self.gpu_type)
        check_range("count", self.count, 1, NODES_MAX)
        check_range("gpus_per_node", self.gpus_per_node, 1, GPUS_PER_NODE_MAX)
        check_text("region", self.region, 63)
        check_name("rack", self.rack)
        check_name("failure_domain", self.failure_domain)


@value
class CapName:
    """Which power cap."""

    scope: PowerScope
    subject: str


@value
class PriceChange:
    """Another price of a GPU type: dollars per hour, or a multiple of the present price."""

    gpu_type: GpuTypeName
    kind: PriceKind = PriceKind.ON_DEMAND
    region: str = "default"
    usd_per_h: float | None = None
    factor: float | None = None
    interruptions_per_h: float | None = None

    def __post_init__(self) -> None:
        check_not_negative("usd_per_h", self.usd_per_h)
        check_range("factor", self.factor, 0, FACTOR_MAX)
        check_not_negative("interruptions_per_h", self.interruptions_per_h)
        if self.usd_per_h is not None and self.factor is not None:
            raise FieldError("factor", "say either usd_per_h or factor")
        if self.usd_per_h is None and self.factor is None and self.interruptions_per_h is None:
            raise FieldError("usd_per_h", "say usd_per_h, factor or interruptions_per_h")


@value
class Changes:
    """Everything that is to be different. Documents replace those of the same name, or are new."""

    gpu_types: tuple[GpuType, ...] = ()
    models: tuple[ModelVariant, ...] = ()
    profiles: tuple[Profile, ...] = ()
    projects: tuple[Project, ...] = ()
    nodes: tuple[Node, ...] = ()
    devices: tuple[Device, ...] = ()
    services: tuple[Service, ...] = ()
    jobs: tuple[TrainingJob, ...] = ()
    tasks: tuple[OfflineTask, ...] = ()
    remove: tuple[WorkloadId, ...] = ()
    """Services, jobs and tasks that end: `project/name`."""
    rate_factor: float = 1.0
    """For every service that `rates` does not name, and that `services` does not declare with another rate."""
    rates: tuple[RateChange, ...] = ()
    nodes_lost: tuple[NodeId, ...] = ()
    devices_lost: tuple[DeviceId, ...] = ()
    nodes_added: tuple[NodesAdded, ...] = ()
    offers: tuple[Offer, ...] = ()
    """GPUs that could be rented."""
    power_caps: tuple[PowerCap, ...] = ()
    power_caps_removed: tuple[CapName, ...] = ()
    prices: tuple[PriceChange, ...] = ()
    policy: Mapping[str, object] = field(default_factory=dict)
    """Fields of the policy by name; those not named stay."""

    def __post_init__(self) -> None:
        check_range("rate_factor", self.rate_factor, 0, FACTOR_MAX)
        added = sum(item.count * item.gpus_per_node for item in self.nodes_added)
        added += sum(item.count_max for item in self.offers)
        if added > GPUS_ADDED_MAX:
            raise FieldError("nodes_added", f"nodes and offers together add at most {GPUS_ADDED_MAX} GPUs, not {added}")


def changes_of(plain: Plain) -> Changes:
    """Changes from plain JSON data. Raises FieldError with a pointer."""
    if not isinstance(plain, dict):
        raise FieldError("/", "expected an object")
    policy = plain.get("policy", {})
    if not isinstance(policy, dict):
        raise FieldError("/policy", "/policy: expected an object")
    rest: Plain = {name: item for name, item in plain.items() if name != "policy"}
    return replace(from_plain(Changes, rest), policy=policy)


T = TypeVar("T")
NEAR_MAX = 3


class ChangeFaults:
    """Collects what is wrong with changes and raises it at once."""

    def __init__(self) -> None:
        self._found: list[Fault] = []

    def add(self, pointer: str, detail: str, code: str = "value-invalid") -> None:
        """One more."""
        self._found.append(Fault(pointer=pointer, code=code, detail=detail))

    def known(self, word: str, name: str, names: Iterable[str], pointer: str) -> bool:
        """Whether the name is one of these; a fault that tells the nearest ones when it is not."""
        known = set(names)
        if name in known:
            return True
        near = get_close_matches(name, sorted(known), n=NEAR_MAX)
        hint = f"; near: {', '.join(near)}" if near else ""
        self.add(pointer, f"there is no {word} {name}{hint}", "reference-unknown")
        return False

    def settle(self) -> None:
        """Raise FieldsError when anything was wrong."""
        if self._found:
            raise FieldsError(tuple(self._found))


def merged(old: Iterable[T], new: Iterable[T], key: Callable[[T], Hashable]) -> tuple[T, ...]:
    """Old and new documents: what is new takes the place of
    what has its name. Ordered by name, as snapshots are.
    """
    merged = {key(item): item for item in (*old, *new)}
    return tuple(merged[name] for name in sorted(merged, key=str))


def apply_changes(snapshot: Snapshot, changes: Changes) -> Snapshot:
    """The changed picture. Raises FieldsError naming every change that does not fit, by its place in the changes."""
    faults = ChangeFaults()
    said = _said_rates(snapshot, changes)
    snapshot = replace(snapshot, demands=merged(snapshot.demands, said.values(), lambda item: item.service))
    for step in (_put, _policy, _remove, partial(_rates, said=said), lose, add_nodes, caps, prices, offers):
        snapshot = step(snapshot, changes, faults)
    _check_references(snapshot, changes, faults)
    faults.settle()
    return snapshot


def _put(snapshot: Snapshot, changes: Changes, faults: ChangeFaults) -> Snapshot:  # noqa: ARG001 - steps are called alike
    profiles = {(item.model, item.gpu_type): item for item in (*snapshot.profiles, *changes.profiles)}
    new_nodes = {item.id for item in changes.nodes} - {item.id for item in snapshot.nodes}
    return replace(
        snapshot,
        gpu_types=merged(snapshot.gpu_types, changes.gpu_types, lambda item: item.name),
        models=merged(snapshot.models, changes.models, lambda item: item.name),
        profiles=tuple(profiles[key] for key in sorted(profiles)),
        projects=merged(snapshot.projects, changes.projects, lambda item: item.name),
        nodes=merged(snapshot.nodes, changes.nodes, lambda item: item.id),
        node_statuses=reporting(snapshot, new_nodes),
        devices=merged(snapshot.devices, changes.devices, lambda item: item.id),
        services=merged(snapshot.services, changes.services, lambda item: item.id),
        jobs=merged(snapshot.jobs, changes.jobs, lambda item: item.id),
        tasks=merged(snapshot.tasks, changes.tasks, lambda item: item.id),
    )


def _said_rates(snapshot: Snapshot, changes: Changes) -> dict[ServiceId, Demand]:
    """What a service declares counts as its demand where it is new or says another rate than before."""
    before = snapshot.services_by_id()
    return {
        service.id: Demand.declared(service.id, service.rate_rps_declared)
        for service in changes.services
        if service.id not in before or before[service.id].rate_rps_declared != service.rate_rps_declared
    }


def _policy(snapshot: Snapshot, changes: Changes, faults: ChangeFaults) -> Snapshot:
    if not changes.policy:
        return snapshot
    standing = cast("dict[str, object]", to_plain(snapshot.policy))
    try:
        policy = from_plain(Policy, cast("Plain", {**standing, **changes.policy}))
    except FieldError as error:
        faults.add(f"/policy{error.field}", error.message)
        return snapshot
    for index, planner in enumerate(policy.planners):
        faults.known("planner", planner, registry.names(), f"/policy/planners/{index}")
    try:
        registry.check_settings(policy)
    except FieldError as error:
        faults.add(f"/policy{error.field}", error.message)
    return replace(snapshot, policy=policy)


def _remove(snapshot: Snapshot, changes: Changes, faults: ChangeFaults) -> Snapshot:
    works: tuple[Service | TrainingJob | OfflineTask, ...] = (*snapshot.services, *snapshot.jobs, *snapshot.tasks)
    names = {str(item.id) for item in works}
    for index, name in enumerate(changes.remove):
        faults.known("workload", name, names, f"/remove/{index}")
    gone = {str(name) for name in changes.remove}
    return replace(
        snapshot,
        services=tuple(item for item in snapshot.services if item.id not in gone),
        jobs=tuple(item for item in snapshot.jobs if item.id not in gone),
        tasks=tuple(item for item in snapshot.tasks if item.id not in gone),
        demands=tuple(item for item in snapshot.demands if item.service not in gone),
    )


def _rates(snapshot: Snapshot, changes: Changes, faults: ChangeFaults, *, said: Mapping[ServiceId, Demand]) -> Snapshot:
    """Other rates. The factor for everybody leaves out what the same changes declare with a rate of its own."""
    if changes.rate_factor == 1.0 and not changes.rates:
        return snapshot
    known = [item.id for item in snapshot.services]
    single: dict[ServiceId, RateChange] = {}
    for index, item in enumerate(changes.rates):
        if faults.known("service", item.service, known, f"/rates/{index}/service"):
            if item.service in single:
                faults.add(f"/rates/{index}/service", f"{item.service} is named twice")
            single[item.service] = item
    everybody = changes.rate_factor
    demands = snapshot.demands_by_service()
    services, rates = [], []
    for service in snapshot.services:
        demand = demands.get(service.id) or Demand.declared(service.id, service.rate_rps_declared)
        change = single.get(service.id) or RateChange(
            service=service.id, factor=1.0 if service.id in said else everybody
        )
        if change.rate_rps is not None:
            services.append(replace(service, rate_rps_declared=change.rate_rps))
            rates.append(Demand.declared(service.id, change.rate_rps))
            continue
        factor = change.factor if change.factor is not None else 1.0
        services.append(replace(service, rate_rps_declared=min(service.rate_rps_declared * factor, 1e9)))
        rates.append(
            replace(demand, rate_rps_mean=demand.rate_rps_mean * factor, rate_rps_upper=demand.rate_rps_upper * factor)
        )
    return replace(
        snapshot, services=tuple(services), demands=merged(snapshot.demands, rates, lambda item: item.service)
    )


def _check_references(snapshot: Snapshot, changes: Changes, faults: ChangeFaults) -> None:
    """What new documents name must be there when all is applied."""
    names = {kind: {item.name for item in getattr(snapshot, kind.table)} for kind in (kinds.GPU_TYPE, kinds.MODEL)}
    names[kinds.PROJECT] = {item.name for item in snapshot.projects}
    names[kinds.NODE] = {item.id for item in snapshot.nodes}
    names[kinds.POLICY] = {item.name for item in (snapshot.policy, *snapshot.policies)}
    for kind in (kinds.SERVICE, kinds.JOB, kinds.TASK, kinds.DEVICE):
        for index, item in enumerate(getattr(changes, kind.table)):
            for named, name, pointer in kind.named_in(item):
                faults.known(named.words, name, names[named], f"/{kind.table}/{index}{pointer}")
    for index, profile in enumerate(changes.profiles):
        faults.known("model", profile.model, names[kinds.MODEL], f"/profiles/{index}/model")
        faults.known("GPU type", profile.gpu_type, names[kinds.GPU_TYPE], f"/profiles/{index}/gpu_type")


SILENT_TIMES = 100.0
"""A lost node has been silent for so many times what counts as silent."""
ADDED = "added"


def reporting(snapshot: Snapshot, new: Iterable[NodeId]) -> tuple[NodeStatus, ...]:
    """Statuses with those of nodes that have just reported."""
    fresh = (NodeStatus(node=name, age_s=0.0, generation_applied=0) for name in new)
    return merged(snapshot.node_statuses, fresh, lambda item: item.node)


def lose(snapshot: Snapshot, changes: Changes, faults: ChangeFaults) -> Snapshot:
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


def add_nodes(snapshot: Snapshot, changes: Changes, faults: ChangeFaults) -> Snapshot:
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


def caps(snapshot: Snapshot, changes: Changes, faults: ChangeFaults) -> Snapshot:
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


def prices(snapshot: Snapshot, changes: Changes, faults: ChangeFaults) -> Snapshot:
    """Other prices of GPU types."""
    types = snapshot.gpu_types_by_name()
    for index, change in enumerate(changes.prices):
        place = f"/prices/{index}"
        if faults.known("GPU type", change.gpu_type, types, f"{place}/gpu_type"):
            types[change.gpu_type] = _priced(types[change.gpu_type], change, faults, place)
    return replace(snapshot, gpu_types=tuple(types[item.name] for item in snapshot.gpu_types))


def _priced(gpu_type: GpuType, change: PriceChange, faults: ChangeFaults, place: str) -> GpuType:
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


def offers(snapshot: Snapshot, changes: Changes, faults: ChangeFaults) -> Snapshot:
    """GPUs that could be rented."""
    types = snapshot.gpu_types_by_name()
    for index, offer in enumerate(changes.offers):
        faults.known("GPU type", offer.gpu_type, types, f"/offers/{index}/gpu_type")
    return replace(snapshot, offers=merged(snapshot.offers, changes.offers, lambda item: item.name))
