"""No layout is cheaper than the bound, whatever the duals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint.core.bound import Bound, lagrangian
from solvers.planners.joint.core.master import Master
from solvers.planners.joint.core.rows import Rows
from solvers.planners.joint.core.sets import Judge
from tests.unit.solvers.planners.joint.core.oracle import every_pattern, optimum
from tests.unit.solvers.planners.joint.core.scenes import scene

ENDLESS = 1e9


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("looks", [40, 400])
def test_no_pattern_is_worth_more_than_shown_at_any_duals(seed: int, looks: int) -> None:
    problem = scene(seed, services=4, by_share=seed == 3)
    rows, judge, rng = Rows(problem), Judge(problem), np.random.default_rng(seed)
    duals = np.where(np.isfinite(rows.upper), -1.0, 1.0) * rng.uniform(0, 1, rows.count)
    duals[: rows.pool_at] *= 5
    bound = Bound(problem, judge, rows, duals)
    bound.tighten(np.zeros(len(problem.pools)), Deadline(ENDLESS, looks), 0.0)
    sets = every_pattern(problem, 20)
    reduced = rows.reduced(rows.columns(sets, judge.judge(sets)), duals)
    pool = problem.kind_pool[sets.kind]
    best = np.array([-reduced[pool == number].min(initial=0.0) for number in range(len(problem.pools))])
    assert (bound.worth >= best - 1e-9).all()
    assert best.max() > 0


@pytest.mark.parametrize("seed", [0, 3])
def test_the_bound_is_below_the_optimum_and_near_the_relaxed_one(seed: int) -> None:
    problem = scene(seed, services=3, devices=3)
    # A knapsack counts two replicas of one workload twice and knows no foes: true, but far from tight.
    plain = tuple(replace(work, per_device_max=1, avoids=()) for work in problem.workloads)
    problem = replace(problem, workloads=plain)
    judge = Judge(problem)
    master = Master(problem, judge)
    master.offer(every_pattern(problem, 10))
    solved = master.solve()
    assert solved is not None
    bound = Bound(problem, judge, master.rows, solved.row_duals)
    bound.tighten(np.full(len(problem.pools), 1e-3), Deadline(ENDLESS, 500), 0.0)
    value = lagrangian(master.rows, solved.row_duals, bound.worth)
    assert value <= solved.value + 1e-6
    assert value <= optimum(problem, 20) + 1e-6
    assert value >= 0.9 * solved.value


def test_without_a_look_nothing_is_proven() -> None:
    problem = scene(1)
    rows = Rows(problem)
    bound = Bound(problem, Judge(problem), rows, np.zeros(rows.count))
    assert lagrangian(rows, np.zeros(rows.count), bound.worth) == -np.inf
