"""iGniter alone: work that is quadratic in batch over share, and transfers.

Owns the form (k1 b^2 + k2 b + k3) / (r + k4) + k5 for the time on the GPU, r the share as a fraction, and the fit by
least squares on relative errors with no coefficient below 0. Bytes are not part of profiles: the time of transfers,
linear in batch and untouched by the clock, is fitted as one more coefficient d b. It refuses other shapes, so a floor
that share cannot lower is only met by k5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.base import ModelSpec, Quantity
from solvers.models.parts.curves import CurveModel, Rows, not_negative

SPEC = ModelSpec(
    name="igniter",
    version="1",
    formula="(k1 b^2 + k2 b + k3) / (r + k4) + k5 + d b (iGniter)",
    quantities=tuple(Quantity),
)
SHIFTS = (0.0, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.4, 0.7, 1.2)
"""Values of k4 that the search starts from."""
_FEW = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class IgniterWork:
    """k1, k2, k3, k5 and d, and k4 by itself. Times in ms."""

    factors: Floats
    shift: float

    def __call__(self, batch: Floats, share_pct: Floats, cycle: Floats) -> Floats:
        return np.asarray(_design(batch, share_pct, cycle, self.shift) @ self.factors)


def _design(batch: Floats, share_pct: Floats, cycle: Floats, shift: float) -> Floats:
    slots = np.maximum(share_pct / 100.0 + shift, 1e-3) / cycle
    return np.stack([batch**2 / slots, batch / slots, 1.0 / slots, cycle, batch], axis=1)


def learn(rows: Rows) -> IgniterWork:
    """Least squares over all coefficients; the best k4 by search."""
    from scipy.optimize import minimize_scalar

    # Where rows are too few to tell: most of the time is work in proportion to batch over share.
    work = float(np.median(rows.value * rows.share_pct / 100.0 / rows.batch))
    usual = np.array([0.0, 0.8 * work, 0.0, 0.1 * float(rows.value.min()), 0.0])

    def fitted(shift: float) -> tuple[Floats, float]:
        design = _design(rows.batch, rows.share_pct, rows.cycle, shift) / rows.value[:, None]
        factors = not_negative(design, np.ones(len(rows.value)), usual, _FEW / (100.0 * len(rows.value) ** 2))
        return factors, float(np.sum((design @ factors - 1.0) ** 2))

    wrong = [fitted(shift)[1] for shift in SHIFTS]
    best = int(np.argmin(wrong))
    bounds = SHIFTS[max(best - 1, 0)], SHIFTS[min(best + 1, len(SHIFTS) - 1)]
    found = minimize_scalar(lambda shift: fitted(shift)[1], bounds=bounds, method="bounded", options={"maxiter": 12})
    shift = float(found.x) if found.fun < wrong[best] else SHIFTS[best]
    return IgniterWork(factors=fitted(shift)[0], shift=shift)


MODEL = CurveModel(spec=SPEC, learn=learn)
make, load = MODEL.make, MODEL.load
