"""Plain fleets for other systems' problems: GPU types, nodes and devices where only a few numbers are known.

Owns the numbers nobody published and no plan turns on (cache, bus, clocks of one entry).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from solvers.domain.device import Device, GpuType, Node, PriceKind, PriceRow
from solvers.domain.ids import ClusterName, DeviceId, GpuTypeName, NodeId, PolicyName, ProjectName
from solvers.domain.policy import CostBasis, Policy
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.workload import Project

TAKEN_AT_S = 1_700_000_000.0
CLOCK_MHZ = 1500
PROJECT = ProjectName("peer")
INTERRUPTION_OVER_S = 1e9
"""Replicas that a cycle starts serve at once here, so nothing is ever interrupted."""
POLICY = Policy(
    name=PolicyName("peer"),
    planners=("joint", "greedy"),
    deadline_s=10.0,
    utilisation_max=0.99,
    demand_headroom=1.0,
    demand_noise_sigmas=0.0,
    share_step_pct=1,
    memory_margin_mib=0,
    interference_margin=1.0,
    cost_basis=CostBasis.DEVICE,
    energy_usd_per_kwh=0.0,
    changes_max=100_000,
    interruption_over_s=INTERRUPTION_OVER_S,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """What is known of a GPU type."""

    name: str
    usd_per_h: float
    sm_count: int = 100
    memory_mib: int = 81_920
    tdp_w: float = 300.0
    idle_w: float = 25.0
    clock_mhz: int = CLOCK_MHZ


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingHost:
    """A node and how many GPUs of one kind it has."""

    name: str
    kind: str
    gpus: int


def gpu_type(kind: GpuKind) -> GpuType:
    """A catalogue entry."""
    return GpuType(
        name=GpuTypeName(kind.name),
        product=kind.name,
        sm_count=kind.sm_count,
        memory_mib=kind.memory_mib,
        tdp_w=kind.tdp_w,
        idle_w=kind.idle_w,
        power_limit_w_min=kind.idle_w,
        power_limit_w_max=kind.tdp_w,
        memory_bandwidth_gb_per_s=1000.0,
        pcie_bandwidth_gb_per_s=16.0,
        fp32_tflops=10.0,
        fp16_tflops=20.0,
        clocks_mhz_sm=(kind.clock_mhz,),
        sm_granularity=1,
        prices=(PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=kind.usd_per_h, source="benchmark"),),
    )


def fleet(name: str, kinds: Iterable[GpuKind], hosts: Iterable[RollingHost], policy: Policy = POLICY) -> Snapshot:
    """A snapshot without work."""
    known = {kind.name: kind for kind in kinds}
    ordered = sorted(hosts, key=lambda host: host.name)
    nodes = tuple(Node(id=NodeId(host.name)) for host in ordered)
    devices = (
        Device(
            id=DeviceId(f"GPU-{host.name}-{index:03d}"),
            node=NodeId(host.name),
            gpu_type=GpuTypeName(host.kind),
            index=index,
            memory_mib=known[host.kind].memory_mib,
            sm_count=known[host.kind].sm_count,
        )
        for host in ordered
        for index in range(host.gpus)
    )
    empty = Snapshot(cluster=ClusterName(name), taken_at_s=TAKEN_AT_S, policy=policy, projects=(Project(name=PROJECT),))
    return replace(
        empty,
        gpu_types=tuple(sorted((gpu_type(kind) for kind in known.values()), key=lambda item: item.name)),
        nodes=nodes,
        node_statuses=tuple(NodeStatus(node=node.id, age_s=0.0, generation_applied=0) for node in nodes),
        devices=tuple(sorted(devices, key=lambda item: item.id)),
    )
