"""A pool: which devices a policy has for itself.

Owns the selectors and what they match. Selectors of different kinds all have to match; of devices, nodes and GPU types
any one named is enough, of labels every one has to be on the node. It refuses to select nothing: a policy without a
pool says so by having none.
"""

from __future__ import annotations

from solvers.domain.device import Device, Label, Node
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId
from solvers.domain.value import check_distinct, check_name, check_text, value
from solvers.errors import FieldError


@value
class Pool:
    """Devices by id, by node, by GPU type and by labels of their nodes. A slice of a GPU is named by its own id."""

    devices: tuple[DeviceId, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    gpu_types: tuple[GpuTypeName, ...] = ()
    labels: tuple[Label, ...] = ()

    def __post_init__(self) -> None:
        for device in self.devices:
            check_text("devices", device, 96)
        for node in self.nodes:
            check_name("nodes", node)
        for gpu_type in self.gpu_types:
            check_name("gpu_types", gpu_type)
        check_distinct("devices", self.devices)
        check_distinct("nodes", self.nodes)
        check_distinct("gpu_types", self.gpu_types)
        check_distinct("labels", (label.key for label in self.labels))
        if not (self.devices or self.nodes or self.gpu_types or self.labels):
            raise FieldError("devices", "a pool names devices, nodes, gpu_types or labels")

    def holds(self, device: Device, node: Node | None) -> bool:
        """Whether a device is meant, on its node where that is known."""
        if self.devices and device.id not in self.devices:
            return False
        if self.nodes and device.node not in self.nodes:
            return False
        if self.gpu_types and device.gpu_type not in self.gpu_types:
            return False
        return not self.labels or (node is not None and set(self.labels) <= set(node.labels))
