"""HiGHS through arrays: linear and mixed-integer programmes, and a linear master that grows by columns.

Nothing is built expression by expression, and no status is called more than HiGHS proved. Work is counted in
branch-and-bound nodes for integer programmes and in simplex iterations for linear ones; the clock ends what the work
does not, for a node may take long. `ColumnMaster` is the growing programme of column generation: rows are given
once, columns are added and their bounds changed, and every solve starts from the basis of the last one. It answers None
where HiGHS proved nothing (a limit, an error). Presolve stays off there, because it would throw the basis away.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.base import EngineAnswer, EngineStatus, Limits, Program
from solvers.engines.judgement import (
    LibraryClaim,
    refuse_nonsense,
    settled_early,
    told_apart,
    verdict,
    weak_bound,
    whole_sides,
)
from solvers.errors import EngineError

_BY_COLUMN, _MINIMISE = 1, 1
_STATUS = highspy.HighsModelStatus
STATUSES = {
    _STATUS.kOptimal: EngineStatus.OPTIMAL,
    _STATUS.kModelEmpty: EngineStatus.OPTIMAL,
    _STATUS.kInfeasible: EngineStatus.INFEASIBLE,
    _STATUS.kUnbounded: EngineStatus.UNBOUNDED,
    _STATUS.kUnboundedOrInfeasible: EngineStatus.UNBOUNDED,
    _STATUS.kTimeLimit: EngineStatus.NO_SOLUTION,
    _STATUS.kIterationLimit: EngineStatus.NO_SOLUTION,
    _STATUS.kSolutionLimit: EngineStatus.NO_SOLUTION,
    _STATUS.kMemoryLimit: EngineStatus.NO_SOLUTION,
    _STATUS.kObjectiveBound: EngineStatus.NO_SOLUTION,
    _STATUS.kObjectiveTarget: EngineStatus.NO_SOLUTION,
    _STATUS.kInterrupt: EngineStatus.NO_SOLUTION,
    _STATUS.kHighsInterrupt: EngineStatus.NO_SOLUTION,
    _STATUS.kUnknown: EngineStatus.NO_SOLUTION,
    _STATUS.kNotset: EngineStatus.FAILED,
    _STATUS.kLoadError: EngineStatus.FAILED,
    _STATUS.kModelError: EngineStatus.FAILED,
    _STATUS.kPresolveError: EngineStatus.FAILED,
    _STATUS.kSolveError: EngineStatus.FAILED,
    _STATUS.kPostsolveError: EngineStatus.FAILED,
}
"""Every status HiGHS has, as what it means without sound values; what a limit stopped has none yet."""


class _Quiet:
    """Leads what C's `printf` writes to nowhere while anybody is inside: HiGHS 1.12 tells there of a repair
    (`tmpSolver.run();`), whatever its options say. Descriptors stay as they are, and Python writes to those itself.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        library = ctypes.CDLL(None)
        library.fopen.restype = ctypes.c_void_p
        try:
            self._stream = ctypes.c_void_p.in_dll(library, "stdout")
        except ValueError:
            # A C library that names it otherwise.
            self._stream = ctypes.c_void_p()
        self._spoken = self._stream.value
        self._nowhere = library.fopen(os.devnull.encode(), b"we") or self._spoken

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._spoken, self._stream.value = self._stream.value, self._nowhere
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._stream.value = self._spoken


_QUIET = _Quiet()


class Highs:
    name = "highs"

    def solve(self, program: Program, limits: Limits, hint: Floats | None = None) -> EngineAnswer:
        """Answer within the limits. Raises EngineError for nonsense."""
        refuse_nonsense(program, self.name)
        early = settled_early(program)
        if early is not None:
            return early
        claim = _claim(program, limits, hint)
        if claim.otherwise is EngineStatus.UNBOUNDED:
            claim = told_apart(program, claim, lambda anything: _claim(anything, limits, None))
        return verdict(program, limits, claim, hint, lambda rest: self.solve(rest, limits))


