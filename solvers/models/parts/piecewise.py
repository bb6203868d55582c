"""Latency over share as two straight lines that meet at a knee: Mudi's form, its fit and its minimal share.

L(D) = k1 (D - D0) + l0 up to the knee D0 and k2 (D - D0) + l0 beyond, with k1 <= k2 <= 0 (steep, then flat), D the
share as a fraction; least squares on relative errors with the knee found by search; and the smallest share that keeps a
target, in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.parts.regression import not_negative

KNEES = 12
FINER = 7
"""Places that the search for the knee tries between the lowest and the highest measured share, then around the best."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piecewise:
    """One curve. Slopes in ms per whole device."""

    k1: float
    k2: float
    knee: float
    l0: float

    def __call__(self, share: Floats) -> Floats:
        """Latency in ms at shares as fractions."""
        return self.l0 + np.where(share <= self.knee, self.k1, self.k2) * (share - self.knee)

    def minimal_share(self, target_ms: float, share_min: float = 0.0) -> float | None:
        """The smallest share with a latency of at most `target_ms`; None where even the whole device is too slow."""
        if target_ms >= self.l0:
            share = self.knee + (target_ms - self.l0) / self.k1 if self.k1 < 0 else 0.0
            return min(max(share, share_min), 1.0)
        if self.k2 >= 0:
            return None
        share = self.knee + (target_ms - self.l0) / self.k2
        return None if share > 1.0 else max(share, share_min)


def of_parts(parts: Floats, knee: float) -> Piecewise:
    """Curve of what the whole device takes, the slope everywhere and the slope that is added below the knee."""
    whole, flat, steep = (float(part) for part in parts)
    return Piecewise(k1=-flat - steep, k2=-flat, knee=knee, l0=whole + flat * (1.0 - knee))


def parts_at(share: Floats, knee: float) -> Floats:
    """What the three parts weigh at a share, by row: all at least 0, so parts of at least 0 keep the form."""
    return np.stack([np.ones(len(share)), 1.0 - share, np.maximum(knee - share, 0.0)], axis=1)


def best_knee(share: Floats, fit: Callable[[float], tuple[float, T]]) -> T:
    """What `fit` gives (after its error) at the knee with the least error."""
    low, high = float(share.min()), float(share.max())
    if high <= low:
        return fit(low)[1]
    places = np.linspace(low, high, KNEES + 2)
    tried = [(float(knee), fit(float(knee))) for knee in places[1:-1]]
    place, best = min(tried, key=lambda item: item[1][0])
    step = float(places[1] - places[0])
    for knee in np.linspace(place - step, place + step, FINER + 2)[1:-1]:
        found = fit(float(knee))
        best = found if found[0] < best[0] else best
    return best[1]


def fitted(share: Floats, latency_ms: Floats, weights: Floats | None = None) -> Piecewise:
    """The curve of least squared relative errors. `weights` are of rows; none: all alike."""
    weight = np.ones(len(share)) if weights is None else np.sqrt(weights)

    def fit(knee: float) -> tuple[float, Piecewise]:
        design = parts_at(share, knee) * (weight / latency_ms)[:, None]
        parts = not_negative(design, weight)
        return float(np.sum((design @ parts - weight) ** 2)), of_parts(parts, knee)

    return best_knee(share, fit)


def optimality_bound(probability: float, optimal: Floats, worst: Floats) -> float:
    """Mudi's bound: mean over jobs of what is expected when the best company is predicted with a probability."""
    return float(np.mean(probability * optimal + (1.0 - probability) * worst))
