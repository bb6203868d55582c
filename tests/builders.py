"""Readable builders of domain values for tests: a small mixed fleet, models with measured grids, services.

Owns defaults that make sense together; a test names only what it is about. Profiles follow a simple law (latency grows
with batch, falls with share and speed), so that what a planner should choose can be worked out by hand. The law is
invented and belongs to tests alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from solvers.domain.change import Target
from solvers.domain.device import Device, DeviceMode, GpuType, MigSlice, Node, PriceKind, PriceRow
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import (
    ClusterName,
    DeviceId,
    Generation,
    GpuTypeName,
    ModelName,
    NodeId,
    PolicyName,
    ProjectName,
    ReplicaId,
    ServiceId,
    WorkloadId,
)
from solvers.domain.plan import Assignment, Envelope, Proposal
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.telemetry import Demand, DemandOrigin
from solvers.domain.webhook import ALARMS, Webhook
from solvers.domain.workload import (
    Affinity,
    ModelVariant,
    OfflineTask,
    Project,
    Service,
    Slo,
    SloKind,
    TrainingJob,
    WorkloadKind,
)
from solvers.planners.base import Budget, PlanRequest

WORK_UNITS = 500
"""Counted work, so that machines of any speed answer alike."""
BATCHES = (1, 2, 4, 8, 16, 32)
SHARES = (10, 20, 30, 40, 50, 60, 80, 100)
SPEED = {"t4": 1.0, "l4": 1.8, "v100": 2.5, "a100": 6.0}
"""How much faster than a T4 the invented law makes each type."""

_SHAPES = {
    # name: product, SMs, memory MiB, TDP W, idle W, lowest limit W, highest clock MHz, $/h
    "t4": ("Tesla T4", 40, 15360, 70.0, 10.0, 60.0, 1590, 0.35),
    "l4": ("L4", 58, 23034, 72.0, 13.0, 40.0, 2040, 0.70),
    "v100": ("Tesla V100", 80, 32768, 300.0, 25.0, 100.0, 1530, 1.15),
    "a100": ("A100 80GB", 108, 81920, 400.0, 50.0, 100.0, 1410, 2.90),
}


def gpu_type(name: str, **changes: object) -> GpuType:
    """One of t4, l4, v100, a100."""
    return replace(_gpu_type(name), **changes) if changes else _gpu_type(name)  # type: ignore[arg-type]


@functools.cache
def _gpu_type(name: str) -> GpuType:
    product, sm_count, memory_mib, tdp_w, idle_w, limit_w_min, clock, price = _SHAPES[name]
    return GpuType(
        name=GpuTypeName(name),
        product=product,
        sm_count=sm_count,
        memory_mib=memory_mib,
        tdp_w=tdp_w,
        idle_w=idle_w,
        power_limit_w_min=limit_w_min,
        power_limit_w_max=tdp_w,
        memory_bandwidth_gb_per_s=320.0 * SPEED[name],
        pcie_bandwidth_gb_per_s=16.0,
        fp32_tflops=8.0 * SPEED[name],
        fp16_tflops=65.0 * SPEED[name],
        clocks_mhz_sm=(clock - 600, clock - 300, clock),
        prices=(PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=price),),
    )


def node(name: str, **changes: object) -> Node:
    """A node; `failure_domain`, `rack` and so on by keyword."""
    return replace(Node(id=NodeId(name)), **changes)  # type: ignore[arg-type]


def device(node_name: str, index: int, type_name: str, **changes: object) -> Device:
    """The `index`-th GPU of a node, its id readable: `GPU-<node>-<index>`."""
    shape = gpu_type(type_name)
    made = Device(
        id=DeviceId(f"GPU-{node_name}-{index}"),
        node=NodeId(node_name),
        gpu_type=GpuTypeName(type_name),
        index=index,
        memory_mib=shape.memory_mib,
        sm_count=shape.sm_count,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def mig_slice(node_name: str, index: int, type_name: str, sevenths: int) -> Device:
    """A MIG slice with so many sevenths of a GPU."""
    shape = gpu_type(type_name)
    return Device(
        id=DeviceId(f"MIG-{node_name}-{index}"),
        node=NodeId(node_name),
        gpu_type=GpuTypeName(type_name),
        index=index,
        memory_mib=shape.memory_mib * sevenths // 8,
        sm_count=14 * sevenths,
        mig=MigSlice(parent=DeviceId(f"GPU-{node_name}-0"), profile=f"{sevenths}g"),
    )


def model(name: str = "resnet50", **changes: object) -> ModelVariant:
    """A small vision network."""
    made = ModelVariant(name=ModelName(name), family=name, parameters_million=25.6, memory_mib_weights=98.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def latency_ms(type_name: str, batch: int, share_pct: int, work: float = 1.0) -> float:
    """The tests' law: 2 ms at least, plus work per input that scales with share and speed."""
    return 2.0 + work * (2.0 + 3.0 * batch) / (SPEED[type_name] * share_pct / 100) / 2


