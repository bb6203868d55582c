"""Arrays of patterns are judged as `judge` judges one."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.planners.joint.solve.layouts import keys_of
from solvers.planners.joint.solve.sets import Judge, joined, ordered, width_of
from solvers.problems.patterns import judge
from tests.unit.solvers.planners.joint.solve.scenes import BASES, scene


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("basis", BASES)
def test_every_row_is_judged_like_one_pattern(seed: int, basis: str) -> None:
    problem = scene(seed, basis=basis)
    rng = np.random.default_rng(seed)
    rows, width = 400, width_of(problem)
    held = rng.integers(1, 4, rows)
    member = np.where(np.arange(width) < held[:, None], rng.integers(0, len(problem.variants), (rows, width)), -1)
    share = np.where(member >= 0, rng.integers(8, 60, (rows, width)), 0)
    sets = ordered(rng.integers(0, problem.kinds, rows), member, share)
    judged = Judge(problem).judge(sets)
    patterns = [judge(problem, *key) for key in keys_of(sets)]
    assert [pattern is not None for pattern in patterns] == judged.ok.tolist()
    assert 20 < judged.ok.sum() < rows
    for row, pattern in enumerate(patterns):
        if pattern is not None:
            size = len(pattern.variants)
            assert judged.rate[row, :size] == pytest.approx(pattern.capacity_rps)
            assert judged.usd[row] == pytest.approx(pattern.usd_per_h)
            assert judged.draw[row] == pytest.approx(pattern.draw_w)
            assert problem.batches[judged.batch[row, :size]].tolist() == list(pattern.batches)


def test_nothing_is_judged_too() -> None:
    problem = scene(1)
    nothing = joined([], width_of(problem))
    assert len(Judge(problem).judge(nothing).ok) == len(nothing) == 0
