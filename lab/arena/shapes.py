"""Days of a public stream as fitted curves, so that scenarios run where the data is not.

Owns the coefficients, all relative to the curve's base: waves of a day, and spikes that rise at once, stay a few
minutes and decay. Fitted by us (`benchmarks/fit_days.py`) to requests per second of the Archive Team's Twitter stream
grab of 2018, in the reduced form that came with IPA (github reconfigurable-ml-pipeline/ipa, commit e1f08dd; counts of a
public stream, no licence stated; no row of it is kept here):

* `twitter-day5`: the fifth day by minutes. Base of four waves fitted by least squares to the minutes outside spikes,
  then each spike's height, length and decay. Mean absolute error 7.3 % of the mean, correlation 0.97; 29 minutes of the
  day are a gap in the collection and are in neither the fit nor the error.
* `twitter-median-day`: median over twenty days of each ten minutes. Two waves, no spikes, for every day has them at
  other times; mean absolute error 2.7 % outside those that the median still shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MINUTES = 1440


@dataclass(frozen=True, slots=True)
class Spike:
    """`height` above the base from `minute` on, for `stays` minutes, then falling by e in every `decay` minutes."""

    minute: int
    height: float
    stays: int
    decay: int


@dataclass(frozen=True, slots=True)
class DayShape:
    """A day: cosine and sine of each wave of the base, by rising frequency, and its spikes."""

    waves: tuple[tuple[float, float], ...]
    spikes: tuple[Spike, ...] = ()

    def rates(self) -> NDArray[np.float64]:
        """One number per minute; the base's mean is 1."""
        minutes = np.arange(MINUTES, dtype=np.float64)
        curve = np.ones(MINUTES)
        for number, (cosine, sine) in enumerate(self.waves, start=1):
            turn = 2.0 * np.pi * number * (minutes + 0.5) / MINUTES
            curve += cosine * np.cos(turn) + sine * np.sin(turn)
        for spike in self.spikes:
            since = minutes - spike.minute
            falling = np.exp(-np.maximum(0.0, since - spike.stays) / spike.decay)
            curve += np.where(since >= 0.0, spike.height * falling, 0.0)
        return curve


SHAPES = {
    "twitter-day5": DayShape(
        waves=((-0.0943, 0.1515), (-0.0557, -0.1376), (-0.0143, -0.0058), (-0.0168, 0.0029)),
        spikes=(
            Spike(65, 1.54, 0, 20),
            Spike(212, 3.01, 7, 6),
            Spike(361, 3.00, 8, 3),
            Spike(452, 2.79, 4, 6),
            Spike(572, 3.26, 8, 3),
            Spike(692, 3.26, 8, 2),
            Spike(782, 0.82, 0, 1),
            Spike(811, 2.99, 7, 2),
            Spike(932, 3.30, 4, 3),
            Spike(1025, 1.71, 0, 2),
            Spike(1172, 3.17, 12, 4),
            Spike(1322, 3.11, 6, 2),
            Spike(1372, 0.58, 0, 1),
        ),
    ),
    "twitter-median-day": DayShape(waves=((-0.0848, 0.1875), (-0.0873, -0.1231))),
}
