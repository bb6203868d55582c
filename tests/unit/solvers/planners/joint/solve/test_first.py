"""The first layout keeps every rule, serves what fits, and lets what counts least go without."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from solvers.planners.joint.solve.solve import first_layout
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from tests.unit.solvers.planners.joint.solve.scenes import BASES, check_layout, scene


def lacking(problem: JointProblem, layout: Layout) -> float:
    """Parts of rates and least replicas that lack, in sum."""
    return float((layout.missing(problem) + layout.fewer(problem)).sum())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("basis", BASES)
def test_keeps_every_rule(seed: int, basis: str) -> None:
    problem = scene(seed, basis=basis)
    layout = first_layout(problem)
    check_layout(problem, layout)
    assert len(layout.patterns) > 2


def test_serves_everything_where_there_is_room() -> None:
    problem = scene(1, devices=40)
    free = replace(
        problem,
        workloads=tuple(
            replace(item, budget_usd_per_h=np.inf, replicas_max=1000, avoids=(), dedicated=False)
            for item in problem.workloads
        ),
        quotas=(),
    )
    assert lacking(free, first_layout(free)) == 0


def test_what_counts_least_goes_without() -> None:
    problem = scene(3, services=10, devices=2)
    works = tuple(
        replace(
            item, unserved_usd=10_000.0 if index < 5 else 10.0, replicas_min=0, replicas_max=99, avoids=(),
            budget_usd_per_h=np.inf, dedicated=False, rate_rps=800.0, per_device_max=2,
        )
        for index, item in enumerate(problem.workloads)
    )  # fmt: skip
    tight = replace(problem, workloads=works, quotas=())
    layout = first_layout(tight)
    check_layout(tight, layout)
    part = layout.served_rps(tight) / 800
    assert np.minimum(part, 1)[:5].sum() > np.minimum(part, 1)[5:].sum()


def test_least_replicas_stand_even_without_demand() -> None:
    problem = scene(2, devices=20)
    works = tuple(
        replace(item, rate_rps=0.0, replicas_min=2, replicas_max=9, avoids=(), dedicated=False)
        for item in problem.workloads
    )
    idle = replace(problem, workloads=works)
    layout = first_layout(idle)
    count: Counter[int] = Counter()
    for item, devices in zip(layout.patterns, layout.counts, strict=True):
        for variant in item.variants:
            count[idle.variants[variant].workload] += devices
    check_layout(idle, layout)
    assert [count[number] for number in range(len(works))] == [2] * len(works)


def test_equal_problems_give_equal_layouts() -> None:
    assert first_layout(scene(4)) == first_layout(scene(4))


def test_nothing_to_do_is_an_empty_layout() -> None:
    problem = scene(1)
    works = tuple(replace(item, rate_rps=0.0, replicas_min=0) for item in problem.workloads)
    assert first_layout(replace(problem, workloads=works)).patterns == ()
