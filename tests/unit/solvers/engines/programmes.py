"""Little programmes that every engine is asked, built from dense rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solvers.domain.arrays import Floats
from solvers.engines.base import Program

INF = float("inf")


def program(
    cost: Sequence[float],
    rows: Sequence[tuple[float, Sequence[float], float]],
    *,
    lower: Sequence[float] | float = 0.0,
    upper: Sequence[float] | float = INF,
    integer: Sequence[bool] | bool = True,
    offset: float = 0.0,
) -> Program:
    """min cost*x + offset with each row (low, coefficients, high)."""
    count = len(cost)
    matrix = np.array([row[1] for row in rows], dtype=np.float64).reshape(len(rows), count)
    entries = [np.flatnonzero(matrix[:, column]) for column in range(count)]
    return Program(
        cost=np.array(cost, dtype=np.float64),
        lower=np.broadcast_to(np.array(lower, dtype=np.float64), count).copy(),
        upper=np.broadcast_to(np.array(upper, dtype=np.float64), count).copy(),
        integer=np.broadcast_to(np.array(integer, dtype=np.bool_), count).copy(),
        start=np.concatenate([[0], np.cumsum([len(item) for item in entries])]).astype(np.int64),
        row=np.concatenate([np.zeros(0), *entries]).astype(np.int64),
        value=np.concatenate([np.zeros(0), *(matrix[item, column] for column, item in enumerate(entries))]),
        row_lower=np.array([row[0] for row in rows], dtype=np.float64),
        row_upper=np.array([row[2] for row in rows], dtype=np.float64),
        offset=offset,
    )


def knapsack() -> Program:
    """Best worth 42 + the offset's sign: items 1 and 2 (weights 4, 5 of 9) beat every other choice."""
    return program([-10, -22, -20, -7], [(-INF, [3, 4, 5, 2], 9)], upper=1.0, offset=100.0)


def hard(count: int = 50, rows: int = 6) -> tuple[Program, Floats]:
    """Knapsacks over each other whose weights are nearly their worth, and a poor solution of them."""
    rng = np.random.default_rng(1)
    weights = rng.integers(10, 99, (rows, count)).astype(np.float64)
    worth = weights.sum(axis=0) + rng.integers(-3, 3, count)
    poor = np.zeros(count)
    poor[:3] = 1
    return program(-worth, [(-INF, row, row.sum() // 2) for row in weights], upper=1.0), poor


def drawn(seed: int, *, mixed: bool = False) -> Program:
    """A small random programme with whole, decimal or awkward coefficients; a third of them infeasible."""
    rng = np.random.default_rng(seed)
    count, rows = int(rng.integers(1, 6)), int(rng.integers(0, 5))
    unit = float(rng.choice([1, 10, 1000, 7]))
    matrix = rng.integers(-5, 9, (rows, count)) * (rng.random((rows, count)) < 0.7) / unit
    low = np.where(rng.random(rows) < 0.4, rng.integers(-6, 8, rows) / unit, -INF)
    high = np.where(rng.random(rows) < 0.6, np.maximum(low, 0) + rng.integers(0, 12, rows) / unit, INF)
    return program(
        (rng.integers(-6, 7, count) * (rng.random(count) < 0.8)).tolist(),
        list(zip(low.tolist(), matrix.tolist(), high.tolist(), strict=True)),
        lower=rng.integers(-3, 2, count).tolist(),
        upper=rng.integers(1, 6, count).tolist(),
        integer=(rng.random(count) < 0.5).tolist() if mixed else True,
        offset=2.5,
    )
