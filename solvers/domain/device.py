"""The fleet: GPU types with what they can do and cost, nodes, devices (whole GPUs and MIG slices alike), power domains,
taints, and GPUs that could be rented. What runs on a device is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, ClassVar

from solvers.domain.ids import DeviceId, GpuTypeName, NodeId
from solvers.domain.value import (
    NAME,
    NOT_NEGATIVE,
    POSITIVE,
    TEXT,
    check_range,
    declarable,
    distinct,
    each,
    text,
    value,
    within,
)
from solvers.errors import FieldError

USD_PER_H_MAX = 1e6
"""Beyond it a price is a slip of the pen."""


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
    usd_per_h: Annotated[float, NOT_NEGATIVE, within(0, USD_PER_H_MAX)]
    region: Annotated[str, TEXT] = "default"
    interruptions_per_h: Annotated[float, NOT_NEGATIVE, within(0, 3600)] = 0.0
    source: Annotated[str, TEXT] = "operator"


@value
class MigProfile:
    """One MIG slice geometry a GPU type offers."""

    name: Annotated[str, text(63)]
    sm_count: Annotated[int, POSITIVE]
    memory_mib: Annotated[int, POSITIVE]
    instances_max: Annotated[int, within(1, 16)]


@value
class GpuType:
    """A GPU product: what every device of this type has, can do and costs."""

    RETIRED: ClassVar = frozenset({"architecture", "clocks_mhz_memory", "l2_mib"})
    """Nothing was ever planned by them."""

    name: Annotated[GpuTypeName, NAME]
    product: Annotated[str, TEXT]
    sm_count: Annotated[int, POSITIVE]
    memory_mib: Annotated[int, POSITIVE]
    tdp_w: Annotated[float, POSITIVE]
    idle_w: Annotated[float, NOT_NEGATIVE]
    power_limit_w_min: Annotated[float, POSITIVE]
    power_limit_w_max: Annotated[float, POSITIVE]
    memory_bandwidth_gb_per_s: Annotated[float, POSITIVE]
    pcie_bandwidth_gb_per_s: Annotated[float, POSITIVE]
    fp32_tflops: Annotated[float, POSITIVE]
    fp16_tflops: Annotated[float, POSITIVE]
    clocks_mhz_sm: Annotated[tuple[int, ...], declarable(1000), each(POSITIVE)]
    mps_clients_max: Annotated[int, within(1, 128)] = 48
    sm_granularity: Annotated[int, POSITIVE] = 2
    mig_profiles: Annotated[tuple[MigProfile, ...], declarable(64), distinct("name")] = ()
    prices: Annotated[tuple[PriceRow, ...], declarable(1000), distinct("kind", "region")] = ()
    tf32_tflops: Annotated[float | None, POSITIVE] = None

    def _rules(self) -> Iterator[FieldError]:
        if self.idle_w >= self.tdp_w:
            yield FieldError("idle_w", "idle_w must be below tdp_w")
        if self.power_limit_w_min > self.power_limit_w_max:
            yield FieldError("power_limit_w_min", "power_limit_w_min must not exceed power_limit_w_max")
        if not self.clocks_mhz_sm:
            yield FieldError("clocks_mhz_sm", "clocks_mhz_sm must list at least one clock")
        if list(self.clocks_mhz_sm) != sorted(set(self.clocks_mhz_sm)):
            yield FieldError("clocks_mhz_sm", "clocks_mhz_sm must rise strictly")
        check_range("sm_granularity", self.sm_granularity, 1, self.sm_count)

    @property
    def clock_mhz_sm_max(self) -> int:
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

    key: Annotated[str, NAME]
    value: Annotated[str, text(63)] = "true"


LABELS_MAX, TAINTS_MAX = 32, 32


@value
class Label:
    """A free key and value, for people, pools and reports."""

    key: Annotated[str, NAME]
    value: Annotated[str, text(128)]


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
    subject: Annotated[str, TEXT]
    limit_w: Annotated[float, POSITIVE, within(0, 1e12)]


@value
class Node:
    """A host with an agent."""

    id: Annotated[NodeId, NAME]
    rack: Annotated[str, NAME] = "rack-0"
    failure_domain: Annotated[str, NAME] = "zone-0"
    region: Annotated[str, text(63)] = "default"
    price_kind: PriceKind = PriceKind.ON_DEMAND
    labels: Annotated[tuple[Label, ...], declarable(LABELS_MAX), distinct("key")] = ()
    taints: Annotated[tuple[Taint, ...], declarable(TAINTS_MAX), distinct("key")] = ()
    schedulable: bool = True


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

    parent: Annotated[DeviceId, text(96)]
    profile: Annotated[str, text(63)]


@value
class Device:
    """A GPU, or a MIG slice acting as one. Memory and SMs are the device's own, as the agent read them."""

    id: Annotated[DeviceId, text(96)]
    node: Annotated[NodeId, NAME]
    gpu_type: Annotated[GpuTypeName, NAME]
    index: Annotated[int, NOT_NEGATIVE]
    memory_mib: Annotated[int, POSITIVE]
    sm_count: Annotated[int, POSITIVE]
    mig: MigSlice | None = None
    mode: DeviceMode = DeviceMode.MPS
    colocation: ColocationClass = ColocationClass.ANY
    taints: Annotated[tuple[Taint, ...], declarable(TAINTS_MAX), distinct("key")] = ()
    schedulable: bool = True

    @property
    def board(self) -> DeviceId:
        """The GPU it is, or is a slice of."""
        return self.id if self.mig is None else self.mig.parent


# --- GPUs on offer: what a planner may add to the fleet, by type, up to a number
#
# A snapshot with offers is planned and verified as if every offered GPU stood ready, each on a node of its own, idle
# and drawing nothing until used; a plan that uses one waits for somebody to rent it.

OFFERED = "offer."
"""Beginning of the ids of offered nodes; no real node's id begins so."""


@value
class Offer:
    """Up to `count_max` GPUs of one type to be had at a kind of price in a region."""

    name: Annotated[str, NAME]
    gpu_type: Annotated[GpuTypeName, NAME]
    count_max: Annotated[int, within(1, 100_000)]
    price_kind: PriceKind = PriceKind.ON_DEMAND
    region: Annotated[str, text(63)] = "default"
    failure_domain: Annotated[str, NAME] = "zone-0"

    def __post_init__(self) -> None:
        check_range("name", len(self.name), 1, 40)


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
