"""What Mudi's paper claims of its share programme, its bound, its guards, and of interference.

The closed form is compared with the convex programme, plans on random pictures are read by the verifier and counted
here, and the caps on interference are sought in the simulated hardware.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product

import numpy as np

from lab.claims.claim import ClaimEvidence, Effort, figure, found
from lab.claims.planned import PROJECT, WORK_MS, InventedLaw, Planned, fleet, gpu_types
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, PolicyName
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Service, Slo, TrainingJob, WorkloadKind
from solvers.engines.least_share import least_shares
from solvers.policies.mudi.curves import MudiParameters, Rounding, least_share, programme, targets_ms
from solvers.policies.mudi.models import Piecewise
from solvers.policies.mudi.planner import Mudi
from solvers.sim.truth.truth import Resident, execution_ms, gpu_truth
from solvers.verify.checks import is_fatal

GPUS = 8
GPU_TYPE = "a100"
LIMIT_MS = {"resnet50": 150.0, "inception-v3": 120.0, "bert": 330.0}
MODELS = tuple(sorted(LIMIT_MS))
RATES_RPS = (20.0, 400.0)
JOB_MEMORY_MIB = (2000, 30_000)
SHARES, BATCHES = tuple(range(10, 101, 10)), (1, 2, 4, 8, 16)


class MudiRoom(Planned):
    def __init__(self, jobs: Sequence[TrainingJob], planner: Mudi) -> None:
        super().__init__(planner, _picture(jobs))

    def step(self, rates_rps: Mapping[str, float]) -> tuple[Snapshot, Plan, bool]:
        """Plan at these rates by model, and let a cycle pass; also whether the verifier has nothing against it."""
        services = tuple(_service(name, rates_rps[name]) for name in sorted(rates_rps))
        picture = replace(self.snapshot, services=services)
        plan, findings = self.plan(picture)
        return picture, plan, not is_fatal(findings)


def by_device(plan: Plan) -> dict[DeviceId, list[Assignment]]:
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
    return {name: float(rng.uniform(*RATES_RPS)) for name in MODELS}


def drawn_jobs(rng: np.random.Generator, count: int) -> list[TrainingJob]:
    return [
        TrainingJob(
            project=PROJECT,
            name=f"train-{number:03d}",
            model=ModelName(str(rng.choice(MODELS))),
            iterations_total=1_000_000,
            iteration_ms_reference=float(rng.uniform(50.0, 500.0)),
            gpu_type_reference=GpuTypeName(GPU_TYPE),
            memory_mib=int(rng.integers(*JOB_MEMORY_MIB)),
        )
        for number in range(count)
    ]


def _law(model: str, _gpu_type: str, batch: int, share_pct: int) -> float:
    """Two milliseconds, and work that shrinks with share up to a knee at 60 %, then hardly."""
    return 2.0 + WORK_MS[model] * (1.0 + 0.8 * batch) * (60.0 / min(share_pct, 60) + 0.1 * (1 - share_pct / 100))


def _picture(jobs: Sequence[TrainingJob]) -> Snapshot:
    policy = Policy(name=PolicyName("claims"), planners=("mudi",))
    law = InventedLaw(latency_ms=_law, shares_pct=SHARES, batches=BATCHES)
    bare = fleet(policy, [gpu_types(GPU_TYPE)[GPU_TYPE]], GPUS, MODELS, law)
    return replace(bare, jobs=tuple(sorted(jobs, key=lambda item: item.id)))


def _service(name: str, rate_rps: float) -> Service:
    slo = Slo(latency_ms=LIMIT_MS[name], percentile=99.0)
    return Service(
        project=PROJECT, name=name, model=ModelName(name), slo=slo, rate_rps_declared=rate_rps, replicas_max=8
    )


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


def shares(_effort: Effort) -> ClaimEvidence:
    wrong = []
    printed = MudiParameters(rounding=Rounding.RATIO)
    for limit, waiting, target, share in WANTED:
        seen = float(targets_ms(limit, 1000.0 * waiting / limit, BATCH, printed))
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


def bound(_effort: Effort) -> ClaimEvidence:
    # What is expected, in parts of the optimum, when the best company is predicted with a probability.
    seen = {worst: PROBABILITY + (1.0 - PROBABILITY) * worst for worst in WORST}
    wrong = [f"{worst}: {seen[worst]:.4f}" for worst, stated in WORST.items() if abs(seen[worst] - stated) > 5e-4]
    total = sum(FRACTIONS_PCT)
    wrong += [] if total == 102 else [f"fractions add to {total}"]
    told = ", ".join(f"{worst} gives {value:.4f}" for worst, value in seen.items())
    return found(f"{told}; fractions add to {total} %", wrong)


def plans_keep_rules(effort: Effort) -> ClaimEvidence:
    rng = np.random.default_rng(3)
    wrong: list[str] = []
    plans = bounds = 0
    for _ in range(max(1, effort.examples // 20)):
        room = MudiRoom(drawn_jobs(rng, int(rng.integers(5, 40))), Mudi())
        for _ in range(CYCLES // 4):
            picture, plan, sound = room.step(drawn_rates(rng))
            plans += 1
            wrong += crowded(plan, picture.devices[0].memory_mib) + ([] if sound else ["the verifier refuses a plan"])
    for _ in range(effort.examples):
        curve, target, share = _binding(rng)
        bounds += 1
        if curve(np.array([share - 0.01]))[0] <= target:
            wrong.append(f"share {share:.3f} is not the least for {target:.1f} ms")
    return found(f"{plans} plans on {GPUS} GPUs and {bounds} binding limits: {len(wrong)} broken rules", wrong)


def _binding(rng: np.random.Generator) -> tuple[Piecewise, float, float]:
    """A curve with a target that binds, and the least share for it."""
    parameters = MudiParameters()
    while True:
        curves, targets = _drawn(rng)
        for curve, target in zip(curves, targets, strict=True):
            share = least_share(curve, target, parameters)
            if share is not None and share > parameters.share_pct_least / 100.0 + 0.01:
                return curve, target, share


def memory_suffices(effort: Effort) -> ClaimEvidence:
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
            wrong += crowded(plan, picture.devices[0].memory_mib - picture.policy.memory_margin_mib)
            moved += _moved(picture, plan)
            waited += len(jobs) - sum(item.kind is WorkloadKind.JOB for item in plan.assignments)
    seen = f"{plans} plans: {len(wrong)} devices beyond their memory, {moved} jobs moved"
    return found(
        f"{seen}, {waited} times one waited on its host", wrong if waited else [*wrong, "memory was never short"]
    )


def _moved(picture: Snapshot, plan: Plan) -> int:
    before = {item.workload: item.device for item in picture.target.assignments if item.kind is WorkloadKind.JOB}
    return sum(before.get(item.workload, item.device) != item.device for item in plan.assignments)


SERVICES = ("resnet50", "inception_v3", "gpt2", "bert-base", "roberta-base", "yolos")
JOBS = ("vgg16", "squeezenet1_1", "resnet50", "ncf", "lstm-wikitext", "ad-gcl", "bert-base", "yolov5s", "resnet18")
BATCHES_BESIDE = (1, 4, 16)
BESIDE_INFERENCE, BESIDE_TRAINING = 3.19, 1.67


def slowdowns(*, training: bool, overlapping: bool) -> dict[tuple[str, ...], float]:
    """The worst factor of each service, over batches, beside one busy service or beside one to three training jobs:
    with shares that fit beside each other, or with the whole GPU each.
    """
    gpu = gpu_truth(GPU_TYPE)
    assert gpu is not None
    found: dict[tuple[str, ...], float] = {}
    beside = (
        [some for count in (1, 2, 3) for some in combinations_with_replacement(JOBS, count)]
        if training
        else [(name,) for name in SERVICES]
    )
    for name, others, batch in product(SERVICES, beside, BATCHES_BESIDE):
        share = 100 if overlapping else 40
        each = 100 if overlapping else 60 // len(others)
        mine = Resident(model=name, share_pct_sm=share, batch=batch)
        neighbours = [Resident(model=other, share_pct_sm=each, batch=16, training=training) for other in others]
        clock = gpu.clock_mhz_sm_max
        factor = execution_ms(gpu, mine, clock, neighbours) / execution_ms(gpu, mine, clock)
        key = (name, *others)
        found[key] = max(found.get(key, 0.0), factor)
    return found


def interference_is_capped(_effort: Effort) -> ClaimEvidence:
    inference, training = (max(slowdowns(training=each, overlapping=False).values()) for each in (False, True))
    free = [max(slowdowns(training=each, overlapping=True).values()) for each in (False, True)]
    measured = (
        f"with shares beside each other: inference by inference {inference:.2f}×, by up to three training jobs "
        f"{training:.2f}×; with the whole GPU each {free[0]:.2f}× and {free[1]:.2f}×"
    )
    kept = inference <= BESIDE_INFERENCE and training < BESIDE_TRAINING
    note = (
        "plans divide a GPU, so the caps are judged for shares that fit; without limits the law fitted to measured "
        "processes without limits exceeds them, as three training jobs then hold most of the GPU"
    )
    return figure(measured, reached=kept, note=note)
