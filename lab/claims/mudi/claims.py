"""What Mudi's paper claims of its share programme, its bound and its guards.

Owns the claims that are exact or properties: the closed form against the convex programme, the bound of the paper, and
the planner's plans on random pictures. It refuses to trust the planner: plans are read by the verifier and counted
here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.library import load_gpu_types
from lab.claims.base import Claim, ClaimClass, ClaimEvidence, Effort, found
from lab.claims.planned import Planned, devices_of, model_of
from solvers.domain.device import GpuType, Node
from solvers.domain.ids import ClusterName, DeviceId, ModelName, NodeId, PolicyName, ProjectName
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.workload import Project, Service, Slo, TrainingJob, WorkloadKind
from solvers.engines.least_share import least_shares
from solvers.models.parts.piecewise import Piecewise, optimality_bound
from solvers.policies.mudi.parameters import MudiParameters, Rounding
from solvers.policies.mudi.planner import Mudi
from solvers.policies.mudi.sharing import least_share, programme, target_ms
from solvers.verify.checks import is_fatal

GPUS = 8
GPU_TYPE = "a100"
WORK_MS = {"resnet50": 1.0, "inception-v3": 1.4, "bert": 4.0}
LIMIT_MS = {"resnet50": 150.0, "inception-v3": 120.0, "bert": 330.0}
RATES_RPS = (20.0, 400.0)
JOB_MEMORY_MIB = (2000, 30_000)
SHARES, BATCHES = tuple(range(10, 101, 10)), (1, 2, 4, 8, 16)
PROJECT = ProjectName("claims")


class MudiRoom(Planned):
    """The fleet under Mudi's planner."""

    def __init__(self, jobs: Sequence[TrainingJob], planner: Mudi) -> None:
        super().__init__(planner, _picture(jobs))

    def step(self, rates_rps: Mapping[str, float]) -> tuple[Snapshot, Plan, bool]:
        """Plan at these rates by model, and let a cycle pass; also whether the verifier has nothing against it."""
        services = tuple(_service(name, rates_rps[name]) for name in sorted(rates_rps))
        picture = replace(self.snapshot, services=services)
        plan, findings = self.plan(picture)
        return picture, plan, not is_fatal(findings)


def by_device(plan: Plan) -> dict[DeviceId, list[Assignment]]:
    """Everybody by device."""
    found: dict[DeviceId, list[Assignment]] = defaultdict(list)
    for item in plan.assignments:
        found[item.device].append(item)
    return found


def crowded(plan: Plan, memory_mib: int, jobs_max: int = 3) -> list[str]:
    """Devices with too many jobs, too much share, or too much memory."""
    wrong = []
    for device, items in by_device(plan).items():
        jobs = sum(item.kind is WorkloadKind.JOB for item in items)
        share = sum(item.share_pct_sm for item in items)
        memory = sum(item.memory_mib_limit for item in items)
        if jobs > jobs_max or share > 100 or memory > memory_mib:
            wrong.append(f"{device}: {jobs} jobs, {share} % share, {memory} MiB")
    return wrong


def drawn_rates(rng: np.random.Generator) -> dict[str, float]:
    """A rate for every service."""
    return {name: float(rng.uniform(*RATES_RPS)) for name in sorted(WORK_MS)}


def drawn_jobs(rng: np.random.Generator, count: int) -> list[TrainingJob]:
    """Jobs of all sizes."""
    return [
        TrainingJob(
            project=PROJECT,
            name=f"train-{number:03d}",
            model=ModelName(str(rng.choice(sorted(WORK_MS)))),
            iterations_total=1_000_000,
            iteration_ms_reference=float(rng.uniform(50.0, 500.0)),
            gpu_type_reference=_kind().name,
            memory_mib=int(rng.integers(*JOB_MEMORY_MIB)),
        )
        for number in range(count)
    ]


def _kind() -> GpuType:
    return next(item for item in load_gpu_types() if item.name == GPU_TYPE)


