"""Mudi's least share: how fast a batch has to be for its window, and the smallest share at which it is.

Owns the target, T = window / batches of it with the limit and stability as its ceilings, and the least share by the
closed form or by the convex programme. What the programme cannot solve (a curve that is not convex, a solver that gives
up) goes to the closed form. It refuses to know tails and queues: the promise of the profile is the referee after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from solvers.engines.least_share import LeastShare, least_shares
from solvers.errors import EngineError
from solvers.policies.mudi.parameters import MudiParameters, Rounding, ShareEngine
from solvers.policies.mudi.solo import Piecewise


def target_ms(limit_ms: float, rate_rps: float, batch: int, parameters: MudiParameters) -> float:
    """Longest execution of one batch with which a replica at this rate finishes a window's requests within it."""
    stable_ms = 1000.0 * batch / rate_rps if rate_rps > 0 else math.inf
    if math.isinf(limit_ms):
        return stable_ms
    window_ms = limit_ms * parameters.window_part
    batches = window_target_batches(rate_rps * window_ms / 1000.0, batch, parameters.rounding)
    return min(limit_ms, stable_ms, window_ms / batches if batches > 0 else math.inf)


def window_target_batches(requests: float, batch: int, rounding: Rounding) -> float:
    """Batches that a window's requests make."""
    return requests / batch if rounding is Rounding.RATIO else float(math.ceil(requests / batch - 1e-9))


def least_share(curve: Piecewise, target: float, parameters: MudiParameters) -> float | None:
    """The smallest share within the target; None where even the whole device is too slow."""
    return least_shares_of([curve], [target], parameters)[0]


def least_shares_of(
    curves: Sequence[Piecewise], targets: Sequence[float], parameters: MudiParameters
) -> list[float | None]:
    """The same for many at once."""
    floor = parameters.share_pct_least / 100.0
    finite = all(math.isfinite(target) and target > 0 for target in targets)
    if parameters.share_engine is ShareEngine.CONVEX and finite and curves:
        try:
            found = least_shares(programme(curves, targets, floor))
        except EngineError:
            pass
        else:
            return [float(share) if np.isfinite(share) else None for share in found]
    return [curve.minimal_share(target, floor) for curve, target in zip(curves, targets, strict=True)]


def programme(curves: Sequence[Piecewise], targets: Sequence[float], floor: float) -> LeastShare:
    """The convex programme of these curves."""
    return LeastShare(
        steep=np.array([curve.k1 for curve in curves]),
        flat=np.array([curve.k2 for curve in curves]),
        knee=np.array([curve.knee for curve in curves]),
        at_knee_ms=np.array([curve.l0 for curve in curves]),
        target_ms=np.array(targets, dtype=np.float64),
        floor=floor,
    )
