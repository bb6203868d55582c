"""What part of a device's price its replicas are billed, where not whole devices are paid.

By share: what its replicas have of the device's SMs. By memory: what they use of its memory with the batch that is
planned, as far as that was measured, else what they may use; and all of it where one replica has all SMs, because no
other can be there then. In time slices no replica has SMs of its own, so one with the whole share pays for its memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from solvers.domain.device import Device, DeviceMode
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.policy import CostBasis
from solvers.domain.profile import Profile
from solvers.domain.workload import WorkloadKind

WHOLE_PCT = 100
Profiles = Mapping[tuple[ModelName, GpuTypeName], Profile]


def billed_part(
    device: Device,
    setting: DeviceSetting | None,
    items: Sequence[Assignment],
    basis: CostBasis,
    profiles: Profiles,
) -> float:
    """Between 0 and 1. `setting`: how the plan runs the device; None: as it is."""
    if basis is CostBasis.DEVICE:
        return 1.0
    mode = device.mode if setting is None else setting.mode
    alone = mode is not DeviceMode.TIME_SLICED and any(item.share_pct_sm >= WHOLE_PCT for item in items)
    if basis is CostBasis.MEMORY and not alone:
        used_mib = sum(_used_mib(item, profiles.get((item.model, device.gpu_type))) for item in items)
        return min(1.0, used_mib / device.memory_mib)
    return min(WHOLE_PCT, sum(item.share_pct_sm for item in items)) / WHOLE_PCT


def _used_mib(item: Assignment, profile: Profile | None) -> float:
    """The most that was measured with no larger a batch than planned, within the replica's limit."""
    if profile is None or item.kind is WorkloadKind.JOB:
        return float(item.memory_mib_limit)
    if profile.grid is not None:
        pairs = [*zip(profile.grid.batches, profile.grid.memory_mib, strict=True)]
    else:
        pairs = [(point.batch, point.memory_mib) for point in profile.points if point.memory_mib]
    found = max((memory for batch, memory in pairs if batch <= item.batch), default=0.0)
    return min(found, float(item.memory_mib_limit)) if found > 0 else float(item.memory_mib_limit)
