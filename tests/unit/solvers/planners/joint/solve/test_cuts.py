"""Cuts forbid parts of replicas and no whole layout, however much of a demand it leaves unserved."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.instances.family import family_problem
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.generate import singles
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import CUTS, Master, Rows, cut_slack
from solvers.planners.joint.solve.solve import SolveOrder, solve
from tests.unit.solvers.planners.joint.solve.oracle import every_pattern
from tests.unit.solvers.planners.joint.solve.scenes import scene


@pytest.mark.parametrize("seed", range(4))
def test_no_whole_layout_breaks_a_cut(seed: int) -> None:
    problem = scene(seed, services=4)
    rows, rng = Rows(problem), np.random.default_rng(seed)
    work, steps = (item.ravel() for item in np.meshgrid(np.arange(4), np.array(CUTS)))
    rows.cut(work, steps)
    judged = every_pattern(problem, 20)
    columns = rows.columns(judged)
    for devices in (1, 3, 10):
        counts = np.bincount(rng.integers(0, len(judged), devices), minlength=len(judged))
        owed = columns.value * np.repeat(counts, np.diff(columns.start))
        done = np.bincount(columns.row, weights=owed, minlength=rows.count)
        unserved = np.maximum(0.0, 1 - done[:4])
        assert (done[rows.base :] + unserved[work] * cut_slack(steps) >= steps + 1 - 1e-6).all()


def test_a_relaxed_optimum_breaks_cuts_and_costs_more_with_them() -> None:
    problem = scene(1, services=6)
    master = Master(problem, Judge(problem))
    master.offer(singles(problem, master.width))
    before = master.programme.solve()
    assert before is not None
    added = master.tighten(before)
    assert added > 0
    after = master.programme.solve(primal=False)
    assert after is not None
    assert len(after.row_duals) == len(before.row_duals) + added
    assert after.value > before.value
    values = master.columns.cost @ after.values
    assert values == pytest.approx(after.value, rel=1e-6)


def test_counted_work_ends_a_solve_soon_after_its_budget() -> None:
    deadline = Deadline(1e9, 400)
    solve(family_problem(40, 12, 1), SolveOrder(), deadline)
    assert deadline.left_part < 0.2
    assert deadline._spent < 600
