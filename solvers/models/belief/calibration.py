"""How much wider than computed intervals must be: learned by playing newcomer.

Factors stand by number of measurements, inside and outside the box they span, and a game fills the table: of
well-measured models some measurements are kept, the rest foretold, and the errors compared with what was promised. The
95 % interval counts most, the 80 % one second. The model whose intervals will be widened is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.models.belief import curve as curves
from solvers.models.belief import points as measured
from solvers.models.belief.curve import Curve
from solvers.models.belief.points import Points
from solvers.models.belief.surface import compiled, lookup

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
_USUAL = (1.3, 1.5)
_MODELS_USUAL = 3.0
"""As many models as this say what is usual: errors of one model go together, so its many surprises count as one voice.
"""
_FEW = 0.5
"""Quantiles from one voice alone are too narrow by so much of themselves for the next model."""
_LOWEST, _HIGHEST = 0.6, 4.0
_MODELS_MAX = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
    """Factors on the standard deviation for `COUNTS` measurements: inside the box that they span, and outside."""

    inside: tuple[float, ...] = (_USUAL[0],) * len(COUNTS)
    outside: tuple[float, ...] = (_USUAL[1],) * len(COUNTS)

    def __post_init__(self) -> None:
        if not len(self.inside) == len(self.outside) == len(COUNTS):
            raise ValueError("a factor is needed for every count")

    def of(self, count: int) -> tuple[float, float]:
        """The factors for a number of measurements, between and beyond the table's rows."""
        place, rows = np.log2(max(count, 1)), np.log2(COUNTS)
        return float(np.interp(place, rows, self.inside)), float(np.interp(place, rows, self.outside))


def learned(examples: Sequence[Curve], kernel: Floats, random: np.random.Generator) -> Widening:
    """Play newcomer with these curves; too few surprises leave what is usual."""
    surprises: dict[tuple[int, bool], list[Floats]] = {}
    step = max(1, len(examples) // _MODELS_MAX)
    for example in examples[::step]:
        for row, kept in _openings(example.points, random):
            size, inside = _surprises(example, kept, kernel)
            for where in (True, False):
                surprises.setdefault((row, where), []).append(size[inside == where])
    factors = [
        tuple(_factor(surprises.get((row, where), []), _USUAL[0 if where else 1]) for row in range(len(COUNTS)))
        for where in (True, False)
    ]
    return Widening(inside=factors[0], outside=factors[1])


def _openings(points: Points, random: np.random.Generator) -> list[tuple[int, Flags]]:
    """Which points a newcomer has, with the row of the table they belong to: random ones, and all
    but the largest or smallest batch, the narrowest share, or a batch between."""
    found = []
    for row, count in enumerate(COUNTS):
        if count <= 0.85 * len(points):
            kept = np.zeros(len(points), dtype=np.bool_)
            kept[random.permutation(len(points))[:count]] = True
            found.append((row, kept))
    low = points.batch < points.batch.max()
    high = points.batch > points.batch.min()
    wide = points.share > points.share.min()
    between = np.unique(points.batch)[1:-1]
    gap = points.batch != between[random.integers(len(between))] if len(between) else low
    for kept in (low, high, wide, gap):
        if 2 <= kept.sum() < len(points):
            found.append((int(np.argmin(np.abs(np.log2(COUNTS) - np.log2(kept.sum())))), kept))
    return found


def _surprises(example: Curve, kept: Flags, kernel: Floats) -> tuple[Floats, Flags]:
    """Errors over promised standard deviations at the points that the newcomer lacks, and which lie inside."""
    newcomer = curves.fit(example.form, example.points.take(kept), example.prior, kernel)
    rest = example.points.take(~kept)
    clocked = bool(np.any(example.points.slowness != 1.0))
    found = lookup(compiled(newcomer, (1.0, 1.0), clocked=clocked), rest.at)
    return np.abs(np.exp(rest.log_value) - found[:, 0]) / found[:, 1], measured.within(rest.at, newcomer.points)


def _factor(parts: Sequence[Floats], usual: float) -> float:
    heard = [part for part in parts if len(part)]
    if not heard:
        return usual
    # What a newcomer lacks at random is plenty, a missing batch is few cells: each game counts the same.
    together, weight = np.concatenate(heard), np.concatenate([np.full(len(part), 1 / len(part)) for part in heard])
    order = np.argsort(together, kind="stable")
    reached = (np.cumsum(weight[order]) - weight[order] / 2) / len(heard)
    # Conformal: of n surprises the k-th smallest with k = level * (n + 1).
    high, middle = np.interp([level * (1 + 1 / len(together)) for level in (0.95, 0.8)], reached, together[order])
    raw = float(np.clip(0.75 * high / 1.96 + 0.25 * middle / 1.2816, _LOWEST, _HIGHEST))
    voices = len(heard)
    trust = voices / (voices + _MODELS_USUAL)
    return float(np.exp(trust * np.log(raw) + (1 - trust) * np.log(usual))) * (1 + _FEW / voices)
