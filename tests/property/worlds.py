"""Random worlds: small fleets with every rule that a planner must honour, and targets from an earlier world."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import strategies as st

from solvers.domain.change import Target
from solvers.domain.device import (
    ColocationClass,
    Device,
    DeviceMode,
    Node,
    PowerCap,
    PowerScope,
    PriceKind,
    Taint,
)
from solvers.domain.ids import Generation, GpuTypeName, ModelName, ProjectName, ServiceId, WorkloadId
from solvers.domain.policy import CostBasis, Policy
from solvers.domain.profile import Interference, Profile, ProfileGrid, ProfilePoint
from solvers.domain.snapshot import JobStatus, NodeStatus, Snapshot
from solvers.domain.telemetry import Demand, DeviceTelemetry
from solvers.domain.workload import (
    Affinity,
    AntiAffinity,
    OfflineTask,
    Project,
    Service,
    ServiceMode,
    Slo,
    SloKind,
    SloScope,
    TrainingJob,
)
from solvers.planners.registry import propose
from tests import builders

TYPES = ("a100", "l4", "t4", "v100")
MODELS = ("bert", "resnet50", "yolo")
GPU_TAINT = Taint(key="team")


@st.composite
def profiles(draw: st.DrawFn) -> tuple[Profile, ...]:
    """Grids with holes, noise that breaks monotony, sometimes no power, several clocks or nothing at all; of none, some
    or all it is known how they press on each other. Hundreds of numbers, which would cost more than all that is asked
    about a world if each were drawn by itself.
    """
    made: list[Profile] = []
    stream = random.Random(draw(st.integers(0, 2**32)))
    unknown = stream.choice((0, 5, 10))
    for model in MODELS:
        for type_name in TYPES:
            if stream.randrange(10) == 9:
                continue
            clocks = builders.gpu_type(type_name).clocks_mhz_sm[-stream.randint(1, 2) :]
            whole = builders.profile(
                model,
                type_name,
                work=stream.uniform(0.2, 4),
                batches=stream.choice(((1, 4, 16), (1, 2, 4, 8), (8,), (3, 20))),
                shares=stream.choice(((10, 30, 60, 100), (100,), (17, 37, 38, 71), (25, 50))),
                clocks=clocks,
            )
            powered, kept = stream.random() < 0.5, stream.randint(2, 4)
            points = tuple(
                _noisy(point, stream.uniform(0.7, 1.4), powered=powered)
                for index, point in enumerate(whole.points)
                if index % 5 < kept
            )
            listed = replace(whole, points=points)
            if stream.randrange(10) >= unknown:
                listed = replace(listed, interference=_interference(stream))
            made.append(_compact(listed) if stream.randrange(3) == 2 else listed)
    return tuple(made)


def _interference(stream: random.Random) -> Interference:
    """From hardly any to more than most bear."""
    return Interference(
        pressure=stream.choice((0.0, 0.1, 0.4, 1.5)),
        exponent=stream.choice((0.0, 0.5, 1.0)),
        sensitivity=stream.choice((0.0, 0.3, 0.9)),
    )


def _compact(listed: Profile) -> Profile:
    """The same measurements as a grid; a cell without one cannot run."""
    cells = {(point.clock_mhz_sm, point.share_pct_sm, point.batch): point for point in listed.points}
    clocks, shares, batches = (tuple(sorted({cell[axis] for cell in cells})) for axis in range(3))
    places = [cells.get((clock, share, batch)) for clock in clocks for share in shares for batch in batches]
    powered = any(point is not None and point.power_w is not None for point in places)
    grid = ProfileGrid(
        clocks_mhz_sm=clocks,
        shares_pct_sm=shares,
        batches=batches,
        latency_ms=tuple(0.0 if point is None else point.latency_ms_mean for point in places),
        power_w=tuple(0.0 if point is None else point.power_w or 0.0 for point in places) if powered else (),
        memory_mib=tuple(
            max(point.memory_mib or 1.0 for point in listed.points if point.batch == batch) for batch in batches
        ),
    )
    return replace(listed, points=(), grid=grid)


def _noisy(point: ProfilePoint, factor: float, *, powered: bool) -> ProfilePoint:
    return replace(
        point,
        latency_ms_mean=point.latency_ms_mean * factor,
        latency_ms_p99=point.latency_ms_mean * factor * 1.2 if factor > 1 else None,
        memory_mib=point.memory_mib * factor,
        power_w=point.power_w * factor if powered and point.power_w is not None else None,
    )


@st.composite
def devices(draw: st.DrawFn, nodes: int) -> tuple[Device, ...]:
    """Whole GPUs of several modes and classes, and now and then one cut into slices."""
    made: list[Device] = []
    for position in range(nodes):
        for index in range(draw(st.integers(1, 4))):
            made.append(
                builders.device(
                    f"n{position}",
                    index,
                    draw(st.sampled_from(TYPES)),
                    mode=draw(st.sampled_from((DeviceMode.MPS,) * 5 + (DeviceMode.DEDICATED,))),
                    colocation=draw(st.sampled_from((ColocationClass.ANY,) * 4 + tuple(ColocationClass))),
                    schedulable=draw(st.integers(0, 9)) < 9,
                    taints=(GPU_TAINT,) if draw(st.integers(0, 9)) == 9 else (),
                )
            )
    if draw(st.booleans()):
        made.append(builders.device("mig", 0, "a100"))
        made.extend(builders.mig_slice("mig", index + 1, "a100", part) for index, part in enumerate((1, 2, 3)))
    return tuple(made)


@st.composite
def services(draw: st.DrawFn) -> tuple[Service, ...]:
    """A few services with every kind of SLO and rule."""
    count = draw(st.integers(0, 5))
    made: list[Service] = []
    for index in range(count):
        least = draw(st.integers(0, 2))
        limit_ms = draw(st.sampled_from((8.0, 20.0, 60.0, 200.0, 1000.0)))
        slo = draw(
            st.sampled_from(
                (
                    Slo(latency_ms=limit_ms),
                    Slo(latency_ms=limit_ms, percentile=100),
                    Slo(latency_ms=limit_ms, percentile=50),
                    Slo(latency_ms=limit_ms, scope=SloScope.EXECUTION),
                    Slo(kind=SloKind.DEADLINE, deadline_s=2.0),
                    Slo(kind=SloKind.THROUGHPUT, throughput_rps_min=40.0),
                    Slo(kind=SloKind.TOKENS, first_token_ms=200.0, inter_token_ms=50.0),
                )
            )
        )
        avoided = draw(st.sampled_from((None, None, *(other for other in range(count) if other != index))))
        made.append(
            builders.service(
                f"s{index}",
                project=ProjectName(draw(st.sampled_from(("demo", "other")))),
                model=ModelName(draw(st.sampled_from(MODELS))),
                slo=slo,
                rate_rps_declared=draw(st.sampled_from((0.0, 5.0, 60.0, 300.0, 2000.0))),
                priority=draw(st.sampled_from((0, 100, 500))),
                replicas_min=least,
                replicas_max=draw(st.integers(max(1, least), 6)),
                gpu_types_allowed=draw(st.sampled_from(((), (), ("t4", "v100")))),
                affinity=Affinity(
                    anti_affinity=draw(st.sampled_from(tuple(AntiAffinity))),
                    avoid_services=() if avoided is None else (ServiceId(f"demo/s{avoided}"),),
                    dedicated=draw(st.integers(0, 5)) == 5,
                    failure_domains_min=draw(st.sampled_from((1, 1, 1, 2))),
                ),
                tolerations=(GPU_TAINT,) if draw(st.booleans()) else (),
                budget_usd_per_h=draw(st.sampled_from((None, None, None, 0.3, 2.0))),
                mode=draw(st.sampled_from((ServiceMode.AUTO,) * 3 + tuple(ServiceMode))),
            )
        )
        if made[-1].id in made[-1].affinity.avoid_services:
            raise AssertionError("a service never avoids itself")
    return tuple(sorted(made, key=lambda item: item.id))


@st.composite
def finite_work(draw: st.DrawFn) -> tuple[tuple[TrainingJob, ...], tuple[OfflineTask, ...]]:
    """Jobs and tasks."""
    jobs = tuple(
        builders.job(
            f"j{index}",
            model=ModelName(draw(st.sampled_from(MODELS))),
            share_pct_sm_min=draw(st.sampled_from((5, 30, 90))),
            gpu_types_allowed=draw(st.sampled_from(((), (GpuTypeName("t4"),)))),
            evictions_max=draw(st.integers(0, 3)),
        )
        for index in range(draw(st.integers(0, 2)))
    )
    tasks = tuple(
        builders.task(
            f"t{index}", draw(st.sampled_from((1.0, 80.0, 900.0))), model=ModelName(draw(st.sampled_from(MODELS)))
        )
        for index in range(draw(st.integers(0, 1)))
    )
    return jobs, tasks


@st.composite
def nodes(draw: st.DrawFn, fleet: tuple[Device, ...]) -> list[Node]:
    """The nodes of a fleet, now and then closed or tainted, in two racks and two zones."""
    return [
        Node(
            id=name,
            rack=draw(st.sampled_from(("rack-0", "rack-1"))),
            failure_domain=draw(st.sampled_from(("zone-0", "zone-1"))),
            schedulable=draw(st.integers(0, 9)) < 9,
            taints=(GPU_TAINT,) if draw(st.integers(0, 9)) == 9 else (),
            price_kind=draw(st.sampled_from((PriceKind.ON_DEMAND, PriceKind.ON_DEMAND, PriceKind.OWNED))),
        )
        for name in sorted({item.node for item in fleet})
    ]


@st.composite
def power_caps(draw: st.DrawFn, fleet: tuple[Device, ...]) -> tuple[PowerCap, ...]:
    """Each of a cluster's, a node's and a device's cap in every fourth world."""
    caps: list[PowerCap] = []
    if draw(st.integers(0, 3)) == 3:
        limit_w = draw(st.sampled_from((200.0, 500.0, 1500.0)))
        caps.append(PowerCap(scope=PowerScope.CLUSTER, subject="lab", limit_w=limit_w))
    if draw(st.integers(0, 3)) == 3:
        first = min(item.node for item in fleet)
        caps.append(PowerCap(scope=PowerScope.NODE, subject=first, limit_w=draw(st.sampled_from((90.0, 300.0)))))
    if draw(st.integers(0, 3)) == 3:
        caps.append(PowerCap(scope=PowerScope.DEVICE, subject=fleet[0].id, limit_w=65.0))
    return tuple(caps)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """The margins and steps that change what fits."""
    return builders.policy(
        interference_margin=draw(st.sampled_from((1.0, 1.25))),
        replicas_per_device_max=draw(st.sampled_from((1, 3, 7))),
        share_step_pct=draw(st.sampled_from((1, 5, 7))),
        demand_headroom=draw(st.sampled_from((1.0, 1.1))),
        cost_basis=draw(st.sampled_from(tuple(CostBasis))),
    )


