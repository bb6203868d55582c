"""A small fleet to plan for: one GPU type, one network with a measured profile, two services, all declared over HTTP.

Owns the documents and the change that tests make again and again: which service is busy. It refuses to touch the
database.
"""

from __future__ import annotations

from typing import Any, cast

from headroom_client import Client
from solvers.domain.codec import to_plain
from solvers.domain.device import GpuType, PriceKind, PriceRow
from solvers.domain.ids import GpuTypeName, ModelName, PolicyName, ProjectName
from solvers.domain.policy import CostBasis, Policy
from solvers.domain.profile import ProfilePoint
from solvers.domain.workload import Affinity, AntiAffinity, ModelVariant, Project, Service, Slo

Document = dict[str, Any]

MEMORY_MIB = 15_360
SM_COUNT = 40
CLOCK_MHZ = 1590
PROJECT = ProjectName("vision")
MODEL = ModelName("resnet50")
T4 = GpuType(
    name=GpuTypeName("t4"),
    product="Tesla T4",
    sm_count=SM_COUNT,
    memory_mib=MEMORY_MIB,
    tdp_w=70,
    idle_w=10,
    power_limit_w_min=60,
    power_limit_w_max=70,
    memory_bandwidth_gb_per_s=320,
    pcie_bandwidth_gb_per_s=16,
    fp32_tflops=8.1,
    fp16_tflops=65,
    clocks_mhz_sm=(300, 945, CLOCK_MHZ),
    prices=(PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=0.526),),
)
# No hysteresis: every change of demand shall become a change of the target, soon.
EAGER = Policy(
    name=PolicyName("default"),
    planners=("greedy",),  # it ends by itself: these tests are about faults, and time must not matter to plans
    cost_basis=CostBasis.SHARE,
    deadline_s=2.0,
    cooldown_s=0.0,
    gain_usd_per_h_min=0.0,
    stale_after_s=5.0,
    device_silent_after_s=5.0,
)
RESNET50 = ModelVariant(name=MODEL, family="resnet", parameters_million=25.6, memory_mib_weights=98, launch_s=0.3)
SERVICES = ("labels", "search")
LOW_RPS = 60.0
HIGH_RPS = 300.0
DEVICES = "t4"
"""Per node. Two nodes are nearly full when one service is busy, so that a change of which one must make room first."""


def profile() -> list[ProfilePoint]:
    """Latency of a batch falls with the share, as it does on the fake devices, with room to spare."""
    return [
        ProfilePoint(
            model=MODEL,
            gpu_type=T4.name,
            batch=batch,
            share_pct_sm=share_pct,
            clock_mhz_sm=CLOCK_MHZ,
            latency_ms_mean=(3.0 + 2.5 * batch) * (100 / share_pct) ** 0.8,
            memory_mib=1500.0 + 60.0 * batch,
            power_w=40.0,
        )
        for share_pct in (10, 25, 50, 100)
        for batch in (1, 2, 4, 8)
    ]


def service(name: str, rate_rps: float) -> Service:
    """A service; several of its replicas may share a device, so that devices fill up."""
    return Service(
        project=PROJECT,
        name=name,
        model=MODEL,
        slo=Slo(latency_ms=150.0),
        rate_rps_declared=rate_rps,
        affinity=Affinity(anti_affinity=AntiAffinity.SOFT),
    )


def plain(item: object) -> Document:
    """A domain value as a document."""
    return cast("Document", to_plain(item))


def seed(client: Client) -> None:
    """Declare everything, at low demand."""
    client.put("gpu-type", plain(T4))
    client.put("project", plain(Project(name=PROJECT)))
    client.put("policy", plain(EAGER))
    client.put("model", plain(RESNET50))
    client.import_profiles(points=[plain(point) for point in profile()])
    for name in SERVICES:
        client.put("service", plain(service(name, LOW_RPS)))


def busy(client: Client, name: str) -> None:
    """Make one service busy and the others quiet; those first, because both busy do not fit."""
    for other in SERVICES:
        if other != name:
            client.put("service", plain(service(other, LOW_RPS)))
    client.put("service", plain(service(name, HIGH_RPS)))
