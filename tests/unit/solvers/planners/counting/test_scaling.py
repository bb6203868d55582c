"""AC-HET-01: the worked examples of HetSev's programme, the same by two engines, equal to trying everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from solvers.engines.base import Limits
from solvers.engines.registry import create
from solvers.planners.counting.scaling import scale, scale_one_type, scale_type_by_type, shrink_by_one
from solvers.problems.counts import Direction, Scaling, Whole

ENGINES = ("highs", "cbc", "cp-sat")


def worked(
    wanted: float, *, risk: float, limit_ms: float = 400, total_gb: float = 64, running: tuple[int, int] = (1, 2),
    direction: Direction = Direction.FREE,
) -> Scaling:  # fmt: skip
    return Scaling(
        usd=np.array([0.191 * 4, 0.024 * 4]),
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


CASES = {
    "a": (worked(900, risk=0), (-1, 8), 0.004),
    "a, out": (worked(900, risk=0, direction=Direction.OUT), (0, 5), 0.480),
    "b": (worked(900, risk=0.05), (-1, 8), 0.4648),
    "b, out": (worked(900, risk=0.05, direction=Direction.OUT), (0, 5), 0.768),
    "c": (worked(900, risk=0.05, limit_ms=90), (2, -2), 2.864),
    "c, out": (worked(900, risk=0.05, limit_ms=90, direction=Direction.OUT), (2, 0), 3.056),
    "d": (worked(900, risk=0.05, total_gb=24), (1, 2), 1.8352),
    "d, out": (worked(900, risk=0.05, total_gb=24, direction=Direction.OUT), (1, 2), 1.8352),
    "e": (worked(900 / 0.8, risk=0.05), (-1, 11), 0.9256),
    "e, out": (worked(900 / 0.8, risk=0.05, direction=Direction.OUT), (0, 8), 1.2288),
    "f": (worked(300, risk=0.05, running=(3, 2), direction=Direction.IN), (-2, -2), -1.72),
    "g": (worked(300 / 0.8, risk=0.05, running=(3, 2), direction=Direction.IN), (-2, -1), -1.624),
}
ONE_TYPE = {"a": (0, 5), "b": (0, 5), "c": (2, 0), "d": (2, 0), "e": (0, 8)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_ac_het_01_worked_examples(case: str, engine: str) -> None:
    problem, wanted, objective = CASES[case]
    change, answer = scale(problem, create(engine), Limits())
    assert change is not None
    assert tuple(change) == wanted
    assert problem.objective(change) == pytest.approx(objective, abs=1e-9)
    assert answer.bound == pytest.approx(objective, abs=1e-6)


@pytest.mark.parametrize("case", ONE_TYPE)
def test_ac_het_01_worked_examples_of_the_single_type_rule(case: str) -> None:
    problem = CASES[case][0]
    change = scale_one_type(problem)
    assert change is not None
    assert tuple(change) == ONE_TYPE[case]
    if case == "d":
        assert problem.objective(change) == pytest.approx(3.056)


def anything(rng: np.random.Generator) -> Scaling:
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
        direction=rng.choice([Direction.FREE, Direction.OUT, Direction.IN]),
    )


def tried(problem: Scaling) -> Whole | None:
    """The best of everything that could be."""
    reach = [range(-int(count), 31) for count in problem.running]
    fitting = (np.array(change) for change in itertools.product(*reach))
    return min((change for change in fitting if problem.feasible(change)), key=problem.objective, default=None)


def test_ac_het_01_it_is_never_worse_than_one_type() -> None:
    rng, engine, compared = np.random.default_rng(11), create("highs"), 0
    for _ in range(1000):
        problem = anything(rng)
        plain = scale_one_type(problem)
        if plain is None or problem.direction is Direction.IN:
            continue
        compared += 1
        change, _ = scale(problem, engine, Limits())
        assert change is not None
        assert problem.objective(change) <= problem.objective(plain) + 1e-6
    assert compared > 200


def test_ac_het_01_it_equals_trying_everything() -> None:
    rng, engine, solved = np.random.default_rng(7), create("highs"), 0
    for _ in range(10):
        problem = anything(rng)
        best = tried(problem)
        change, _ = scale(problem, engine, Limits())
        assert (change is None) == (best is None)
        if change is not None and best is not None:
            solved += 1
            assert problem.objective(change) == pytest.approx(problem.objective(best), abs=1e-6)
    assert solved >= 3


def test_ac_het_01_all_engines_find_the_same_optimum() -> None:
    rng, solved = np.random.default_rng(5), 0
    for _ in range(25):
        problem = anything(rng)
        changes = [scale(problem, create(engine), Limits())[0] for engine in ENGINES]
        found = [problem.objective(change) for change in changes if change is not None]
        assert len(found) in (0, len(ENGINES))
        assert not found or max(found) - min(found) <= 1e-6
        solved += bool(found)
    assert solved >= 10


def test_where_no_type_can_do_it_alone_the_plain_rule_takes_one_after_the_other() -> None:
    problem = Scaling(
        usd=np.array([1.0, 3.0]),
        launch_s=np.array([10.0, 10.0]),
        rate_rps=np.array([100.0, 400.0]),
        latency_ms=np.array([10.0, 10.0]),
        needs=np.eye(2),
        limits=np.array([3.0, 1.0]),
        running=np.array([0, 0]),
        wanted_rps=650.0,
        direction=Direction.OUT,
    )
    assert scale_one_type(problem) is None
    assert tuple(scale_type_by_type(problem)) == (3, 1)
    more = Scaling(**{**{name: getattr(problem, name) for name in FIELDS}, "wanted_rps": 5000.0})
    assert tuple(scale_type_by_type(more)) == (3, 1)


FIELDS = (
    "usd", "launch_s", "rate_rps", "latency_ms", "needs", "limits", "running", "wanted_rps", "direction"
)  # fmt: skip


def test_the_plain_shrinkage_stops_the_dearest_that_is_dispensable() -> None:
    assert tuple(shrink_by_one(worked(600, risk=0, running=(3, 2), direction=Direction.IN))) == (-1, 0)
    assert tuple(shrink_by_one(worked(900, risk=0, running=(3, 2), direction=Direction.IN))) == (0, -1)
    assert tuple(shrink_by_one(worked(1080, risk=0, running=(3, 2), direction=Direction.IN))) == (0, 0)
