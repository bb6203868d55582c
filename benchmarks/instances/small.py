"""Pictures so small that every pattern can be listed: two to four devices, two to five workloads, one rule at a time.

Owns the draw: `small(seed)` takes the rules in turn, so that as many seeds as there are rules show each of them once.
Measurements follow the tests' law with a drawn weight for each network. Rates ask for most of the fleet, so that rules
bind; headroom, noise and hysteresis are off, so that the cheapest plan that serves everybody is the best one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.change import Target
from solvers.domain.device import Device, Node, PowerCap, PowerScope, Taint
from solvers.domain.ids import ClusterName, Generation, GpuTypeName, ModelName, ProjectName, ServiceId
from solvers.domain.policy import CostBasis, Policy
from solvers.domain.profile import Interference, Profile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, Project, Service
from solvers.planners.registry import propose
from tests import builders, chats

TYPES = ("t4", "l4", "v100", "a100")
STEP_PCT = {2: 10, 3: 20}
"""Shares by how many replicas a device may have: all patterns have to be listed."""
TAINT = Taint(key="team")
RED, BLUE = ProjectName("red"), ProjectName("blue")
LOAD = (0.15, 0.6)
"""Part of what the fleet could serve that is asked for."""
STANDING_TIMES = (0.6, 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A picture on its way, and where chance comes from."""

    rng: np.random.Generator
    picture: Snapshot

    def services(self, change: Callable[[Service], Service]) -> Snapshot:
        """The picture with its services changed."""
        return replace(self.picture, services=tuple(change(item) for item in self.picture.services))

    def cap(self, scope: PowerScope, subject: str) -> Snapshot:
        """With a cap that binds: between what all devices in it draw idle and what they draw at most."""
        nodes, types = self.picture.nodes_by_id(), self.picture.gpu_types_by_name()
        inside = [
            types[item.gpu_type]
            for item in self.picture.devices
            if scope is PowerScope.CLUSTER or subject in (item.node, nodes[item.node].rack)
        ]
        idle_w, most_w = sum(item.idle_w for item in inside), sum(item.tdp_w for item in inside)
        limit_w = idle_w + float(self.rng.uniform(0.2, 0.7)) * (most_w - idle_w)
        caps = (*self.picture.power_caps, PowerCap(scope=scope, subject=subject, limit_w=limit_w))
        return replace(self.picture, power_caps=caps)


def small(seed: int) -> Snapshot:
    """One picture; which rule it has goes by the seed."""
    rng = np.random.default_rng(seed)
    rule = rule_of(seed)
    nodes, devices = _fleet(rng)
    services = tuple(_service(rng, number) for number in range(int(rng.integers(2, 6))))
    names = sorted({str(item.model) for item in services})
    picture = builders.snapshot(
        devices,
        services,
        nodes=nodes,
        profiles=_profiles(rng, names, sorted({str(item.gpu_type) for item in devices})),
        policy=_policy(rng),
        projects=(Project(name=BLUE), Project(name=RED)),
        cluster=ClusterName(f"small-{rule}-{seed}"),
    )
    return RULES[rule](Draw(rng=rng, picture=_loaded(rng, picture)))


def rule_of(seed: int) -> str:
    """The rules in turn."""
    return tuple(RULES)[seed % len(RULES)]


