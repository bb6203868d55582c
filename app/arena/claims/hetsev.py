"""HetSev's claims: its programme and its bills recomputed, its rules on random cases, its evaluation simulated.

Owns the judgement of AC-HET-01 to 10. Rules hold for any law of latency, so they are tried on an invented one; figures
of the paper's evaluation are sought in the simulated world. It refuses to judge what only a GPU can tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from app.arena.claims.base import Claim, ClaimClass, Effort, Evidence, Status
from app.arena.claims.hetsev_farm import CYCLE_S, Farm, by_model
from app.arena.claims.hetsev_runs import judge_06, judge_07, judge_08, judge_09
from solvers.domain.ids import ModelName, WorkloadId
from solvers.engines.base import Limits
from solvers.engines.registry import create
from solvers.planners.counting.scaling import scale, scale_one_type
from solvers.planners.hetsev.parameters import Parameters
from solvers.planners.hetsev.planner import HetSev
from solvers.planners.hetsev.queues import Pending, grouped, seat_all, weight
from solvers.problems.accounting import Usage, bill
from solvers.problems.counts import Direction, Scaling, Whole
from solvers.verify.checks import is_fatal

ENGINES = ("cbc", "cp-sat", "highs")
"""PuLP's own solver and OR-Tools', as the paper's two, and the one that plans by default."""
EXACT = 1e-9
BY_ENGINE = 1e-6
GROWN_MAX = 30
V100_PRICE, T4_PRICE = 0.191, 0.024

Case = tuple[float, float, float, float, tuple[int, int], Direction, tuple[int, int], float]
"""Wanted rate, lambda, limit on latency, GB in total, running, direction; the optimum and its objective."""
_FREE, _OUT, _IN = Direction.FREE, Direction.OUT, Direction.IN
CASES: Mapping[str, Case] = {
    "a": (900, 0.0, 400, 64, (1, 2), _FREE, (-1, 8), 0.004),
    "a out": (900, 0.0, 400, 64, (1, 2), _OUT, (0, 5), 0.480),
    "b": (900, 0.05, 400, 64, (1, 2), _FREE, (-1, 8), 0.4648),
    "b out": (900, 0.05, 400, 64, (1, 2), _OUT, (0, 5), 0.768),
    "c": (900, 0.05, 90, 64, (1, 2), _FREE, (2, -2), 2.864),
    "c out": (900, 0.05, 90, 64, (1, 2), _OUT, (2, 0), 3.056),
    "d": (900, 0.05, 400, 24, (1, 2), _FREE, (1, 2), 1.8352),
    "d out": (900, 0.05, 400, 24, (1, 2), _OUT, (1, 2), 1.8352),
    "e": (900 / 0.8, 0.05, 400, 64, (1, 2), _FREE, (-1, 11), 0.9256),
    "e out": (900 / 0.8, 0.05, 400, 64, (1, 2), _OUT, (0, 8), 1.2288),
    "f": (300, 0.05, 400, 64, (3, 2), _IN, (-2, -2), -1.72),
    "g": (300 / 0.8, 0.05, 400, 64, (3, 2), _IN, (-2, -1), -1.624),
}
ONE_TYPE: Mapping[str, tuple[tuple[int, int], float]] = {
    "a": ((0, 5), 0.480),
    "b": ((0, 5), 0.768),
    "c": ((2, 0), 3.056),
    "d": ((2, 0), 3.056),
    "e": ((0, 8), 1.2288),
}


def judge_01(effort: Effort) -> Evidence:
    """Worked examples by engines and by the plain rule; then random ones against the rule and against trying all."""
    wrong: list[str] = []
    for name, engine in itertools.product(CASES, ENGINES):
        change, _ = scale(worked(CASES[name]), create(engine), Limits())
        wanted, objective = CASES[name][6:]
        if change is None or tuple(change) != wanted or abs(worked(CASES[name]).objective(change) - objective) > EXACT:
            wrong.append(f"{name} by {engine}: {None if change is None else tuple(change)}")
    for name, (wanted, objective) in ONE_TYPE.items():
        plain = scale_one_type(worked(CASES[name]))
        if plain is None or tuple(plain) != wanted or abs(worked(CASES[name]).objective(plain) - objective) > EXACT:
            wrong.append(f"{name} by the plain rule: {None if plain is None else tuple(plain)}")
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
    return _found(measured, wrong)


