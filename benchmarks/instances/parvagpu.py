"""ParvaGPU's scenarios: services with latencies and rates, as snapshots of whole A100s under MPS.

Its profile and scenario files are read as published, its latency rule is kept (a batch must take less than 0.9 of half
the SLO). Any file of the same form works. Shares are of as many SMs as its MIG instances have; fewer GPUs can do there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.sources.rows import SourceMissingError, table
from lab.benches.rolling.problems import CLOCK_MHZ, POLICY, PROJECT, GpuKind, RollingHost, fleet
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ModelVariant, Service, Slo, SloScope

FOLDER = "parvagpu-a100-mig"
LATENCY_PART = 0.9 / 2
GPCS = 7
USD_PER_H = 3.431
ABSENT = "N/A"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured configuration of one model in one instance."""

    model: str
    gpcs: int
    batch: int
    processes: int
    rate_rps: float
    """Of all processes."""
    latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One service of a scenario."""

    model: str
    slo_ms: float
    rate_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where scenarios come from."""

    latency: Path
    rate: Path


def profile(data: Path) -> tuple[Row, ...]:
    """All configurations that ran."""
    return tuple(
        Row(
            model=row["model"],
            gpcs=int(row["mig_gpcs"]),
            batch=int(row["batch"]),
            processes=int(row["mps_procs"]),
            rate_rps=float(row["throughput_per_proc_img_s"]) * int(row["mps_procs"]),
            latency_ms=float(row["latency_ms"]),
        )
        for row in table(data, FOLDER, "profile.csv")
        if row["latency_ms"] and float(row["throughput_per_proc_img_s"] or 0) > 0
    )


def scenario(number: int, models: tuple[str, ...], files: Files) -> tuple[Demand, ...]:
    """The `number`-th line (from 1) of both files; columns are models in alphabetical order."""
    latency, rate = (_line(path, number) for path in (files.latency, files.rate))
    return tuple(
        Demand(model=model, slo_ms=float(slo), rate_rps=float(rps))
        for model, slo, rps in zip(models, latency, rate, strict=True)
        if ABSENT not in (slo, rps)
    )


def _line(path: Path, number: int) -> list[str]:
    if not path.is_file():
        raise SourceMissingError(f"{path} is missing: set HEADROOM_DATA to the folder that holds {FOLDER}/")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not 1 <= number <= len(lines):
        raise SourceMissingError(f"{path} has {len(lines)} scenarios, none is number {number}")
    return [cell.strip() for cell in lines[number - 1].split(",")]


def files_of(data: Path) -> Files:
    """The published ones."""
    return Files(latency=data / FOLDER / "SLO_latency.csv", rate=data / FOLDER / "SLO_req_rate.csv")


def models_of(rows: tuple[Row, ...]) -> tuple[str, ...]:
    """In the order of the scenario files' columns."""
    return tuple(sorted({row.model for row in rows}))


def parvagpu_snapshot(data: Path, number: int, gpus: int, files: Files | None = None) -> Snapshot:
    """A scenario on whole A100s."""
    rows = profile(data)
    demands = scenario(number, models_of(rows), files or files_of(data))
    a100 = GpuKind(name="a100", usd_per_h=USD_PER_H, sm_count=98, tdp_w=400, idle_w=50)
    policy = replace(POLICY, interference_margin=1.0)
    bare = fleet(f"parvagpu-s{number}", [a100], [RollingHost(name="host-0", kind="a100", gpus=gpus)], policy)
    models = sorted({demand.model for demand in demands})
    return replace(
        bare,
        models=tuple(
            ModelVariant(name=ModelName(model), family=model, parameters_million=50, memory_mib_weights=500)
            for model in models
        ),
        services=tuple(
            Service(
                project=PROJECT,
                name=demand.model,
                model=ModelName(demand.model),
                slo=Slo(latency_ms=LATENCY_PART * demand.slo_ms, scope=SloScope.EXECUTION),
                rate_rps_declared=demand.rate_rps,
                replicas_max=64,
            )
            for demand in sorted(demands, key=lambda item: item.model)
        ),
        profiles=tuple(
            Profile(
                model=ModelName(model),
                gpu_type=GpuTypeName("a100"),
                points=tuple(sorted(_points(rows, model), key=lambda point: (point.share_pct_sm, point.batch))),
            )
            for model in models
        ),
    )


def _points(rows: tuple[Row, ...], model: str) -> Iterator[ProfilePoint]:
    for row in rows:
        if row.model == model and row.processes == 1:
            yield ProfilePoint(
                model=ModelName(model),
                gpu_type=GpuTypeName("a100"),
                batch=row.batch,
                share_pct_sm=-(-100 * row.gpcs // GPCS),
                clock_mhz_sm=CLOCK_MHZ,
                latency_ms_mean=1000 * row.batch / row.rate_rps,
                memory_mib=2000.0,
                source="ParvaGPU",
            )
