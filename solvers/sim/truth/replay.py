"""Hardware as somebody measured it, in place of the laws: tables of one public study, read between their cells.

A replay stands in where its study measured: time of a batch alone, slowdown beside another network,
iterations of training on a part of the GPU. The laws of `truth` say the rest, and how a clock below the highest
changes what was measured at the highest.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FAR = 0.15
"""Measured neighbourhoods this far away (of the logarithm) count half of one that is met exactly."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeSurface:
    """A positive quantity over batch and part of the GPU's SMs: straight between cells where both axes and the quantity
    are logarithms. Beyond the ends of the share it stays; beyond the largest batch it grows as it did last.
    """

    batches: tuple[int, ...]
    parts: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    """A row for each batch, a column for each part."""
    noise: float = 0.0
    """Spread of the logarithm of single measurements about the surface."""

    def at(self, batch: float, part: float) -> float:
        columns = [_between(self.parts, row, part) for row in self.values]
        if batch > self.batches[-1] and len(columns) > 1:
            step = (columns[-1] - columns[-2]) / (self.batches[-1] - self.batches[-2])
            return columns[-1] + max(0.0, step) * (batch - self.batches[-1])
        return _between(self.batches, columns, batch)


def _between(axis: Sequence[float], values: Sequence[float], place: float) -> float:
    above = bisect_right(axis, place)
    if above == 0 or above == len(axis):
        return values[min(above, len(axis) - 1)]
    low, high = axis[above - 1], axis[above]
    way = math.log(place / low) / math.log(high / low)
    return math.exp((1.0 - way) * math.log(values[above - 1]) + way * math.log(values[above]))


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """Slowdowns of one network beside another: each by own batch, own part, the other's batch and part."""

    cells: tuple[tuple[float, float, float, float, float], ...]

    def at(self, batch: float, part: float, other_batch: float, other_part: float) -> float:
        place = tuple(math.log(each) for each in (batch, part, other_batch, other_part))
        weights = total = 0.0
        for *where, factor in self.cells:
            off = math.fsum((math.log(there) - here) ** 2 for there, here in zip(where, place, strict=True))
            weight = 1.0 / (FAR**2 + off) ** 2
            weights, total = weights + weight, total + weight * factor
        return total / weights


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What one study measured, by the GPU type's and the networks' names as the catalogue looks them up."""

    name: str
    times: Mapping[tuple[str, str], TimeSurface] = field(default_factory=dict)
    slowdowns: Mapping[tuple[str, str, str], Beside] = field(default_factory=dict)
    iterations: Mapping[tuple[str, str], TimeSurface] = field(default_factory=dict)
    """Time of a training iteration against the whole GPU's."""
