"""Trimming keeps every rule, is never worse, and sheds what is not needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.first import first_layout
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.solution import LocalProgramme, Rules, Solution, neighbours
from solvers.planners.joint.solve.trim import descend, trim
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from tests.unit.solvers.planners.joint.solve.scenes import BASES, check_layout, scene


def endless() -> Deadline:
    """Ended by work alone."""
    return Deadline(1e9, work_units=10_000)


def sheet_of(problem: JointProblem, layout: Layout) -> Solution:
    """A layout as arrays."""
    return Solution.of_layout(Rules(Judge(problem)), layout)


def roomy(seed: int, basis: str = "device") -> JointProblem:
    """A scene in which everything fits."""
    problem = scene(seed, devices=20, basis=basis)
    return replace(problem, workloads=tuple(replace(item, replicas_max=99) for item in problem.workloads))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("basis", BASES)
def test_keeps_rules_and_is_never_worse(seed: int, basis: str) -> None:
    problem = scene(seed, basis=basis)
    layout = first_layout(problem)
    after = trim(Rules(Judge(problem)), layout, endless())
    check_layout(problem, after)
    assert sheet_of(problem, after).worth() <= sheet_of(problem, layout).worth() + 1e-6


def test_sheds_devices_that_nobody_needs() -> None:
    problem = roomy(1)
    layout = first_layout(problem)
    double = replace(layout, counts=tuple(2 * count for count in layout.counts))
    before, after = sheet_of(problem, double), sheet_of(problem, trim(Rules(Judge(problem)), double, endless()))
    assert after.counts.sum() < before.counts.sum()
    assert after.lacking().sum() <= before.lacking().sum() + 1e-9


def test_by_share_gives_back_what_is_not_needed() -> None:
    problem = roomy(2, basis="share")
    layout = first_layout(problem)
    after = trim(Rules(Judge(problem)), layout, endless())
    assert after.usd_per_h < layout.usd_per_h


def test_nothing_is_done_once_time_is_over() -> None:
    problem = scene(3)
    layout = first_layout(problem)
    over = Deadline(1e9, work_units=0)
    assert sheet_of(problem, trim(Rules(Judge(problem)), layout, over)).worth() == sheet_of(problem, layout).worth()


def test_descent_moves_share_to_who_lacks_it() -> None:
    problem = roomy(5)
    layout = first_layout(problem)
    served = layout.served_rps(problem)
    # Ask a little more than is served of everybody: some share can be moved or taken from what is free.
    asking = replace(
        problem,
        workloads=tuple(
            replace(item, rate_rps=max(float(rps) * 1.01, 1e-3))
            for item, rps in zip(problem.workloads, served, strict=True)
        ),
    )
    before = sheet_of(asking, layout)
    after = descend(before, endless())
    assert before.lacking().sum() > 0
    assert after.worth() < before.worth()
    check_layout(asking, after.layout())


def test_the_relaxed_problem_bounds_the_layout_it_is_around() -> None:
    problem = scene(6)
    solution = sheet_of(problem, first_layout(problem))
    programme = LocalProgramme(solution, (10,))
    assert programme.solve(primal=True)
    assert programme.value <= solution.worth() + 1e-6


def test_neighbours_take_nobody_new_and_keep_to_steps() -> None:
    problem = replace(scene(7), share_step_pct=5)
    rows = sheet_of(problem, first_layout(problem)).judged.rows
    found, parent = neighbours(problem, rows, (10, 3))
    assert len(found) > len(rows)
    for row, origin in zip(range(len(found)), parent.tolist(), strict=True):
        held = set(found.variants[row][found.shares_pct[row] > 0].tolist())
        assert held <= set(rows.variants[origin].tolist())
    assert np.all(found.shares_pct % 5 == 0)