def _fleet(rng: np.random.Generator) -> tuple[tuple[Node, ...], tuple[Device, ...]]:
    """Two to four devices of two types on one or two nodes, each node in a rack and a failure domain of its own."""
    types = rng.choice(len(TYPES), 2, replace=False)
    hosts = ["a", "b"][: int(rng.integers(1, 3))]
    devices = tuple(
        builders.device(hosts[number % len(hosts)], number // len(hosts), TYPES[int(rng.choice(types))])
        for number in range(int(rng.integers(2, 5)))
    )
    nodes = tuple(builders.node(name, rack=f"rack-{name}", failure_domain=f"zone-{name}") for name in hosts)
    return nodes, devices


def _service(rng: np.random.Generator, number: int) -> Service:
    return builders.service(
        f"s{number}",
        project=RED if rng.random() < 0.5 else BLUE,
        model=ModelName(f"net-{int(rng.integers(0, 3))}"),
        slo=builders.slo(float(rng.choice([40.0, 80.0, 200.0])) * float(rng.uniform(0.8, 1.2))),
        rate_rps_declared=1.0,
        priority=int(rng.choice([50, 100, 300])),
        replicas_min=int(rng.integers(0, 2)),
        replicas_max=8,
        affinity=Affinity(anti_affinity=AntiAffinity.OFF),
    )


def _profiles(rng: np.random.Generator, models: list[str], types: list[str]) -> tuple[Profile, ...]:
    shares = tuple(range(10, 101, 10))
    made = []
    for name in models:
        work = float(rng.uniform(0.4, 3.0))
        known = Interference(
            pressure=float(rng.uniform(0, 0.5)), exponent=0.5, sensitivity=float(rng.uniform(0.0, 0.6))
        )
        for type_name in types:
            clocks = builders.gpu_type(type_name).clocks_mhz_sm[-int(rng.integers(1, 3)) :]
            listed = builders.profile(name, type_name, work=work, shares=shares, batches=(1, 4, 16), clocks=clocks)
            made.append(replace(listed, interference=known if rng.random() < 0.7 else None))
    return tuple(made)


def _policy(rng: np.random.Generator) -> Policy:
    clients = int(rng.integers(2, 4))
    return builders.policy(
        planners=("joint",),
        share_step_pct=STEP_PCT[clients],
        replicas_per_device_max=clients,
        energy_usd_per_kwh=float(rng.choice([0.0, 0.12, 0.4])),
        gain_usd_per_h_min=0.0,
        gain_pct_min=0.0,
        launch_usd_per_s=0.0,
        cooldown_s=0.0,
        interruption_over_s=1e9,
    )


def _loaded(rng: np.random.Generator, picture: Snapshot) -> Snapshot:
    """Rates that come to a drawn part of what the whole fleet could serve, dealt out unevenly."""
    parts = rng.dirichlet(np.full(len(picture.services), 1.5)) * float(rng.uniform(*LOAD))
    speed = sum(builders.SPEED[item.gpu_type] for item in picture.devices)
    profiles = {(item.model, item.gpu_type): item for item in picture.profiles}
    services = []
    for item, part in zip(picture.services, parts, strict=True):
        known = next(profile for (model, _), profile in profiles.items() if model == item.model)
        best = max(known.points, key=lambda point: point.batch / point.latency_ms_mean)
        whole_rps = 1000 * best.batch / best.latency_ms_mean / builders.SPEED[known.gpu_type]
        rate_rps = round(float(part) * whole_rps * speed * picture.policy.utilisation_max, 3)
        services.append(replace(item, rate_rps_declared=rate_rps))
    return replace(picture, services=tuple(services))


# --- One rule each


def _quotas(draw: Draw) -> Snapshot:
    limits = draw.rng.uniform(0.3, 0.6) * len(draw.picture.devices), None
    projects = tuple(Project(name=name, quota_gpus=quota) for name, quota in zip((RED, BLUE), limits, strict=True))
    return replace(draw.picture, projects=tuple(sorted(projects, key=lambda item: item.name)))


def _device_cap(draw: Draw) -> Snapshot:
    device = draw.picture.devices[0]
    kind = draw.picture.gpu_types_by_name()[device.gpu_type]
    limit_w = float(draw.rng.uniform(kind.power_limit_w_min, kind.tdp_w))
    return replace(
        draw.picture, power_caps=(PowerCap(scope=PowerScope.DEVICE, subject=device.id, limit_w=round(limit_w, 1)),)
    )


def _budgets(draw: Draw) -> Snapshot:
    dearest = max(item.prices[0].usd_per_h for item in draw.picture.gpu_types)
    return draw.services(lambda item: replace(item, budget_usd_per_h=float(draw.rng.uniform(0.2, 1.2)) * dearest))


def _floors(draw: Draw) -> Snapshot:
    return draw.services(lambda item: replace(item, replicas_min=int(draw.rng.integers(1, 4))))


def _domains(draw: Draw) -> Snapshot:
    spread = Affinity(anti_affinity=AntiAffinity.OFF, failure_domains_min=2)
    many = len(draw.picture.nodes) > 1
    return draw.services(lambda item: replace(item, affinity=spread) if many and draw.rng.random() < 0.6 else item)


def _apart(draw: Draw) -> Snapshot:
    names = [ServiceId(item.id) for item in draw.picture.services]
    foe = Affinity(anti_affinity=AntiAffinity.HARD, avoid_services=(names[0],))
    hard = Affinity(anti_affinity=AntiAffinity.HARD)
    return draw.services(lambda item: replace(item, affinity=foe if item.id == names[-1] else hard))


def _dedicated(draw: Draw) -> Snapshot:
    alone = Affinity(anti_affinity=AntiAffinity.OFF, dedicated=True)
    first = draw.picture.services[0].id
    return draw.services(lambda item: replace(item, affinity=alone) if item.id == first else item)


def _taints(draw: Draw) -> Snapshot:
    devices = (replace(draw.picture.devices[0], taints=(TAINT,)), *draw.picture.devices[1:])
    picture = draw.services(lambda item: replace(item, tolerations=(TAINT,)) if draw.rng.random() < 0.5 else item)
    return replace(picture, devices=devices)


def _slices(draw: Draw) -> Snapshot:
    """An A100 cut in two beside the rest."""
    cut = (builders.device("mig", 0, "a100"), *(builders.mig_slice("mig", at, "a100", at + 1) for at in (1, 2)))
    devices = tuple(sorted((*draw.picture.devices[:2], *cut), key=lambda item: item.id))
    types = {str(item.gpu_type) for item in devices}
    models = sorted({str(item.model) for item in draw.picture.services})
    fresh = builders.snapshot(devices, draw.picture.services, nodes=draw.picture.nodes)
    return replace(
        draw.picture,
        devices=devices,
        nodes=fresh.nodes,
        node_statuses=fresh.node_statuses,
        gpu_types=fresh.gpu_types,
        profiles=tuple(
            sorted(_profiles(draw.rng, models, sorted(types)), key=lambda item: (item.model, item.gpu_type))
        ),
    )


def _jobs(draw: Draw) -> Snapshot:
    names = {str(item.name) for item in draw.picture.gpu_types}
    jobs = tuple(
        builders.job(
            f"j{number}",
            project=BLUE,
            model=ModelName("resnet50"),
            gpu_type_reference=GpuTypeName(sorted(names)[0]),
            share_pct_sm_min=int(draw.rng.choice([20, 40, 60])),
            share_pct_sm_max=100,
            value_usd_per_h=float(draw.rng.choice([0.0, 0.5, 1.0, 1.6])),
        )
        for number in range(int(draw.rng.integers(1, 3)))
    )
    return replace(draw.picture, jobs=jobs)


def _tasks(draw: Draw) -> Snapshot:
    first = draw.picture.services[0]
    return replace(
        draw.picture,
        services=draw.picture.services[1:],
        tasks=(builders.task("t0", first.rate_rps_declared, project=BLUE, model=first.model),),
    )


def _tokens(draw: Draw) -> Snapshot:
    chat = chats.service(
        project=BLUE,
        rate_rps_declared=float(draw.rng.uniform(0.5, 3.0)),
        affinity=Affinity(anti_affinity=AntiAffinity.OFF),
        replicas_min=0,
        replicas_max=4,
    )
    return replace(
        draw.picture,
        services=tuple(sorted((*draw.picture.services[1:], chat), key=lambda item: item.id)),
        models=tuple(sorted((*draw.picture.models, chats.model()), key=lambda item: item.name)),
        token_profiles=tuple(chats.profile(str(item.name)) for item in draw.picture.gpu_types),
    )


def _by(basis: CostBasis) -> Callable[[Draw], Snapshot]:
    return lambda draw: replace(draw.picture, policy=replace(draw.picture.policy, cost_basis=basis))


def _standing(draw: Draw) -> Snapshot:
    """What greed made of other rates stands."""
    low, high = STANDING_TIMES
    then = draw.services(
        lambda item: replace(item, rate_rps_declared=item.rate_rps_declared * float(draw.rng.uniform(low, high)))
    )
    plan = propose("greedy", builders.request(then)).plan
    if plan is None:
        raise ValueError("greed has no plan")
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    return replace(draw.picture, target=target)


RULES: dict[str, Callable[[Draw], Snapshot]] = {
    "plain": lambda draw: draw.picture,
    "quotas": _quotas,
    "node cap": lambda draw: draw.cap(PowerScope.NODE, "a"),
    "rack cap": lambda draw: draw.cap(PowerScope.RACK, "rack-a"),
    "cluster cap": lambda draw: draw.cap(PowerScope.CLUSTER, draw.picture.cluster),
    "device cap": _device_cap,
    "budgets": _budgets,
    "floors": _floors,
    "failure domains": _domains,
    "anti-affinity": _apart,
    "dedicated": _dedicated,
    "taints": _taints,
    "slices": _slices,
    "jobs": _jobs,
    "tasks": _tasks,
    "tokens": _tokens,
    "cost by share": _by(CostBasis.SHARE),
    "cost by memory": _by(CostBasis.MEMORY),
    "standing": _standing,
}
