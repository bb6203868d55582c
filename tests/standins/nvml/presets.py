"""GPUs to play: what the drivers of a few products tell, as data.

Owns plausible numbers for tests; nothing here is a measurement.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from tests.standins.nvml.layout import GpuState, Lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlan:
    """A MIG device to play, e.g. of profile 1g.5gb."""

    profile: str
    sm_count: int
    memory_mib: int
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """A GPU to play. Clocks are lowest, highest and step in MHz. An empty UUID: made from product and index."""

    product: str
    memory_mib: int
    sm_count: int
    compute_capability: tuple[int, int]
    cores_per_sm: int
    idle_w: float
    tdp_w: float
    power_limit_w_min: float
    power_limit_w_max: float
    clocks_mhz: tuple[int, int, int]
    memory_clocks_mhz: tuple[int, ...]
    reserved_mib: int = 256
    lacks: int = 0
    migs: tuple[MigPlan, ...] = ()
    uuid: str = ""

    def with_uuid(self, index: int) -> GpuPlan:
        """The same with UUIDs for itself and its MIG devices."""
        migs = tuple(
            replace(mig, uuid=mig.uuid or _uuid("MIG", f"{self.product}/{index}/{slot}"))
            for slot, mig in enumerate(self.migs)
        )
        return replace(self, uuid=self.uuid or _uuid("GPU", f"{self.product}/{index}"), migs=migs)

    def fill(self, state: GpuState, minor: int) -> None:
        """Write this GPU, fresh after a boot, into a state."""
        state.memory_bytes, state.reserved_bytes = self.memory_mib << 20, self.reserved_mib << 20
        state.uuid, state.product = self.uuid.encode(), self.product.encode()
        state.sm_count, state.core_count = self.sm_count, self.sm_count * self.cores_per_sm
        state.cc_major, state.cc_minor = self.compute_capability
        state.minor, state.lacks = minor, int(self.lacks)
        state.idle_mw, state.tdp_mw = round(1000 * self.idle_w), round(1000 * self.tdp_w)
        state.limit_mw_min = round(1000 * self.power_limit_w_min)
        state.limit_mw_max = round(1000 * self.power_limit_w_max)
        state.limit_mw = state.limit_mw_default = state.tdp_mw
        low, high, step = self.clocks_mhz
        clocks = range(low, high + 1, step)
        state.clock_count, state.memory_clock_count = len(clocks), len(self.memory_clocks_mhz)
        state.clocks[: len(clocks)] = list(clocks)
        state.memory_clocks[: len(self.memory_clocks_mhz)] = list(self.memory_clocks_mhz)
        state.mig_mode, state.mig_count = int(bool(self.migs)), len(self.migs)
        for slot, mig in enumerate(self.migs):
            found = state.migs[slot]
            found.memory_bytes, found.uuid, found.profile = (
                mig.memory_mib << 20,
                mig.uuid.encode(),
                mig.profile.encode(),
            )
            found.gpu_instance, found.compute_instance = slot + 1, 0
            found.sm_count, found.slices = mig.sm_count, int(mig.profile[0])
        state.load_pct = -1.0


def _uuid(kind: str, seed: str) -> str:
    digest = hashlib.sha256(seed.encode()).hexdigest()
    return f"{kind}-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


_T4 = GpuPlan(
    product="Tesla T4",
    memory_mib=15360,
    sm_count=40,
    compute_capability=(7, 5),
    cores_per_sm=64,
    idle_w=10,
    tdp_w=70,
    power_limit_w_min=60,
    power_limit_w_max=70,
    clocks_mhz=(300, 1590, 15),
    memory_clocks_mhz=(405, 5001),
    lacks=Lacks.MIG | Lacks.GPM | Lacks.MEMORY_LOCK,
)
_A100 = GpuPlan(
    product="NVIDIA A100-SXM4-40GB",
    memory_mib=40960,
    sm_count=108,
    compute_capability=(8, 0),
    cores_per_sm=64,
    idle_w=50,
    tdp_w=400,
    power_limit_w_min=100,
    power_limit_w_max=400,
    clocks_mhz=(210, 1410, 15),
    memory_clocks_mhz=(1215,),
    lacks=Lacks.GPM,
)
PRESETS = {
    "t4": _T4,
    "v100": replace(
        _T4,
        product="Tesla V100-SXM2-32GB",
        memory_mib=32768,
        sm_count=80,
        compute_capability=(7, 0),
        idle_w=40,
        tdp_w=300,
        power_limit_w_min=150,
        power_limit_w_max=300,
        clocks_mhz=(135, 1530, 15),
        memory_clocks_mhz=(877,),
    ),
    "a100-40gb": _A100,
    "a100-40gb-mig": replace(
        _A100,
        migs=(
            MigPlan(profile="3g.20gb", sm_count=42, memory_mib=19968),
            MigPlan(profile="1g.5gb", sm_count=14, memory_mib=4864),
        ),
    ),
    "h100": replace(
        _A100,
        product="NVIDIA H100 80GB HBM3",
        memory_mib=81559,
        sm_count=132,
        compute_capability=(9, 0),
        cores_per_sm=128,
        idle_w=70,
        tdp_w=700,
        power_limit_w_min=200,
        power_limit_w_max=700,
        clocks_mhz=(345, 1980, 15),
        memory_clocks_mhz=(2619,),
        lacks=0,
    ),
    "rtx-4090": replace(
        _T4,
        product="NVIDIA GeForce RTX 4090",
        memory_mib=24564,
        sm_count=128,
        compute_capability=(8, 9),
        cores_per_sm=128,
        idle_w=20,
        tdp_w=450,
        power_limit_w_min=150,
        power_limit_w_max=600,
        clocks_mhz=(210, 3105, 15),
        memory_clocks_mhz=(405, 10501),
        lacks=Lacks.MIG | Lacks.GPM | Lacks.ECC,
    ),
}
