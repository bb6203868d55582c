"""Cutting GPUs: an A100's ways of being cut, fewest GPUs by trying everything, no plan where nothing fits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from solvers.engines.base import Limits
from solvers.engines.registry import create
from solvers.planners.counting.cuttings import MIG_SIZES, a100_cuttings, cut
from solvers.problems.counts import Cuttings


def test_ways_of_cutting_an_a100() -> None:
    cuttings = {tuple(counts) for counts in a100_cuttings()}
    sizes = {
        tuple(size for size, count in zip(MIG_SIZES, counts, strict=True) for _ in range(count)) for counts in cuttings
    }
    assert {(7,), (3, 4), (3, 3), (1, 2, 4), (1, 1, 1, 4), (2, 2, 3), (1,) * 7, (1, 2, 2, 2)} <= sizes
    assert not any(sum(item) > 7 for item in sizes)
    assert (1, 3, 3) not in sizes, "two instances of 3 take all the memory"


@pytest.mark.parametrize("seed", range(4))
def test_fewest_gpus(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rate = np.sort(rng.uniform(1, 12, (3, 5)), axis=1)
    rate[0, 0] = 0.0
    problem = Cuttings(demand=rng.uniform(3, 10, 3), rate=rate, cuttings=a100_cuttings())
    found = cut(problem, create("highs"), Limits(time_s=10))
    assert found.pieces is not None
    assert found.gpus is not None
    assert problem.feasible(found.pieces, found.gpus)
    assert found.bound == pytest.approx(found.objective)
    assert found.objective == fewest(problem)


def fewest(problem: Cuttings) -> int:
    """Tries every set of GPUs with every way of sharing their pieces out."""
    for gpus in itertools.count(1):
        for chosen in itertools.combinations_with_replacement(range(len(problem.cuttings)), gpus):
            pieces = [
                size for size, count in enumerate(problem.cuttings[list(chosen)].sum(axis=0)) for _ in range(count)
            ]
            if _enough(problem, pieces, problem.demand):
                return gpus
    raise AssertionError


def _enough(problem: Cuttings, pieces: list[int], lacking: np.ndarray) -> bool:
    if (lacking <= 1e-9).all():
        return True
    if not pieces:
        return False
    size, rest = pieces[-1], pieces[:-1]
    tries = [demand for demand in range(len(lacking)) if lacking[demand] > 1e-9 and problem.rate[demand, size] > 0]
    for demand in tries:
        less = lacking.copy()
        less[demand] -= problem.rate[demand, size]
        if _enough(problem, rest, less):
            return True
    return not tries and _enough(problem, rest, lacking)


def test_a_demand_that_no_piece_serves_is_no_plan() -> None:
    problem = Cuttings(demand=np.array([1.0]), rate=np.zeros((1, 5)), cuttings=a100_cuttings())
    found = cut(problem, create("highs"), Limits(time_s=5))
    assert found.pieces is None
    assert found.objective == np.inf
