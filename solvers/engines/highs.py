"""HiGHS through arrays: linear and mixed-integer programmes with duals, bounds, hints and gaps.

Owns the translation to and from highspy; nothing is built expression by expression. Work is counted in branch-and-bound
nodes for integer programmes and in simplex iterations for linear ones; with a work limit the clock is left alone, so
that equal inputs end alike. It refuses to call a status more than HiGHS proved.
"""

from __future__ import annotations

from typing import Any

import highspy
import numpy as np

from solvers.domain.arrays import Floats
from solvers.engines.base import EngineAnswer, EngineStatus, Limits, Program
from solvers.engines.judgement import LibraryClaim, refuse_nonsense, settled_early, told_apart, verdict, weak_bound
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


class Highs:
    """See the module."""

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
    if solver.run() == highspy.HighsStatus.kError:
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
    if limits.work is None:
        options["time_limit"] = max(0.0, limits.time_s)
    else:
        options["mip_max_nodes" if mixed else "simplex_iteration_limit"] = max(0, int(limits.work))
    return options


# highspy ships no types: a solver is Any, here and nowhere else.
def _load(solver: Any, program: Program) -> None:
    status = solver.passModel(
        program.columns,
        program.rows,
        len(program.value),
        _BY_COLUMN,
        _MINIMISE,
        program.offset,
        np.ascontiguousarray(program.cost, dtype=np.float64),
        np.ascontiguousarray(program.lower, dtype=np.float64),
        np.ascontiguousarray(program.upper, dtype=np.float64),
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
