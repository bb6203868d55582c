"""GPUs that could be rented: what a planner may add to the fleet, by type, up to a number.

Owns the offer and its reading as devices. A snapshot with offers is planned and verified as if every offered GPU stood
ready, each on a node of its own, idle and drawing nothing until used; a plan that uses one waits for somebody to rent
it. It refuses to rent anything.
"""

from __future__ import annotations

from solvers.domain.device import Device, GpuType, Node, PriceKind
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId
from solvers.domain.value import check_name, check_range, check_text, value

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
