"""Other systems' problems: fleets of which only a few numbers are known, the sample of Inferno as counts, and services
told by what a whole GPU of each type serves of them, as pictures with GPUs to rent or GPUs that stand.

Numbers that nobody published and no plan turns on (bus, clocks of one entry) are ours. A replica's rate grows
with its share of the GPU, so that parts of GPUs are worth what they are there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import Device, GpuType, Node, PriceKind, PriceRow
from solvers.domain.ids import ClusterName, DeviceId, GpuTypeName, ModelName, NodeId, PolicyName, ProjectName
from solvers.domain.policy import CostBasis, Policy
from solvers.domain.profile import Profile, ProfileGrid
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, ModelVariant, Project, Service, Slo, SloKind
from solvers.planners.counting.demands import Covers

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


# --- The rate one LLM replica may be given: a queue whose service rate depends on how many requests are in it
#
# A batch of n requests with L tokens in and K tokens out takes alpha + n*delta per iteration, where delta is a
# request's own work (beta per token computed, gamma per token read) spread over its K + 1 iterations; prefill in
# chunks is not needed at the lengths used here and is refused. No request waits outside the batch: who finds it full
# is lost, so the rate that counts is what gets through. A replica whose batch holds one request cannot be sized this
# way. Times in ms.


EDGE = 1e-3
"""Rates are looked for between this part of the slowest service rate and just below the fastest."""
STEPS = 60
TOKENS_MAX = 8192
"""Tokens of one iteration: what a batch may prefill at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReplica:
    alpha: float
    beta: float
    gamma: float
    batch_max: int
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    first_token_ms: float
    inter_token_ms: float


class _RollingQueue:
    def __init__(self, replica: QueueReplica) -> None:
        self.replica = replica
        tokens_in, tokens_out = replica.tokens_in, replica.tokens_out
        self.own_prefill_ms = (replica.beta + replica.gamma) * tokens_in
        decode_ms = replica.beta * tokens_out + replica.gamma * tokens_out * (tokens_in + (tokens_out + 1) / 2)
        self.delta_ms = (self.own_prefill_ms + decode_ms) / (1 + tokens_out)
        sizes = np.arange(1, replica.batch_max + 1)
        self.sizes = np.arange(replica.batch_max + 1)
        self.rates = sizes / ((1 + tokens_out) * (replica.alpha + sizes * self.delta_ms))

    def at(self, rate: float) -> tuple[float, Targets]:
        """Requests per ms that get through, and what these wait for tokens."""
        weight = np.concatenate([[0.0], np.cumsum(np.log(rate / self.rates))])
        part: Floats = np.exp(weight - weight.max())
        part /= part.sum()
        through = rate * (1 - part[-1])
        inside = float(self.sizes @ part)
        beside_ms = max(0.0, self.replica.alpha + (inside - 1) * self.delta_ms)
        prefill_ms = beside_ms + self.own_prefill_ms
        token_ms = (inside / through - prefill_ms) / self.replica.tokens_out
        return through, Targets(first_token_ms=prefill_ms + token_ms, inter_token_ms=token_ms)


def rate_rps(replica: QueueReplica, targets: Targets) -> float | None:
    """The highest rate that keeps both targets; None where none does."""
    if replica.batch_max < 2 or replica.batch_max * replica.tokens_in > TOKENS_MAX * (replica.tokens_out + 1):
        return None
    queue = _RollingQueue(replica)
    low, high = float(queue.rates[0]) * EDGE, float(queue.rates[-1]) * (1 - EDGE)

    def keeps(rate: float) -> bool:
        _, seen = queue.at(rate)
        return seen.first_token_ms <= targets.first_token_ms and seen.inter_token_ms <= targets.inter_token_ms

    if not keeps(low):
        return None
    if not keeps(high):
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if keeps(middle) else (low, middle)
        high = low
    return 1000 * queue.at(high)[0]


# --- The sample problem of the Inferno optimiser (llm-d workload variant autoscaler), as counts
#
# The 27 services of its five files are taken as they are; larger cases repeat them with rates drawn from a seed (how
# the published larger cases were drawn is not on record). A snapshot knows replicas on one GPU only, so there the
# options that gang several GPUs are left out and it is another problem; comparisons use the counts.


FOLDER = "inferno-sample"
FILES = ("accelerator", "capacity", "model", "serviceclass", "server")
UNSERVED_USD = 1e5
PRIORITY_LOWEST = 4
Row = dict[str, Any]
"""JSON objects of the sample, as they are."""
RATE_PARTS = (0.1, 1.0)
"""Repeated services get the sample's rate times a part drawn log-uniformly from this range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferno:
    """A case: its counts, and the names they belong to."""

    covers: Covers
    services: tuple[str, ...]
    types: tuple[str, ...]
    priorities: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _InfernoOption:
    rate_rps: float
    usd: float
    gpu_type: str
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InfernoCase:
    """`copies` of the sample's services, `capacity` times its GPUs, rates times `load`."""

    size: str = "large"
    copies: int = 1
    capacity: float = 1.0
    load: float = 1.0
    seed: int = 1