def _picture(jobs: Sequence[TrainingJob]) -> Snapshot:
    kind, node = _kind(), NodeId("server-0")
    return Snapshot(
        cluster=ClusterName("claims"),
        taken_at_s=0.0,
        policy=Policy(name=PolicyName("claims"), planners=("mudi",)),
        projects=(Project(name=PROJECT),),
        gpu_types=(kind,),
        nodes=(Node(id=node),),
        node_statuses=(NodeStatus(node=node, age_s=1.0, generation_applied=0),),
        devices=tuple(devices_of(node, kind, GPUS)),
        models=tuple(model_of(name) for name in sorted(WORK_MS)),
        jobs=tuple(sorted(jobs, key=lambda item: item.id)),
        profiles=tuple(_profile(name, kind) for name in sorted(WORK_MS)),
    )


def _service(name: str, rate_rps: float) -> Service:
    slo = Slo(latency_ms=LIMIT_MS[name], percentile=99.0)
    return Service(
        project=PROJECT, name=name, model=ModelName(name), slo=slo, rate_rps_declared=rate_rps, replicas_max=8
    )


def _profile(model: str, kind: GpuType) -> Profile:
    """Two milliseconds, and work that shrinks with share up to a knee at 60 %, then hardly."""
    points = tuple(
        ProfilePoint(
            model=ModelName(model),
            gpu_type=kind.name,
            batch=batch,
            share_pct_sm=share,
            clock_mhz_sm=kind.clock_mhz_sm_max,
            latency_ms_mean=2.0
            + WORK_MS[model] * (1.0 + 0.8 * batch) * (60.0 / min(share, 60) + 0.1 * (1 - share / 100)),
            memory_mib=900.0 + 40.0 * batch * WORK_MS[model],
            power_w=0.5 * share,
        )
        for share in SHARES
        for batch in BATCHES
    )
    return Profile(model=ModelName(model), gpu_type=kind.name, points=points)


FIXTURE = Piecewise(k1=-200.0, k2=-20.0, knee=0.4, l0=30.0)
WANTED = ((100.0, 16.0, 50.0, 0.30), (120.0, 32.0, 30.0, 0.40), (100.0, 32.0, 25.0, 0.65))
"""Limit, requests in a window, target, share; batches of 8."""
BATCH = 8
RANDOM = 1000
CLOSE = 1e-4
PROBABILITY = 0.9267
WORST = {2.364: 1.10, 2.091: 1.08}
FRACTIONS_PCT = (14, 14, 14, 12, 12, 12, 12, 10, 2)
"""Of the paper's table of training tasks."""
CYCLES = 12


def _shares(_effort: Effort) -> ClaimEvidence:
    wrong = []
    printed = MudiParameters(rounding=Rounding.RATIO)
    for limit, waiting, target, share in WANTED:
        seen = target_ms(limit, 1000.0 * waiting / limit, BATCH, printed)
        got = FIXTURE.minimal_share(target)
        if not math.isclose(seen, target, rel_tol=1e-9) or got is None or abs(got - share) > 1e-9:
            wrong.append(f"limit {limit:g} ms: target {seen:g} ms, share {got}")
    rng = np.random.default_rng(1)
    curves, targets = _drawn(rng)
    floor = MudiParameters().share_pct_least / 100.0
    solved = least_shares(programme(curves, targets, floor))
    closed = [curve.minimal_share(target, floor) for curve, target in zip(curves, targets, strict=True)]
    apart, possible = 0.0, 0
    for mine, theirs in zip(closed, solved, strict=True):
        if (mine is None) != bool(np.isinf(theirs)):
            wrong.append("one finds a share and the other none")
        elif mine is not None:
            apart, possible = max(apart, abs(mine - float(theirs))), possible + 1
    if apart > CLOSE:
        wrong.append(f"{apart:.1e} apart")
    return found(f"3 fixtures; {possible} of {RANDOM} random curves with a share, at most {apart:.1e} apart", wrong)


def _drawn(rng: np.random.Generator) -> tuple[list[Piecewise], list[float]]:
    """Convex curves, and targets around their knees."""
    curves, targets = [], []
    for _ in range(RANDOM):
        steep = float(rng.uniform(10.0, 500.0))
        flat = steep * float(rng.uniform(0.01, 1.0))
        curve = Piecewise(
            k1=-steep, k2=-flat, knee=float(rng.uniform(0.1, 0.9)), l0=float(rng.uniform(flat, 3.0 * steep))
        )
        curves.append(curve)
        targets.append(curve.l0 * float(rng.uniform(0.5, 2.0)))
    return curves, targets


