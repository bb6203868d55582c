"""Samples sorted into points: clocks, odd rows, what is measured of what.

Points: what counts, what repeats, how far things are.
"""

from __future__ import annotations

import numpy as np
import pytest

from solvers.models.base import Queries, Samples
from solvers.models.belief import intake
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


def test_repeats_keep_their_variance_however_they_were_merged() -> None:
    rows = [(1.0, 0.5, value) for value in (2.9, 3.0, 3.1)]
    whole, alone = points(*rows).merged(), points((2, 0.5, 9)).merged()
    assert whole.spread == pytest.approx(np.var(np.log([2.9, 3.0, 3.1]), ddof=1), rel=0.01)
    assert alone.spread.tolist() == [0.0]
    assert whole.joined(points(*rows)).merged().spread == pytest.approx(whole.spread * 4 / 5)


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


NAN = float("nan")


def test_the_listed_clock_wins_over_the_highest_seen_and_known_over_both() -> None:
    told = Samples.of(Queries.of("m", ["a", "a", "b"], 1, 100, [900.0, 1200.0, NAN]), [1.0, 1.0, 1.0])
    assert intake.references({}, told, {})["a"] == 1200
    assert np.isnan(intake.references({}, told, {})["b"])
    assert intake.references({"a": 1500.0}, told, {})["a"] == 1500
    assert intake.references({"a": 1500.0}, told, {"a": 1400.0})["a"] == 1400


def test_a_missing_clock_is_the_reference() -> None:
    assert intake.slowness(np.array([NAN, 750.0]), 1500.0).tolist() == [1, 2]
    assert intake.slowness(np.array([750.0]), NAN).tolist() == [1]


def test_rows_that_are_no_configuration_are_left_out() -> None:
    told = Samples.of(
        Queries.of("m", "a", [1, 0, NAN, 2, 2], [50, 50, 50, 0, 250], [NAN, NAN, NAN, NAN, 1000.0]),
        [1.0, 1, 1, 1, 7],
        power_w=[NAN, NAN, NAN, NAN, 80],
    )
    found = intake.gathered(told, {"a": 1000.0})
    assert np.exp(found.points["latency"]["m", "a"].log_value) == pytest.approx([1, 7])
    assert found.points["latency"]["m", "a"].share.tolist() == [0.5, 1.0]
    assert len(found.points["power"]["m", "a"]) == 1
    assert found.points["memory"] == {}


def test_throughput_that_follows_from_latency_tells_nothing_more() -> None:
    queries = Queries.of("m", "a", [1, 2, 4], 100)
    latency = np.array([2.0, 3.0, 5.0])
    rate = 1000 * queries.batch / latency
    same = intake.gathered(Samples.of(queries, latency, throughput_rps=rate * 1.001), {})
    piped = intake.gathered(Samples.of(queries, latency, throughput_rps=rate * 1.2), {})
    assert same.points["cycle"] == {}
    assert np.exp(piped.points["cycle"]["m", "a"].log_value) == pytest.approx(latency / 1.2)


def test_ratios_of_percentiles_are_gathered_where_both_were_measured() -> None:
    told = Samples.of(Queries.of("m", "a", [1, 2], 100), [2.0, 3.0], latency_ms_p99=[NAN, 3.6])
    assert intake.gathered(told, {}).tails["m", "a"] == pytest.approx([np.log(1.2)])