def inferno(files: Mapping[str, Row], case: InfernoCase) -> Inferno:
    copies = case.copies
    counts = {row["type"]: row["count"] for row in files["capacity"]["count"]}
    types = tuple(sorted(counts))
    accelerators = {row["name"]: row for row in files["accelerator"]["accelerators"]}
    classes = {row["name"]: row for row in files["serviceclass"]["serviceClasses"]}
    servers = files["server"]["servers"]
    each = [_inferno_options(row, files["model"]["models"], accelerators, classes[row["class"]]) for row in servers]
    total = len(servers) * copies
    low, high = np.log(RATE_PARTS)
    parts = np.ones(total) if copies == 1 else np.exp(np.random.default_rng(case.seed).uniform(low, high, total))
    owner = np.repeat(np.arange(total), [len(each[number % len(each)]) for number in range(total)])
    options = [option for number in range(total) for option in each[number % len(each)]]
    rates = np.array([row["currentAlloc"]["load"]["arrivalRate"] / 60 for row in servers])
    priorities = [classes[row["class"]]["priority"] for row in servers] * copies
    return Inferno(
        covers=Covers(
            demand=np.tile(rates, copies) * parts * case.load,
            unserved_usd=UNSERVED_USD * (PRIORITY_LOWEST - np.array(priorities, dtype=np.float64)),
            option_demand=owner,
            option_rate=np.array([option.rate_rps for option in options]),
            option_usd=np.array([option.usd for option in options]),
            option_resource=np.array([types.index(option.gpu_type) for option in options]),
            option_units=np.array([option.units for option in options]),
            units=np.array([math.floor(counts[name] * copies * case.capacity + 1e-9) for name in types]),
        ),
        services=tuple(f"{servers[number % len(servers)]['name']}-{number // len(servers)}" for number in range(total)),
        types=types,
        priorities=tuple(priorities),
    )


def _inferno_options(server: Row, models: list[Row], accelerators: Row, service_class: Row) -> list[_InfernoOption]:
    load = server["currentAlloc"]["load"]
    target = next(row for row in service_class["modelTargets"] if row["model"] == server["model"])
    found = []
    for row in models:
        if row["name"] != server["model"]:
            continue
        rate = rate_rps(
            QueueReplica(
                alpha=row["perfParms"]["alpha"],
                beta=row["perfParms"]["beta"],
                gamma=row["perfParms"]["gamma"],
                batch_max=max(1, row["maxBatchSize"] * row["atTokens"] // load["AvgOutTokens"]),
                tokens_in=load["AvgInTokens"],
                tokens_out=load["AvgOutTokens"],
            ),
            Targets(first_token_ms=target["slo-ttft"], inter_token_ms=target["slo-itl"]),
        )
        if rate is not None:
            gang = accelerators[row["acc"]]
            found.append(
                _InfernoOption(
                    rate_rps=rate,
                    usd=row["accCount"] * gang["cost"],
                    gpu_type=gang["type"],
                    units=row["accCount"] * gang["multiplicity"],
                )
            )
    return found


#
# A replica's rate grows with its share of the GPU, so that parts of GPUs are worth what they are there.


SHARES_PCT = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
MEMORY_MIB = 500.0
CENTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceWish:
    """One service: rate, and what a whole GPU of each type serves of it."""

    name: str
    rate_rps: float
    whole_rps: dict[str, float]
    whole_gpus: bool = False
    """Replicas take whole GPUs."""
    priority: int = 100


def inferno_wishes(case: Inferno) -> tuple[list[ServiceWish], list[GpuKind], dict[str, int]]:
    """Services on single accelerators: what they want, what there is and how many of each."""
    problem = case.covers
    single = [int(option) for option in np.nonzero(problem.option_units == 1)[0]]
    types = [case.types[int(resource)] for resource in problem.option_resource]
    prices = {types[option]: float(problem.option_usd[option]) / CENTS for option in single}
    wishes = []
    for demand, service in enumerate(case.services):
        own = [option for option in single if problem.option_demand[option] == demand]
        wishes.append(
            ServiceWish(
                name=service.lower().replace("_", "-"),
                rate_rps=float(problem.demand[demand]),
                whole_rps={types[option].lower(): float(problem.option_rate[option]) for option in own},
                whole_gpus=True,
                priority=100 * (PRIORITY_LOWEST - case.priorities[demand]),
            )
        )
    counts = {name: int(problem.units[case.types.index(name)]) for name in prices}
    kinds = [GpuKind(name=name.lower(), usd_per_h=usd) for name, usd in prices.items()]
    return wishes, kinds, {name.lower(): count for name, count in counts.items()}


def wished(bare: Snapshot, wishes: list[ServiceWish]) -> Snapshot:
    return replace(
        bare,
        models=tuple(
            ModelVariant(
                name=ModelName(wish.name), family="llm", parameters_million=7000, memory_mib_weights=MEMORY_MIB
            )
            for wish in sorted(wishes, key=lambda item: item.name)
        ),
        services=tuple(
            Service(
                project=PROJECT,
                name=wish.name,
                model=ModelName(wish.name),
                slo=Slo(kind=SloKind.THROUGHPUT, throughput_rps_min=wish.rate_rps),
                rate_rps_declared=wish.rate_rps,
                replicas_max=1024,
                priority=wish.priority,
                affinity=Affinity(anti_affinity=AntiAffinity.OFF, dedicated=wish.whole_gpus),
            )
            for wish in sorted(wishes, key=lambda item: item.name)
        ),
        profiles=tuple(sorted(_profiles(wishes), key=lambda item: (item.model, item.gpu_type))),
    )


def _profiles(wishes: list[ServiceWish]) -> Iterator[Profile]:
    for wish in wishes:
        shares = SHARES_PCT[-1:] if wish.whole_gpus else SHARES_PCT
        for kind, whole_rps in wish.whole_rps.items():
            yield Profile(
                model=ModelName(wish.name),
                gpu_type=GpuTypeName(kind),
                grid=ProfileGrid(
                    clocks_mhz_sm=(CLOCK_MHZ,),
                    shares_pct_sm=shares,
                    batches=(1,),
                    latency_ms=tuple(POLICY.utilisation_max * 1e5 / (whole_rps * share) for share in shares),
                    memory_mib=(MEMORY_MIB,),
                ),
            )
