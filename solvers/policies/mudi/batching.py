"""Mudi's tuner of batches: a Gaussian process over candidate batches, asked by its lower confidence bound.

Owns the process (squared exponential over the logarithm of the batch, unit prior on standardised values), the width of
the bound, beta = 2 ln(R n^2 pi^2 / (6 delta)) with R candidates and n evaluations, and the end: after so many
evaluations, or when no bound promises a gain. Deterministic: of equal bounds the smaller batch is tried. It refuses to
know what a value means; values that cannot be are told as a penalty by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.policies.mudi.parameters import MudiParameters

LENGTH = 1.5
"""Of the kernel, in doublings of the batch."""
NOISE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What the tuner found."""

    batch: int
    value: float
    evaluations: int


def tune(batches: Sequence[int], evaluate: Callable[[int], float], first: int, parameters: MudiParameters) -> Tuned:
    """The batch of the lowest value found, beginning with `first`."""
    places = np.log2(np.array(batches, dtype=np.float64))
    seen: dict[int, float] = {}
    at = batches.index(first)
    for number in range(1, min(parameters.iterations, len(batches)) + 1):
        seen[at] = evaluate(batches[at])
        low = bounds(places, seen, beta(len(batches), number, parameters.delta))
        untried = [index for index in range(len(batches)) if index not in seen]
        best = min(seen.values())
        if not untried:
            break
        at = min(untried, key=lambda index: (float(low[index]), batches[index]))
        if low[at] > best - parameters.gain_least * abs(best):
            break
    chosen = min(seen, key=lambda index: (seen[index], batches[index]))
    return Tuned(batch=batches[chosen], value=seen[chosen], evaluations=len(seen))


def beta(candidates: int, number: int, delta: float) -> float:
    """How wide the bound is after so many evaluations."""
    return 2.0 * math.log(candidates * number**2 * math.pi**2 / (6.0 * delta))


def bounds(places: Floats, seen: dict[int, float], width: float) -> Floats:
    """Lower confidence bounds of all candidates: mean - sqrt(beta variance)."""
    rows = np.array(sorted(seen), dtype=np.intp)
    values = np.array([seen[int(row)] for row in rows])
    centre = float(values.mean())
    spread = float(values.std()) or max(abs(centre), 1e-9) * 0.1
    known = _kernel(places[rows], places[rows]) + NOISE * np.eye(len(rows))
    across = _kernel(places, places[rows])
    weights = np.linalg.solve(known, across.T)
    mean = weights.T @ ((values - centre) / spread)
    variance = np.maximum(1.0 - np.einsum("ij,ji->i", across, weights), 0.0)
    return np.asarray(centre + spread * (mean - np.sqrt(width * variance)))


def _kernel(left: Floats, right: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * ((left[:, None] - right[None, :]) / LENGTH) ** 2))
