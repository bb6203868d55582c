"""Pairs are found that no single change leads to."""

from __future__ import annotations

import numpy as np

from solvers.engines.base import Program
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.trim import Swaps


def _program(pool: float) -> Program:
    # Two demands; columns 0 and 1 serve one each, columns 2 and 3 serve 0.6 of one and 0.5 of the other.
    return Program(
        cost=np.array([3.0, 3.0, 2.5, 2.0]),
        lower=np.zeros(4),
        upper=np.full(4, np.inf),
        integer=np.ones(4, dtype=np.bool_),
        start=np.array([0, 3, 6, 9, 12]),
        row=np.array([0, 1, 2] * 4),
        value=np.array([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.6, 0.5, 0.0, 0.4, 0.5, 1.0]),
        row_lower=np.array([1.0, 1.0, -np.inf]),
        row_upper=np.array([np.inf, np.inf, pool]),
    )


def test_two_devices_give_way_to_two_cheaper_ones_where_limits_allow() -> None:
    rng = np.random.default_rng(1)
    start = np.array([1.0, 1.0, 0.0, 0.0])
    better = Swaps(_program(pool=1.0)).improve(start, Deadline(1e9, 100), 0.0, rng)
    assert better.tolist() == [0.0, 0.0, 1.0, 1.0]
    without = Swaps(_program(pool=0.5)).improve(start, Deadline(1e9, 100), 0.0, rng)
    assert without.tolist() == [0.0, 0.0, 2.0, 0.0]
    over = Deadline(1e9, 1)
    over.spend()
    assert Swaps(_program(pool=1.0)).improve(start, over, 0.0, rng).tolist() == start.tolist()
