"""Samples sorted into points: clocks, odd rows, what is measured of what."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.models.base import Queries, Samples
from solvers.models.belief import intake

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