def memory_mib(batch: int, work: float = 1.0) -> float:
    """The tests' law of memory."""
    return 900.0 + 40.0 * batch * work


def profile(
    model_name: str = "resnet50",
    type_name: str = "t4",
    *,
    work: float = 1.0,
    batches: Sequence[int] = BATCHES,
    shares: Sequence[int] = SHARES,
    clocks: Sequence[int] = (),
) -> Profile:
    """A measured grid after the tests' law; at lower clocks latency grows in proportion."""
    return _profile(model_name, type_name, work, tuple(batches), tuple(shares), tuple(clocks))


@functools.lru_cache(256)
def _profile(
    model_name: str,
    type_name: str,
    work: float,
    batches: tuple[int, ...],
    shares: tuple[int, ...],
    clocks: tuple[int, ...],
) -> Profile:
    shape = gpu_type(type_name)
    top = shape.clock_mhz_sm_max
    points = tuple(
        ProfilePoint(
            model=ModelName(model_name),
            gpu_type=GpuTypeName(type_name),
            batch=batch,
            share_pct_sm=share,
            clock_mhz_sm=clock,
            latency_ms_mean=round(latency_ms(type_name, batch, share, work) * top / clock, 6),
            memory_mib=memory_mib(batch, work),
            power_w=round((shape.tdp_w - shape.idle_w) * share / 100 * batch / (batch + 4), 3),
        )
        for clock in sorted(clocks or (top,))
        for share in sorted(shares)
        for batch in sorted(batches)
    )
    return Profile(model=ModelName(model_name), gpu_type=GpuTypeName(type_name), points=points)


def slo(limit_ms: float = 60.0, **changes: object) -> Slo:
    """End-to-end p99."""
    return replace(Slo(latency_ms=limit_ms), **changes)  # type: ignore[arg-type]


