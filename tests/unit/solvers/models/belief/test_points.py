"""Points: what counts, what repeats, how far things are."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.models.belief.intake import Points, distance, within


def points(*rows: tuple[float, float, float]) -> Points:
    table = np.array(rows, dtype=np.float64)
    return Points.of(table[:, 0], table[:, 1], np.ones(len(table)), table[:, 2])


def test_what_cannot_be_a_measurement_is_left_out() -> None:
    found = points((1, 0.5, 3), (0, 0.5, 3), (2, 0.5, np.nan), (2, -1, 3), (2, 0.5, 0), (2, 0.5, np.inf), (4, 1.5, 8))
    assert found.batch.tolist() == [1, 4]
    assert found.share.tolist() == [0.5, 1.0]


def test_repeated_configurations_become_their_median() -> None:
    found = points((2, 0.5, 9), (1, 0.5, 3), (1, 0.5, 3.2), (1, 0.5, 40), (2, 0.5, 16)).merged()
    assert found.batch.tolist() == [1, 2]
    assert np.exp(found.log_value) == pytest.approx([3.2, 12.0])
    assert found.count.tolist() == [3, 2]


def test_many_repetitions_count_as_no_more_than_some() -> None:
    assert points(*[(1.0, 0.5, 3.0)] * 500).merged().count.tolist() == [25]


def test_a_subset_reaches_the_corners() -> None:
    rows = [(float(batch), share / 100, 1.0) for batch in range(1, 65) for share in range(5, 101, 5)]
    found = points(*rows).spread_out(40)
    assert len(found) == 40
    assert (found.batch.min(), found.batch.max()) == (1, 64)
    assert (found.share.min(), found.share.max()) == (0.05, 1.0)


def test_distance_counts_usual_grid_steps() -> None:
    seen = points((4, 0.5, 1))
    at = (np.array([4.0, 8.0, 4.0]), np.array([0.5, 0.5, 0.25]), np.ones(3))
    assert distance(at, seen) == pytest.approx([0, 1, 2], abs=1e-6)
    assert np.isinf(distance(at, seen.take(np.array([], dtype=np.intp)))).all()


def test_within_is_the_box_of_what_was_measured() -> None:
    seen = points((1, 0.2, 1), (8, 0.6, 1))
    at = (np.array([1.0, 4, 9, 4]), np.array([0.2, 0.5, 0.5, 0.7]), np.ones(4))
    assert within(at, seen).tolist() == [True, True, False, False]