def judge_02(_effort: Effort) -> Evidence:
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
    return _found(", ".join(f"{name} {told:.6g}" for name, (told, _) in sums.items()), wrong)


def judge_03(effort: Effort) -> Evidence:
    """Random loads on the paper's fleet, then an hour of constant ones."""
    rng = np.random.default_rng(3)
    wrong: list[str] = []
    plans = 0
    for number in range(max(2, effort.examples // 20)):
        models = rng.choice(["resnet50", "inception-v3", "ssd-resnet50", "transformer"], int(rng.integers(1, 5)), False)
        plans += 40
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
    return _found(measured, wrong)


def judge_04(effort: Effort) -> Evidence:
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
    return _found(f"{effort.examples} cases end with everybody placed or pending; longest wait {gap} rounds", wrong)


GAP_MAX = 40
"""Rounds; a lone instance outweighs six that are served one a round long before."""


def judge_10(_effort: Effort) -> Evidence:
    """Only a GPU can tell."""
    return Evidence(measured="-", status=Status.NOT_REPRODUCED, note="needs a GPU")


def worked(case: Case) -> Scaling:
    """A case of the catalogue: V100 at 0.191 and T4 at 0.024 per GB and second, 4 GB each."""
    wanted, risk, limit_ms, total_gb, running, direction, _, _ = case
    return Scaling(
        usd=np.array([V100_PRICE * 4, T4_PRICE * 4]),
        launch_s=np.array([20.0, 12.0]),
        rate_rps=np.array([300.0, 90.0]),
        latency_ms=np.array([40.0, 95.0]),
        needs=np.array([[4.0, 4.0]]),
        limits=np.array([total_gb]),
        running=np.array(running),
        wanted_rps=wanted,
        limit_ms=limit_ms,
        risk_per_s=risk,
        direction=direction,
    )


def random_problem(rng: np.random.Generator) -> Scaling:
    """A small programme of one to three types and two resources."""
    types = int(rng.integers(1, 4))
    return Scaling(
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


def best_of_all(problem: Scaling) -> Whole | None:
    """The best of everything that could be."""
    reach = [range(-int(count), GROWN_MAX + 1) for count in problem.running]
    fitting = (np.array(change) for change in itertools.product(*reach))
    return min((change for change in fitting if problem.feasible(change)), key=problem.objective, default=None)


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
    farm, parameters = Farm(models, HetSev(), number), Parameters()
    wrong: list[str] = []
    rates = {name: float(rng.uniform(5, 300)) for name in models}
    standing: dict[str, set[str]] = {}
    acted_s: dict[str, float] = {}
    for _ in range(40):
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
    for _ in range(60):
        farm.step(first)
    counts = dict.fromkeys(first, 0)
    standing = by_model(farm.snapshot.target.assignments)
    for _ in range(240):
        plan, _ = farm.step(then)
        running = by_model(plan.assignments)
        for name in counts:
            counts[name] += running.get(name) != standing.get(name)
        standing = running
    return max(counts.values())


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


def _pending(model: str, rng: np.random.Generator) -> Pending:
    return Pending(
        workload=WorkloadId(model),
        model=ModelName(model),
        memory_mib=int(rng.integers(1, 9)),
        waited_s=float(rng.integers(0, 60)),
    )


def _found(measured: str, wrong: Sequence[str]) -> Evidence:
    return Evidence(measured=measured, status=Status.FAIL if wrong else Status.PASS, note="; ".join(wrong[:3]))


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
    Claim(
        id="AC-HET-10",
        kind=ClaimClass.HARDWARE,
        stated="identical models slow each other down more than different ones, on a real GPU",
        judge=judge_10,
    ),
)
