"""How wrong answers are, and how honest about it: errors, coverage of intervals, points to reach an error.

Owns the arithmetic on plain arrays. Rows without an answer (NaN) are counted and left out of the errors; it refuses to
fill them in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.claims.predictors import r_squared
from solvers.domain.arrays import Flags, Floats

SIDES_80 = 1.2816
SIDES_95 = 1.96
_LEAST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAnswers:
    """Measured values beside what was predicted for them, and the predicted standard deviations."""

    truth: Floats
    mean: Floats
    std: Floats

    def known(self) -> Flags:
        """Rows that have an answer."""
        return np.isfinite(self.mean)


def joined(parts: list[MeasuredAnswers]) -> MeasuredAnswers:
    """The rows of several folds as one."""
    return MeasuredAnswers(
        truth=np.concatenate([part.truth for part in parts]),
        mean=np.concatenate([part.mean for part in parts]),
        std=np.concatenate([part.std for part in parts]),
    )


def errors_pct(answered: MeasuredAnswers) -> Floats:
    """Absolute error of every answered row in percent of the measured value."""
    known = answered.known()
    return np.asarray(100.0 * np.abs(answered.mean[known] / answered.truth[known] - 1.0))


def coverage_pct(answered: MeasuredAnswers, sides: float) -> float:
    """Share of rows whose measured value lies within so many standard deviations; NaN where none has an interval."""
    known = answered.known() & np.isfinite(answered.std)
    if not known.any():
        return float("nan")
    off = np.abs(answered.truth[known] - answered.mean[known])
    return 100.0 * float(np.mean(off <= sides * answered.std[known]))


def summary(answered: MeasuredAnswers, *, logarithmic: bool) -> dict[str, float]:
    """All numbers of one split. R² is on logarithms for latencies, on the values themselves for slowdowns."""
    known = answered.known()
    found = {"rows": float(len(answered.truth)), "answered_pct": 100.0 * float(known.mean())}
    if not known.any():
        return found
    off = errors_pct(answered)
    truth, mean = answered.truth[known], answered.mean[known]
    if logarithmic:
        truth, mean = np.log(truth), np.log(np.maximum(mean, _LEAST))
    return found | {
        "mape_pct": float(off.mean()),
        "p95_pct": float(np.percentile(off, 95)),
        "r2": r_squared(truth, mean),
        "cover80_pct": coverage_pct(answered, SIDES_80),
        "cover95_pct": coverage_pct(answered, SIDES_95),
    }


def calibration(answered: MeasuredAnswers, levels: Floats) -> list[float]:
    """Coverage in percent of the central intervals that should hold `levels` percent."""
    from scipy.special import ndtri

    return [coverage_pct(answered, float(ndtri(0.5 + level / 200.0))) for level in levels]


def points_to_reach(curve: dict[int, float], target_pct: float) -> int | None:
    """The fewest points from which on the error stays at or below a target; None if it never does."""
    reached: int | None = None
    for count in sorted(curve, reverse=True):
        if not curve[count] <= target_pct:
            break
        reached = count
    return reached
