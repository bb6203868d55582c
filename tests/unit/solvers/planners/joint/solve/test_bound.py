"""No layout is cheaper than the bound, whatever the duals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.bound import Bound, lagrangian, proven, scale_of
from solvers.planners.joint.solve.generate import Generation
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master, Rows
from solvers.planners.joint.solve.pricing import Pricing, levels_of, tables_of
from solvers.problems.joint import JointProblem
from tests.unit.solvers.planners.joint.solve.oracle import every_pattern, optimum
from tests.unit.solvers.planners.joint.solve.scenes import scene

ENDLESS = 1e9


@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.parametrize("units", [20, 60, 500])
def test_no_pattern_is_worth_more_than_shown_at_any_duals(seed: int, units: int) -> None:
    problem = scene(seed, services=4, basis={0: "device", 1: "memory", 3: "share"}[seed])
    rows, judge, rng = Rows(problem), Judge(problem), np.random.default_rng(seed)
    duals = np.where(np.isfinite(rows.upper), -1.0, 1.0) * rng.uniform(0, 1, rows.count)
    duals[: rows.pool_at] *= 5
    shown = Bound(problem, judge, rows).ceilings(duals, 0.001 * scale_of(problem), Deadline(ENDLESS, units), 0.0)
    judged = every_pattern(problem, 20)
    reduced = rows.reduced(rows.columns(judged), duals)
    pool = problem.kind_pool[judged.rows.kind]
    best = np.array([-reduced[pool == number].min(initial=0.0) for number in range(len(problem.pools))])
    assert (shown.worth >= best - 1e-9).all()
    assert best.max() > 0


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_the_bound_is_below_the_optimum_and_near_the_relaxed_one(seed: int) -> None:
    problem = _plain(scene(seed, services=3, devices=3))
    judge = Judge(problem)
    master = Master(problem, judge)
    master.offer(every_pattern(problem, 10).rows)
    solved = master.programme.solve()
    assert solved is not None
    pricing = Pricing(problem, tables_of(problem, judge, levels_of(problem, master.width)), master.rows, master.width)
    proof = proven(Generation(master=master, pricing=pricing, relaxed=solved), Deadline(ENDLESS, 10_000), 0.0)
    assert proof is not None
    assert proof.usd_per_h <= proof.relaxed.value + 1e-6
    assert proof.usd_per_h <= optimum(problem, 20) + 1e-6
    assert proof.usd_per_h >= 0.99 * proof.relaxed.value


def test_more_work_proves_no_less() -> None:
    problem = scene(2, services=5)
    rows, judge = Rows(problem), Judge(problem)
    duals = np.zeros(rows.count)
    duals[: rows.pool_at] = 1.0
    shown = [
        Bound(problem, judge, rows).ceilings(duals, 0.01 * scale_of(problem), Deadline(ENDLESS, units), 0.0).worth
        for units in (30, 100, 400)
    ]
    assert (shown[0] >= shown[1] - 1e-9).all()
    assert (shown[1] >= shown[2] - 1e-9).all()


def test_without_a_look_nothing_is_proven() -> None:
    problem = scene(1)
    rows = Rows(problem)
    shown = Bound(problem, Judge(problem), rows).ceilings(
        np.zeros(rows.count), scale_of(problem), Deadline(ENDLESS, 0), 0.0
    )
    assert lagrangian(rows, np.zeros(rows.count), shown.worth) == -np.inf


def _plain(problem: JointProblem) -> JointProblem:
    """A ceiling counts two replicas of one workload twice and knows no foes: true, but far from tight."""
    return replace(problem, workloads=tuple(replace(work, per_device_max=1, avoids=()) for work in problem.workloads))
