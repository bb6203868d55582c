"""What-if changes as values, and applied to a snapshot: what is put, removed, scaled, lost, added or priced otherwise.

Documents are those that `headroom apply` reads; everything else is said by its difference. A rate is scaled in demand
and declaration alike; what is removed still stands in the target and has to be stopped; a node that is lost is one that
has long been silent, so that plans treat it as they would in earnest; a new one stands ready and empty. Every change
that names something unknown is refused with a pointer, and all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from operator import attrgetter
from typing import Annotated, Any, TypeVar, cast

from app import kinds
from app.errors import Faults
from app.kinds import Kind
from app.records import record_of
from solvers.domain.bounds import exceeded
from solvers.domain.codec import Plain, from_plain, to_plain
from solvers.domain.device import Device, GpuType, Node, Offer, PowerCap, PowerScope, PriceKind, PriceRow
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId, PolicyName, ServiceId, WorkloadId
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.telemetry import Demand
from solvers.domain.value import NAME, NOT_NEGATIVE, overlong, text, value, within
from solvers.domain.workload import ModelVariant, OfflineTask, Project, Service, TrainingJob, unlike_older
from solvers.errors import FieldError, did_you_mean
from solvers.planners import registry

FACTOR_MAX = 1e6
GPUS_PER_NODE_MAX = 64
GPUS_ADDED_MAX = 40_000
"""Nodes and offers together."""


@value
class RateChange:
    """Another rate of one service: a multiple of what it is, or requests per second."""

    service: ServiceId
    factor: Annotated[float | None, within(0, FACTOR_MAX)] = None
    rate_rps: Annotated[float | None, within(0, 1e9)] = None

    def __post_init__(self) -> None:
        if (self.factor is None) == (self.rate_rps is None):
            raise FieldError("factor", "say either factor or rate_rps")


@value
class NodesAdded:
    """New nodes, all alike, with GPUs of one type."""

    gpu_type: Annotated[GpuTypeName, NAME]
    gpus: Annotated[int, within(1, GPUS_ADDED_MAX)] = 1
    """In all; the last node has fewer where they do not fill it."""
    gpus_per_node: Annotated[int, within(1, GPUS_PER_NODE_MAX)] = 1
    price_kind: PriceKind = PriceKind.ON_DEMAND
    region: Annotated[str, text(63)] = "default"
    rack: Annotated[str, NAME] = "added"
    failure_domain: Annotated[str, NAME] = "zone-0"


@value
class CapName:
    scope: PowerScope
    subject: str


@value
class PriceChange:
    """Another price of a GPU type: dollars per hour, or a multiple of the present price."""

    gpu_type: GpuTypeName
    kind: PriceKind = PriceKind.ON_DEMAND
    region: str = "default"
    usd_per_h: Annotated[float | None, NOT_NEGATIVE] = None
    factor: Annotated[float | None, within(0, FACTOR_MAX)] = None
    interruptions_per_h: Annotated[float | None, NOT_NEGATIVE] = None

    def __post_init__(self) -> None:
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
    rate_factor: Annotated[float, within(0, FACTOR_MAX)] = 1.0
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
    """Fields of a policy by name; those not named stay. `name` says which, where it is not the one by default."""

    def __post_init__(self) -> None:
        added = sum(item.gpus for item in self.nodes_added)
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
SILENT_TIMES = 100.0
"""A lost node has been silent for so many times what counts as silent."""
ADDED = "added"


def merged(old: Iterable[T], new: Iterable[T], key: Callable[[T], Any]) -> tuple[T, ...]:
    """Old and new documents, by name; what is new takes the place of what has its name."""
    found = {key(item): item for item in (*old, *new)}
    return tuple(found[name] for name in sorted(found))


def with_nodes(snapshot: Snapshot, wish: NodesAdded, gpu_type: GpuType, prefix: str) -> Snapshot:
    counts = [min(wish.gpus_per_node, wish.gpus - first) for first in range(0, wish.gpus, wish.gpus_per_node)]
    nodes = [record_of(Node, wish, id=NodeId(f"{prefix}-{number:05d}")) for number in range(len(counts))]
    devices = [
        Device(
            id=DeviceId(f"{node.id}.gpu-{index}"),
            node=node.id,
            gpu_type=gpu_type.name,
            index=index,
            memory_mib=gpu_type.memory_mib,
            sm_count=gpu_type.sm_count,
        )
        for node, count in zip(nodes, counts, strict=True)
        for index in range(count)
    ]
    return replace(
        snapshot,
        nodes=merged(snapshot.nodes, nodes, lambda item: item.id),
        node_statuses=_reporting(snapshot, (node.id for node in nodes)),
        devices=merged(snapshot.devices, devices, lambda item: item.id),
    )


def _reporting(snapshot: Snapshot, new: Iterable[NodeId]) -> tuple[NodeStatus, ...]:
    fresh = (NodeStatus(node=name, age_s=0.0, generation_applied=0) for name in new)
    return merged(snapshot.node_statuses, fresh, lambda item: item.node)


def apply_changes(snapshot: Snapshot, changes: Changes) -> Snapshot:
    """The changed picture. Raises FieldsError naming every change that does not fit, by its place in the changes."""
    return _Picture(snapshot, changes).changed()


class _Picture(Faults):
    """A picture while changes are applied, and what is wrong with them."""

    def __init__(self, snapshot: Snapshot, changes: Changes) -> None:
        super().__init__()
        self._snapshot = self._before = snapshot
        self._changes = changes

    def changed(self) -> Snapshot:
        said = self._said_rates()
        self._set(demands=merged(self._snapshot.demands, said.values(), lambda item: item.service))
        self._put()
        if self._changes.policy:
            self._put_policy(self._changes.policy)
        self._remove()
        if self._changes.rate_factor != 1.0 or self._changes.rates:
            self._change_rates(said)
        self._lose()
        self._add_nodes()
        self._cap()
        self._price()
        self._offer()
        self._check_references()
        self.settle()
        return self._snapshot

    def _set(self, **fields: Any) -> None:
        self._snapshot = replace(self._snapshot, **fields)

    def _known(self, word: str, name: str, names: Collection[str], pointer: str) -> bool:
        """Whether the name is one of these; a fault that tells the nearest ones when it is not."""
        if name in names:
            return True
        self.add(pointer, f"there is no {word} {name}{did_you_mean(name, names)}", "reference-unknown")
        return False

    def _all_known(self, word: str, named: Iterable[str], names: Collection[str], pointer: str) -> None:
        for index, name in enumerate(named):
            self._known(word, name, names, pointer.format(index))

    def _put(self) -> None:
        before, changes = self._snapshot, self._changes
        new_nodes = {item.id for item in changes.nodes} - {item.id for item in before.nodes}
        self._set(
            **{
                name: merged(getattr(before, name), getattr(changes, name), attrgetter(field))
                for name, field in _PUT.items()
            },
            profiles=merged(before.profiles, changes.profiles, attrgetter("model", "gpu_type")),
            node_statuses=_reporting(before, new_nodes),
        )

    def _said_rates(self) -> dict[ServiceId, Demand]:
        """What a service declares counts as its demand where it is new or says another rate than before."""
        before = self._snapshot.services_by_id()
        return {
            service.id: Demand.declared(service.id, service.rate_rps_declared)
            for service in self._changes.services
            if service.id not in before or before[service.id].rate_rps_declared != service.rate_rps_declared
        }

    def _put_policy(self, fields: Mapping[str, object]) -> None:
        """Other fields of the policy that decides by default, or of the one that is named, which may be new."""
        default = self._snapshot.policy
        standing = {item.name: item for item in (*self._snapshot.policies, default)}
        name = str(fields.get("name", default.name))
        before = cast("dict[str, object]", to_plain(standing[PolicyName(name)])) if name in standing else {}
        try:
            policy = from_plain(Policy, cast("Plain", {**before, **fields}))
            if policy.pool is None:
                self._known("policy", name, standing, "/policy/name")
            elif name == default.name:
                self.add("/policy/pool", f"the policy {name} has whatever is in no pool, and none of its own")
            self._all_known("planner", policy.planners, registry.names(), "/policy/planners/{}")
            if name == default.name:
                self._set(policy=policy)
            else:
                self._set(policies=merged(self._snapshot.policies, (policy,), attrgetter("name")))
            registry.check_settings(policy)
        except FieldError as error:
            self.add(f"/policy{error.field}", error.message)

    def _remove(self) -> None:
        before = self._snapshot
        names = {str(item.id) for items in (before.services, before.jobs, before.tasks) for item in items}
        gone = {str(name) for name in self._changes.remove}
        self._all_known("workload", self._changes.remove, names, "/remove/{}")
        self._set(
            services=tuple(item for item in before.services if item.id not in gone),
            jobs=tuple(item for item in before.jobs if item.id not in gone),
            tasks=tuple(item for item in before.tasks if item.id not in gone),
            demands=tuple(item for item in before.demands if item.service not in gone),
        )

    def _change_rates(self, said: Collection[ServiceId]) -> None:
        """Other rates. The factor for everybody leaves out what the same changes declare with a rate of its own."""
        before = self._snapshot
        known, demands = before.services_by_id(), before.demands_by_service()
        single: dict[ServiceId, RateChange] = {}
        for index, item in enumerate(self._changes.rates):
            if self._known("service", item.service, known, f"/rates/{index}/service"):
                if item.service in single:
                    self.add(f"/rates/{index}/service", f"{item.service} is named twice")
                single[item.service] = item
        services, rates = [], []
        for service in before.services:
            everybody = 1.0 if service.id in said else self._changes.rate_factor
            change = single.get(service.id) or RateChange(service=service.id, factor=everybody)
            if change.factor is None:
                rate_rps, demand = change.rate_rps or 0.0, Demand.declared(service.id, change.rate_rps or 0.0)
            else:
                rate_rps = min(service.rate_rps_declared * change.factor, 1e9)
                demand = demands.get(service.id) or Demand.declared(service.id, service.rate_rps_declared)
                mean, upper = demand.rate_rps_mean * change.factor, demand.rate_rps_upper * change.factor
                demand = replace(demand, rate_rps_mean=mean, rate_rps_upper=upper)
            services.append(replace(service, rate_rps_declared=rate_rps))
            rates.append(demand)
        self._set(services=tuple(services), demands=merged(before.demands, rates, lambda item: item.service))

    def _lose(self) -> None:
        before, changes = self._snapshot, self._changes
        self._all_known("node", changes.nodes_lost, before.nodes_by_id(), "/nodes_lost/{}")
        self._all_known("device", changes.devices_lost, before.devices_by_id(), "/devices_lost/{}")
        lost, sick = set(changes.nodes_lost), set(changes.devices_lost)
        dark = sick | {item.id for item in before.devices if item.node in lost}
        silent_s = SILENT_TIMES * before.policy.device_silent_after_s
        self._set(
            node_statuses=tuple(
                replace(item, age_s=silent_s) if item.node in lost else item for item in before.node_statuses
            ),
            devices=tuple(replace(item, schedulable=False) if item.id in sick else item for item in before.devices),
            device_telemetry=tuple(
                replace(item, healthy=item.healthy and item.device not in dark) for item in before.device_telemetry
            ),
            replicas=tuple(item for item in before.replicas if item.device not in dark),
        )

    def _add_nodes(self) -> None:
        types = self._snapshot.gpu_types_by_name()
        for index, wish in enumerate(self._changes.nodes_added):
            if self._known("GPU type", wish.gpu_type, types, f"/nodes_added/{index}/gpu_type"):
                self._snapshot = with_nodes(self._snapshot, wish, types[wish.gpu_type], f"{ADDED}-{index}")

    def _cap(self) -> None:
        """Power caps that are new, other or gone."""
        before = self._snapshot
        caps = {(item.scope, item.subject): item for item in before.power_caps}
        for index, name in enumerate(self._changes.power_caps_removed):
            if caps.pop((name.scope, name.subject), None) is None:
                told = f"there is no power cap {name.scope.value}/{name.subject}"
                self.add(f"/power_caps_removed/{index}", told, "reference-unknown")
        subjects: Mapping[PowerScope, set[str]] = {
            PowerScope.DEVICE: {item.id for item in before.devices},
            PowerScope.NODE: {item.id for item in before.nodes},
            PowerScope.RACK: {item.rack for item in before.nodes},
            PowerScope.CLUSTER: {before.cluster},
        }
        for index, cap in enumerate(self._changes.power_caps):
            if self._known(cap.scope.value, cap.subject, subjects[cap.scope], f"/power_caps/{index}/subject"):
                caps[cap.scope, cap.subject] = cap
        self._set(power_caps=tuple(caps[key] for key in sorted(caps)))

    def _price(self) -> None:
        types = self._snapshot.gpu_types_by_name()
        for index, change in enumerate(self._changes.prices):
            if self._known("GPU type", change.gpu_type, types, f"/prices/{index}/gpu_type"):
                try:
                    types[change.gpu_type] = self._priced(types[change.gpu_type], change, f"/prices/{index}")
                except FieldError as error:
                    self.add(f"/prices/{index}/{error.field}", error.message)
        self._set(gpu_types=tuple(types[item.name] for item in self._snapshot.gpu_types))

    def _priced(self, gpu_type: GpuType, change: PriceChange, place: str) -> GpuType:
        rows = {(row.kind, row.region): row for row in gpu_type.prices}
        before = rows.get((change.kind, change.region))
        if before is None and change.usd_per_h is None:
            self.add(place, f"{gpu_type.name} has no price {change.kind.value} in {change.region} to change")
            return gpu_type
        before = before or PriceRow(kind=change.kind, usd_per_h=0.0, region=change.region)
        usd_per_h = before.usd_per_h * (1.0 if change.factor is None else change.factor)
        often = before.interruptions_per_h if change.interruptions_per_h is None else change.interruptions_per_h
        rows[change.kind, change.region] = replace(
            before,
            usd_per_h=usd_per_h if change.usd_per_h is None else change.usd_per_h,
            interruptions_per_h=often,
            source="what-if",
        )
        return replace(gpu_type, prices=tuple(rows.values()))

    def _offer(self) -> None:
        before, offers = self._snapshot, self._changes.offers
        types = before.gpu_types_by_name()
        self._all_known("GPU type", (item.gpu_type for item in offers), types, "/offers/{}/gpu_type")
        self._set(offers=merged(before.offers, offers, lambda item: item.name))

    def _check_references(self) -> None:
        """What new documents name must be there when all is applied."""
        after, changes = self._snapshot, self._changes
        names: dict[Kind, Collection[str]] = {
            kinds.GPU_TYPE: after.gpu_types_by_name(),
            kinds.MODEL: after.models_by_name(),
            kinds.PROJECT: {item.name for item in after.projects},
            kinds.NODE: after.nodes_by_id(),
            kinds.POLICY: {item.name for item in (after.policy, *after.policies)},
        }
        for kind in (kinds.SERVICE, kinds.JOB, kinds.TASK, kinds.DEVICE):
            for index, item in enumerate(getattr(changes, kind.table)):
                for named, name, pointer in kind.named_in(item):
                    self._known(named.words, name, names[named], f"/{kind.table}/{index}{pointer}")
        for table in _PUT:
            for index, item in enumerate(getattr(changes, table)):
                for error in (*overlong(item), *unlike_older(item)):
                    self.add(f"/{table}/{index}/{error.field}", error.message)
        held = {kind: {item.id for item in getattr(after, kind.table)} for kind in kinds.workloads()}
        for kind in held:
            for index, item in enumerate(getattr(changes, kind.table)):
                taken = kinds.namesake(kind, (other for other, ids in held.items() if item.id in ids))
                if taken is not None:
                    self.add(f"/{kind.table}/{index}/name", taken, "contradiction")
        models, types = ([getattr(item, name) for item in changes.profiles] for name in ("model", "gpu_type"))
        self._all_known("model", models, names[kinds.MODEL], "/profiles/{}/model")
        self._all_known("GPU type", types, names[kinds.GPU_TYPE], "/profiles/{}/gpu_type")
        for _, detail in exceeded(after.projects, after.works, self._before.works):
            self.add("/projects", detail, "bound-exceeded")


_PUT = {
    kind.table: "id" if kind.in_project else kind.key[0]
    for kind in kinds.KINDS
    if kind not in (kinds.POLICY, kinds.POWER_CAP, kinds.WEBHOOK, kinds.BUDGET)
}
"""Documents that a picture has, by the field that names one; policies and power caps are changed in their own ways, and
budgets are no part of it."""