def service(name: str = "vision", **changes: object) -> Service:
    """A service of project `demo` on resnet50 at 60 ms."""
    made = Service(
        project=ProjectName("demo"), name=name, model=ModelName("resnet50"), slo=slo(), rate_rps_declared=100.0
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def job(name: str = "train", **changes: object) -> TrainingJob:
    """A training job of project `demo`."""
    made = TrainingJob(
        project=ProjectName("demo"),
        name=name,
        model=ModelName("resnet50"),
        iterations_total=10_000,
        iteration_ms_reference=100.0,
        gpu_type_reference=GpuTypeName("v100"),
        memory_mib=4000,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def task(name: str = "batch", rate_rps: float = 50.0, **changes: object) -> OfflineTask:
    """An offline task of project `demo` with a floor on throughput."""
    made = OfflineTask(
        project=ProjectName("demo"),
        name=name,
        model=ModelName("resnet50"),
        inputs_total=1_000_000,
        slo=Slo(kind=SloKind.THROUGHPUT, throughput_rps_min=rate_rps),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def webhook(
    name: str = "pager", url: str = "https://pager.example/headroom", events: tuple[str, ...] = ALARMS
) -> Webhook:
    """Somebody who is told of alarms."""
    return Webhook(name=name, url=url, events=events, secret_environment="HEADROOM_WEBHOOK_SECRET_TEST")


def demand(service_id: str, rate_rps: float, **changes: object) -> Demand:
    """Observed demand, fresh."""
    made = Demand(
        service=ServiceId(service_id),
        rate_rps_mean=rate_rps,
        rate_rps_upper=rate_rps,
        origin=DemandOrigin.OBSERVED,
        window_s=60.0,
        age_s=1.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def policy(**changes: object) -> Policy:
    """The default policy, without headroom and noise, so that rates stay readable, with a short memory, and with the
    planner that people can follow by hand.
    """
    made = Policy(
        name=PolicyName("default"),
        planners=("greedy",),
        demand_headroom=1.0,
        demand_noise_sigmas=0.0,
        cooldown_s=15.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def assignment(replica: str, on: Device, **changes: object) -> Assignment:
    """A standing replica of a resnet50 service: 50 % share, batch 8."""
    clock = gpu_type(on.gpu_type).clock_mhz_sm_max
    made = Assignment(
        replica=ReplicaId(replica),
        kind=WorkloadKind.SERVICE,
        workload=WorkloadId(replica.partition("#")[0]),
        model=ModelName("resnet50"),
        device=on.id,
        share_pct_sm=50,
        memory_mib_limit=1408,
        batch=8,
        envelope=Envelope(batch_min=1, batch_max=8, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock),
        latency_ms_planned=50.0,
        capacity_rps=50.0,
        power_w_planned=20.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def target(assignments: Iterable[Assignment], **changes: object) -> Target:
    """A standing target of generation 1, promoted long ago."""
    ordered = tuple(sorted(assignments, key=lambda item: item.replica))
    return replace(Target(generation=Generation(1), assignments=ordered), **changes)  # type: ignore[arg-type]


def snapshot(
    devices: Iterable[Device],
    services: Iterable[Service] = (),
    *,
    profiles: Iterable[Profile] | None = None,
    nodes: Iterable[Node] = (),
    **changes: object,
) -> Snapshot:
    """A consistent picture: nodes and GPU types are those the devices name, every node has just reported, models are
    profiled on every type.
    """
    ordered = tuple(sorted(devices, key=lambda item: item.id))
    given = {item.id: item for item in nodes}
    node_ids = sorted({item.node for item in ordered} | set(given))
    type_names = sorted({item.gpu_type for item in ordered})
    models = sorted({item.model for item in services} | {ModelName("resnet50")})
    if profiles is None:
        profiles = [profile(name, type_name) for name in models for type_name in type_names]
    made = Snapshot(
        cluster=ClusterName("lab"),
        taken_at_s=1_000_000.0,
        policy=policy(),
        projects=(Project(name=ProjectName("demo")),),
        gpu_types=tuple(gpu_type(name) for name in type_names),
        nodes=tuple(given.get(name, Node(id=name)) for name in node_ids),
        node_statuses=tuple(NodeStatus(node=name, age_s=1.0, generation_applied=0) for name in node_ids),
        devices=ordered,
        models=tuple(model(name) for name in models),
        services=tuple(sorted(services, key=lambda item: item.id)),
        profiles=tuple(sorted(profiles, key=lambda item: (item.model, item.gpu_type))),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def lab(services: Iterable[Service] = (), **changes: object) -> Snapshot:
    """The small mixed fleet: 2 T4 and an L4 on node a (zone-a), 2 V100 on b and an A100 on c (zone-b)."""
    devices = (
        device("a", 0, "t4"),
        device("a", 1, "t4"),
        device("a", 2, "l4"),
        device("b", 0, "v100"),
        device("b", 1, "v100"),
        device("c", 0, "a100"),
    )
    nodes = (node("a", failure_domain="zone-a"), node("b", failure_domain="zone-b"), node("c", failure_domain="zone-b"))
    return snapshot(devices, services, nodes=nodes, **changes)  # type: ignore[arg-type]


def counted(work_units: int) -> Budget:
    """So much work, and time in plenty."""
    return Budget(deadline_s=3600.0, work_units=work_units)


def everything_movable(picture: Snapshot) -> tuple[WorkloadId, ...]:
    """All workloads of a snapshot."""
    ids = [*(item.id for item in picture.services), *(item.id for item in picture.jobs)]
    return tuple(sorted(WorkloadId(item) for item in [*ids, *(item.id for item in picture.tasks)]))


def request(picture: Snapshot, movable: Iterable[str] | None = None, seed: int = 1) -> PlanRequest:
    """A planning request; by default everything may move."""
    ids = everything_movable(picture) if movable is None else tuple(WorkloadId(item) for item in movable)
    return PlanRequest(snapshot=picture, movable=ids, budget=counted(WORK_UNITS), seed=seed)


class Taker(SilentReporter):
    """Keeps what a planner hands over on its way."""

    def __init__(self) -> None:
        self.taken: list[Proposal] = []

    def found(self, proposal: Proposal) -> None:
        self.taken.append(proposal)


HARD = Affinity()
DEDICATED = Affinity(dedicated=True)
EXCLUSIVE = DeviceMode.DEDICATED
