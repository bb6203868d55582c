"""What is known of one configuration from its outcomes: a short window of values and the surprises not yet believed.

The estimate is robust: median and mean absolute deviation of at most `WINDOW` logarithms. A repeated surprise is
believed: `SURPRISES` in a row that agree among themselves replace all that was known. A single value of any size moves
nothing. Values are kept under the conditions of the point's first outcome; callers that add one convert it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

from solvers.domain.value import value
from solvers.models.online.outcomes import Configuration, Outcome

WINDOW = 25
SURPRISES = 8
"""So many in a row: where one report in five is wrong by chance, that happens once in 400,000."""
ESTABLISHED = 5
"""From so many values on, a point speaks for itself."""
TAUGHT = 3
"""From so many values on, a point teaches the belief."""
SPREAD_FLOOR = 0.03
"""Relative noise of an outcome is never thought to be less."""
SPREAD_FIRST = 0.1
"""And is thought to be this while there are too few values to tell."""
AGREEMENT = 0.12
"""Surprises that differ by more than this part are not the same surprise."""


@value
class Point:
    """One configuration. `values` are logarithms of milliseconds, oldest first, `moments` when each was measured."""

    configuration: Configuration
    first: Outcome
    """Its first outcome: the conditions under which the values hold."""
    outcomes: int = 0
    values: tuple[float, ...] = ()
    moments: tuple[float, ...] = ()
    surprises: tuple[float, ...] = ()
    surprise_moments: tuple[float, ...] = ()
    seen_s: float = 0.0

    @property
    def established(self) -> bool:
        """Whether it speaks for itself."""
        return len(self.values) >= ESTABLISHED

    @property
    def log_ms(self) -> float:
        """The estimate, as a logarithm; needs a value."""
        return median(self.values)

    @property
    def latency_ms(self) -> float | None:
        """The estimate; None while every value is doubted."""
        return math.exp(self.log_ms) if self.values else None

    @property
    def spread(self) -> float:
        """Relative standard deviation of the next value around the estimate."""
        count = len(self.values)
        if count < ESTABLISHED:
            return SPREAD_FIRST
        middle = self.log_ms
        # Of normal values, the mean absolute deviation is 0.8 standard deviations; the median itself is uncertain, too.
        scatter = 1.2533 * math.fsum(abs(each - middle) for each in self.values) / (count - 1)
        return max(SPREAD_FLOOR, scatter * math.sqrt(1.0 + 1.5708 / count))


def begun(outcome: Outcome) -> Point:
    """The point of a configuration never seen before, without a value yet."""
    return Point(configuration=outcome.configuration(), first=outcome)


def with_value(point: Point, log_ms: float, at_s: float) -> Point:
    """A value that was believed. It ends a row of surprises."""
    return replace(
        point,
        outcomes=point.outcomes + 1,
        values=(*point.values, log_ms)[-WINDOW:],
        moments=(*point.moments, at_s)[-WINDOW:],
        surprises=(),
        surprise_moments=(),
        seen_s=at_s,
    )


def with_surprise(point: Point, log_ms: float, at_s: float) -> tuple[Point, bool]:
    """A value far from what is known; tells whether it is believed now, because it came again and again."""
    agrees = bool(point.surprises) and abs(log_ms - median(point.surprises)) <= AGREEMENT
    surprises = (*point.surprises, log_ms) if agrees else (log_ms,)
    moments = (*point.surprise_moments, at_s) if agrees else (at_s,)
    seen = replace(point, outcomes=point.outcomes + 1, seen_s=at_s)
    if len(surprises) < SURPRISES:
        return replace(seen, surprises=surprises, surprise_moments=moments), False
    return replace(seen, values=surprises, moments=moments, surprises=(), surprise_moments=()), True


def since(point: Point, began_s: float) -> Point:
    """The point with only the values measured since then."""
    kept = [index for index, at_s in enumerate(point.moments) if at_s >= began_s]
    return replace(
        point,
        values=tuple(point.values[index] for index in kept),
        moments=tuple(point.moments[index] for index in kept),
    )


def lightened(point: Point) -> Point:
    """The point with only its newest values: enough to speak, few enough to be overruled soon."""
    return replace(point, values=point.values[-ESTABLISHED:], moments=point.moments[-ESTABLISHED:])
