"""The one contract for every engine: a programme as sparse arrays goes in, a status with what is proven comes out.

Traps it exists to close: a limit is not a solution, infeasible is a status and never a huge number, a bound is stated
even where the search was cut off, values of integer columns come back rounded and feasible or not at all. Engines are
made by name, and their libraries imported when first asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Protocol, cast

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.errors import EngineError


class EngineStatus(StrEnum):
    """What an answer is worth."""

    OPTIMAL = "optimal"
    """Proven best within the asked gap."""
    FEASIBLE = "feasible"
    """A solution that a limit kept from being proven best."""
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    NO_SOLUTION = "no_solution"
    """A limit came before any solution: nothing is known but the bound."""
    FAILED = "failed"
    """The engine gave up; `note` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """min cost*x with row_lower <= A x <= row_upper and lower <= x <= upper; A by columns (start, row, value as in
    CSC). Infinite bounds are `inf`.
    """

    cost: Floats
    lower: Floats
    upper: Floats
    integer: Flags
    start: Whole
    """Length: columns + 1."""
    row: Whole
    value: Floats
    row_lower: Floats
    row_upper: Floats
    offset: float = 0.0

    @property
    def columns(self) -> int:
        return len(self.cost)

    @property
    def rows(self) -> int:
        return len(self.row_lower)

    def activity(self, values: Floats) -> Floats:
        column = np.repeat(np.arange(self.columns), np.diff(self.start))
        products = self.value * values[column]
        return np.asarray(np.bincount(self.row, weights=products, minlength=self.rows), dtype=np.float64)

    def violation(self, values: Floats) -> float:
        """The worst violation of any bound or row, each row by its own scale."""
        if not self.columns:
            return 0.0
        activity = self.activity(values)
        column = np.repeat(np.arange(self.columns), np.diff(self.start))
        scale = np.maximum(1.0, np.bincount(self.row, weights=np.abs(self.value * values[column]), minlength=self.rows))
        rows = np.maximum(self.row_lower - activity, activity - self.row_upper) / scale
        bounds = np.maximum(self.lower - values, values - self.upper)
        return float(max(rows.max(initial=0.0), bounds.max(initial=0.0), 0.0))


TIME_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop: by time, by work where the engine counts it, by gap (fraction of the objective). Where the work
    ends first, equal inputs end alike. `within`: whether it may solve smaller programmes in a node, whose work is not
    counted.
    """

    time_s: float | None = None
    """None: a minute, or as long as the counted work takes."""
    work: float | None = None
    gap: float = 0.0
    threads: int = 1
    seed: int = 1
    within: bool = True

    @property
    def clock_s(self) -> float:
        """Seconds on the clock; infinite where counted work alone ends it."""
        if self.time_s is not None:
            return max(0.0, self.time_s)
        return math.inf if self.work is not None else TIME_S


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """What came out. `values` None unless the status is OPTIMAL or FEASIBLE; `bound` is -inf when nothing is proven."""

    status: EngineStatus
    values: Floats | None = None
    objective: float = float("inf")
    bound: float = float("-inf")
    row_duals: Floats | None = None
    """$ per unit of the row's right-hand side: the change of the optimum when the binding side rises by one."""
    reduced_costs: Floats | None = None
    note: str = ""
    work: float = 0.0

    @property
    def gap(self) -> float:
        """(objective - bound) / |objective|; inf without both."""
        if not np.isfinite(self.objective) or not np.isfinite(self.bound):
            return float("inf")
        return max(0.0, (self.objective - self.bound) / max(abs(self.objective), 1e-12))


class Engine(Protocol):
    @property
    def name(self) -> str:
        """As in the registry."""
        ...

    def solve(self, program: Program, limits: Limits, hint: Floats | None = None) -> EngineAnswer:
        """Answer within the limits. Never raises for what a status can say."""
        ...


@dataclass(slots=True)
class ProgrammeRows:
    """A programme written row by row, in any order, and turned into columns at once."""

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


_FACTORIES = {
    "highs": ("solvers.engines.highs", "Highs"),
    "cp-sat": ("solvers.engines.cpsat", "CpSat"),
    "cbc": ("solvers.engines.cbc", "Cbc"),
}


def names() -> tuple[str, ...]:
    return tuple(sorted(_FACTORIES))


def create(name: str) -> Engine:
    """An engine by name. Raises EngineError for an unknown name."""
    if name not in _FACTORIES:
        raise EngineError(f"no engine is called {name}", engine=name)
    module, factory = _FACTORIES[name]
    return cast("Engine", getattr(import_module(module), factory)())
