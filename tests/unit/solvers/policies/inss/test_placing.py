"""The knapsack by engines, by trying everything, and by the plain rule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from solvers.engines.base import Limits, create
from solvers.policies.inss.placing import exact, greedy
from solvers.problems.knapsack import Knapsack

TOY = ((0, 30, 1.0, 500), (0, 60, 1.0, 800), (1, 30, 1.9, 180), (1, 60, 1.9, 260), (2, 40, 1.5, 90), (2, 60, 1.5, 140))


def toy(rows: tuple[tuple[float, ...], ...] = TOY, gpus: int = 2) -> Knapsack:
    table = np.repeat(np.array(rows, dtype=np.float64), gpus, axis=0)
    return Knapsack(
        model=table[:, 0].astype(np.int64),
        gpu=np.tile(np.arange(gpus, dtype=np.int64), len(rows)),
        share_pct=table[:, 1],
        memory_mib=table[:, 2],
        throughput_rps=table[:, 3],
        served=np.ones(len(table)),
        wanted=np.ones(3, dtype=np.int64),
        share_room_pct=np.full(gpus, 100.0),
        memory_room_mib=np.array([8.0, 6.0])[:gpus],
    )


def every(problem: Knapsack) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.ones(len(problem), dtype=np.bool_)


@pytest.mark.parametrize("engine", ["highs", "cbc", "cp-sat"])
def test_the_toy_has_its_best(engine: str) -> None:
    problem = toy()
    chosen = exact(problem, every(problem), create(engine), Limits())
    assert chosen is not None
    assert problem.capacity_rps(chosen) == 1150.0
    assert problem.feasible(chosen)


def test_no_choice_of_all_is_worth_more() -> None:
    problem = toy()
    choices = (np.array(flags) for flags in itertools.product((False, True), repeat=len(problem)))
    best = max(problem.worth[flags].sum() for flags in choices if problem.feasible(flags))
    chosen = exact(problem, every(problem), create("highs"), Limits())
    assert chosen is not None
    assert problem.worth[chosen].sum() == pytest.approx(best)


def test_the_plain_rule_keeps_every_rule_and_takes_struck_columns_never() -> None:
    problem = toy()
    allowed = every(problem)
    allowed[:4] = False
    chosen = greedy(problem, allowed)
    assert problem.feasible(chosen)
    assert not chosen[:4].any()
    assert chosen.sum() == 2


def test_a_replica_served_comes_before_throughput() -> None:
    problem = toy(gpus=1)
    chosen = exact(problem, every(problem), create("highs"), Limits())
    assert chosen is not None
    assert sorted(problem.model[chosen]) == [0, 1, 2]
