"""Programmes written row by row, in any order, and turned into columns at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.base import Program


@dataclass(slots=True)
class ProgrammeRows:
    """A programme being written."""

    _cost: list[Floats] = field(default_factory=list)
    _lower: list[Floats] = field(default_factory=list)
    _upper: list[Floats] = field(default_factory=list)
    _integer: list[Flags] = field(default_factory=list)
    _sides: list[tuple[Floats, Floats]] = field(default_factory=list)
    _entries: list[tuple[Whole, Whole, Floats]] = field(default_factory=list)
    columns: int = 0
    rows: int = 0

    def add_columns(self, cost: Floats, upper: Floats, *, integer: bool = True) -> Whole:
        """Columns from 0 to `upper`; their numbers."""
        cost = np.atleast_1d(np.asarray(cost, dtype=np.float64))
        self._cost.append(cost)
        self._lower.append(np.zeros(len(cost)))
        self._upper.append(np.broadcast_to(np.asarray(upper, dtype=np.float64), cost.shape))
        self._integer.append(np.full(len(cost), integer))
        self.columns += len(cost)
        return np.arange(self.columns - len(cost), self.columns)

    def add_rows(self, lower: Floats, upper: Floats) -> Whole:
        """Rows without entries; their numbers."""
        lower, upper = np.broadcast_arrays(np.atleast_1d(lower).astype(np.float64), np.atleast_1d(upper))
        self._sides.append((lower, np.asarray(upper, dtype=np.float64)))
        self.rows += len(lower)
        return np.arange(self.rows - len(lower), self.rows)

    def enter(self, row: Whole, column: Whole, value: Floats | float) -> None:
        """Entries of the matrix (arrays broadcast against each other); entries of one place must come once."""
        rows, columns, values = np.broadcast_arrays(row, column, np.asarray(value, dtype=np.float64))
        self._entries.append((rows.ravel(), columns.ravel(), values.ravel()))

    def program(self, offset: float = 0.0) -> Program:
        """All of it."""
        none = np.zeros(0, dtype=np.int64)
        row = np.concatenate([none, *(rows for rows, _, _ in self._entries)])
        column = np.concatenate([none, *(columns for _, columns, _ in self._entries)])
        value = np.concatenate([np.zeros(0), *(values for _, _, values in self._entries)])
        order = np.lexsort((row, column))
        counts = np.bincount(column, minlength=self.columns)
        return Program(
            cost=np.concatenate([np.zeros(0), *self._cost]),
            lower=np.concatenate([np.zeros(0), *self._lower]),
            upper=np.concatenate([np.zeros(0), *self._upper]),
            integer=np.concatenate([np.zeros(0, dtype=bool), *self._integer]),
            start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            row=row[order].astype(np.int64),
            value=value[order],
            row_lower=np.concatenate([lower for lower, _ in self._sides]),
            row_upper=np.concatenate([upper for _, upper in self._sides]),
            offset=offset,
        )
