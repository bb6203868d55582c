"""HetSev's rules on random cases: plans on the paper's fleet, and queues of instances that wait for a place.

Owns the cases and the search for broken rules. A rule holds for any law of latency, so an invented one does. It refuses
to trust the planner: plans are read by the verifier, and cool-downs and neighbours are counted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.library import load_gpu_types
from lab.claims.base import ClaimEvidence, Effort, found
from lab.claims.planned import CYCLE_S, Planned, devices_of, model_of
from solvers.domain.device import GpuType, Node
from solvers.domain.evidence import Finding
from solvers.domain.ids import ClusterName, ModelName, NodeId, PolicyName, ProjectName, WorkloadId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.telemetry import Demand, DemandOrigin
from solvers.domain.workload import Project, Service, Slo
from solvers.policies.hetsev.parameters import HetsevParameters
from solvers.policies.hetsev.planner import HetSev
from solvers.policies.hetsev.queues import Pending, grouped, seat_all
from solvers.verify.checks import is_fatal

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


CYCLES_RANDOM, CYCLES_BEFORE, CYCLES_CONSTANT = 40, 60, 240
"""Of 15 s: ten minutes of random load; a quarter of an hour, then an hour of constant ones."""
GAP_MAX = 40
"""Rounds; a lone instance outweighs six that are served one a round long before."""


def judge_03(effort: Effort) -> ClaimEvidence:
    """Random loads on the paper's fleet, then an hour of constant ones."""
    rng = np.random.default_rng(3)
    wrong: list[str] = []
    plans = 0
    for number in range(max(1, effort.examples // 20)):
        models = rng.choice(["resnet50", "inception-v3", "ssd-resnet50", "transformer"], int(rng.integers(1, 5)), False)
        plans += CYCLES_RANDOM
        wrong += _broken(number, [str(name) for name in models], rng)
    hours = max(1, effort.examples // 100)
    most = 0
    for number in range(hours):
        most = max(most, _actions(Farm(["resnet50", "inception-v3"], HetSev(), number), rng))
    if most > 1:
        wrong.append(f"{most} actions within an hour of constant load")
    measured = (
        f"{plans} plans: {len(wrong)} broken rules; at most {most} action in an hour of constant load, {hours} times"
    )
    return found(measured, wrong)


def judge_04(effort: Effort) -> ClaimEvidence:
    """Random pending instances against random room; then queues that want more than there is."""
    rng = np.random.default_rng(5)
    wrong: list[str] = []
    for number in range(effort.examples):
        items = [_pending(str(rng.choice(["a", "b", "c"])), rng) for _ in range(int(rng.integers(1, 30)))]
        room = [int(rng.integers(0, 60))]
        seated: list[int] = []

        def seat(at: int, items: Sequence[Pending] = items, room: list[int] = room, seated: list[int] = seated) -> bool:
            if items[at].memory_mib > room[0]:
                return False
            room[0] -= items[at].memory_mib
            seated.append(at)
            return True

        left = seat_all(items, grouped(items, 4, np.random.default_rng(number)), 8, seat)
        if sorted([*seated, *left]) != list(range(len(items))):
            wrong.append(f"case {number}: somebody is neither placed nor pending")
    gap = longest_gap(200, effort.examples)
    if gap > GAP_MAX:
        wrong.append(f"a queue waited {gap} rounds")
    return found(f"{effort.examples} cases end with everybody placed or pending; longest wait {gap} rounds", wrong)


def longest_gap(rounds: int, seed: int) -> int:
    """Six instances of one model and one of another, one place a round, as many come as go: for how many rounds the
    lone one's queue is passed over.
    """
    waits = {"many": [0.0] * 6, "lone": [0.0]}
    longest = gap = 0
    for number in range(rounds):
        items = [
            Pending(workload=WorkloadId(name), model=ModelName(name), memory_mib=1, waited_s=wait)
            for name, known in waits.items()
            for wait in known
        ]
        taken: list[int] = []

        def seat(at: int, taken: list[int] = taken) -> bool:
            taken.append(at)
            return len(taken) == 1

        left = set(seat_all(items, grouped(items, 4, np.random.default_rng([seed, number])), 8, seat))
        (served,) = [item.model for at, item in enumerate(items) if at not in left]
        waits = {
            name: [CYCLE_S + item.waited_s for at, item in enumerate(items) if item.model == name and at in left]
            for name in waits
        }
        waits[served].append(0.0)
        gap = 0 if served == "lone" else gap + 1
        longest = max(longest, gap)
    return longest


def _broken(number: int, models: list[str], rng: np.random.Generator) -> list[str]:
    """Rules broken in ten minutes of random loads: by the verifier, by the paper's anti-affinity, by the cool-down."""
    farm, parameters = Farm(models, HetSev(), number), HetsevParameters()
    wrong: list[str] = []
    rates = {name: float(rng.uniform(5, 300)) for name in models}
    standing: dict[str, set[str]] = {}
    acted_s: dict[str, float] = {}
    for _ in range(CYCLES_RANDOM):
        rates = {name: float(np.clip(rate * rng.uniform(0.5, 1.6), 1, 2000)) for name, rate in rates.items()}
        now_s = farm.snapshot.taken_at_s
        plan, findings = farm.step(rates)
        wrong += [f"case {number} at {now_s:g} s: {item.code.value}" for item in findings if is_fatal([item])]
        seats = [(item.device, item.model) for item in plan.assignments]
        if len(seats) != len(set(seats)):
            wrong.append(f"case {number} at {now_s:g} s: a GPU holds a model twice")
        running = by_model(plan.assignments)
        for name in models:
            before, after = standing.get(name, set()), running.get(name, set())
            if before - after and not after - before and now_s - acted_s.get(name, -np.inf) < parameters.cooldown_s:
                wrong.append(f"case {number} at {now_s:g} s: {name} shrank within the cool-down")
            if before != after:
                acted_s[name] = now_s
        standing = running
    return wrong


def _actions(farm: Farm, rng: np.random.Generator) -> int:
    """How often a service changes in an hour of constant load, after a quarter of an hour at another one."""
    first, then = ({name: float(rng.uniform(20, 200)) for name in ("resnet50", "inception-v3")} for _ in range(2))
    for _ in range(CYCLES_BEFORE):
        farm.step(first)
    counts = dict.fromkeys(first, 0)
    standing = by_model(farm.snapshot.target.assignments)
    for _ in range(CYCLES_CONSTANT):
        plan, _ = farm.step(then)
        running = by_model(plan.assignments)
        for name in counts:
            counts[name] += running.get(name) != standing.get(name)
        standing = running
    return max(counts.values())


def _pending(model: str, rng: np.random.Generator) -> Pending:
    return Pending(
        workload=WorkloadId(model),
        model=ModelName(model),
        memory_mib=int(rng.integers(1, 9)),
        waited_s=float(rng.integers(0, 60)),
    )
