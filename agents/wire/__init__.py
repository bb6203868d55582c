"""Messages between control plane and agents: plain frozen records, standard library only, the single package of
`agents` that `app` may import.
"""

from agents.wire.fields import WireError, decode, decode_items, mirrored
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
from agents.wire.targets import (
    DeviceTarget,
    NodeTarget,
    ProfileOrder,
    ProfilePointAsked,
    ProfileSubject,
    ReplicaTarget,
    WarmUpTarget,
    WorkerTarget,
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
    "decode",
    "decode_items",
    "encode",
    "mirrored",
]