def _claim(program: Program, limits: Limits, hint: Floats | None) -> LibraryClaim:
    solver = highspy.Highs()
    mixed = bool(program.integer.any())
    for name, value in _options(limits, mixed).items():
        solver.setOptionValue(name, value)
    _load(solver, program)
    if hint is not None and mixed and len(hint) == program.columns:
        start = highspy.HighsSolution()
        start.col_value = list(np.where(program.integer, np.rint(hint), hint))
        solver.setSolution(start)
    with _QUIET:
        status = solver.run()
    if status == highspy.HighsStatus.kError:
        return LibraryClaim(otherwise=EngineStatus.FAILED, note="HiGHS broke off with an error")
    return _heard(solver, program, mixed)


def _options(limits: Limits, mixed: bool) -> dict[str, bool | int | float | str]:
    options: dict[str, bool | int | float | str] = {
        "output_flag": False,
        "log_to_console": False,
        "random_seed": limits.seed,
        "mip_rel_gap": limits.gap,
        "parallel": "on" if limits.threads > 1 else "off",
    }
    if not limits.within:
        names = ("root_reduced_cost", "rins", "feasibility_jump")
        options |= {f"mip_heuristic_run_{name}": False for name in names} | {"mip_allow_restart": False}
    if limits.clock_s < math.inf:
        options["time_limit"] = limits.clock_s
    if limits.work is not None:
        options["mip_max_nodes" if mixed else "simplex_iteration_limit"] = max(0, int(limits.work))
    return options


# highspy ships no types: a solver is Any, here and nowhere else.
def _load(solver: Any, program: Program) -> None:
    lower, upper = whole_sides(program, program.lower, program.upper)
    status = solver.passModel(
        program.columns,
        program.rows,
        len(program.value),
        _BY_COLUMN,
        _MINIMISE,
        program.offset,
        np.ascontiguousarray(program.cost, dtype=np.float64),
        np.ascontiguousarray(lower, dtype=np.float64),
        np.ascontiguousarray(upper, dtype=np.float64),
        np.ascontiguousarray(program.row_lower, dtype=np.float64),
        np.ascontiguousarray(program.row_upper, dtype=np.float64),
        np.ascontiguousarray(program.start, dtype=np.int32),
        np.ascontiguousarray(program.row, dtype=np.int32),
        np.ascontiguousarray(program.value, dtype=np.float64),
        np.ascontiguousarray(program.integer, dtype=np.int32),
    )
    if status == highspy.HighsStatus.kError:
        raise EngineError("HiGHS does not take the programme", engine="highs")


