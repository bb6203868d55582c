"""What a GPU monitor would call the utilisation of a device: the part of the time in which anybody's kernels run.

Owns one formula. A tenant's kernels run for a part of each of its batches (the host has the rest), and what neighbours
add is time on the GPU; tenants are busy independently of each other. It refuses to say how much of the GPU they fill.
"""

from __future__ import annotations

from functools import lru_cache

from solvers.sim.truth.device import DeviceLoad, TrueDeviceState
from solvers.sim.truth.truth import GpuTruth, Resident, execution_ms, wanted


def kernels_part(load: DeviceLoad, state: TrueDeviceState) -> float:
    """Of a device in this state."""
    idle = 1.0
    for tenant, busy, times in zip(load.tenants, state.busy, state.exec_ms, strict=True):
        one = Resident(model=tenant.model, share_pct_sm=tenant.share_pct_sm, batch=tenant.batch)
        running, alone_ms = _alone(load.gpu, one, state.clock_mhz_sm)
        factor = max(1.0, times[-1] / alone_ms)
        idle *= 1.0 - busy * (running + factor - 1.0) / factor
    return 1.0 - idle if not load.trainees else 1.0


@lru_cache(maxsize=4096)
def _alone(gpu: GpuTruth, one: Resident, clock_mhz_sm: int) -> tuple[float, float]:
    """Part of a batch in which kernels run, and its time, without neighbours."""
    return wanted(gpu, one, clock_mhz_sm)[0], execution_ms(gpu, one, clock_mhz_sm)
