"""How far a model's 99th percentile lies above its mean: one ratio per model and GPU type.

The ratio's logarithm is a Gaussian, learned from measured pairs and held to what is usual. It is the spread of
execution alone, without queues.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats

_USUAL, _USUAL_SPREAD = 0.12, 0.12
_SCATTER = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Mean of the ratio's logarithm, how sure it is (variance), scatter of single ratios, and how many told it."""

    mean: float = _USUAL
    variance: float = _USUAL_SPREAD**2
    scatter: float = _SCATTER
    count: int = 0

    def after(self, ratios: Floats) -> Tail:
        """Having seen more logarithms of ratios; a wild one counts little."""
        wildness = (ratios - self.mean) ** 2 / (self.variance + self.scatter**2)
        # Many ratios at once are judged by their own middle, single ones by what is known.
        if len(ratios) > 3:
            middle = np.median(ratios)
            wildness = (ratios - middle) ** 2 / (self.scatter**2 + np.median(np.abs(ratios - middle)) ** 2)
        weight = np.where(wildness > 9.0, 5.0 / (wildness + 4.0), 1.0)
        told = float(weight.sum())
        centre = float((weight * ratios).sum() / told)
        spread = float((weight * (ratios - centre) ** 2).sum())
        scatter = float(np.sqrt((self.scatter**2 * (self.count + 4) + spread) / (self.count + 4 + told)))
        precision = 1 / self.variance + told / scatter**2
        mean = (self.mean / self.variance + told * centre / scatter**2) / precision
        # A percentile of a drifting machine is never known better than this.
        variance = max(1 / precision, (scatter / 5) ** 2)
        return Tail(mean=mean, variance=variance, scatter=scatter, count=self.count + len(ratios))

    @property
    def ratio(self) -> float:
        """99th percentile over mean."""
        return float(np.exp(max(self.mean, 0.0)))

    @property
    def log_std(self) -> float:
        """Standard deviation of the logarithm of the next ratio."""
        return float(np.sqrt(self.variance + self.scatter**2))
