"""The openb cluster (Alibaba 2023): its GPU nodes and pods as a fleet and services with a fixed number of replicas.

Owns the reading. Pods that ask for the same are one service; a pod that shares a GPU is a replica with a fixed share, a
pod of several whole GPUs is as many dedicated replicas (that they must be on one node is lost). Memory goes by share.
CPUs and host memory are left out, so more fits here than in the original. Pods without a GPU are left out too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.sources.rows import name_of, table
from lab.benches.rolling.problems import CLOCK_MHZ, POLICY, PROJECT, GpuKind, RollingHost, fleet
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfileGrid
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, ModelVariant, Service, Slo, SloKind

FOLDER = "alibaba-gpu-v2023-openb"
MEMORY_MIB = 32_000
LATENCY_MS = 10.0
BUSY = 0.5
REPLICAS_MAX = 1000
"""A service of more pods is split."""
SHARING_MAX = 48


@dataclass(frozen=True, order=True, slots=True)
class Ask:
    """What like pods ask for."""

    share_pct: int
    whole_gpus: int
    """0 when the pod shares a GPU."""
    gpu_types: tuple[str, ...]


def asks(data: Path, pods: str) -> Counter[Ask]:
    """How many pods ask for what."""
    found: Counter[Ask] = Counter()
    for row in table(data, FOLDER, f"openb_pod_list_{pods}.csv"):
        gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
        types = tuple(sorted({name_of(item) for item in (row.get("gpu_spec") or "").split("|") if item}))
        if gpus and milli:
            whole = gpus if gpus > 1 or milli == 1000 else 0
            found[Ask(share_pct=-(-milli // 10), whole_gpus=whole, gpu_types=types)] += 1
    return found


def hosts(data: Path) -> tuple[RollingHost, ...]:
    """All GPU nodes."""
    rows = table(data, FOLDER, "openb_node_list_gpu_node.csv")
    return tuple(RollingHost(name=row["sn"], kind=name_of(row["model"]), gpus=int(row["gpu"])) for row in rows)


def openb_snapshot(data: Path, pods: str = "default") -> Snapshot:
    """Nodes and pods; every GPU costs the same."""
    nodes = hosts(data)
    kinds = sorted({host.kind for host in nodes})
    policy = replace(POLICY, utilisation_max=BUSY, replicas_per_device_max=SHARING_MAX)
    bare = fleet(
        f"openb-{pods}", [GpuKind(name=name, usd_per_h=1.0, memory_mib=MEMORY_MIB) for name in kinds], nodes, policy
    )
    wanted = sorted(asks(data, pods).items())
    shares = sorted({ask.share_pct for ask, _ in wanted})
    return replace(
        bare,
        models=tuple(
            ModelVariant(name=_model(share), family="pod", parameters_million=1, memory_mib_weights=1)
            for share in shares
        ),
        services=tuple(sorted(_services(wanted), key=lambda item: item.id)),
        profiles=tuple(_profile(share, kind) for share in shares for kind in kinds),
    )


def _model(share_pct: int) -> ModelName:
    return ModelName(f"pod-{share_pct:03d}")


def asked_share_pct(model: ModelName) -> int:
    """What pods of this model asked for of one GPU."""
    return int(model.removeprefix("pod-"))


def _services(wanted: list[tuple[Ask, int]]) -> Iterator[Service]:
    for number, (ask, pods) in enumerate(wanted):
        replicas = pods * max(1, ask.whole_gpus)
        for part, first in enumerate(range(0, replicas, REPLICAS_MAX)):
            count = min(REPLICAS_MAX, replicas - first)
            yield Service(
                project=PROJECT,
                name=f"ask-{number:03d}-{part}",
                model=_model(ask.share_pct),
                slo=Slo(kind=SloKind.THROUGHPUT, throughput_rps_min=count * BUSY * 1000 / LATENCY_MS * 0.999),
                rate_rps_declared=count * BUSY * 1000 / LATENCY_MS * 0.999,
                replicas_min=count,
                replicas_max=count,
                gpu_types_allowed=tuple(GpuTypeName(name) for name in ask.gpu_types),
                affinity=Affinity(anti_affinity=AntiAffinity.OFF, dedicated=ask.whole_gpus > 0),
            )


def _profile(share_pct: int, kind: str) -> Profile:
    return Profile(
        model=_model(share_pct),
        gpu_type=GpuTypeName(kind),
        grid=ProfileGrid(
            clocks_mhz_sm=(CLOCK_MHZ,),
            shares_pct_sm=(share_pct,),
            batches=(1,),
            latency_ms=(LATENCY_MS,),
            memory_mib=(max(1.0, MEMORY_MIB * share_pct / 100 / 1.1 - 64),),
        ),
    )
