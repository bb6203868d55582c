"""The fleet: GPU types with what they can do and cost, nodes, devices (whole GPUs and MIG slices alike), power domains,
taints, and GPUs that could be rented. What runs on a device is not known here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from solvers.domain.ids import DeviceId, GpuTypeName, NodeId
from solvers.domain.value import (
    check_distinct,
    check_name,
    check_not_negative,
    check_positive,
    check_range,
    check_text,
    value,
)
from solvers.errors import FieldError


class PriceKind(StrEnum):
    """How the GPU is paid for; the price of an `owned` one is what its owner writes off. Energy is paid beside the
    price of any of them, as the policy says that decides on the GPU.
    """

    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    SPOT = "spot"
    OWNED = "owned"


@value
class PriceRow:
    """Price of one whole GPU of a type, US dollars per hour."""

    kind: PriceKind
    usd_per_h: float
    region: str = "default"
    interruptions_per_h: float = 0.0
    source: str = "operator"

    def __post_init__(self) -> None:
        check_not_negative("usd_per_h", self.usd_per_h)
        check_not_negative("interruptions_per_h", self.interruptions_per_h)
        check_text("region", self.region)
        check_text("source", self.source)


@value
class MigProfile:
    """One MIG slice geometry a GPU type offers."""

    name: str
    sm_count: int
    memory_mib: int
    instances_max: int

    def __post_init__(self) -> None:
        check_text("name", self.name, 63)
        check_positive("sm_count", self.sm_count)
        check_positive("memory_mib", self.memory_mib)
        check_range("instances_max", self.instances_max, 1, 16)


@value
class GpuType:
    """A GPU product: what every device of this type has, can do and costs."""

    RETIRED: ClassVar = frozenset({"architecture", "clocks_mhz_memory", "l2_mib"})
    """Nothing was ever planned by them."""

    name: GpuTypeName
    product: str
    sm_count: int
    memory_mib: int
    tdp_w: float
    idle_w: float
    power_limit_w_min: float
    power_limit_w_max: float
    memory_bandwidth_gb_per_s: float
    pcie_bandwidth_gb_per_s: float
    fp32_tflops: float
    fp16_tflops: float
    clocks_mhz_sm: tuple[int, ...]
    mps_clients_max: int = 48
    sm_granularity: int = 2
    mig_profiles: tuple[MigProfile, ...] = ()
    prices: tuple[PriceRow, ...] = ()
    tf32_tflops: float | None = None

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_text("product", self.product)
        for field in ("sm_count", "memory_mib", "tdp_w", "power_limit_w_min", "power_limit_w_max", "sm_granularity"):
            check_positive(field, getattr(self, field))
        for field in ("memory_bandwidth_gb_per_s", "pcie_bandwidth_gb_per_s", "fp32_tflops", "fp16_tflops"):
            check_positive(field, getattr(self, field))
        check_positive("tf32_tflops", self.tf32_tflops)
        check_not_negative("idle_w", self.idle_w)
        check_range("mps_clients_max", self.mps_clients_max, 1, 128)
        check_range("sm_granularity", self.sm_granularity, 1, self.sm_count)
        if self.idle_w >= self.tdp_w:
            raise FieldError("idle_w", "idle_w must be below tdp_w")
        if self.power_limit_w_min > self.power_limit_w_max:
            raise FieldError("power_limit_w_min", "power_limit_w_min must not exceed power_limit_w_max")
        if not self.clocks_mhz_sm:
            raise FieldError("clocks_mhz_sm", "clocks_mhz_sm must list at least one clock")
        for clock in self.clocks_mhz_sm:
            check_positive("clocks_mhz_sm", clock)
        if list(self.clocks_mhz_sm) != sorted(set(self.clocks_mhz_sm)):
            raise FieldError("clocks_mhz_sm", "clocks_mhz_sm must rise strictly")
        check_distinct("mig_profiles", (profile.name for profile in self.mig_profiles))
        check_distinct("prices", ((price.kind, price.region) for price in self.prices))

    @property
    def clock_mhz_sm_max(self) -> int:
        """Highest SM clock the table lists."""
        return self.clocks_mhz_sm[-1]

    def price_row(self, kind: PriceKind, region: str) -> PriceRow | None:
        """The region's own row, else the `default` region's, else None."""
        for wanted in (region, "default"):
            for row in self.prices:
                if row.kind is kind and row.region == wanted:
                    return row
        return None

    def part_of(self, device: Device) -> float:
        """Part of a whole GPU that a device of this type is, for price, idle power and quotas: of a MIG slice, its part
        of the memory.
        """
        return 1.0 if device.mig is None else min(1.0, device.memory_mib / self.memory_mib)

    def sm_count_of_share(self, share_pct_sm: int) -> int:
        """SMs a share really gives: rounded down to the granularity, at least one unit."""
        units = (share_pct_sm * self.sm_count) // (100 * self.sm_granularity)
        return max(1, units) * self.sm_granularity


@value
class Taint:
    """Keeps workloads away from a node or device unless they tolerate this key and value."""

    key: str
    value: str = "true"

    def __post_init__(self) -> None:
        check_name("key", self.key)
        check_text("value", self.value, 63)


@value
class Label:
    """A free key and value on a node, for people and reports."""

    key: str
    value: str

    def __post_init__(self) -> None:
        check_name("key", self.key)
        check_text("value", self.value, 128)


class PowerScope(StrEnum):
    """What a power cap covers."""

    DEVICE = "device"
    NODE = "node"
    RACK = "rack"
    CLUSTER = "cluster"


@value
class PowerCap:
    """Upper limit of the summed GPU power of a power domain, watts. For scope `cluster` the subject is the cluster's
    name.
    """

    scope: PowerScope
    subject: str
    limit_w: float

    def __post_init__(self) -> None:
        check_text("subject", self.subject)
        check_positive("limit_w", self.limit_w)


@value
class Node:
    """A host with an agent."""

    id: NodeId
    rack: str = "rack-0"
    failure_domain: str = "zone-0"
    region: str = "default"
    price_kind: PriceKind = PriceKind.ON_DEMAND
    labels: tuple[Label, ...] = ()
    taints: tuple[Taint, ...] = ()
    schedulable: bool = True

    def __post_init__(self) -> None:
        check_name("id", self.id)
        check_name("rack", self.rack)
        check_name("failure_domain", self.failure_domain)
        check_text("region", self.region, 63)
        check_distinct("labels", (label.key for label in self.labels))
        check_distinct("taints", (taint.key for taint in self.taints))


class DeviceMode(StrEnum):
    """How replicas share a device: MPS shares, one dedicated replica, or plain time slicing."""

    MPS = "mps"
    DEDICATED = "dedicated"
    TIME_SLICED = "time_sliced"


class ColocationClass(StrEnum):
    """What may run side by side on a device."""

    INFERENCE = "inference"
    TRAINING = "training"
    ANY = "any"


@value
class MigSlice:
    """Where a MIG device comes from: its parent GPU and its geometry."""

    parent: DeviceId
    profile: str

    def __post_init__(self) -> None:
        check_text("parent", self.parent, 96)
        check_text("profile", self.profile, 63)


@value
class Device:
    """A GPU, or a MIG slice acting as one. Memory and SMs are the device's own, as the agent read them."""

    id: DeviceId
    node: NodeId
    gpu_type: GpuTypeName
    index: int
    memory_mib: int
    sm_count: int
    mig: MigSlice | None = None
    mode: DeviceMode = DeviceMode.MPS
    colocation: ColocationClass = ColocationClass.ANY
    taints: tuple[Taint, ...] = ()
    schedulable: bool = True

    def __post_init__(self) -> None:
        check_text("id", self.id, 96)
        check_name("node", self.node)
        check_name("gpu_type", self.gpu_type)
        check_not_negative("index", self.index)
        check_positive("memory_mib", self.memory_mib)
        check_positive("sm_count", self.sm_count)
        check_distinct("taints", (taint.key for taint in self.taints))


