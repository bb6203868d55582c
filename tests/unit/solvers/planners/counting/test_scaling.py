"""HetSev's programme on random cases: no worse than one type, the same by all engines, equal to trying everything."""

from __future__ import annotations

import numpy as np
import pytest

from lab.claims.hetsev.rules import WorkedCase, best_of_all, random_problem, worked
from solvers.engines.base import Limits, create
from solvers.planners.counting.scaling import (
    CountScaling,
    Direction,
    scale,
    scale_one_type,
    scale_type_by_type,
    shrink_by_one,
)

ENGINES = ("highs", "cbc", "cp-sat")


def test_it_is_never_worse_than_one_type() -> None:
    rng, engine, compared = np.random.default_rng(11), create("highs"), 0
    for _ in range(1000):
        problem = random_problem(rng)
        plain = scale_one_type(problem)
        if plain is None or problem.direction is Direction.IN:
            continue
        compared += 1
        change, _ = scale(problem, engine, Limits())
        assert change is not None
        assert problem.objective(change) <= problem.objective(plain) + 1e-6
    assert compared > 200


def test_it_equals_trying_everything() -> None:
    rng, engine, solved = np.random.default_rng(7), create("highs"), 0
    for _ in range(10):
        problem = random_problem(rng)
        best = best_of_all(problem)
        change, _ = scale(problem, engine, Limits())
        assert (change is None) == (best is None)
        if change is not None and best is not None:
            solved += 1
            assert problem.objective(change) == pytest.approx(problem.objective(best), abs=1e-6)
    assert solved >= 3


def test_all_engines_find_the_same_optimum() -> None:
    rng, solved = np.random.default_rng(5), 0
    for _ in range(25):
        problem = random_problem(rng)
        changes = [scale(problem, create(engine), Limits())[0] for engine in ENGINES]
        found = [problem.objective(change) for change in changes if change is not None]
        assert len(found) in (0, len(ENGINES))
        assert not found or max(found) - min(found) <= 1e-6
        solved += bool(found)
    assert solved >= 10


def test_where_no_type_can_do_it_alone_the_plain_rule_takes_one_after_the_other() -> None:
    problem = CountScaling(
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
    more = CountScaling(**{**{name: getattr(problem, name) for name in FIELDS}, "wanted_rps": 5000.0})
    assert tuple(scale_type_by_type(more)) == (3, 1)
    # Alone the first type would be the cheaper one for this (5 against 6): as many as fit of it, then the other.
    less = CountScaling(**{**{name: getattr(problem, name) for name in FIELDS}, "wanted_rps": 450.0})
    assert tuple(scale_type_by_type(less)) == (3, 1)


FIELDS = (
    "usd", "launch_s", "rate_rps", "latency_ms", "needs", "limits", "running", "wanted_rps", "direction"
)  # fmt: skip


def test_the_plain_shrinkage_stops_the_dearest_that_is_dispensable() -> None:
    def stopped(wanted_rps: float) -> tuple[int, ...]:
        case = WorkedCase(wanted_rps, 0.0, 400.0, 64.0, (3, 2), Direction.IN, (0, 0), 0.0)
        return tuple(shrink_by_one(worked(case)))

    assert stopped(600) == (-1, 0)
    assert stopped(900) == (0, -1)
    assert stopped(1080) == (0, 0)
