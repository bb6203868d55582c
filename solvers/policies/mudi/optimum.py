"""The best co-location there is, for few jobs: what Mudi's selector is held against.

Owns an exact search over every way to spread a handful of jobs over devices, by dynamic programming over subsets of
them: most jobs placed first, then the least cost. It refuses to know what a device's company costs; it asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations, product

Way = tuple[float, tuple[tuple[int, int], ...]]
"""What it costs, and which jobs (as a mask) each device takes."""
Cost = Callable[[int, tuple[int, ...]], float | None]
"""What a device's whole company costs with these jobs (by number) added; None where they cannot go there."""


def best_spread(jobs: int, devices: Sequence[int], most: int, cost: Cost) -> list[int | None]:
    """A device for every job; None for those that have no place. At most `most` of them go to one device."""
    everybody = (1 << jobs) - 1
    best: dict[int, Way] = {0: (0.0, ())}
    for device in devices:
        best = _extended(best, device, _extras(jobs, device, most, cost))
    _, chosen = best[min(best, key=lambda mask: ((everybody ^ mask).bit_count(), best[mask][0], mask))]
    found: list[int | None] = [None] * jobs
    for device, extra in chosen:
        for number in range(jobs):
            if extra >> number & 1:
                found[number] = device
    return found


def _extended(best: dict[int, Way], device: int, extras: list[tuple[int, float]]) -> dict[int, Way]:
    """The best way for every set of placed jobs, when one more device may take some."""
    after = dict(best)
    for (mask, (value, chosen)), (extra, added) in product(best.items(), extras):
        if not mask & extra and value + added < after.get(mask | extra, (math.inf, ()))[0] - 1e-9:
            after[mask | extra] = (value + added, (*chosen, (device, extra)))
    return after


def _extras(jobs: int, device: int, most: int, cost: Cost) -> list[tuple[int, float]]:
    """Sets of jobs that a device takes, as masks, with what they add."""
    before = cost(device, ())
    if before is None:
        return []
    found = []
    for size in range(1, most + 1):
        for some in combinations(range(jobs), size):
            value = cost(device, some)
            if value is not None:
                found.append((sum(1 << number for number in some), value - before))
    return found
