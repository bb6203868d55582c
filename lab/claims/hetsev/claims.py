"""HetSev's claims, AC-HET-01 to 09, with what the paper states.

Owns the table. How a claim is judged is its judge's: programmes and bills are recomputed, rules tried on random cases,
figures of the evaluation sought in the simulated world.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lab.claims.base import Claim, ClaimClass, ClaimEvidence, Effort, found
from lab.claims.hetsev.rules import judge_03, judge_04
from lab.claims.hetsev.runs import judge_05, judge_06, judge_07, judge_08, judge_09
from solvers.domain.arrays import Whole
from solvers.engines.base import Limits
from solvers.engines.registry import create
from solvers.planners.counting.scaling import scale, scale_one_type
from solvers.policies.hetsev.queues import weight
from solvers.problems.counts import CountScaling, Direction
from solvers.sim.world.accounting import Usage, bill

ENGINES = ("cbc", "cp-sat", "highs")
"""PuLP's own solver and OR-Tools', as the paper's two, and the one that plans by default."""
EXACT = 1e-9
BY_ENGINE = 1e-6
GROWN_MAX = 30
V100_PRICE, T4_PRICE = 0.191, 0.024


@dataclass(frozen=True, slots=True)
class WorkedCase:
    """A worked example and its optimum."""

    wanted_rps: float
    risk_per_s: float
    limit_ms: float
    total_gb: float
    running: tuple[int, int]
    direction: Direction
    change: tuple[int, int]
    objective: float


_FREE, _OUT, _IN = Direction.FREE, Direction.OUT, Direction.IN
CASES: Mapping[str, WorkedCase] = {
    "a": WorkedCase(900, 0.0, 400, 64, (1, 2), _FREE, (-1, 8), 0.004),
    "a out": WorkedCase(900, 0.0, 400, 64, (1, 2), _OUT, (0, 5), 0.480),
    "b": WorkedCase(900, 0.05, 400, 64, (1, 2), _FREE, (-1, 8), 0.4648),
    "b out": WorkedCase(900, 0.05, 400, 64, (1, 2), _OUT, (0, 5), 0.768),
    "c": WorkedCase(900, 0.05, 90, 64, (1, 2), _FREE, (2, -2), 2.864),
    "c out": WorkedCase(900, 0.05, 90, 64, (1, 2), _OUT, (2, 0), 3.056),
    "d": WorkedCase(900, 0.05, 400, 24, (1, 2), _FREE, (1, 2), 1.8352),
    "d out": WorkedCase(900, 0.05, 400, 24, (1, 2), _OUT, (1, 2), 1.8352),
    "e": WorkedCase(900 / 0.8, 0.05, 400, 64, (1, 2), _FREE, (-1, 11), 0.9256),
    "e out": WorkedCase(900 / 0.8, 0.05, 400, 64, (1, 2), _OUT, (0, 8), 1.2288),
    "f": WorkedCase(300, 0.05, 400, 64, (3, 2), _IN, (-2, -2), -1.72),
    "g": WorkedCase(300 / 0.8, 0.05, 400, 64, (3, 2), _IN, (-2, -1), -1.624),
}
ONE_TYPE: Mapping[str, tuple[tuple[int, int], float]] = {
    "a": ((0, 5), 0.480),
    "b": ((0, 5), 0.768),
    "c": ((2, 0), 3.056),
    "d": ((2, 0), 3.056),
    "e": ((0, 8), 1.2288),
}


def judge_01(effort: Effort) -> ClaimEvidence:
    """Worked examples by engines and by the plain rule; then random ones against the rule and against trying all."""
    wrong: list[str] = []
    for name, engine in itertools.product(CASES, ENGINES):
        change, _ = scale(worked(CASES[name]), create(engine), Limits())
        wanted, objective = CASES[name].change, CASES[name].objective
        if change is None or tuple(change) != wanted or abs(worked(CASES[name]).objective(change) - objective) > EXACT:
            wrong.append(f"{name} by {engine}: {None if change is None else change.tolist()}")
    for name, (wanted, objective) in ONE_TYPE.items():
        plain = scale_one_type(worked(CASES[name]))
        if plain is None or tuple(plain) != wanted or abs(worked(CASES[name]).objective(plain) - objective) > EXACT:
            wrong.append(f"{name} by the plain rule: {None if plain is None else plain.tolist()}")
    rng = np.random.default_rng(11)
    compared = 0
    for number in range(5 * effort.examples):
        problem = random_problem(rng)
        plain = scale_one_type(problem)
        change, _ = scale(problem, create("highs"), Limits())
        if plain is not None and problem.direction is not _IN:
            compared += 1
            if change is None or problem.objective(change) > problem.objective(plain) + BY_ENGINE:
                wrong.append(f"random {number}: worse than the plain rule")
    tried = effort.examples // 10
    for number in range(tried):
        problem = random_problem(rng)
        best = best_of_all(problem)
        change, _ = scale(problem, create("cp-sat"), Limits())
        if (change is None) is not (best is None) or (
            change is not None
            and best is not None
            and abs(problem.objective(change) - problem.objective(best)) > BY_ENGINE
        ):
            wrong.append(f"random {number}: not the best of all")
    counts = f"{len(CASES)} programmes by {len(ENGINES)} engines and {len(ONE_TYPE)} plain answers"
    measured = (
        f"{counts}; {compared} random ones against the plain rule, {tried} against trying all; {len(wrong)} differ"
    )
    return found(measured, wrong)


