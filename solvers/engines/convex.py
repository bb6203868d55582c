"""The share programme through CVXPY and Clarabel: formulated once, solved again with other numbers.

Owns the formulation, which depends on nothing but how many devices and places there are: many devices are one problem,
everything else is a parameter (DPP), so that CVXPY compiles once and later solves cost the solver alone. A member's
share is its part of the device's pull times a level, and level times inverse is at least 1, written as a second-order
cone: so all numbers are near 1. More than `BLOCK` devices are solved block by block with what was compiled once,
because CVXPY's table of parameters grows with the square of a problem's size (1,000 devices at once take ten times as
long to compile as to solve). It refuses to round, to tell infeasible devices apart and to repair what the solver says:
the caller knows and checks.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers.engines.base import Flags, Floats
from solvers.engines.shares import ShareProgram
from solvers.errors import EngineError

BLOCK = 125
_TOLERANCE = 1e-9
"""Totals are flat around the optimum: what is 1e-9 in the total is about 3e-5 of a device in a share."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    # CVXPY ships no types: its objects are Any, here and nowhere else.
    problem: Any
    level: Any
    slope: Any
    least: Any
    most: Any
    room: Any


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A share programme in the formulation's own units: share = slope * level."""

    slope: Floats
    least: Floats
    most: Floats
    room: Floats
    moves: Flags


class Convex:
    """See the module. Keeps what was compiled for the last shape."""

    def __init__(self) -> None:
        self._shape = (0, 0)
        self._compiled: _Compiled | None = None

    def divide(self, program: ShareProgram) -> Floats:
        """Raises EngineError when the solver does not end with an optimum."""
        devices, places = program.weight.shape
        numbers = _numbers(program)
        if not numbers.moves.any():
            return program.least
        block = min(devices, BLOCK)
        compiled = self._at((block, places))
        level = np.zeros((devices, places))
        for start in range(0, devices, block):
            # The last block is moved back to be as large as the others.
            rows = slice(min(start, devices - block), min(start, devices - block) + block)
            level[rows] = _solved(compiled, numbers, rows)
        # Whom nothing pulls could have any share; it gets the least, as everywhere.
        return np.where(numbers.moves, numbers.slope * level, program.least)

    def _at(self, shape: tuple[int, int]) -> _Compiled:
        if self._compiled is None or self._shape != shape:
            self._shape, self._compiled = shape, _compile(*shape)
        return self._compiled


def _numbers(program: ShareProgram) -> _Numbers:
    """Members that nothing pulls take their least out of the room and do not move; nobody moves where there is no
    solution.
    """
    moves = program.feasible[:, None] & (program.pull > 0)
    slope = np.where(moves, np.sqrt(program.pull), 0.0)
    together = slope.sum(axis=1, keepdims=True)
    slope = slope / np.where(together > 0, together, 1.0)
    held = np.where(program.present & ~moves, program.least, 0.0).sum(axis=1)
    unit = np.where(moves, slope, 1.0)
    return _Numbers(
        slope=slope,
        least=np.where(moves, program.least / unit, 0.5),
        most=np.where(moves, np.maximum(program.most, program.least) / unit, 1.5),
        room=np.where(program.feasible, program.room - held, 1.0),
        moves=moves,
    )


def _compile(devices: int, places: int) -> _Compiled:
    import cvxpy
    from cvxpy.atoms.affine.binary_operators import multiply
    from cvxpy.atoms.affine.vstack import vstack
    from scipy import sparse

    members = devices * places
    level, inverse = cvxpy.Variable(members), cvxpy.Variable(members)
    slope, least, most = (cvxpy.Parameter(members, nonneg=True) for _ in range(3))
    room = cvxpy.Parameter(devices)
    together = sparse.kron(sparse.eye(devices), np.ones((1, places))).tocsr()
    # level * inverse >= 1, with both positive.
    pairs = cvxpy.SOC(inverse + level, vstack([2 * np.ones(members), inverse - level]), axis=0)
    limits = [level >= least, level <= most, together @ multiply(slope, level) <= room]
    # weight * work / share is slope / level, up to a factor of the device.
    problem = cvxpy.Problem(cvxpy.Minimize(slope @ inverse), [pairs, *limits])
    return _Compiled(problem, level, slope, least, most, room)


def _solved(compiled: _Compiled, numbers: _Numbers, rows: slice) -> Floats:
    import cvxpy

    compiled.slope.value = numbers.slope[rows].ravel()
    compiled.least.value = numbers.least[rows].ravel()
    compiled.most.value = numbers.most[rows].ravel()
    compiled.room.value = numbers.room[rows]
    with warnings.catch_warnings():
        # CVXPY warns of what its status says as well.
        warnings.simplefilter("ignore")
        try:
            compiled.problem.solve(
                solver=cvxpy.CLARABEL,
                enforce_dpp=True,
                warm_start=True,
                canon_backend=cvxpy.COO_CANON_BACKEND,
                tol_gap_abs=_TOLERANCE,
                tol_gap_rel=_TOLERANCE,
                tol_feas=_TOLERANCE,
            )
        except cvxpy.SolverError as error:
            raise EngineError("Clarabel gave up on the share programme", engine="convex", reason=str(error)) from error
    if compiled.problem.status != cvxpy.OPTIMAL:
        raise EngineError("no optimum of the share programme", engine="convex", status=compiled.problem.status)
    return np.asarray(compiled.level.value, dtype=np.float64).reshape(numbers.slope[rows].shape)
