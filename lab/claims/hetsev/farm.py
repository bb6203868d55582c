"""HetSev's fleet as snapshots, cycle after cycle: for claims about what its planner does, not how a world answers.

Owns eight V100 and eight T4 with measured tables of an invented law (a claim about rules holds for any law), and the
stepping of the planner with its memory. It refuses to simulate requests: demand is told as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.library import load_gpu_types
from lab.claims.planned import Planned, devices_of, model_of
from solvers.domain.device import GpuType, Node
from solvers.domain.evidence import Finding
from solvers.domain.ids import (
    ClusterName,
    ModelName,
    NodeId,
    PolicyName,
    ProjectName,
)
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.telemetry import Demand, DemandOrigin
from solvers.domain.workload import Project, Service, Slo
from solvers.policies.hetsev.planner import HetSev

SERVERS, GPUS_PER_SERVER = 8, 2
SPEED = {"v100": 2.5, "t4": 1.0}
WORK_MS = {"resnet50": 1.0, "inception-v3": 1.4, "ssd-resnet50": 4.0, "transformer": 6.0}
LIMIT_MS = {"resnet50": 400.0, "inception-v3": 600.0, "ssd-resnet50": 900.0, "transformer": 1200.0}
PROJECT = ProjectName("claims")


class Farm(Planned):
    """The fleet under HetSev's planner."""

    def __init__(self, models: Sequence[str], planner: HetSev, seed: int) -> None:
        super().__init__(planner, _picture(models), seed)

    def step(self, rates_rps: Mapping[str, float]) -> tuple[Plan, list[Finding]]:
        """Plan at these rates by model, and let a cycle pass; the plan with what the verifier finds in it."""
        demands = tuple(_demand(name, rates_rps[name]) for name in sorted(rates_rps))
        return self.plan(replace(self.snapshot, demands=demands))


def by_model(assignments: Sequence[Assignment]) -> dict[str, set[str]]:
    """Replicas by model."""
    found: dict[str, set[str]] = {}
    for item in assignments:
        found.setdefault(item.model, set()).add(item.replica)
    return found


def _picture(models: Sequence[str]) -> Snapshot:
    types: dict[str, GpuType] = {item.name: item for item in load_gpu_types() if item.name in SPEED}
    kinds = ["v100"] * (SERVERS // 2) + ["t4"] * (SERVERS // 2)
    nodes = [NodeId(f"server-{number}") for number in range(SERVERS)]
    devices = [
        device
        for node, kind in zip(nodes, kinds, strict=True)
        for device in devices_of(node, types[kind], GPUS_PER_SERVER)
    ]
    profiles = tuple(_profile(name, types[kind]) for name in sorted(models) for kind in sorted(types))
    return Snapshot(
        cluster=ClusterName("claims"),
        taken_at_s=0.0,
        policy=Policy(name=PolicyName("claims"), planners=("hetsev",), demand_headroom=1.0, demand_noise_sigmas=0.0),
        projects=(Project(name=PROJECT),),
        gpu_types=tuple(types[name] for name in sorted(types)),
        nodes=tuple(Node(id=name) for name in nodes),
        node_statuses=tuple(NodeStatus(node=name, age_s=1.0, generation_applied=0) for name in nodes),
        devices=tuple(sorted(devices, key=lambda item: item.id)),
        models=tuple(model_of(name) for name in sorted(models)),
        services=tuple(_service(name) for name in sorted(models)),
        profiles=profiles,
    )


def _service(name: str) -> Service:
    slo = Slo(latency_ms=LIMIT_MS[name], percentile=98.0)
    return Service(project=PROJECT, name=name, model=ModelName(name), slo=slo, rate_rps_declared=1.0)


def _demand(model: str, rate_rps: float) -> Demand:
    return Demand(
        service=_service(model).id,
        rate_rps_mean=rate_rps,
        rate_rps_upper=rate_rps,
        origin=DemandOrigin.OBSERVED,
        window_s=120.0,
        age_s=1.0,
    )


def _profile(model: str, kind: GpuType) -> Profile:
    """Two milliseconds, and work that shrinks with share and speed."""
    work = WORK_MS[model]
    points = tuple(
        ProfilePoint(
            model=ModelName(model),
            gpu_type=kind.name,
            batch=batch,
            share_pct_sm=share,
            clock_mhz_sm=kind.clock_mhz_sm_max,
            latency_ms_mean=2.0 + work * (2.0 + 3.0 * batch) / (SPEED[kind.name] * share / 100.0),
            memory_mib=900.0 + 40.0 * batch * work,
            power_w=0.5 * share,
        )
        for share in (25, 50, 100)
        for batch in (1, 2, 4, 8)
    )
    return Profile(model=ModelName(model), gpu_type=kind.name, points=points)
