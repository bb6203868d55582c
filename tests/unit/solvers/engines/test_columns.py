"""A programme that grows column by column has the optimum of the whole one, and says when it has none."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.engines.base import Limits, Program, create
from solvers.engines.highs import ColumnMaster, Columns, Relaxed
from solvers.errors import EngineError

INF = float("inf")


def _columns(cost: list[float], matrix: list[list[float]], upper: float = INF) -> Columns:
    dense = np.array(matrix, dtype=np.float64)
    column, row = np.nonzero(dense)
    return Columns.of(np.array(cost), column=column, row=row, value=dense[column, row], upper=np.full(len(cost), upper))


def _value(relaxed: Relaxed | None) -> float:
    assert relaxed is not None
    return relaxed.value


def test_growing_is_as_good_as_knowing_all_at_once() -> None:
    rng = np.random.default_rng(1)
    rows, batches = 6, 5
    lower, upper = np.full(rows, 1.0), np.full(rows, INF)
    master = ColumnMaster(lower, upper)
    master.add(_columns([10.0] * rows, np.eye(rows).tolist()))
    value, parts = INF, [_columns([10.0] * rows, np.eye(rows).tolist())]
    for _ in range(batches):
        more = _columns(rng.uniform(1, 3, 8).tolist(), rng.uniform(0, 1, (8, rows)).round(2).tolist())
        master.add(more)
        parts.append(more)
        solved = master.solve()
        assert solved is not None
        assert solved.value <= value + 1e-9
        value = solved.value
        assert solved.row_duals @ lower == pytest.approx(value)
    starts = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part.start) for part in parts]))])
    whole = Program(
        cost=np.concatenate([part.cost for part in parts]),
        lower=np.zeros(master.columns),
        upper=np.full(master.columns, INF),
        integer=np.zeros(master.columns, dtype=np.bool_),
        start=starts,
        row=np.concatenate([part.row for part in parts]),
        value=np.concatenate([part.value for part in parts]),
        row_lower=lower,
        row_upper=upper,
    )
    assert create("highs").solve(whole, Limits()).objective == pytest.approx(value)


def test_rows_and_bounds_can_be_changed_later() -> None:
    master = ColumnMaster(np.array([2.0]), np.array([INF]))
    master.add(_columns([1.0, 3.0], [[1.0], [1.0]]))
    assert _value(master.solve()) == pytest.approx(2.0)
    master.add_rows(np.array([1.0]), start=np.array([0, 1]), column=np.array([1]), value=np.ones(1))
    assert _value(master.solve(primal=False)) == pytest.approx(4.0)
    master.bound_row(1, 0.0, 2.0)
    assert _value(master.solve(primal=False)) == pytest.approx(2.0)


def test_no_optimum_is_none_and_nonsense_is_an_error() -> None:
    master = ColumnMaster(np.array([1.0]), np.array([INF]))
    assert master.solve() is None
    master.add(_columns([1.0], [[1.0]], upper=0.5))
    assert master.solve() is None
    wrong = Columns(
        cost=np.ones(1), upper=np.ones(1), start=np.array([0, 1]), row=np.array([7]),
        value=np.ones(1),
    )  # fmt: skip
    with pytest.raises(EngineError):
        master.add(wrong)