# --- GPUs on offer: what a planner may add to the fleet, by type, up to a number
#
# A snapshot with offers is planned and verified as if every offered GPU stood ready, each on a node of its own, idle
# and drawing nothing until used; a plan that uses one waits for somebody to rent it.

OFFERED = "offer."
"""Beginning of the ids of offered nodes; no real node's id begins so."""


@value
class Offer:
    """Up to `count_max` GPUs of one type to be had at a kind of price in a region."""

    name: str
    gpu_type: GpuTypeName
    count_max: int
    price_kind: PriceKind = PriceKind.ON_DEMAND
    region: str = "default"
    failure_domain: str = "zone-0"

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_range("name", len(self.name), 1, 40)
        check_name("gpu_type", self.gpu_type)
        check_range("count_max", self.count_max, 1, 100_000)
        check_text("region", self.region, 63)
        check_name("failure_domain", self.failure_domain)


def is_offered(node: NodeId) -> bool:
    """Whether a node stands for a GPU that nobody has rented yet."""
    return node.startswith(OFFERED)


def offered_nodes(offer: Offer, gpu_type: GpuType) -> tuple[tuple[Node, Device], ...]:
    """One node with one device for every GPU of the offer."""
    nodes = []
    for number in range(offer.count_max):
        name = NodeId(f"{OFFERED}{offer.name}.{number:06d}")
        node = Node(
            id=name,
            rack=f"{OFFERED}{offer.name}",
            failure_domain=offer.failure_domain,
            region=offer.region,
            price_kind=offer.price_kind,
        )
        device = Device(
            id=DeviceId(f"{name}.gpu-0"),
            node=name,
            gpu_type=gpu_type.name,
            index=0,
            memory_mib=gpu_type.memory_mib,
            sm_count=gpu_type.sm_count,
        )
        nodes.append((node, device))
    return tuple(nodes)
