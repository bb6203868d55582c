"""The knapsack is exact, and pricing finds what is worth adding."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.generate import Pace, generate
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.pricing import Pricing, knapsack, levels_of, tables_of
from tests.unit.solvers.planners.joint.solve.oracle import every_pattern
from tests.unit.solvers.planners.joint.solve.scenes import scene

WEIGHT = np.array([1, 2, 4])


@pytest.mark.parametrize("seed", range(5))
def test_the_knapsack_finds_the_best_choice_of_every_class(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = rng.normal(0.5, 1.0, (3, 5, 3)).astype(np.float32)
    clients = np.array([1, 2, 5])
    best, place, option = knapsack(value, WEIGHT, 6, clients)
    for row in range(3):
        assert best[row] == pytest.approx(_by_hand(value[row], 6, int(clients[row])), abs=1e-5)
        chosen = place[row] >= 0
        assert len(set(place[row][chosen].tolist())) == chosen.sum() <= clients[row]
        assert WEIGHT[option[row][chosen]].sum() <= 6
        assert value[row, place[row][chosen], option[row][chosen]].sum() == pytest.approx(best[row], abs=1e-5)


def _by_hand(value: np.ndarray[tuple[int, ...], np.dtype[np.float32]], units: int, clients: int) -> float:
    best = 0.0
    for choice in product(range(-1, 3), repeat=len(value)):
        taken = [(item, option) for item, option in enumerate(choice) if option >= 0]
        if len(taken) <= clients and sum(int(WEIGHT[option]) for _, option in taken) <= units:
            best = max(best, float(sum(value[item, option] for item, option in taken)))
    return best


def test_pricing_until_nothing_is_found_reaches_the_relaxed_optimum_of_all_patterns() -> None:
    reached, best = [], []
    for seed in range(4):
        problem = scene(seed, services=4)
        judge = Judge(problem)
        master = Master(problem, judge)
        tables = tables_of(problem, judge, levels_of(problem, master.width))
        pricing = Pricing(problem, tables, master.rows, master.width)
        relaxation = generate(master, pricing, Deadline(1e9), Pace())
        assert relaxation is not None
        solved = relaxation.best
        reached.append(solved.value)
        master.offer(every_pattern(problem, 20).rows)
        everything = master.programme.solve()
        assert everything is not None
        best.append(everything.value)
    assert np.array(reached) == pytest.approx(best, rel=0.02)
