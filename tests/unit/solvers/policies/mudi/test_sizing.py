"""The tuner of batches."""

from __future__ import annotations

import math

import numpy as np
import pytest

from solvers.policies.mudi.curves import MudiParameters
from solvers.policies.mudi.sizing import beta, bounds, tune

BATCHES = tuple(range(1, 65))


def valley(batch: int) -> float:
    return 5.0 + (math.log2(batch) - 4.0) ** 2


def test_it_finds_the_best_batch_in_a_few_evaluations() -> None:
    found = tune(BATCHES, valley, 1, MudiParameters())
    assert found.evaluations <= 25
    assert valley(found.batch) <= 1.01 * valley(16)
    assert found.value == valley(found.batch)


def test_it_evaluates_no_more_than_it_may_and_no_batch_twice() -> None:
    seen: list[int] = []

    def noted(batch: int) -> float:
        seen.append(batch)
        return valley(batch)

    tune(BATCHES, noted, 64, MudiParameters(iterations=5))
    assert len(seen) == 5
    assert len(set(seen)) == 5
    assert seen[0] == 64


def test_it_passes_over_what_is_impossible() -> None:
    found = tune((1, 2, 4, 8, 16, 32), lambda batch: valley(batch) if batch < 8 else 1e6, 32, MudiParameters())
    assert found.batch == 4


def test_a_single_candidate_needs_one_evaluation() -> None:
    found = tune((4,), valley, 4, MudiParameters())
    assert (found.batch, found.evaluations) == (4, 1)


def test_the_bound_is_wide_where_nothing_was_seen() -> None:
    places = np.log2(np.array([1.0, 2.0, 64.0]))
    low = bounds(places, {0: 1.0, 1: 1.2}, beta(3, 2, 0.1))
    assert low[2] < low[0]
    assert low[0] == pytest.approx(1.0, abs=0.05)
    assert beta(3, 4, 0.1) > beta(3, 2, 0.1) > beta(3, 2, 0.5)
