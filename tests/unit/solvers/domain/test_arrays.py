"""The most and the least by number, and rows that none before is as little as in every sum."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.domain.arrays import least_of, most_of, unbeaten


def test_the_most_and_the_least_are_by_number_and_what_was_first_counts() -> None:
    values, of, first = np.array([3.0, 1.0, 2.0]), np.array([0, 0, 2]), np.array([0.0, 5.0, 2.5])
    assert most_of(values, of, first).tolist() == [3.0, 5.0, 2.5]
    assert least_of(values, of, first).tolist() == [0.0, 5.0, 2.0]
    assert first.tolist() == [0.0, 5.0, 2.5]


@pytest.mark.parametrize("seed", range(3))
def test_who_is_kept_is_beaten_by_none_before_and_whoever_is_not_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sums, order = rng.integers(0, 6, (40, 3)).astype(np.float64), rng.permutation(40)
    kept = unbeaten(sums, order, 0.5).tolist()
    for at, row in enumerate(order.tolist()):
        before = [other for other in order[:at].tolist() if other in kept]
        assert (row in kept) is not any((sums[other] <= sums[row] + 0.5).all() for other in before)
    assert unbeaten(sums, order, 0.5, 2).tolist() == kept[:2]


def test_of_nothing_nothing_is_kept() -> None:
    assert unbeaten(np.zeros((0, 2)), np.zeros(0, dtype=np.int64), 0.0).tolist() == []
