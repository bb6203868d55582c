"""A small world to plan in: two nodes, three devices of two types, two services, a training job, profiles."""

from __future__ import annotations

from dataclasses import replace

from solvers.domain.device import Device, GpuType, Node, PriceKind, PriceRow
from solvers.domain.ids import (
    ClusterName,
    DeviceId,
    GpuTypeName,
    ModelName,
    NodeId,
    PolicyName,
    ProjectName,
    WorkloadId,
    replica_id,
)
from solvers.domain.plan import Assignment, Envelope
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import (
    ModelVariant,
    OfflineTask,
    Project,
    Service,
    ServiceMode,
    Slo,
    SloKind,
    TrainingJob,
    WorkloadKind,
)

POLICY = Policy(
    name=PolicyName("default"),
    cooldown_s=0.0,
    gain_usd_per_h_min=0.0,
    deadline_s=60.0,
    stale_after_s=3_600.0,
    device_silent_after_s=3_600.0,
)
"""Beside other work a solve takes long and reports grow old before anything is wrong."""
SWIFT = replace(POLICY, planners=("greedy",))
"""For tests of processes and loops, whoever plans in them: it starts and plans in a moment."""
PROJECT = Project(name=ProjectName("vision"))


def gpu_type(name: str = "t4", usd_per_h: float = 0.35, sm_count: int = 40, memory_mib: int = 15_360) -> GpuType:
    return GpuType(
        name=GpuTypeName(name),
        product=f"NVIDIA {name.upper()}",
        sm_count=sm_count,
        memory_mib=memory_mib,
        tdp_w=70.0,
        idle_w=10.0,
        power_limit_w_min=60.0,
        power_limit_w_max=70.0,
        memory_bandwidth_gb_per_s=300.0,
        pcie_bandwidth_gb_per_s=16.0,
        fp32_tflops=8.1,
        fp16_tflops=65.0,
        clocks_mhz_sm=(585, 1590),
        prices=(PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=usd_per_h),),
    )


def node(name: str) -> Node:
    return Node(id=NodeId(name))


def device(uuid: str, node_id: str, gpu: GpuType, index: int = 0) -> Device:
    return Device(
        id=DeviceId(uuid),
        node=NodeId(node_id),
        gpu_type=gpu.name,
        index=index,
        memory_mib=gpu.memory_mib,
        sm_count=gpu.sm_count,
    )


def model(name: str = "resnet50") -> ModelVariant:
    return ModelVariant(
        name=ModelName(name), family="resnet", parameters_million=25.6, memory_mib_weights=100.0, launch_s=0.5
    )


def service(name: str, rate_rps: float = 50.0, mode: ServiceMode = ServiceMode.AUTO) -> Service:
    return Service(
        project=PROJECT.name,
        name=name,
        model=ModelName("resnet50"),
        slo=Slo(latency_ms=200.0),
        rate_rps_declared=rate_rps,
        mode=mode,
    )


def job(name: str = "train") -> TrainingJob:
    return TrainingJob(
        project=PROJECT.name,
        name=name,
        model=ModelName("resnet50"),
        iterations_total=1000,
        iteration_ms_reference=120.0,
        gpu_type_reference=GpuTypeName("t4"),
        memory_mib=2000,
    )


def task(name: str = "embed") -> OfflineTask:
    return OfflineTask(
        project=PROJECT.name,
        name=name,
        model=ModelName("resnet50"),
        inputs_total=5000,
        slo=Slo(kind=SloKind.DEADLINE, deadline_s=3600.0),
    )


def profile(gpu: GpuType, speed: float = 1.0) -> Profile:
    return Profile(
        model=ModelName("resnet50"),
        gpu_type=gpu.name,
        points=tuple(
            ProfilePoint(
                model=ModelName("resnet50"),
                gpu_type=gpu.name,
                batch=batch,
                share_pct_sm=share,
                clock_mhz_sm=gpu.clock_mhz_sm_max,
                latency_ms_mean=(4.0 + 2.0 * batch) * (100 / share) ** 0.8 / speed,
                memory_mib=1200.0 + 20.0 * batch,
                power_w=30.0,
            )
            for share in (25, 50, 100)
            for batch in (1, 4, 8)
        ),
    )


T4 = gpu_type()
V100 = gpu_type("v100", usd_per_h=2.48, sm_count=80, memory_mib=16_384)


def snapshot() -> Snapshot:
    return Snapshot(
        cluster=ClusterName("default"),
        taken_at_s=1_000_000.0,
        policy=POLICY,
        projects=(PROJECT,),
        gpu_types=(T4, V100),
        nodes=(node("a"), node("b"), node("empty")),
        devices=(device("GPU-a0", "a", T4), device("GPU-a1", "a", T4, 1), device("GPU-b0", "b", V100)),
        models=(model(),),
        services=(service("labels"), service("search")),
        jobs=(job(),),
        tasks=(task(),),
        profiles=(profile(T4), profile(V100, 2.5)),
    )


def assignment(
    workload: str, device_id: str, kind: WorkloadKind = WorkloadKind.SERVICE, ordinal: int = 0, share_pct_sm: int = 25
) -> Assignment:
    return Assignment(
        replica=replica_id(workload, ordinal),
        kind=kind,
        workload=WorkloadId(workload),
        model=ModelName("resnet50"),
        device=DeviceId(device_id),
        share_pct_sm=share_pct_sm,
        memory_mib_limit=2000,
        batch=4,
        envelope=Envelope(batch_min=1, batch_max=8, clock_mhz_sm_min=585, clock_mhz_sm_max=1590),
        latency_ms_planned=80.0 if kind is WorkloadKind.SERVICE else None,
        capacity_rps=60.0,
        power_w_planned=12.0,
    )
