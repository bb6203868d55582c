"""HetSev's rules: worked programmes, bills, plans on the paper's fleet, and queues of instances that wait for a place.

Programmes are recomputed by every engine and tried against all there is. Plans are made of random loads under an
invented law of latency, for a rule holds for any; they are read by the verifier, and cool-downs and neighbours are
counted here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agents.wire import mirrored
from lab.claims.claim import ClaimEvidence, Effort, found
from lab.claims.planned import CYCLE_S, PROJECT, WORK_MS, InventedLaw, Planned, fleet, gpu_types
from lab.world.ledger import Usage, bill
from solvers.domain.arrays import Whole
from solvers.domain.evidence import Finding
from solvers.domain.ids import ModelName, PolicyName, WorkloadId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import Demand, DemandOrigin
from solvers.domain.workload import Service, Slo
from solvers.engines.base import Limits, create
from solvers.planners.counting.scaling import CountScaling, Direction, scale, scale_one_type
from solvers.policies.hetsev.deciding import HetsevParameters
from solvers.policies.hetsev.planner import HetSev, Pending, grouped, seat_all, weight
from solvers.verify.checks import is_fatal

ENGINES = ("cbc", "cp-sat", "highs")
"""PuLP's own solver and OR-Tools', as the paper's two, and the one that plans by default."""
EXACT = 1e-9
BY_ENGINE = 1e-6
GROWN_MAX = 30
V100_PRICE, T4_PRICE = 0.191, 0.024


@dataclass(frozen=True, slots=True)
class WorkedCase:
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


def programmes(effort: Effort) -> ClaimEvidence:
    """Worked examples by engines and by the plain rule; then random ones against the rule and against trying all."""
    wrong: list[str] = []
    for name, engine in itertools.product(CASES, ENGINES):
        change, answer = scale(worked(CASES[name]), create(engine), Limits())
        wanted, objective = CASES[name].change, CASES[name].objective
        if change is None or tuple(change) != wanted or abs(worked(CASES[name]).objective(change) - objective) > EXACT:
            wrong.append(f"{name} by {engine}: {None if change is None else change.tolist()}")
        elif abs(answer.bound - objective) > BY_ENGINE:
            wrong.append(f"{name} by {engine}: the bound is {answer.bound}")
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


def bills(_effort: Effort) -> ClaimEvidence:
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
    return mirrored(
        CountScaling,
        case,
        usd=np.array([V100_PRICE * 4, T4_PRICE * 4]),
        launch_s=np.array([20.0, 12.0]),
        rate_rps=np.array([300.0, 90.0]),
        latency_ms=np.array([40.0, 95.0]),
        needs=np.array([[4.0, 4.0]]),
        limits=np.array([case.total_gb]),
        running=np.array(case.running),
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


SERVERS, GPUS_PER_SERVER = 8, 2
SPEED = {"v100": 2.5, "t4": 1.0}
LIMIT_MS = {"resnet50": 400.0, "inception-v3": 600.0, "ssd-resnet50": 900.0, "transformer": 1200.0}
SHARES, BATCHES = (25, 50, 100), (1, 2, 4, 8)


class Farm(Planned):
    def __init__(self, models: Sequence[str], planner: HetSev, seed: int) -> None:
        super().__init__(planner, _picture(models), seed)

    def step(self, rates_rps: Mapping[str, float]) -> tuple[Plan, list[Finding]]:
        """Plan at these rates by model, and let a cycle pass; the plan with what the verifier finds in it."""
        demands = tuple(_demand(name, rates_rps[name]) for name in sorted(rates_rps))
        return self.plan(replace(self.snapshot, demands=demands))


def by_model(assignments: Sequence[Assignment]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for item in assignments:
        found.setdefault(item.model, set()).add(item.replica)
    return found


def _law(model: str, gpu_type: str, batch: int, share_pct: int) -> float:
    """Two milliseconds, and work that shrinks with share and speed."""
    return 2.0 + WORK_MS[model] * (2.0 + 3.0 * batch) / (SPEED[gpu_type] * share_pct / 100.0)


def _picture(models: Sequence[str]) -> Snapshot:
    types = gpu_types(*SPEED)
    policy = Policy(name=PolicyName("claims"), planners=("hetsev",), demand_headroom=1.0, demand_noise_sigmas=0.0)
    servers = [types["v100"]] * (SERVERS // 2) + [types["t4"]] * (SERVERS // 2)
    bare = fleet(
        policy, servers, GPUS_PER_SERVER, models, InventedLaw(latency_ms=_law, shares_pct=SHARES, batches=BATCHES)
    )
    return replace(bare, services=tuple(_service(name) for name in sorted(models)))


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


CYCLES_RANDOM, CYCLES_BEFORE, CYCLES_CONSTANT = 40, 60, 240
"""Of 15 s: ten minutes of random load; a quarter of an hour, then an hour of constant ones."""
GAP_MAX = 40
"""Rounds; a lone instance outweighs six that are served one a round long before."""


def plans_keep_rules(effort: Effort) -> ClaimEvidence:
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


def queues_are_served(effort: Effort) -> ClaimEvidence:
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