def _heard(solver: Any, program: Program, mixed: bool) -> LibraryClaim:
    status = solver.getModelStatus()
    info = solver.getInfo()
    otherwise = STATUSES.get(status, EngineStatus.FAILED)
    solution = solver.getSolution()
    has_values = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = np.array(solution.col_value, dtype=np.float64) if has_values else None
    if otherwise in (EngineStatus.INFEASIBLE, EngineStatus.UNBOUNDED):
        values = None
    row_duals = reduced = None
    bound = float(info.mip_dual_bound) if mixed else float("-inf")
    if not mixed and solution.dual_valid:
        row_duals = np.array(solution.row_dual, dtype=np.float64)
        reduced = np.array(solution.col_dual, dtype=np.float64)
        optimal = otherwise is EngineStatus.OPTIMAL
        bound = float(info.objective_function_value) if optimal else weak_bound(program, row_duals)
    return LibraryClaim(
        otherwise=otherwise,
        values=values,
        bound=bound if np.isfinite(bound) else float("-inf"),
        row_duals=row_duals,
        reduced_costs=reduced,
        note="" if otherwise is EngineStatus.OPTIMAL else solver.modelStatusToString(status),
        work=float(max(0, info.mip_node_count) if mixed else max(0, info.simplex_iteration_count)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns from 0 upwards: cost, upper bounds, and entries as in CSC (start has one element more than there are
    columns).
    """

    cost: Floats
    upper: Floats
    start: Whole
    row: Whole
    value: Floats

    def __len__(self) -> int:
        return len(self.cost)

    @staticmethod
    def of(cost: Floats, *, column: Whole, row: Whole, value: Floats, upper: Floats | None = None) -> Columns:
        """From entries in any order; those of one place are added up. `upper` None: without end."""
        order = np.lexsort((row, column))
        column, row, value = column[order], row[order], value[order]
        first = np.flatnonzero((np.diff(row, prepend=-1) != 0) | (np.diff(column, prepend=-1) != 0))
        if len(first) < len(row):
            column, row, value = column[first], row[first], np.add.reduceat(value, first)
        return Columns(
            cost=cost,
            upper=np.full(len(cost), np.inf) if upper is None else upper,
            start=np.searchsorted(column, np.arange(len(cost) + 1)),
            row=row,
            value=value,
        )

    @staticmethod
    def joined(parts: Sequence[Columns]) -> Columns:
        """One after the other; at least one."""
        ends = np.cumsum([0, *(len(part.value) for part in parts)])
        starts = [part.start[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
        return Columns(
            cost=np.concatenate([part.cost for part in parts]),
            upper=np.concatenate([part.upper for part in parts]),
            start=np.concatenate([*starts, ends[-1:]]),
            row=np.concatenate([part.row for part in parts]),
            value=np.concatenate([part.value for part in parts]),
        )

    def and_in(self, *, column: Whole, row: Whole, value: Floats) -> Columns:
        """The same with further entries."""
        return Columns.of(
            self.cost,
            column=np.concatenate([self.number, column]),
            row=np.concatenate([self.row, row]),
            value=np.concatenate([self.value, value]),
            upper=self.upper,
        )

    def take(self, chosen: Whole) -> Columns:
        """Some of them, in the order asked for."""
        sizes = np.diff(self.start)[chosen]
        start = np.concatenate([[0], np.cumsum(sizes)])
        entries = np.repeat(self.start[:-1][chosen] - start[:-1], sizes) + np.arange(start[-1])
        return Columns(
            cost=self.cost[chosen],
            upper=self.upper[chosen],
            start=start,
            row=self.row[entries],
            value=self.value[entries],
        )

    @property
    def number(self) -> Whole:
        """Of every entry: its column."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    def reduced(self, duals: Floats) -> Floats:
        """What each costs beyond what it is worth at these prices of rows."""
        worth = np.bincount(self.number, weights=self.value * duals[self.row], minlength=len(self))
        return np.asarray(self.cost - worth)

    def activity(self, counts: Floats | Whole, rows: int) -> Floats:
        """What so much of each adds to every row."""
        return np.asarray(np.bincount(self.row, weights=self.value * counts[self.number], minlength=rows))

    def programme(self, integer: Flags, lower: Floats, upper: Floats) -> Program:
        """All of them between the sides of their rows, with what is to be whole."""
        return Program(
            cost=self.cost,
            lower=np.zeros(len(self)),
            upper=self.upper,
            integer=integer,
            start=self.start,
            row=self.row,
            value=self.value,
            row_lower=lower,
            row_upper=upper,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """An optimal basic solution. Duals: change of the optimum when the row's right-hand side rises by one."""

    value: float
    values: Floats
    row_duals: Floats


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
            np.zeros(len(columns)),
            np.ascontiguousarray(columns.upper, dtype=np.float64),
            len(columns.value),
            np.ascontiguousarray(columns.start[:-1], dtype=np.int32),
            np.ascontiguousarray(columns.row, dtype=np.int32),
            np.ascontiguousarray(columns.value, dtype=np.float64),
        )
        self._believe(status)
        self.columns += len(columns)

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
        self._believe(self._highs.changeRowBounds(row, lower, upper))

    @property
    def begun(self) -> bool:
        """Whether there is a basis to go on from; from none dual simplex is three times as fast on hundreds of rows."""
        return bool(self._highs.getBasis().valid)

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
        solution = highs.getSolution()
        return Relaxed(
            value=float(highs.getInfo().objective_function_value),
            values=np.array(solution.col_value, dtype=np.float64),
            row_duals=np.array(solution.row_dual, dtype=np.float64),
        )

    @staticmethod
    def _believe(status: object) -> None:
        if status == highspy.HighsStatus.kError:
            raise EngineError("HiGHS does not take the columns", engine="highs")
