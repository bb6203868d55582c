"""iGniter's example: AlexNet, ResNet-50 and VGG-19 on V100s, measured by its authors.

Owns its SLOs and rates (the first in their code; half of an SLO is for executing) and the snapshot. Neighbours
slow each other down by what the worst measured pair did. It refuses to use iGniter's fitted model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.sources.rows import table
from lab.benches.rolling.problems import POLICY, PROJECT, GpuKind, RollingHost, fleet
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ModelVariant, Service, Slo, SloScope

FOLDER = "igniter-v100"
EXAMPLE = (("alexnet", 15.0, 500.0), ("resnet50", 40.0, 400.0), ("vgg19", 60.0, 200.0))
"""Model, SLO in ms, requests per second."""
SLOWDOWN_MAX = 1.234
MEMORY_MIB = 1800.0
USD_PER_H = 3.06
CLOCK_MHZ = 1530


def igniter_snapshot(data: Path, gpus: int = 3) -> Snapshot:
    """The example with so many V100s to choose from."""
    v100 = GpuKind(
        name="v100", usd_per_h=USD_PER_H, sm_count=80, memory_mib=16_384, tdp_w=300, idle_w=53.5, clock_mhz=CLOCK_MHZ
    )
    policy = replace(POLICY, interference_margin=SLOWDOWN_MAX)
    bare = fleet("igniter-example", [v100], [RollingHost(name="host-0", kind="v100", gpus=gpus)], policy)
    rows = table(data, FOLDER, "solo_profile.csv")
    return replace(
        bare,
        models=tuple(
            ModelVariant(name=ModelName(model), family=model, parameters_million=60, memory_mib_weights=500)
            for model, _, _ in EXAMPLE
        ),
        services=tuple(
            Service(
                project=PROJECT,
                name=model,
                model=ModelName(model),
                slo=Slo(latency_ms=slo_ms / 2, scope=SloScope.EXECUTION),
                rate_rps_declared=rate_rps,
            )
            for model, slo_ms, rate_rps in EXAMPLE
        ),
        profiles=tuple(
            Profile(
                model=ModelName(model),
                gpu_type=GpuTypeName("v100"),
                points=tuple(
                    sorted(
                        (_point(row) for row in rows if row["model"] == model),
                        key=lambda point: (point.share_pct_sm, point.batch),
                    )
                ),
            )
            for model, _, _ in EXAMPLE
        ),
    )


def _point(row: dict[str, str]) -> ProfilePoint:
    return ProfilePoint(
        model=ModelName(row["model"]),
        gpu_type=GpuTypeName("v100"),
        batch=int(row["batch"]),
        share_pct_sm=int(float(row["sm_pct"])),
        clock_mhz_sm=CLOCK_MHZ,
        latency_ms_mean=float(row["latency_ms"]),
        memory_mib=MEMORY_MIB,
        source="iGniter",
    )
