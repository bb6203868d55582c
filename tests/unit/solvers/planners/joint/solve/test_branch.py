"""Branching proves no more than is true, and nearly all of it."""

from __future__ import annotations

import pytest

from benchmarks.instances.family import family_problem
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.branch import Tree, few_devices
from solvers.planners.joint.solve.first import first_layout
from solvers.planners.joint.solve.generate import Generation, Pace, Pricing, generate, singles
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.solve import SolveOrder, solve
from solvers.problems.joint import JointProblem
from tests.oracle import optimum, worth
from tests.property.tiny import spread, tiny
from tests.unit.solvers.planners.joint.solve.scenes import check_layout

CENT = 1e-5
UNITS = 2000


def grown(problem: JointProblem) -> tuple[Tree, float]:
    """A tree from the first layout, and what it proves."""
    master = Master(problem, Judge(problem))
    master.offer(singles(problem, master.width))
    pricing = Pricing(master.judge, master.rows, master.width)
    relaxation = generate(master, pricing, Deadline(60.0, UNITS), Pace(gap=0.01))
    assert relaxation is not None
    tree = Tree(
        search=Generation(master=master, pricing=pricing, relaxed=relaxation.best),
        best=first_layout(problem),
        worth=lambda layout: layout.judged_usd(problem),
        deadline=Deadline(60.0, UNITS),
        until_part=0.0,
    )
    return tree, tree.run()


@pytest.mark.parametrize("problem", [*map(tiny, (1, 3, 5, 9, 10)), *map(spread, range(4))])
def test_the_truth_is_between_bound_and_layout(problem: JointProblem) -> None:
    tree, bound = grown(problem)
    check_layout(problem, tree.best)
    truth = optimum(problem).usd_per_h
    assert bound <= truth + CENT
    assert bound >= truth * 0.99
    assert truth - CENT <= worth(problem, tree.best) <= truth * 1.003 + CENT


def test_a_few_devices_are_proven() -> None:
    """Before, 5.13 $/h at best, and at most 29 % above the optimum."""
    problem = family_problem(8, 5, 3)
    assert few_devices(problem)
    found = solve(problem, SolveOrder(seed=1), Deadline(600.0, 1500))
    check_layout(problem, found)
    assert found.bound_usd_per_h is not None
    assert found.value(problem) <= 4.45
    assert found.value(problem) <= found.bound_usd_per_h * 1.004
