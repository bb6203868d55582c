"""Laws of the joint solve on problems so small that the truth is known: see `tests.oracle`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint.core.first import first_layout
from solvers.planners.joint.core.order import SolveOrder
from solvers.planners.joint.core.solve import solve
from solvers.problems.joint import JointProblem
from solvers.problems.layout import Layout
from tests.oracle import Optimum, optimum, worth
from tests.property.tiny import permuted, tiny
from tests.unit.solvers.planners.joint.core.scenes import check_layout

SEEDS = range(16)
WORK_UNITS = 2000
CENT = 1e-5
"""$/h that rounding may make out of equal answers."""


def answer(problem: JointProblem, seed: int = 1, work_units: int = WORK_UNITS) -> Layout:
    layout = solve(problem, SolveOrder(gap=0.0, seed=seed), Deadline(60.0, work_units=work_units))
    check_layout(problem, layout)
    return layout


@lru_cache(maxsize=64)
def truth(seed: int) -> Optimum:
    return optimum(tiny(seed))


def roomier(problem: JointProblem) -> JointProblem:
    """One device more of everything, and the watts for it."""
    return replace(
        problem,
        pools=tuple(replace(pool, devices=pool.devices + 1) for pool in problem.pools),
        caps=tuple(
            replace(
                cap,
                limit_w=cap.limit_w + sum(pool.limit_w for pool in problem.pools),
                devices=tuple(inside + 1 for inside in cap.devices),
            )
            for cap in problem.caps
        ),
    )


def looser(problem: JointProblem) -> dict[str, JointProblem]:
    """The same problem with one rule less or one limit wider."""
    works = problem.workloads
    return {
        "caps": replace(problem, caps=()),
        "quotas": replace(problem, quotas=()),
        "budgets": replace(problem, workloads=tuple(replace(work, budget_usd_per_h=float("inf")) for work in works)),
        "promises": replace(problem, workloads=tuple(replace(work, limit_ms=2 * work.limit_ms) for work in works)),
        "replicas": replace(problem, workloads=tuple(replace(work, replicas_max=9, replicas_min=0) for work in works)),
        "foes": replace(problem, workloads=tuple(replace(work, avoids=(), dedicated=False) for work in works)),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_between_the_truth_and_the_first_answer(seed: int) -> None:
    problem = tiny(seed)
    found = worth(problem, answer(problem))
    assert found <= worth(problem, first_layout(problem)) + CENT
    assert found >= truth(seed).usd_per_h - CENT


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bound_is_below_the_truth(seed: int) -> None:
    layout = answer(tiny(seed))
    assert layout.bound_usd_per_h is not None
    assert layout.bound_usd_per_h <= truth(seed).usd_per_h + CENT


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_the_truth(seed: int) -> None:
    problem = tiny(seed)
    assert worth(problem, answer(problem)) == pytest.approx(truth(seed).usd_per_h, abs=CENT)


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_less_rules_never_cost_more(seed: int) -> None:
    problem = tiny(seed)
    strict = worth(problem, answer(problem))
    for name, free in looser(problem).items():
        assert optimum(free).usd_per_h <= truth(seed).usd_per_h + CENT, name
        assert worth(free, answer(free)) <= strict + CENT, name


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_more_devices_never_cost_more(seed: int) -> None:
    problem = tiny(seed)
    room = roomier(problem)
    assert worth(room, answer(room)) <= worth(problem, answer(problem)) + CENT


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_order_does_not_matter(seed: int) -> None:
    problem = tiny(seed)
    other = permuted(problem, seed)
    assert worth(other, answer(other)) == pytest.approx(worth(problem, answer(problem)), abs=CENT)


@pytest.mark.parametrize("seed", SEEDS[:4])
@pytest.mark.parametrize("work_units", [1, 40, WORK_UNITS])
def test_equal_inputs_end_alike(seed: int, work_units: int) -> None:
    one, other = (answer(tiny(seed), seed=3, work_units=work_units) for _ in range(2))
    assert (one.patterns, one.counts, one.bound_usd_per_h) == (other.patterns, other.counts, other.bound_usd_per_h)


def test_no_time_is_an_answer_too() -> None:
    problem = tiny(0)
    hurried = answer(problem, work_units=0)
    assert worth(problem, hurried) <= worth(problem, first_layout(problem)) + CENT
