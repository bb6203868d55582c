"""Mudi's share programme through CVXPY: the least share at which two lines are both within a target, many at once.

Owns the formulation: minimise the sum of shares, each between its floor and 1, with both lines within the target. The
flat line lies above the steep one beyond the knee, so their maximum is the curve and the programme is convex;
`Piecewise.minimal_share` is the same in closed form and shares no code with it. It refuses curves that fall faster
beyond the knee, which are not convex; rows that the whole device is too slow for are told apart beforehand.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from solvers.domain.arrays import Floats
from solvers.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastShare:
    """One row per curve. Slopes in ms per whole device, 0 or below; shares as fractions."""

    steep: Floats
    flat: Floats
    knee: Floats
    at_knee_ms: Floats
    target_ms: Floats
    floor: float


def available() -> bool:
    """Whether CVXPY is installed (extra `convex`)."""
    return find_spec("cvxpy") is not None


def least_shares(program: LeastShare) -> Floats:
    """Shares by row; `inf` where the whole device is too slow. Raises EngineError for curves that are not convex."""
    if (program.steep > program.flat + 1e-9).any():
        raise EngineError("a curve that falls faster beyond its knee is not convex", engine="convex")
    at_one = program.at_knee_ms + program.flat * (1.0 - program.knee)
    possible = at_one <= program.target_ms + 1e-9
    found = np.full(len(possible), np.inf)
    if possible.any():
        found[possible] = _solved(program, np.flatnonzero(possible))
    return found


def _solved(program: LeastShare, rows: np.ndarray[tuple[int, ...], np.dtype[np.intp]]) -> Floats:
    import cvxpy
    from scipy import sparse

    share = cvxpy.Variable(len(rows))
    limits = [share >= program.floor, share <= 1.0]
    for slope in (program.steep[rows], program.flat[rows]):
        # Each line in units of its target, so that all numbers are near 1.
        each = 1.0 / program.target_ms[rows]
        level = (program.at_knee_ms[rows] - slope * program.knee[rows]) * each
        limits.append(sparse.diags(slope * each) @ share + level <= 1.0)
    # CVXPY ships no types.
    problem: Any = cvxpy.Problem(cvxpy.Minimize(np.ones(len(rows)) @ share), limits)
    with warnings.catch_warnings():
        # CVXPY warns of what its status says as well.
        warnings.simplefilter("ignore")
        try:
            problem.solve(solver=cvxpy.CLARABEL, canon_backend=cvxpy.COO_CANON_BACKEND)
        except cvxpy.SolverError as error:
            raise EngineError("Clarabel gave up on the least shares", engine="convex", reason=str(error)) from error
    if problem.status not in (cvxpy.OPTIMAL, cvxpy.OPTIMAL_INACCURATE):
        raise EngineError("no optimum of the least shares", engine="convex", status=problem.status)
    return np.clip(np.asarray(share.value, dtype=np.float64), program.floor, 1.0)
