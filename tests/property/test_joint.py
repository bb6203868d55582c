"""Laws of the joint solve on problems so small that the truth is known: see `tests.oracle`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.solve import SolveOrder, first_layout, solve
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from tests.oracle import Optimum, optimum, worth
from tests.property.tiny import apart, spread, tiniest, tiny
from tests.unit.solvers.planners.joint.solve.scenes import check_layout

pytestmark = pytest.mark.no_cover
"""The same lines over and over, which counting makes half as slow again; other tests cover them."""

SEEDS = range(16)
SPREAD_SEEDS = range(7)
WORK_UNITS = 500
CENT = 1e-5
"""$/h that rounding may make out of equal answers."""


def answer(problem: JointProblem, work_units: int = WORK_UNITS) -> Layout:
    layout = solve(problem, SolveOrder(gap=0.0, seed=1), Deadline(60.0, work_units=work_units))
    check_layout(problem, layout)
    return layout


@lru_cache(maxsize=64)
def answered(seed: int, work_units: int = WORK_UNITS) -> Layout:
    """The answer to a tiny problem, for all the laws that ask for it: equal inputs end alike, or a test below fails."""
    return answer(tiny(seed), work_units)


@lru_cache(maxsize=64)
def truth(seed: int) -> Optimum:
    return optimum(tiny(seed))


@lru_cache(maxsize=64)
def spread_truth(seed: int) -> Optimum:
    return optimum(spread(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_between_the_truth_and_the_first_answer(seed: int) -> None:
    problem = tiny(seed)
    found = worth(problem, answered(seed))
    assert found <= worth(problem, first_layout(problem)) + CENT
    assert found >= truth(seed).usd_per_h - CENT


@pytest.mark.parametrize("seed", SEEDS)
def test_the_relaxed_optimum_is_not_above_the_truth(seed: int) -> None:
    """It would be if pricing missed what pays, as it did for workloads that avoid each other."""
    assert answered(seed).facts["relaxed_usd_per_h"] <= truth(seed).usd_per_h * 1.01


def test_it_is_near_the_truth() -> None:
    problems = {seed: tiny(seed) for seed in SEEDS}
    over = [worth(problem, answered(seed)) / truth(seed).usd_per_h - 1 for seed, problem in problems.items()]
    assert sum(part <= 1e-6 for part in over) >= len(SEEDS) // 2
    assert max(over) <= 0.15


@pytest.mark.parametrize("seed", SPREAD_SEEDS)
def test_failure_domains_and_jobs_are_in_the_programme(seed: int) -> None:
    problem = spread(seed)
    best, found = spread_truth(seed).usd_per_h, answer(problem, 2 * WORK_UNITS)
    assert best - CENT <= worth(problem, found) <= best * 1.005 + CENT
    assert found.bound_usd_per_h is not None
    assert best * 0.98 - CENT <= found.bound_usd_per_h <= best + CENT


def test_domains_and_jobs_make_a_difference() -> None:
    problems = [spread(seed) for seed in SPREAD_SEEDS]
    truths = [spread_truth(seed) for seed in SPREAD_SEEDS]
    ran = [bool(best.layout.served_rps(problem)[2]) for best, problem in zip(truths, problems, strict=True)]
    assert 0 < sum(ran) < len(ran)
    alone = [replace(item, workloads=tuple(replace(w, domains_min=1) for w in item.workloads)) for item in problems]
    pairs = zip(truths, alone, strict=True)
    assert any(best.usd_per_h > optimum(free).usd_per_h + CENT for best, free in pairs)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_memory_is_paid_it_is_the_truth(seed: int) -> None:
    """With least replicas of most, and each batch a choice: a replica more is a small one."""
    problem = apart(seed)
    best = optimum(problem).usd_per_h
    assert best - CENT <= worth(problem, answer(problem, 2 * WORK_UNITS)) <= best * 1.005


@pytest.mark.parametrize("seed", [8, 10, 11, 14])
def test_nobody_is_left_with_fewer_replicas_because_that_is_cheaper(seed: int) -> None:
    problem = tiniest(seed)
    assert worth(problem, answer(problem)) <= optimum(problem).usd_per_h * 1.005


@pytest.mark.parametrize(("seed", "work_units"), [*product(SEEDS[:4], [1, 40]), *product(SEEDS[:2], [WORK_UNITS])])
def test_equal_inputs_end_alike(seed: int, work_units: int) -> None:
    one, other = answered(seed, work_units), answer(tiny(seed), work_units)
    assert (one.patterns, one.counts, one.bound_usd_per_h) == (other.patterns, other.counts, other.bound_usd_per_h)


def test_no_time_is_an_answer_too() -> None:
    problem = tiny(0)
    hurried = answer(problem, work_units=0)
    assert worth(problem, hurried) <= worth(problem, first_layout(problem)) + CENT
