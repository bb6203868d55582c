"""What every engine's claim goes through before it becomes an answer: one judgement for all of them.

The traps that solver libraries share. Nonsense (NaN, arrays that do not fit) is refused before a library sees it;
integer columns are rounded and the whole verified again; a rounding that breaks a row is repaired by solving for the
rest with the integers fixed, or it is no solution; "optimal" is never believed but derived from the bound; a feasible
hint is never lost. Engines that count through whole numbers get finite boxes here, by propagation over the rows: what
rows do not bound by themselves stays infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.engines.base import EngineAnswer, EngineStatus, Limits, Program
from solvers.errors import EngineError

ROUNDS = 10
"""Enough for chains of rows seen here; further rounds only tighten."""
ROUNDING = 1e-6
"""Part of a unit by which a computed bound of a whole number may be off."""
FEASIBILITY = 1e-6
"""Violation, each row by its own scale, up to which values count as a solution."""
PROVEN = 1e-6
"""Gap, relative to the objective or absolute below 1, up to which a bound proves a solution best."""
DUAL_TOLERANCE = 1e-7
"""Reduced costs below it count as nought."""

WITH_VALUES = frozenset({EngineStatus.OPTIMAL, EngineStatus.FEASIBLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryClaim:
    """What a library said, in our words: values and bound, or the status that it stopped with instead."""

    otherwise: EngineStatus = EngineStatus.NO_SOLUTION
    """What it comes to if there are no sound values; OPTIMAL where the library promises the best."""
    values: Floats | None = None
    bound: float = float("-inf")
    row_duals: Floats | None = None
    reduced_costs: Floats | None = None
    note: str = ""
    work: float = 0.0


def refuse_nonsense(program: Program, engine: str) -> None:
    """Raise EngineError for what no engine could give a meaning to."""
    lengths = {len(program.cost), len(program.lower), len(program.upper), len(program.integer)}
    fits = (
        len(lengths) == 1
        and len(program.start) == program.columns + 1
        and len(program.row) == len(program.value) == (int(program.start[-1]) if len(program.start) else -1)
        and len(program.row_upper) == program.rows
    )
    if not fits:
        raise EngineError("the programme's arrays do not fit each other", engine=engine)
    if len(program.row) and not (program.row.min() >= 0 and program.row.max() < program.rows):
        raise EngineError("the programme names a row that it does not have", engine=engine)
    if not (np.isfinite(program.cost).all() and np.isfinite(program.value).all() and np.isfinite(program.offset)):
        raise EngineError("costs and coefficients must be finite numbers", engine=engine)
    sides = (program.lower, program.upper, program.row_lower, program.row_upper)
    if any(np.isnan(side).any() for side in sides):
        raise EngineError("bounds must be numbers", engine=engine)
    if any((side == np.inf).any() for side in sides[::2]) or any((side == -np.inf).any() for side in sides[1::2]):
        raise EngineError("a lower bound of inf or an upper bound of -inf leaves no value", engine=engine)


def settled_early(program: Program) -> EngineAnswer | None:
    """The answer where no search is needed: bounds that cross, or no row that limits any column."""
    lower, upper = whole_sides(program, program.lower, program.upper)
    if (lower > upper + FEASIBILITY).any() or (program.row_lower > program.row_upper + FEASIBILITY).any():
        return EngineAnswer(status=EngineStatus.INFEASIBLE, note="bounds cross")
    empty = np.bincount(program.row, weights=program.value != 0, minlength=program.rows) == 0
    if (empty & ((program.row_lower > FEASIBILITY) | (program.row_upper < -FEASIBILITY))).any():
        return EngineAnswer(status=EngineStatus.INFEASIBLE, note="a row without columns needs some")
    sided = np.isfinite(program.row_lower) | np.isfinite(program.row_upper)
    if (sided & ~empty).any():
        return None
    values = np.where(program.cost > 0, lower, np.where(program.cost < 0, upper, np.clip(0.0, lower, upper)))
    if not np.isfinite(values).all():
        return EngineAnswer(status=EngineStatus.UNBOUNDED, note="no row limits a column that pays without end")
    objective = float(program.cost @ values) + program.offset
    linear = not program.integer.any()
    return EngineAnswer(
        status=EngineStatus.OPTIMAL,
        values=values,
        objective=objective,
        bound=objective,
        row_duals=np.zeros(program.rows) if linear else None,
        reduced_costs=program.cost.copy() if linear else None,
    )


def sound(program: Program, values: Floats | None, repair: Callable[[Program], EngineAnswer] | None) -> Floats | None:
    """Values with whole integers that keep every row, the rest solved again where rounding broke one; or None."""
    if values is None or len(values) != program.columns or not np.isfinite(values).all():
        return None
    whole = np.where(program.integer, np.rint(values), values)
    near = np.clip(whole, program.lower, program.upper)
    whole = np.where(program.integer, whole, near)
    if program.violation(whole) <= FEASIBILITY:
        return whole
    if repair is None or program.integer.all() or not program.integer.any():
        return None
    answer = repair(fixed(program, whole))
    return sound(replace(program, integer=np.zeros_like(program.integer)), answer.values, None)


def fixed(program: Program, values: Floats) -> Program:
    """The linear programme that is left when the integers stay where they are."""
    return replace(
        program,
        lower=np.where(program.integer, values, program.lower),
        upper=np.where(program.integer, values, program.upper),
        integer=np.zeros_like(program.integer),
    )


def verdict(
    program: Program,
    limits: Limits,
    claim: LibraryClaim,
    hint: Floats | None = None,
    repair: Callable[[Program], EngineAnswer] | None = None,
) -> EngineAnswer:
    found = sound(program, claim.values, repair)
    notes = [claim.note]
    if claim.values is not None and found is None:
        notes.append("the engine's values do not keep every row once integers are whole")
    best, duals, reduced = found, claim.row_duals, claim.reduced_costs
    if claim.otherwise is not EngineStatus.UNBOUNDED:
        given = sound(program, hint, repair)
        if given is not None and (found is None or _objective(program, given) < _objective(program, found)):
            best, duals, reduced = given, None, None
            notes.append("the hint is the best known")
    bound = claim.bound
    if best is None:
        # "Optimal" without a sound solution is a broken promise; after a limit it only means that there is none yet.
        status = EngineStatus.FAILED if claim.otherwise in WITH_VALUES else claim.otherwise
        bound = float("-inf") if status is EngineStatus.FAILED else bound
        return EngineAnswer(status=status, bound=bound, note=_joined(notes), work=claim.work)
    objective = _objective(program, best)
    if claim.otherwise is EngineStatus.INFEASIBLE and found is None:
        # The library called a programme infeasible that has this solution: nothing it said about bounds counts.
        bound = float("-inf")
        notes.append("the engine wrongly said infeasible")
    bound = min(bound, objective)
    proven = objective - bound <= max(limits.gap * abs(objective), PROVEN * max(1.0, abs(objective)))
    return EngineAnswer(
        status=EngineStatus.OPTIMAL if proven else EngineStatus.FEASIBLE,
        values=best,
        objective=objective,
        bound=bound,
        row_duals=duals,
        reduced_costs=reduced,
        note=_joined(notes),
        work=claim.work,
    )


def told_apart(program: Program, claim: LibraryClaim, again: Callable[[Program], LibraryClaim]) -> LibraryClaim:
    """Libraries say "unbounded" or "infeasible or unbounded" alike; it is unbounded only if any solution exists."""
    anything = again(replace(program, cost=np.zeros(program.columns), offset=0.0))
    if anything.values is not None:
        return replace(claim, otherwise=EngineStatus.UNBOUNDED, values=None, bound=float("-inf"))
    return replace(claim, otherwise=anything.otherwise, values=None, bound=float("-inf"), note=anything.note)


def weak_bound(program: Program, row_duals: Floats) -> float:
    """What any duals prove about a linear programme (weak duality); duals of a side that does not exist count 0."""
    duals = np.where(row_duals > 0, np.where(np.isfinite(program.row_lower), row_duals, 0.0), 0.0)
    duals = duals + np.where(row_duals < 0, np.where(np.isfinite(program.row_upper), row_duals, 0.0), 0.0)
    column = np.repeat(np.arange(program.columns), np.diff(program.start))
    priced = np.bincount(column, weights=program.value * duals[program.row], minlength=program.columns)
    reduced = program.cost - priced
    reduced = np.where(np.abs(reduced) <= DUAL_TOLERANCE, 0.0, reduced)
    sides = np.where(duals > 0, program.row_lower, program.row_upper)
    ends = np.where(reduced > 0, program.lower, program.upper)
    rows = (duals * np.where(duals == 0, 0.0, sides)).sum()
    columns = (reduced * np.where(reduced == 0, 0.0, ends)).sum()
    return float(program.offset + rows + columns)


def _objective(program: Program, values: Floats) -> float:
    return float(program.cost @ values) + program.offset


def _joined(notes: list[str]) -> str:
    return "; ".join(note for note in notes if note)


def implied_box(program: Program) -> tuple[Floats, Floats]:
    """Lower and upper bounds of every column, tightened by the rows; those of whole columns are whole. May cross."""
    column = np.repeat(np.arange(program.columns), np.diff(program.start))
    lower, upper = whole_sides(program, program.lower, program.upper)
    for _ in range(ROUNDS):
        above, below = _implied(program, column, lower, upper)
        new_lower, new_upper = lower.copy(), upper.copy()
        np.maximum.at(new_lower, column, below)
        np.minimum.at(new_upper, column, above)
        new_lower, new_upper = whole_sides(program, new_lower, new_upper)
        if np.array_equal(new_lower, lower) and np.array_equal(new_upper, upper):
            break
        lower, upper = new_lower, new_upper
    return lower, upper


def box_bound(program: Program, lower: Floats, upper: Floats) -> float:
    """The least that the objective can be within a box: a bound that needs no search."""
    ends = np.where(program.cost > 0, lower, upper)
    terms = program.cost * np.where(program.cost == 0, 0.0, ends)
    return float(terms.sum()) + program.offset


def whole_sides(program: Program, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """Bounds, with those of whole columns whole: HiGHS errs where they are not."""
    return (
        np.where(program.integer, np.ceil(lower - ROUNDING), lower),
        np.where(program.integer, np.floor(upper + ROUNDING), upper),
    )


def _implied(program: Program, column: np.ndarray, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
    """Upper and lower bound that each entry's row puts on its column."""
    rising = program.value > 0
    least = program.value * np.where(rising, lower[column], upper[column])
    most = program.value * np.where(rising, upper[column], lower[column])
    room = program.row_upper[program.row] - _others(program, least, -np.inf)
    need = program.row_lower[program.row] - _others(program, most, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_room, by_need = room / program.value, need / program.value
    above = np.where(rising, by_room, by_need)
    below = np.where(rising, by_need, by_room)
    nothing = program.value == 0
    return np.where(nothing, np.inf, above), np.where(nothing, -np.inf, below)


def _others(program: Program, terms: Floats, unknown: float) -> Floats:
    """For each entry, the sum of the other terms of its row; `unknown` where one of them is infinite."""
    finite = np.isfinite(terms)
    known = np.where(finite, terms, 0.0)
    total = np.bincount(program.row, weights=known, minlength=program.rows)
    infinite = np.bincount(program.row, weights=~finite, minlength=program.rows)
    alone = infinite[program.row] - ~finite == 0
    return np.where(alone, total[program.row] - known, unknown)
