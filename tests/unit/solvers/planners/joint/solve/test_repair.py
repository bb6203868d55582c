"""Repair keeps every rule, is never worse, fills what lacks, and ends alike for equal seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.first import first_layout
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.repair import Packs, Wanted, repair, ruin_of
from solvers.planners.joint.solve.solution import Rules, Solution
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from tests.unit.solvers.planners.joint.solve.scenes import BASES, check_layout, scene


def repaired(problem: JointProblem, layout: Layout, trials: int = 12, seed: int = 1) -> Layout:
    """Ended by work alone."""
    return repair(
        Rules(Judge(problem)), layout, None, Deadline(1e9, work_units=25 * trials), np.random.default_rng(seed)
    )


def worth(problem: JointProblem, layout: Layout) -> float:
    """Cost and the price of what lacks."""
    return Solution.of_layout(Rules(Judge(problem)), layout).worth()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("basis", BASES)
def test_keeps_rules_and_is_never_worse(seed: int, basis: str) -> None:
    problem = scene(seed, basis=basis)
    layout = first_layout(problem)
    after = repaired(problem, layout)
    check_layout(problem, after)
    assert worth(problem, after) <= worth(problem, layout) + 1e-6


def test_places_what_lacks_where_there_is_room() -> None:
    problem = scene(1, devices=20)
    problem = replace(
        problem,
        quotas=(),
        workloads=tuple(
            replace(item, replicas_max=99, budget_usd_per_h=np.inf, avoids=()) for item in problem.workloads
        ),
    )
    layout = first_layout(problem)
    less = replace(layout, patterns=layout.patterns[1:], counts=layout.counts[1:])
    assert Solution.of_layout(Rules(Judge(problem)), less).lacking().sum() > 0
    after = repaired(problem, less)
    assert Solution.of_layout(Rules(Judge(problem)), after).lacking().sum() == 0


def test_equal_seeds_end_alike() -> None:
    problem = scene(2)
    layout = first_layout(problem)
    assert repaired(problem, layout, seed=5) == repaired(problem, layout, seed=5)


def test_a_hole_asks_for_what_its_devices_served() -> None:
    problem = scene(3)
    solution = Solution.of_layout(Rules(Judge(problem)), first_layout(problem))
    ruin = ruin_of(solution, np.array([0]), np.zeros(0, dtype=np.int64))
    gone = solution.judged.rows.variants[0]
    assert set(ruin.workloads.tolist()) == set(problem.variant_workload[gone[gone >= 0]].tolist())
    assert ruin.rest.counts.sum() == solution.counts.sum() - 1
    assert np.all(ruin.room >= -1e-9)


def test_packs_hold_only_what_is_wanted_and_fits() -> None:
    problem = scene(4)
    judge = Judge(problem)
    few = np.array([1, 2, 5])
    wanted = Wanted(variants=few, usd=np.ones(len(problem.workloads)), part=np.ones(len(problem.workloads)))
    rows = Packs(judge).draw(wanted, np.zeros(30, dtype=np.int64), np.random.default_rng(1))
    assert set(np.unique(rows.variants)) <= {-1, 1, 2, 5}
    assert np.all(rows.shares_pct.sum(axis=1) <= 100)
    assert rows.shares_pct.sum() > 0


def test_begins_from_nothing() -> None:
    problem = scene(5)
    nothing = Layout(patterns=(), counts=())
    after = repaired(problem, nothing, trials=3)
    check_layout(problem, after)
    assert worth(problem, after) < worth(problem, nothing)
