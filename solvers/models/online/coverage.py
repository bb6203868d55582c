"""Are the intervals honest? How many outcomes fall into the 80 % and 95 % intervals that were promised.

Outcomes are counted in a sliding window and held to binomial bounds. An alarm needs a count that honest intervals give
once in a million looks at one side of one level; looks at overlapping windows depend on each other, so that in 10,000
outcomes of an honest belief fewer than one run in twenty-five alarms. After an alarm the window is emptied; it arms
itself once a whole new window is within bounds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum
from functools import cache

from solvers.domain.value import value

WINDOW = 200
LEAST = 50
CHANCE = 1e-6
LEVELS = ((0.80, 1.2816), (0.95, 1.9600))
"""Probability of an interval and its half width in standard deviations."""


class Miscalibration(StrEnum):
    """How intervals lie."""

    OVERCONFIDENT = "overconfident"
    UNDERCONFIDENT = "underconfident"


@value
class Coverage:
    """The newest outcomes: for each the number of `LEVELS` whose interval held it."""

    held: tuple[int, ...] = ()
    raised: bool = False


def step(state: Coverage, deviations: float) -> tuple[Coverage, Miscalibration | None]:
    """One outcome, so many promised standard deviations away; the alarm it raises, if any."""
    inside = sum(abs(deviations) <= width for _, width in LEVELS)
    seen = replace(state, held=(*state.held, inside)[-WINDOW:])
    if len(seen.held) < LEAST:
        return seen, None
    found = judged(seen)
    if found is None:
        return replace(seen, raised=seen.raised and len(seen.held) < WINDOW), None
    return (seen, None) if seen.raised else (Coverage(raised=True), found)


def judged(state: Coverage) -> Miscalibration | None:
    """What the counts of the window say."""
    count = len(state.held)
    for level, (probability, _) in enumerate(LEVELS):
        inside = sum(each >= len(LEVELS) - level for each in state.held)
        low, high = bounds(count, probability)
        if inside < low:
            return Miscalibration.OVERCONFIDENT
        if inside > high:
            return Miscalibration.UNDERCONFIDENT
    return None


@cache
def bounds(count: int, probability: float) -> tuple[int, int]:
    """Least and greatest number inside that is not too unlikely: each tail beyond them has at most `CHANCE`."""
    terms = [_binomial(count, inside, probability) for inside in range(count + 1)]
    low, below = 0, terms[0]
    while below <= CHANCE:
        low += 1
        below += terms[low]
    high, above = count, terms[count]
    while above <= CHANCE:
        high -= 1
        above += terms[high]
    return low, high


def _binomial(count: int, inside: int, probability: float) -> float:
    ways = math.lgamma(count + 1) - math.lgamma(inside + 1) - math.lgamma(count - inside + 1)
    return math.exp(ways + inside * math.log(probability) + (count - inside) * math.log1p(-probability))
