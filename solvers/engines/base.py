"""The one contract for every engine: a programme as sparse arrays goes in, a status with what is proven comes out.

Owns the programme and the answer. Traps it exists to close: a limit is not a solution, infeasible is a status and never
a huge number, a bound is stated even where the search was cut off, values of integer columns come back rounded and
feasible or not at all. It refuses to know what a programme is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole


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
        """How many variables."""
        return len(self.cost)

    @property
    def rows(self) -> int:
        """How many constraints."""
        return len(self.row_lower)

    def activity(self, values: Floats) -> Floats:
        """A x."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop: by time, by work where the engine counts it, by gap (fraction of the objective)."""

    time_s: float = 60.0
    work: float | None = None
    gap: float = 0.0
    threads: int = 1
    seed: int = 1


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
    """What callers hold."""

    @property
    def name(self) -> str:
        """As in the registry."""
        ...

    def solve(self, program: Program, limits: Limits, hint: Floats | None = None) -> EngineAnswer:
        """Answer within the limits. Never raises for what a status can say."""
        ...
