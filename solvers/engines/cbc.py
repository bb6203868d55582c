"""CBC through PuLP: an independent second opinion on linear and mixed-integer programmes.

Owns the trap that PuLP reports a run that a limit cut off as Optimal: only CBC's own log says whether it stopped on a
limit and what it has proven, so the log is read and nothing counts as proven that it does not state (it prints bounds
with three decimals, which are rounded against us). CBC runs as a process of its own and talks by temporary files;
that is PuLP's doing and the only such place in the core. Work is counted in nodes. It refuses to trust a status alone.
"""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pulp

from solvers.domain.arrays import Floats
from solvers.engines.base import EngineAnswer, EngineStatus, Limits, Program
from solvers.engines.judgement import LibraryClaim, box_bound, refuse_nonsense, settled_early, told_apart, verdict
from solvers.errors import EngineError

STATUSES = {
    pulp.LpStatusOptimal: EngineStatus.OPTIMAL,
    pulp.LpStatusNotSolved: EngineStatus.NO_SOLUTION,
    pulp.LpStatusInfeasible: EngineStatus.INFEASIBLE,
    pulp.LpStatusUnbounded: EngineStatus.UNBOUNDED,
    pulp.LpStatusUndefined: EngineStatus.FAILED,
}
"""Every status PuLP has, as what it means without sound values and without the log's word against it."""

_STOPPED = re.compile(r"^Result - Stopped on (.+?)\s*$|^(?:Stopped due to|Stopped on) (.+?)\s*$", re.MULTILINE)
_BOUND = re.compile(r"^Lower bound:\s+(\S+)", re.MULTILINE)
_NODES = re.compile(r"^Enumerated nodes:\s+(\d+)", re.MULTILINE)
_WITHIN_GAP = "within gap tolerance"
_PRINTED = 0.0005
"""Half of the last digit of a printed bound."""
_DIGITS = 1e-7
"""Part by which a value may be off that is printed with eight digits."""
_WRONG = 1e-4
"""A reduced cost beyond it has a sign."""
_BEYOND = 1e29
"""What CBC prints for a bound it does not have."""


class Cbc:
    name = "cbc"

    def solve(self, program: Program, limits: Limits, hint: Floats | None = None) -> EngineAnswer:
        """Answer within the limits. Raises EngineError for nonsense and for a CBC that does not run."""
        refuse_nonsense(program, self.name)
        early = settled_early(program)
        if early is not None:
            return early
        claim = _claim(program, limits, hint)
        # CBC calls programmes infeasible that are unbounded; where the cost can run away, it has to say it twice.
        endless = (
            claim.otherwise is EngineStatus.INFEASIBLE and box_bound(program, program.lower, program.upper) == -np.inf
        )
        if claim.otherwise is EngineStatus.UNBOUNDED or endless:
            claim = told_apart(program, claim, lambda anything: _claim(anything, limits, None))
        return verdict(program, limits, claim, hint, lambda rest: self.solve(rest, limits))


def _claim(program: Program, limits: Limits, hint: Floats | None) -> LibraryClaim:
    problem, columns, rows = _built(program)
    hinted = hint is not None and len(hint) == program.columns and bool(np.isfinite(hint).all())
    if hinted and hint is not None:
        for column, value in zip(columns, np.where(program.integer, np.rint(hint), hint), strict=True):
            column.setInitialValue(float(value), check=False)
    with tempfile.TemporaryDirectory(prefix="headroom-cbc-") as folder:
        log = Path(folder) / "log"
        solver = pulp.COIN_CMD(
            path=pulp.PULP_CBC_CMD.pulp_cbc_path,
            msg=False,
            logPath=str(log),
            timeLimit=limits.clock_s if limits.clock_s < math.inf else None,
            maxNodes=None if limits.work is None else max(0, int(limits.work)),
            gapRel=limits.gap or None,
            # Even one thread of CBC's own leaves a run idle for ten seconds, once in some hundred; none never does.
            threads=limits.threads if limits.threads > 1 else None,
            warmStart=hinted and bool(program.integer.any()),
            options=[f"randomCbcSeed {limits.seed}"],
        )
        solver.tmpDir = folder
        try:
            problem.solve(solver)
        except pulp.PulpSolverError as error:
            raise EngineError("CBC does not run", engine="cbc", reason=str(error)) from error
        said = log.read_text(encoding="utf-8", errors="replace")
    return _read(program, problem, columns, rows, said)


