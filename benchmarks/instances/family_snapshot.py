"""Instances of the synthetic family as snapshots, for everything that plans files.

Owns the dressing: nodes with power caps, GPU types, networks, services with an execution SLO of half the drawn limit,
profiles as grids of six digits. A replica's memory limit is the drawn memory rounded up to whole steps, so the grid
lists what a limit is made from. Times are seconds since the epoch, fixed. It refuses to draw anything.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.instances import family as drawing
from benchmarks.instances.family import CARDS, CLOCK_PARTS, Card, Family
from solvers.domain.arrays import Floats
from solvers.domain.device import Device, GpuType, Node, PowerCap, PowerScope, PriceKind, PriceRow
from solvers.domain.ids import (
    ClusterName,
    DeviceId,
    GpuTypeName,
    ModelName,
    NodeId,
    PolicyName,
    ProjectName,
)
from solvers.domain.policy import CostBasis, Policy
from solvers.domain.profile import Interference, Profile, ProfileGrid, ProfileOrigin
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.workload import ModelVariant, Project, Service, Slo, SloScope
from solvers.models.options import MEMORY_FACTOR

TAKEN_AT_S = 1_700_000_000.0
PROJECT = ProjectName("family")
SOURCE = "synthetic family"
REPLICAS_MAX = 1024
DIGITS = 6
POLICY = Policy(
    name=PolicyName("family"),
    planners=("joint", "greedy"),
    deadline_s=10.0,
    utilisation_max=drawing.BUSY_MAX,
    demand_headroom=1.0,
    demand_noise_sigmas=0.0,
    share_step_pct=1,
    replicas_per_device_max=drawing.CLIENTS,
    memory_margin_mib=0,
    interference_margin=1.0,
    cost_basis=CostBasis.DEVICE,
    changes_max=100_000,
)


def family_snapshot(gpus: int, services: int, seed: int) -> Snapshot:
    """The snapshot of an instance; nothing stands yet."""
    return snapshot_of(drawing.family(gpus, services, seed))


def snapshot_of(drawn: Family) -> Snapshot:
    """The same of an instance that was drawn (and perhaps changed) before."""
    nodes = list(_nodes(drawn))
    return Snapshot(
        cluster=ClusterName(f"family-{drawn.gpus}x{drawn.services}-{drawn.seed}"),
        taken_at_s=TAKEN_AT_S,
        policy=POLICY,
        projects=(Project(name=PROJECT),),
        gpu_types=tuple(sorted((_gpu_type(card) for card in CARDS), key=lambda item: item.name)),
        nodes=tuple(node for node, _, _ in nodes),
        node_statuses=tuple(NodeStatus(node=node.id, age_s=0.0, generation_applied=0) for node, _, _ in nodes),
        devices=tuple(sorted((device for _, _, part in nodes for device in part), key=lambda item: item.id)),
        power_caps=tuple(
            PowerCap(scope=PowerScope.NODE, subject=node.id, limit_w=drawing.CAP_PART * card.tdp_w * len(part))
            for node, card, part in nodes
        ),
        models=tuple(_model(drawn, index) for index in range(drawn.services)),
        services=tuple(_service(drawn, index) for index in range(drawn.services)),
        profiles=tuple(sorted(_profiles(drawn), key=lambda item: (item.model, item.gpu_type))),
    )


def _nodes(drawn: Family) -> Iterator[tuple[Node, Card, tuple[Device, ...]]]:
    """Nodes by id, the last of each type perhaps not full."""
    for card, devices in sorted(zip(CARDS, drawn.devices, strict=True), key=lambda item: item[0].name):
        for number, first in enumerate(range(0, devices, card.gpus_per_node)):
            node = Node(id=NodeId(f"{card.name}-{number:05d}"), price_kind=PriceKind.ON_DEMAND)
            yield (
                node,
                card,
                tuple(
                    Device(
                        id=DeviceId(f"GPU-{node.id}-{index}"),
                        node=node.id,
                        gpu_type=GpuTypeName(card.name),
                        index=index,
                        memory_mib=card.memory_gb * int(drawing.MIB_PER_GB),
                        sm_count=card.sm_count,
                    )
                    for index in range(min(card.gpus_per_node, devices - first))
                ),
            )


def _gpu_type(card: Card) -> GpuType:
    return GpuType(
        name=GpuTypeName(card.name),
        product=card.name.upper(),
        sm_count=card.sm_count,
        memory_mib=card.memory_gb * int(drawing.MIB_PER_GB),
        tdp_w=card.tdp_w,
        idle_w=card.idle_w,
        power_limit_w_min=card.idle_w,
        power_limit_w_max=card.tdp_w,
        memory_bandwidth_gb_per_s=card.bandwidth_gb_per_s,
        pcie_bandwidth_gb_per_s=16.0,
        fp32_tflops=card.fp16_tflops / 2,
        fp16_tflops=card.fp16_tflops,
        clocks_mhz_sm=tuple(sorted(drawing.clock_mhz(card, part) for part in CLOCK_PARTS)),
        sm_granularity=1,
        prices=(PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=card.usd_per_h, source=SOURCE),),
    )


def _model(drawn: Family, index: int) -> ModelVariant:
    return ModelVariant(
        name=ModelName(f"net-{index:05d}"),
        family="synthetic",
        parameters_million=_short(drawn.weights_gb[index] * 500),
        memory_mib_weights=_short(drawn.weights_gb[index] * drawing.MIB_PER_GB),
        memory_mib_per_input=_short(drawn.activation_gb[index] * drawing.MIB_PER_GB),
        gflop_per_input=_short(drawn.gflop[index]),
        launch_s=_short(drawn.launch_s[index]),
    )


def _service(drawn: Family, index: int) -> Service:
    return Service(
        project=PROJECT,
        name=f"s{index:05d}",
        model=ModelName(f"net-{index:05d}"),
        slo=Slo(latency_ms=_short(drawn.slo_ms[index] / 2), scope=SloScope.EXECUTION),
        rate_rps_declared=_short(drawn.rate_rps[index]),
        replicas_min=0,
        replicas_max=REPLICAS_MAX,
    )


def _profiles(drawn: Family) -> Iterator[Profile]:
    memory = np.ceil(drawn.memory_gb * drawing.MIB_PER_GB) / MEMORY_FACTOR
    for card in CARDS:
        clocks = sorted(CLOCK_PARTS)
        latency = np.stack([drawing.latency_ms(drawn, card, part) for part in clocks], axis=1)
        power = np.stack([drawing.power_w(drawn, card, part) for part in clocks], axis=1)
        for index in range(drawn.services):
            yield Profile(
                model=ModelName(f"net-{index:05d}"),
                gpu_type=GpuTypeName(card.name),
                grid=ProfileGrid(
                    clocks_mhz_sm=tuple(drawing.clock_mhz(card, part) for part in clocks),
                    shares_pct_sm=tuple(int(share) for share in drawing.SHARES_PCT),
                    batches=tuple(int(batch) for batch in drawing.BATCHES),
                    latency_ms=_listed(latency[index]),
                    power_w=_listed(power[index]),
                    memory_mib=_listed(memory[index]),
                    origin=ProfileOrigin.SIMULATED,
                    source=SOURCE,
                ),
                interference=Interference(
                    pressure=_short(drawn.pressure[index]),
                    exponent=drawing.PRESSURE_EXPONENT,
                    sensitivity=_short(drawn.sensitivity[index]),
                    origin=ProfileOrigin.SIMULATED,
                ),
            )


def _listed(values: Floats) -> tuple[float, ...]:
    return tuple(_short(number) for number in values.ravel())


def _short(number: float) -> float:
    """Six digits: enough for planning, and files half as long."""
    return float(f"{float(number):.{DIGITS}g}")
