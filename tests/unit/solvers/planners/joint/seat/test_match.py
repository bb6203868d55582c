"""Patterns go where most of them stands."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from solvers.planners.joint.seat import seating
from solvers.planners.joint.seat.seating import match, saved_s
from solvers.problems.patterns import Layout
from tests.unit.solvers.planners.joint.seat.floors import floor, held, pattern, problem


def test_equal_contents_stay_where_they_are() -> None:
    made = problem()
    stands = {0: [held(0, 40)], 1: [held(0, 20), held(1, 60)], 3: [held(0, 40)]}
    both, single = pattern(made, (0, 20), (1, 60)), pattern(made, (0, 40))
    seated, loose = match(floor(made, stands), Layout(patterns=(both, single), counts=(1, 3)))
    assert seated == {1: both, 0: single, 3: single}
    assert loose == {single: 1}


def test_the_same_network_at_another_share_is_better_than_nothing() -> None:
    made = problem()
    wanted = pattern(made, (2, 60))
    seated, _ = match(floor(made, {0: [held(1, 60)], 2: [held(2, 40)]}), Layout(patterns=(wanted,), counts=(1,)))
    assert seated == {2: wanted}


def test_too_small_a_memory_limit_is_another_process() -> None:
    made = problem()
    wanted = pattern(made, (0, 40))
    assert (
        saved_s(wanted, wanted.variants, [held(0, 40, memory_mib=1400)])
        > saved_s(wanted, wanted.variants, [held(0, 40, memory_mib=1100)])
        > 0
    )
    assert saved_s(wanted, wanted.variants, [held(1, 40)]) == 0


def crowd(seed: int) -> tuple[list[tuple[tuple[int, int], ...]], dict[int, list[seating.Held]]]:
    rng = np.random.default_rng(seed)
    wanted, stands = [], {}
    for device in range(4):
        wanted.append(tuple((int(variant), 20) for variant in sorted(rng.choice(4, 2, replace=False))))
        stands[device] = [held(int(variant), 20, launch_s=float(rng.integers(5, 50))) for variant in rng.choice(4, 2)]
    return wanted, stands


@pytest.mark.parametrize("seed", range(8))
def test_each_device_is_matched_once_and_most_is_saved(seed: int) -> None:
    made = problem()
    wanted, stands = crowd(seed)
    patterns = [pattern(made, *members) for members in wanted]
    counts = {item: patterns.count(item) for item in patterns}
    seated, loose = match(floor(made, stands), Layout(patterns=tuple(counts), counts=tuple(counts.values())))
    assert len(seated) + sum(loose.values()) == len(patterns)
    total = sum(saved_s(item, item.variants, stands[device]) for device, item in seated.items())
    best = max(
        sum(saved_s(item, item.variants, stands[device]) for device, item in enumerate(order))
        for order in permutations(patterns)
    )
    # Whoever takes the most first has half of it at least.
    assert best / 2 <= total <= best + 1e-6
