"""When the requests of a simulated world's services come: times at request level, amounts in fluid mode.

Owns one open source per service, cut to the world's stretches whatever their length. It refuses what depends on the
answers: closed loops and always full queues are simulated where answers are.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from solvers.sim.arrivals import BLOCK_S, ArrivalPattern, Source, arrival_times_s, rate_path

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class Times:
    """Single requests, drawn a block at a time."""

    pattern: ArrivalPattern
    source: Source
    _block: int = -1
    _times_s: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def between(self, from_s: float, until_s: float) -> NDArray[np.float64]:
        """Times in [from_s, until_s)."""
        parts = []
        for block in range(int(from_s // BLOCK_S), int(np.ceil(until_s / BLOCK_S))):
            if block != self._block:
                self._block = block
                self._times_s = arrival_times_s(self.pattern, self.source, block * BLOCK_S, (block + 1) * BLOCK_S)
            first, last = np.searchsorted(self._times_s, (from_s, until_s))
            parts.append(self._times_s[first:last])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(slots=True)
class Amounts:
    """Expected requests until a moment, and where the rate changes."""

    edges_s: list[float]
    totals: list[float]
    rates_rps: list[float]

    @classmethod
    def of(cls, pattern: ArrivalPattern, source: Source, until_s: float) -> Amounts:
        """Of a pattern over a run."""
        path = rate_path(pattern, source, until_s)
        totals = np.concatenate(([0.0], np.cumsum(np.diff(path.edges_s) * path.rates_rps)))
        return cls(path.edges_s.tolist(), totals.tolist(), path.rates_rps.tolist())

    def between(self, from_s: float, until_s: float) -> float:
        """Expected requests of a stretch."""
        return self._until(until_s) - self._until(from_s)

    def next_edge_s(self, after_s: float) -> float:
        """When the rate changes next; infinity when it does not."""
        index = bisect_right(self.edges_s, after_s)
        return self.edges_s[index] if index < len(self.edges_s) - 1 else float("inf")

    def _until(self, at_s: float) -> float:
        index = min(bisect_right(self.edges_s, at_s) - 1, len(self.rates_rps) - 1)
        return self.totals[index] + (at_s - self.edges_s[index]) * self.rates_rps[index]
