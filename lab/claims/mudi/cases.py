"""Random pictures for Mudi's claims: services whose load comes and goes, and training jobs of all sizes beside them.

Owns eight GPUs with measured tables of an invented law (a claim about rules holds for any law), the stepping of the
planner with its memory, and the books that a step is judged by. It refuses to simulate requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.library import load_gpu_types
from lab.claims.planned import Planned, devices_of, model_of
from solvers.domain.device import GpuType, Node
from solvers.domain.ids import (
    ClusterName,
    DeviceId,
    ModelName,
    NodeId,
    PolicyName,
    ProjectName,
)
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.workload import Project, Service, Slo, TrainingJob, WorkloadKind
from solvers.policies.mudi.planner import Mudi
from solvers.verify.checks import is_fatal

GPUS = 8
GPU_TYPE = "a100"
WORK_MS = {"resnet50": 1.0, "inception-v3": 1.4, "bert": 4.0}
LIMIT_MS = {"resnet50": 150.0, "inception-v3": 120.0, "bert": 330.0}
RATES_RPS = (20.0, 400.0)
JOB_MEMORY_MIB = (2000, 30_000)
SHARES, BATCHES = tuple(range(10, 101, 10)), (1, 2, 4, 8, 16)
PROJECT = ProjectName("claims")


class MudiRoom(Planned):
    """The fleet under Mudi's planner."""

    def __init__(self, jobs: Sequence[TrainingJob], planner: Mudi) -> None:
        super().__init__(planner, _picture(jobs))

    def step(self, rates_rps: Mapping[str, float]) -> tuple[Snapshot, Plan, bool]:
        """Plan at these rates by model, and let a cycle pass; also whether the verifier has nothing against it."""
        services = tuple(_service(name, rates_rps[name]) for name in sorted(rates_rps))
        picture = replace(self.snapshot, services=services)
        plan, findings = self.plan(picture)
        return picture, plan, not is_fatal(findings)


def by_device(plan: Plan) -> dict[DeviceId, list[Assignment]]:
    """Everybody by device."""
    found: dict[DeviceId, list[Assignment]] = defaultdict(list)
    for item in plan.assignments:
        found[item.device].append(item)
    return found


def crowded(plan: Plan, memory_mib: int, jobs_max: int = 3) -> list[str]:
    """Devices with too many jobs, too much share, or too much memory."""
    wrong = []
    for device, items in by_device(plan).items():
        jobs = sum(item.kind is WorkloadKind.JOB for item in items)
        share = sum(item.share_pct_sm for item in items)
        memory = sum(item.memory_mib_limit for item in items)
        if jobs > jobs_max or share > 100 or memory > memory_mib:
            wrong.append(f"{device}: {jobs} jobs, {share} % share, {memory} MiB")
    return wrong


def drawn_rates(rng: np.random.Generator) -> dict[str, float]:
    """A rate for every service."""
    return {name: float(rng.uniform(*RATES_RPS)) for name in sorted(WORK_MS)}


def drawn_jobs(rng: np.random.Generator, count: int) -> list[TrainingJob]:
    """Jobs of all sizes."""
    return [
        TrainingJob(
            project=PROJECT,
            name=f"train-{number:03d}",
            model=ModelName(str(rng.choice(sorted(WORK_MS)))),
            iterations_total=1_000_000,
            iteration_ms_reference=float(rng.uniform(50.0, 500.0)),
            gpu_type_reference=_kind().name,
            memory_mib=int(rng.integers(*JOB_MEMORY_MIB)),
        )
        for number in range(count)
    ]


def _kind() -> GpuType:
    return next(item for item in load_gpu_types() if item.name == GPU_TYPE)


def _picture(jobs: Sequence[TrainingJob]) -> Snapshot:
    kind, node = _kind(), NodeId("server-0")
    return Snapshot(
        cluster=ClusterName("claims"),
        taken_at_s=0.0,
        policy=Policy(name=PolicyName("claims"), planners=("mudi",)),
        projects=(Project(name=PROJECT),),
        gpu_types=(kind,),
        nodes=(Node(id=node),),
        node_statuses=(NodeStatus(node=node, age_s=1.0, generation_applied=0),),
        devices=tuple(devices_of(node, kind, GPUS)),
        models=tuple(model_of(name) for name in sorted(WORK_MS)),
        jobs=tuple(sorted(jobs, key=lambda item: item.id)),
        profiles=tuple(_profile(name, kind) for name in sorted(WORK_MS)),
    )


def _service(name: str, rate_rps: float) -> Service:
    slo = Slo(latency_ms=LIMIT_MS[name], percentile=99.0)
    return Service(
        project=PROJECT, name=name, model=ModelName(name), slo=slo, rate_rps_declared=rate_rps, replicas_max=8
    )


def _profile(model: str, kind: GpuType) -> Profile:
    """Two milliseconds, and work that shrinks with share up to a knee at 60 %, then hardly."""
    points = tuple(
        ProfilePoint(
            model=ModelName(model),
            gpu_type=kind.name,
            batch=batch,
            share_pct_sm=share,
            clock_mhz_sm=kind.clock_mhz_sm_max,
            latency_ms_mean=2.0
            + WORK_MS[model] * (1.0 + 0.8 * batch) * (60.0 / min(share, 60) + 0.1 * (1 - share / 100)),
            memory_mib=900.0 + 40.0 * batch * WORK_MS[model],
            power_w=0.5 * share,
        )
        for share in SHARES
        for batch in BATCHES
    )
    return Profile(model=ModelName(model), gpu_type=kind.name, points=points)
