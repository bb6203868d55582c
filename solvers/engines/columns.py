"""A linear master programme that grows by columns: HiGHS kept warm between rounds, through arrays.

Owns the growing programme of column generation: rows are given once, columns are added and their bounds changed, and
every solve starts from the basis of the last one. It answers with values, duals and the objective, or with None where
HiGHS proved nothing (a limit, an error). Presolve stays off, because it would throw the basis away. It refuses to know
what a column is; integers are the engines' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.errors import EngineError

_BY_COLUMN, _MINIMISE = 1, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns to add: cost, bounds, and entries as in CSC (start has one element more than there are columns)."""

    cost: Floats
    lower: Floats
    upper: Floats
    start: Whole
    row: Whole
    value: Floats

    def __len__(self) -> int:
        return len(self.cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """An optimal basic solution. Duals: change of the optimum when the row's right-hand side rises by one."""

    value: float
    values: Floats
    row_duals: Floats
    iterations: int


class ColumnMaster:
    """min cost*x with row_lower <= A x <= row_upper, columns coming one batch after the other."""

    def __init__(self, row_lower: Floats, row_upper: Floats) -> None:
        # highspy ships no types: the solver is Any, here and nowhere else.
        self._highs: Any = highspy.Highs()
        self.rows = len(row_lower)
        self.columns = 0
        for name, value in (("output_flag", False), ("presolve", "off"), ("parallel", "off"), ("random_seed", 1)):
            self._highs.setOptionValue(name, value)
        empty, none = np.zeros(0), np.zeros(0, dtype=np.int32)
        status = self._highs.passModel(
            0,
            self.rows,
            0,
            _BY_COLUMN,
            _MINIMISE,
            0.0,
            empty,
            empty,
            empty,
            np.ascontiguousarray(row_lower, dtype=np.float64),
            np.ascontiguousarray(row_upper, dtype=np.float64),
            np.zeros(1, dtype=np.int32),
            none,
            empty,
            none,
        )
        self._believe(status)

    def add(self, columns: Columns) -> None:
        """Add columns, non-basic at their lower bounds. Raises EngineError for what HiGHS does not take."""
        if not len(columns):
            return
        status = self._highs.addCols(
            len(columns),
            np.ascontiguousarray(columns.cost, dtype=np.float64),
            np.ascontiguousarray(columns.lower, dtype=np.float64),
            np.ascontiguousarray(columns.upper, dtype=np.float64),
            len(columns.value),
            np.ascontiguousarray(columns.start[:-1], dtype=np.int32),
            np.ascontiguousarray(columns.row, dtype=np.int32),
            np.ascontiguousarray(columns.value, dtype=np.float64),
        )
        self._believe(status)
        self.columns += len(columns)

    def add_row(self, columns: Whole, lower: float, upper: float) -> int:
        """A further row: the sum of some columns between two sides. Returns its number."""
        status = self._highs.addRow(
            lower, upper, len(columns), np.ascontiguousarray(columns, dtype=np.int32), np.ones(len(columns))
        )
        self._believe(status)
        self.rows += 1
        return self.rows - 1

    def add_rows(self, lower: Floats, *, start: Whole, column: Whole, value: Floats) -> None:
        """Further rows at least so high, over columns that are there: start (one element more than rows), column and
        value as in CSR.
        """
        status = self._highs.addRows(
            len(lower),
            np.ascontiguousarray(lower, dtype=np.float64),
            np.full(len(lower), np.inf),
            len(value),
            np.ascontiguousarray(start[:-1], dtype=np.int32),
            np.ascontiguousarray(column, dtype=np.int32),
            np.ascontiguousarray(value, dtype=np.float64),
        )
        self._believe(status)
        self.rows += len(lower)

    def bound_row(self, row: int, lower: float, upper: float) -> None:
        """Replace the sides of a row."""
        self._believe(self._highs.changeRowBounds(row, lower, upper))

    def bound_columns(self, columns: Whole, lower: Floats, upper: Floats) -> None:
        """Replace the bounds of some columns."""
        status = self._highs.changeColsBounds(
            len(columns),
            np.ascontiguousarray(columns, dtype=np.int32),
            np.ascontiguousarray(lower, dtype=np.float64),
            np.ascontiguousarray(upper, dtype=np.float64),
        )
        self._believe(status)

    def solve(self, time_s: float | None = None, *, primal: bool = True) -> Relaxed | None:
        """The optimum from the last basis: primal simplex suits new columns, dual simplex changed sides; None where a
        limit or trouble came first.
        """
        highs = self._highs
        highs.setOptionValue("simplex_strategy", 4 if primal else 1)
        highs.setOptionValue("time_limit", float("inf") if time_s is None else highs.getRunTime() + max(0.0, time_s))
        if highs.run() == highspy.HighsStatus.kError:
            return None
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution, info = highs.getSolution(), highs.getInfo()
        return Relaxed(
            value=float(info.objective_function_value),
            values=np.array(solution.col_value, dtype=np.float64),
            row_duals=np.array(solution.row_dual, dtype=np.float64),
            iterations=int(max(0, info.simplex_iteration_count)),
        )

    @staticmethod
    def _believe(status: object) -> None:
        if status == highspy.HighsStatus.kError:
            raise EngineError("HiGHS does not take the columns", engine="highs")
