"""Small least-squares fits that several formulas share.

Two: coefficients that cannot be negative, pulled towards what is usual where rows are few; and ridge regression whose
penalty is the one that does best on rows left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats

_PENALTIES = 10.0 ** np.arange(-4.0, 4.1, 0.5)


def not_negative(features: Floats, target: Floats, usual: Floats | None = None, weight: float = 0.0) -> Floats:
    """Least squares with coefficients of at least 0. `usual` counts like `weight` rows of middling features."""
    from scipy.optimize import nnls

    if usual is not None and weight > 0:
        size = np.sqrt(weight * np.mean(features**2, axis=0) + 1e-12)
        features = np.vstack([features, np.diag(size)])
        target = np.concatenate([target, size * usual])
    found: Floats = nnls(features, target)[0]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ridge:
    """A fitted linear form: `offset` plus features, each scaled to have spread 1, times coefficients."""

    offset: float
    centre: Floats
    scale: Floats
    coefficients: Floats
    error_left_out: float
    """Root mean square of errors on rows left out one at a time."""

    @staticmethod
    def of(features: Floats, target: Floats) -> Ridge:
        """Fit; features that do not vary get no coefficient."""
        centre, spread = features.mean(axis=0), features.std(axis=0)
        scale = np.where(spread > 1e-12, spread, np.inf)
        scaled = (features - centre) / scale
        offset = float(target.mean())
        left, sizes, right = np.linalg.svd(scaled, full_matrices=False)
        along = left.T @ (target - offset)
        best: tuple[float, Floats] | None = None
        for penalty in _PENALTIES * len(target):
            shrink = sizes**2 / (sizes**2 + penalty)
            leverage = np.sum(left**2 * shrink, axis=1) + 1.0 / len(target)
            residual = target - offset - left @ (shrink * along)
            error = float(np.sqrt(np.mean((residual / np.maximum(1.0 - leverage, 1e-6)) ** 2)))
            if best is None or error < best[0]:
                best = error, right.T @ (sizes / (sizes**2 + penalty) * along)
        assert best is not None
        return Ridge(offset=offset, centre=centre, scale=scale, coefficients=best[1], error_left_out=best[0])

    def __call__(self, features: Floats) -> Floats:
        """Value of every row."""
        return np.asarray(self.offset + (features - self.centre) / self.scale @ self.coefficients)
