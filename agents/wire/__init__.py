"""Messages between control plane and agents: plain frozen records, standard library only, the single package of
`agents` that `app` may import.
"""

from agents.wire.fields import (
    WireError,
)
from agents.wire.messages import (
    PROTOCOL_VERSION,
    DeviceInventory,
    DeviceReadBack,
    DeviceReport,
    EdgeReport,
    Join,
    Joined,
    NodeReceipt,
    RateSample,
    RepartitionReport,
    ReplicaReadBack,
    ReplicaReport,
    Report,
    encode,
)
from agents.wire.profiling import (
    ProfileOrder,
    ProfilePointAsked,
    ProfileSubject,
    decode_points_asked,
    decode_profile_orders,
)
from agents.wire.targets import (
    DeviceTarget,
    NodeTarget,
    ReplicaTarget,
    WarmUpTarget,
    WorkerTarget,
    decode_node_target,
    decode_worker,
)

__all__ = [
    "PROTOCOL_VERSION",
    "DeviceInventory",
    "DeviceReadBack",
    "DeviceReport",
    "DeviceTarget",
    "EdgeReport",
    "Join",
    "Joined",
    "NodeReceipt",
    "NodeTarget",
    "ProfileOrder",
    "ProfilePointAsked",
    "ProfileSubject",
    "RateSample",
    "RepartitionReport",
    "ReplicaReadBack",
    "ReplicaReport",
    "ReplicaTarget",
    "Report",
    "WarmUpTarget",
    "WireError",
    "WorkerTarget",
    "decode_node_target",
    "decode_points_asked",
    "decode_profile_orders",
    "decode_worker",
    "encode",
]