def _bound(_effort: Effort) -> ClaimEvidence:
    optimal = np.ones(1)
    seen = {worst: optimality_bound(PROBABILITY, optimal, np.array([worst])) for worst in WORST}
    wrong = [f"{worst}: {seen[worst]:.4f}" for worst, stated in WORST.items() if abs(seen[worst] - stated) > 5e-4]
    total = sum(FRACTIONS_PCT)
    wrong += [] if total == 102 else [f"fractions add to {total}"]
    told = ", ".join(f"{worst} gives {value:.4f}" for worst, value in seen.items())
    return found(f"{told}; fractions add to {total} %", wrong)


def _rules(effort: Effort) -> ClaimEvidence:
    rng = np.random.default_rng(3)
    wrong: list[str] = []
    plans = bound = 0
    for _ in range(max(1, effort.examples // 20)):
        room = MudiRoom(drawn_jobs(rng, int(rng.integers(5, 40))), Mudi())
        for _ in range(CYCLES // 4):
            picture, plan, sound = room.step(drawn_rates(rng))
            plans += 1
            wrong += crowded(plan, picture.devices[0].memory_mib) + ([] if sound else ["the verifier refuses a plan"])
    for _ in range(effort.examples):
        curve, target, share = _binding(rng)
        bound += 1
        if curve(np.array([share - 0.01]))[0] <= target:
            wrong.append(f"share {share:.3f} is not the least for {target:.1f} ms")
    return found(f"{plans} plans on {GPUS} GPUs and {bound} binding limits: {len(wrong)} broken rules", wrong)


def _binding(rng: np.random.Generator) -> tuple[Piecewise, float, float]:
    """A curve with a target that binds, and the least share for it."""
    parameters = MudiParameters()
    while True:
        curves, targets = _drawn(rng)
        for curve, target in zip(curves, targets, strict=True):
            share = least_share(curve, target, parameters)
            if share is not None and share > parameters.share_pct_least / 100.0 + 0.01:
                return curve, target, share


def _memory(effort: Effort) -> ClaimEvidence:
    """Services grow and shrink beside more jobs than fit."""
    rng = np.random.default_rng(4)
    wrong: list[str] = []
    plans = moved = waited = 0
    for _ in range(max(1, effort.examples // 40)):
        jobs = drawn_jobs(rng, 3 * GPUS + 6)
        room = MudiRoom(jobs, Mudi())
        for number in range(CYCLES):
            rates = drawn_rates(rng) if number % 3 else dict.fromkeys(drawn_rates(rng), RATES_RPS[1])
            picture, plan, _ = room.step(rates)
            plans += 1
            wrong += _overfull(picture, plan)
            moved += _moved(picture, plan)
            waited += len(jobs) - sum(item.kind is WorkloadKind.JOB for item in plan.assignments)
    seen = f"{plans} plans: {len(wrong)} devices beyond their memory, {moved} jobs moved"
    return found(
        f"{seen}, {waited} times one waited on its host", wrong if waited else [*wrong, "memory was never short"]
    )


def _overfull(picture: Snapshot, plan: Plan) -> Sequence[str]:
    margin = picture.policy.memory_margin_mib
    return crowded(plan, picture.devices[0].memory_mib - margin)


def _moved(picture: Snapshot, plan: Plan) -> int:
    before = {item.workload: item.device for item in picture.target.assignments if item.kind is WorkloadKind.JOB}
    return sum(before.get(item.workload, item.device) != item.device for item in plan.assignments)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="AC-MUD-01",
        kind=ClaimClass.EXACT,
        stated="least shares of the fixture; the convex programme equals the closed form within 1e-4 on 1,000 curves",
        judge=_shares,
    ),
    Claim(
        id="AC-MUD-02",
        kind=ClaimClass.EXACT,
        stated="bound 1.10 for a worst case of 2.364 and 1.08 for 2.091 at 92.67 %; fractions add to 102 %",
        judge=_bound,
    ),
    Claim(
        id="AC-MUD-03",
        kind=ClaimClass.PROPERTY,
        stated="at most 3 jobs a device; shares within 100 %; one percent less share breaks a binding limit",
        judge=_rules,
    ),
    Claim(
        id="AC-MUD-04",
        kind=ClaimClass.PROPERTY,
        stated="no device is ever out of memory while the host has room",
        judge=_memory,
    ),
)