@st.composite
def readings(draw: st.DrawFn, fleet: tuple[Device, ...]) -> tuple[DeviceTelemetry, ...]:
    """A fresh reading of every device; one in ten is ill."""
    return tuple(
        DeviceTelemetry(
            device=item.id,
            power_w=20,
            utilisation_pct=5,
            memory_mib_used=100,
            clock_mhz_sm=1000,
            healthy=draw(st.integers(0, 9)) < 9,
            age_s=1.0,
        )
        for item in fleet
    )


@st.composite
def demands(draw: st.DrawFn, offered: tuple[Service, ...]) -> tuple[Demand, ...]:
    """What was observed of about half the services."""
    rates = st.sampled_from((0.0, 20.0, 150.0, 800.0))
    return tuple(builders.demand(item.id, draw(rates)) for item in offered if draw(st.booleans()))


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """A whole world without a target."""
    fleet = draw(devices(draw(st.integers(2, 5))))
    hosts, caps, offered = draw(nodes(fleet)), draw(power_caps(fleet)), draw(services())
    jobs, tasks = draw(finite_work())
    quota = draw(st.sampled_from((None, None, None, 0.5, 2.0)))
    evictions = [draw(st.integers(0, 3)) for _ in jobs]
    ages = st.sampled_from((1.0,) * 12 + (29.0, 31.0, None))
    return builders.snapshot(
        fleet,
        offered,
        profiles=draw(profiles()),
        nodes=hosts,
        node_statuses=tuple(NodeStatus(node=item.id, age_s=draw(ages), generation_applied=0) for item in hosts),
        gpu_types=tuple(builders.gpu_type(name) for name in TYPES),
        models=tuple(builders.model(name) for name in MODELS),
        policy=draw(policies()),
        projects=tuple(Project(name=ProjectName(name), quota_gpus=quota) for name in ("demo", "other")),
        power_caps=caps,
        jobs=jobs,
        tasks=tasks,
        job_statuses=tuple(
            JobStatus(workload=WorkloadId(item.id), done=0, evictions=times)
            for item, times in zip(jobs, evictions, strict=True)
        ),
        demands=draw(demands(offered)),
        device_telemetry=draw(readings(fleet)),
    )


@st.composite
def worlds_with_target(draw: st.DrawFn) -> Snapshot:
    """A world whose target was planned for the same fleet under other demand, profiles and rules, so that much of it no
    longer fits.
    """
    world = draw(worlds())
    earlier = replace(
        world,
        demands=tuple(
            replace(item, rate_rps_upper=draw(st.sampled_from((1.0, 100.0, 900.0)))) for item in world.demands
        ),
        node_statuses=tuple(replace(item, age_s=1.0) for item in world.node_statuses),
        profiles=draw(st.sampled_from((world.profiles, draw(profiles())))),
        power_caps=draw(st.sampled_from((world.power_caps, ()))),
    )
    plan = propose("greedy", builders.request(earlier)).plan
    assert plan is not None
    standing = Target(generation=Generation(3), assignments=plan.assignments, settings=plan.settings)
    gone = draw(st.sampled_from((None, None, 0)))
    return replace(world, target=standing, services=world.services if gone is None else world.services[1:])