# PuLP's objects are Any, here and below.
def _built(program: Program) -> tuple[Any, list[Any], list[list[Any]]]:
    """The programme in PuLP's terms; a row with two different sides becomes two of PuLP's."""
    problem = pulp.LpProblem("programme", pulp.LpMinimize)
    columns = [
        problem.add_variable(
            f"x{number}",
            None if np.isneginf(low) else float(low),
            None if np.isposinf(high) else float(high),
            pulp.LpInteger if whole else pulp.LpContinuous,
        )
        for number, (low, high, whole) in enumerate(zip(program.lower, program.upper, program.integer, strict=True))
    ]
    used = np.flatnonzero(program.cost)
    problem.setObjective(pulp.LpAffineExpression([(columns[j], float(program.cost[j])) for j in used]))
    column = np.repeat(np.arange(program.columns), np.diff(program.start))
    order = np.argsort(program.row, kind="stable")
    ends = np.searchsorted(program.row[order], np.arange(program.rows + 1))
    rows: list[list[Any]] = []
    for row in range(program.rows):
        entries = order[ends[row] : ends[row + 1]]
        terms = [(columns[column[entry]], float(program.value[entry])) for entry in entries if program.value[entry]]
        rows.append([])
        if not terms:
            # Kept by everything, or settled before; CBC breaks off with an error when it reads one.
            continue
        for sense, side in _sides(float(program.row_lower[row]), float(program.row_upper[row])):
            constraint = pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, f"r{row}s{len(rows[-1])}", side)
            problem.addConstraint(constraint)
            rows[-1].append(constraint)
    return problem, columns, rows


def _sides(low: float, high: float) -> list[tuple[int, float]]:
    if low == high:
        return [(pulp.LpConstraintEQ, low)]
    sides = [(pulp.LpConstraintGE, low), (pulp.LpConstraintLE, high)]
    return [(sense, side) for sense, side in sides if np.isfinite(side)]


def _read(program: Program, problem: Any, columns: list[Any], rows: list[list[Any]], said: str) -> LibraryClaim:
    stopped = _STOPPED.search(said)
    solved = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    otherwise = STATUSES.get(problem.status, EngineStatus.FAILED)
    proven = problem.sol_status == pulp.LpSolutionOptimal and stopped is None and _WITHIN_GAP not in said
    if otherwise is EngineStatus.OPTIMAL and not proven and stopped is not None:
        otherwise = EngineStatus.NO_SOLUTION
    values = _values(program, columns) if solved else None
    stated = _BOUND.search(said)
    bound = float(stated.group(1)) - _PRINTED if stated else float("-inf")
    duals = reduced = None
    if proven and values is not None:
        terms = program.cost * np.where(program.integer, np.rint(values), values)
        bound = float(terms.sum() - _DIGITS * np.abs(terms[~program.integer]).sum())
        if not program.integer.any():
            duals = np.array([sum(part.pi or 0.0 for part in row) for row in rows], dtype=np.float64)
            reduced = np.array([column.dj or 0.0 for column in columns], dtype=np.float64)
            endless = (reduced > _WRONG) & np.isneginf(program.lower) | (reduced < -_WRONG) & np.isposinf(program.upper)
            if endless.any():
                return LibraryClaim(
                    otherwise=EngineStatus.FAILED, note="CBC says optimal where its own duals say unbounded"
                )
    nodes = _NODES.search(said)
    note = "" if otherwise is EngineStatus.OPTIMAL else f"CBC says {otherwise.value}"
    if stopped:
        note = f"stopped on {stopped.group(1) or stopped.group(2)}"
    return LibraryClaim(
        otherwise=otherwise,
        values=values,
        bound=bound + program.offset if abs(bound) < _BEYOND else float("-inf"),
        row_duals=duals,
        reduced_costs=reduced,
        note=note,
        work=float(nodes.group(1)) if nodes else 0.0,
    )


def _values(program: Program, columns: list[Any]) -> Floats:
    """What the columns are. PuLP leaves out those in no row and at no cost, and calls them 0 whatever their bounds."""
    values = np.array([column.varValue for column in columns], dtype=np.float64)
    sided = np.isfinite(program.row_lower) | np.isfinite(program.row_upper)
    named = sided[program.row] & (program.value != 0)
    column = np.repeat(np.arange(program.columns), np.diff(program.start))
    left_out = (np.bincount(column, weights=named, minlength=program.columns) == 0) & (program.cost == 0)
    low = np.where(program.integer, np.ceil(program.lower), program.lower)
    high = np.where(program.integer, np.floor(program.upper), program.upper)
    return np.where(left_out, np.clip(0.0, low, high), values)
