"""CP-SAT for programmes of whole numbers: good at tight combinatorics, exact in whole arithmetic.

Owns the scaling of coefficients to whole numbers: exactly where a power of ten makes a row whole, else to about
15 digits, with every row loosened and the bound lowered by the stated error, so that a bound is never too high and
verification, not luck, says whether a solution keeps the rows. It refuses continuous columns (discretising them would
change the question) and columns that neither bounds nor rows keep finite. Work is CP-SAT's deterministic time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from solvers.domain.arrays import Floats, Whole
from solvers.engines.base import EngineAnswer, EngineStatus, Limits, Program
from solvers.engines.judgement import LibraryClaim, box_bound, implied_box, refuse_nonsense, settled_early, verdict

STATUSES = {
    cp_model.OPTIMAL: EngineStatus.OPTIMAL,
    cp_model.FEASIBLE: EngineStatus.NO_SOLUTION,
    cp_model.INFEASIBLE: EngineStatus.INFEASIBLE,
    cp_model.UNKNOWN: EngineStatus.NO_SOLUTION,
    cp_model.MODEL_INVALID: EngineStatus.FAILED,
}
"""Every status CP-SAT has, as what it means without sound values; what a limit stopped has none yet."""

_POWERS_OF_TEN = tuple(10.0**power for power in range(10))
_SCALED_MAX = 2.0**50
"""Most that a scaled row may add up to; CP-SAT's own arithmetic ends at 2^63."""
_SIDE_MAX = 2**60
_VALUE_MAX = 2.0**40
"""Columns beyond it count as infinite."""


@dataclass(frozen=True, slots=True)
class ScaledCoefficients:
    """Coefficients as whole numbers, and what that may add to or take from their sum at most, in their own unit."""

    coefficients: Whole
    scale: float
    error: float


class CpSat:
    name = "cp-sat"

    def solve(self, program: Program, limits: Limits, hint: Floats | None = None) -> EngineAnswer:
        """Answer within the limits. Raises EngineError for nonsense."""
        refuse_nonsense(program, self.name)
        early = settled_early(program)
        if early is not None:
            return early
        if not program.integer.all():
            return EngineAnswer(status=EngineStatus.FAILED, note="CP-SAT takes whole numbers only")
        lower, upper = implied_box(program)
        if (lower > upper).any():
            return EngineAnswer(status=EngineStatus.INFEASIBLE, note="rows leave a column no value")
        if not (np.abs(lower) < _VALUE_MAX).all() or not (np.abs(upper) < _VALUE_MAX).all():
            return EngineAnswer(status=EngineStatus.FAILED, note="CP-SAT needs columns that bounds or rows keep finite")
        return verdict(program, limits, _claim(program, (lower, upper), limits, hint), hint)


def scaled(values: Floats, most: Floats) -> ScaledCoefficients:
    """Coefficients of one sum as whole numbers; `most` is the largest |value| of each one's column, at least 1."""
    reach = float(np.abs(values) @ most)
    for scale in _POWERS_OF_TEN:
        whole = np.rint(values * scale)
        if reach * scale <= _SCALED_MAX and np.array_equal(whole / scale, values):
            return ScaledCoefficients(whole.astype(np.int64), scale, 0.0)
    # Nothing exact: as many binary digits as whole arithmetic leaves room for.
    scale = float(2.0 ** np.clip(np.floor(np.log2(_SCALED_MAX / max(reach, 1e-300))), -900, 900))
    whole = np.rint(values * scale)
    return ScaledCoefficients(whole.astype(np.int64), scale, float(np.abs(whole / scale - values) @ most))


def _claim(program: Program, box: tuple[Floats, Floats], limits: Limits, hint: Floats | None) -> LibraryClaim:
    model = cp_model.CpModel()
    lower, upper = (side.astype(np.int64) for side in box)
    columns = [model.new_int_var(int(low), int(high), "") for low, high in zip(lower, upper, strict=True)]
    most = np.maximum(np.maximum(np.abs(box[0]), np.abs(box[1])), 1.0)
    worst = _add_rows(model, columns, program, most)
    aim = scaled(program.cost, most)
    used = np.flatnonzero(aim.coefficients)
    model.minimize(cp_model.LinearExpr.weighted_sum([columns[j] for j in used], aim.coefficients[used].tolist()))
    if hint is not None and len(hint) == program.columns and np.isfinite(hint).all():
        for column, value in zip(columns, np.clip(np.rint(hint), box[0], box[1]), strict=True):
            model.add_hint(column, int(value))
    solver = cp_model.CpSolver()
    _set(solver, limits)
    status = solver.solve(model)
    otherwise = STATUSES.get(status, EngineStatus.FAILED)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    lost = otherwise in (EngineStatus.INFEASIBLE, EngineStatus.FAILED)
    error = max(worst, aim.error)
    return LibraryClaim(
        otherwise=otherwise,
        values=np.array(solver.values(columns), dtype=np.float64) if found else None,
        bound=float("-inf") if lost else _bound(solver, program, box, aim),
        note=f"coefficients scaled with an error of at most {error:.1e}" if error else "",
        work=float(solver.response_proto.deterministic_time),
    )


# OR-Tools ships no types: its objects are Any, here and below.
def _add_rows(model: Any, columns: list[Any], program: Program, most: Floats) -> float:
    """Every row in whole numbers, loosened by its scaling error; the largest of these errors."""
    column = np.repeat(np.arange(program.columns), np.diff(program.start))
    order = np.argsort(program.row, kind="stable")
    ends = np.searchsorted(program.row[order], np.arange(program.rows + 1))
    worst = 0.0
    for row in range(program.rows):
        entries: Whole = order[ends[row] : ends[row + 1]]
        members = column[entries]
        whole = scaled(program.value[entries], most[members])
        worst = max(worst, whole.error)
        low = _side(float(program.row_lower[row]) - whole.error, whole.scale, up=True)
        high = _side(float(program.row_upper[row]) + whole.error, whole.scale, up=False)
        expression = cp_model.LinearExpr.weighted_sum([columns[j] for j in members], whole.coefficients.tolist())
        model.add_linear_constraint(expression, low, high)
    return worst


def _side(value: float, scale: float, *, up: bool) -> int:
    """A row's side in whole numbers, never tighter than it was by more than rounding of the last digit."""
    reach = value * scale
    slack = 1e-9 * max(1.0, abs(reach)) if np.isfinite(reach) else 0.0
    rounded = np.ceil(reach - slack) if up else np.floor(reach + slack)
    return int(np.clip(rounded, -_SIDE_MAX, _SIDE_MAX))


def _set(solver: Any, limits: Limits) -> None:
    chosen = solver.parameters
    chosen.num_workers = max(1, limits.threads)
    chosen.random_seed = limits.seed
    chosen.relative_gap_limit = limits.gap
    if limits.clock_s < math.inf:
        chosen.max_time_in_seconds = limits.clock_s
    if limits.work is not None:
        chosen.max_deterministic_time = max(0.0, limits.work)
        chosen.interleave_search = limits.threads > 1


def _bound(solver: Any, program: Program, box: tuple[Floats, Floats], aim: ScaledCoefficients) -> float:
    """The bound proven. A search cut off before it had any says 0, which is a guess like any other: the box knows."""
    stated = float(solver.best_objective_bound)
    least = box_bound(program, *box)
    if stated == 0.0 and solver.response_proto.status == cp_model.UNKNOWN:
        return least
    return max(least, stated / aim.scale - aim.error + program.offset)
