"""Identifiers, one NewType per kind of thing, so that a node id can never be passed where a device id is meant."""

from __future__ import annotations

from typing import NewType

ClusterName = NewType("ClusterName", str)
ProjectName = NewType("ProjectName", str)
GpuTypeName = NewType("GpuTypeName", str)
NodeId = NewType("NodeId", str)
DeviceId = NewType("DeviceId", str)
"""GPU or MIG UUID as the driver prints it (`GPU-…`, `MIG-…`); never an index."""
ModelName = NewType("ModelName", str)
ServiceId = NewType("ServiceId", str)
"""`project/name`."""
JobId = NewType("JobId", str)
"""`project/name`."""
TaskId = NewType("TaskId", str)
"""`project/name`."""
WorkloadId = NewType("WorkloadId", str)
"""A service, job or task id where any of the three may stand; the `kind` beside it tells which."""
ReplicaId = NewType("ReplicaId", str)
"""`project/name#ordinal`: a slot that survives a change of share or device."""
PolicyName = NewType("PolicyName", str)
Digest = NewType("Digest", str)
"""`sha256:` and 64 hexadecimal digits of a canonical JSON form."""
PlanId = NewType("PlanId", str)
CycleId = NewType("CycleId", str)
Generation = NewType("Generation", int)


def replica_id(workload: str, ordinal: int) -> ReplicaId:
    """Id of the `ordinal`-th replica (from 0) of a workload."""
    return ReplicaId(f"{workload}#{ordinal}")