def judge_02(_effort: Effort) -> ClaimEvidence:
    """The four bills to the digit, and the worked weight of a queue."""
    sums = {
        "V100, 3 GB": (bill([_usage(V100_PRICE, 32.0, whole=False)]).paper, 343.8),
        "V100, whole": (bill([_usage(V100_PRICE, 32.0, whole=True)]).paper, 3667.2),
        "T4, 3 GB": (bill([_usage(T4_PRICE, 16.0, whole=False)]).paper, 43.2),
        "T4, whole": (bill([_usage(T4_PRICE, 16.0, whole=True)]).paper, 230.4),
        "weight of a queue": (weight([2, 3, 10, 2, 3, 10]), 18.0),
    }
    wrong = [
        f"{name}: {told:.6g} instead of {wanted}" for name, (told, wanted) in sums.items() if abs(told - wanted) > 1e-6
    ]
    return found(", ".join(f"{name} {told:.6g}" for name, (told, _) in sums.items()), wrong)


def worked(case: WorkedCase) -> CountScaling:
    """A case of the catalogue: V100 at 0.191 and T4 at 0.024 per GB and second, 4 GB each."""
    return CountScaling(
        usd=np.array([V100_PRICE * 4, T4_PRICE * 4]),
        launch_s=np.array([20.0, 12.0]),
        rate_rps=np.array([300.0, 90.0]),
        latency_ms=np.array([40.0, 95.0]),
        needs=np.array([[4.0, 4.0]]),
        limits=np.array([case.total_gb]),
        running=np.array(case.running),
        wanted_rps=case.wanted_rps,
        limit_ms=case.limit_ms,
        risk_per_s=case.risk_per_s,
        direction=case.direction,
    )


def random_problem(rng: np.random.Generator) -> CountScaling:
    """A small programme of one to three types and two resources."""
    types = int(rng.integers(1, 4))
    return CountScaling(
        usd=rng.uniform(0.05, 1, types),
        launch_s=rng.uniform(1, 30, types),
        rate_rps=rng.uniform(30, 400, types),
        latency_ms=rng.uniform(20, 200, types),
        needs=rng.uniform(1, 8, (2, types)),
        limits=rng.uniform(20, 60, 2),
        running=rng.integers(0, 3, types),
        wanted_rps=float(rng.uniform(100, 900)),
        limit_ms=150.0,
        risk_per_s=float(rng.choice([0.0, 0.05])),
        direction=list(Direction)[int(rng.integers(0, len(Direction)))],
    )


def best_of_all(problem: CountScaling) -> Whole | None:
    """The best of everything that could be."""
    reach = [range(-int(count), GROWN_MAX + 1) for count in problem.running]
    fitting = (np.array(change) for change in itertools.product(*reach))
    return min((change for change in fitting if problem.feasible(change)), key=problem.objective, default=None)


def _usage(price: float, memory_gb_gpu: float, *, whole: bool) -> Usage:
    return Usage(
        gpu="one",
        price_per_gb_s=price,
        memory_gb_gpu=memory_gb_gpu,
        memory_gb_reserved=3.0,
        memory_gb_used=3.0,
        begin_s=0.0,
        end_s=600.0,
        whole_gpu=whole,
    )


CLAIMS = (
    Claim(
        id="AC-HET-01",
        kind=ClaimClass.EXACT,
        stated="worked programmes and plain answers to the digit; never dearer than the plain rule on 1000 random "
        "ones, equal to trying everything on small ones",
        judge=judge_01,
    ),
    Claim(
        id="AC-HET-02",
        kind=ClaimClass.EXACT,
        stated="3 GB for 600 s: V100 343.8, T4 43.2; whole GPU: V100 3667.2, T4 230.4; worked queue weight 18",
        judge=judge_02,
    ),
    Claim(
        id="AC-HET-03",
        kind=ClaimClass.PROPERTY,
        stated="no plan breaks a rule, no GPU holds a model twice, none shrinks within the cool-down, at most one "
        "action in an hour of constant load",
        judge=judge_03,
    ),
    Claim(
        id="AC-HET-04",
        kind=ClaimClass.PROPERTY,
        stated="placement ends with everybody placed or pending; every queue is served in a bounded number of rounds",
        judge=judge_04,
    ),
    Claim(
        id="AC-HET-05",
        kind=ClaimClass.STATISTICAL,
        stated="90 % of 160 pairs slow down by less than 18 %, identical pairs more on average; three replicas on a "
        "GPU give 1.85x ± 10 % the throughput of one",
        judge=judge_05,
    ),
    Claim(
        id="AC-HET-06",
        kind=ClaimClass.STATISTICAL,
        stated="production load against the Kubernetes autoscaler: peak throughput ≥ 2.21x, cluster utilisation "
        "≥ 2.56x, response time in the spike ≤ 1/2.3",
        judge=judge_06,
    ),
    Claim(
        id="AC-HET-07",
        kind=ClaimClass.STATISTICAL,
        stated="before the spike: throughput within 5 % of the Kubernetes autoscaler's",
        judge=judge_07,
    ),
    Claim(
        id="AC-HET-08",
        kind=ClaimClass.STATISTICAL,
        stated="fluctuating load, at most 18 instances: violating requests ≤ 1.12 %, mean of windows of 5 s < 4 %",
        judge=judge_08,
    ),
    Claim(
        id="AC-HET-09",
        kind=ClaimClass.STATISTICAL,
        stated="four models, SLO kept by both: cost ≥ 1.79x lower on average, ≥ 2.15x for the best model, by the "
        "paper's accounting",
        judge=judge_09,
    ),
)
