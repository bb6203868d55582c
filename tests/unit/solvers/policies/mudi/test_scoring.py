"""The exact spread of a few jobs equals looking at every way.

What inference leaves is split evenly, and memory goes to those who touch theirs most often.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np

from solvers.policies.mudi.scoring import best_spread, even, warmest_first


def test_shares_are_as_even_as_their_bounds_let_them() -> None:
    assert even(70, [10, 10, 10], [100, 100, 100]) == [24, 23, 23]
    assert even(70, [10, 10, 10], [15, 100, 100]) == [15, 28, 27]
    assert even(100, [10], [40]) == [40]


def test_the_coldest_memory_stands_on_the_host() -> None:
    bounds = [(2000, 8000), (1000, 4000), (3000, 3000)]
    assert warmest_first(20_000, bounds, [100.0, 900.0, 50.0]) == [8000, 4000, 3000]
    assert warmest_first(11_000, bounds, [100.0, 900.0, 50.0]) == [7000, 1000, 3000]
    assert warmest_first(11_000, bounds, [900.0, 100.0, 50.0]) == [4000, 4000, 3000]
    assert warmest_first(6000, bounds, [100.0, 900.0, 50.0]) == [2000, 1000, 3000]


DEVICES = (3, 5, 8)
MOST = 2


def brute(jobs: int, cost: dict[tuple[int, tuple[int, ...]], float]) -> tuple[int, float]:
    """Jobs without a place and the cost of the best of all ways."""
    best = (jobs + 1, 0.0)
    for way in product((None, *DEVICES), repeat=jobs):
        sets = {device: tuple(n for n in range(jobs) if way[n] == device) for device in DEVICES}
        if any((device, some) not in cost for device, some in sets.items()):
            continue
        best = min(best, (way.count(None), round(sum(cost[device, some] for device, some in sets.items()), 9)))
    return best


def _known(cost: dict[tuple[int, tuple[int, ...]], float], device: int, some: tuple[int, ...]) -> float | None:
    return cost.get((device, some))


def test_nothing_is_better_than_the_best() -> None:
    rng = np.random.default_rng(7)
    for _ in range(40):
        jobs = int(rng.integers(1, 5))
        sets = [some for some in product((0, 1), repeat=jobs) if sum(some) <= MOST]
        cost = {
            (device, tuple(n for n in range(jobs) if some[n])): float(rng.uniform(0, 10))
            for device in DEVICES
            for some in sets
            if not any(some) or rng.uniform() < 0.8
        }
        found = best_spread(jobs, DEVICES, MOST, partial(_known, cost))
        placed = {device: tuple(n for n in range(jobs) if found[n] == device) for device in DEVICES}
        mine = (found.count(None), round(sum(cost[device, some] for device, some in placed.items()), 9))
        assert mine == brute(jobs, cost)


def test_a_device_that_cannot_even_stay_as_it_is_takes_nobody() -> None:
    assert best_spread(2, (1,), 3, lambda device, some: None) == [None, None]
