"""What-if changes as values: what is put, removed, scaled, lost, added or priced otherwise in a picture of a fleet.

Owns the form of a change and the ranges of its numbers. Applying changes is `apply`. Documents are those that
`headroom apply` reads; everything else is said by its difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from solvers.domain.codec import Plain, from_plain
from solvers.domain.device import Device, GpuType, Node, Offer, PowerCap, PowerScope, PriceKind
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId, ServiceId, WorkloadId
from solvers.domain.profile import Profile
from solvers.domain.value import check_name, check_not_negative, check_range, check_text, value
from solvers.domain.workload import ModelVariant, OfflineTask, Project, Service, TrainingJob
from solvers.errors import FieldError

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
