"""The benchmark's arithmetic: errors, R², coverage, points to reach an error, order kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.predictors.metrics import (
    MeasuredAnswers,
    calibration,
    coverage_pct,
    errors_pct,
    joined,
    points_to_reach,
    summary,
)
from lab.claims.predictors import order_kept_pct, r_squared


def answered(truth: list[float], mean: list[float], std: list[float] | None = None) -> MeasuredAnswers:
    return MeasuredAnswers(truth=np.array(truth), mean=np.array(mean), std=np.array(std or [0.0] * len(truth)))


def test_errors_are_relative_to_the_measured_value() -> None:
    assert errors_pct(answered([10, 20, 5], [11, 10, math.nan])) == pytest.approx([10, 50])


def test_r_squared_of_a_constant_is_zero_and_worse_is_negative() -> None:
    truth = np.array([1.0, 2.0, 3.0])
    assert r_squared(truth, truth) == 1.0
    assert r_squared(truth, np.full(3, 2.0)) == 0.0
    assert r_squared(truth, truth[::-1]) == -3.0
    assert math.isnan(r_squared(np.ones(3), truth))


def test_unanswered_rows_are_counted_and_left_out() -> None:
    found = summary(answered([1, 2, 4, 8], [1, 2, 4, math.nan]), logarithmic=True)
    assert found["answered_pct"] == 75.0
    assert found["mape_pct"] == 0.0
    assert found["r2"] == 1.0
    assert summary(answered([1.0], [math.nan]), logarithmic=True) == {"rows": 1.0, "answered_pct": 0.0}


def test_r_squared_is_on_logarithms_when_asked() -> None:
    doubled = answered([1, 10, 100], [2, 20, 200])
    spread = 2 * math.log(10) ** 2
    assert summary(doubled, logarithmic=True)["r2"] == pytest.approx(1 - 3 * math.log(2) ** 2 / spread)
    assert summary(doubled, logarithmic=False)["r2"] < 0


def test_coverage_of_normal_errors_is_what_it_says() -> None:
    rng = np.random.default_rng(1)
    std = rng.uniform(0.5, 2.0, 20_000)
    mean = rng.uniform(50, 60, 20_000)
    drawn = MeasuredAnswers(truth=mean + std * rng.standard_normal(20_000), mean=mean, std=std)
    assert coverage_pct(drawn, 1.2816) == pytest.approx(80, abs=1)
    assert coverage_pct(drawn, 1.96) == pytest.approx(95, abs=1)
    assert calibration(drawn, np.array([20.0, 50.0, 90.0])) == pytest.approx([20, 50, 90], abs=1)


def test_coverage_needs_intervals() -> None:
    assert math.isnan(coverage_pct(answered([1.0], [1.0], [math.nan]), 1.96))


@pytest.mark.parametrize(
    ("curve", "target", "expected"),
    [
        ({4: 20.0, 8: 9.0, 16: 4.0}, 10.0, 8),
        ({4: 20.0, 8: 9.0, 16: 12.0, 32: 9.5}, 10.0, 32),
        ({4: 3.0, 8: 2.0}, 5.0, 4),
        ({4: 30.0, 8: 20.0}, 10.0, None),
        ({4: math.nan, 8: 5.0}, 10.0, 8),
    ],
)
def test_points_to_reach_counts_only_what_stays_reached(
    curve: dict[int, float], target: float, expected: int | None
) -> None:
    assert points_to_reach(curve, target) == expected


def test_folds_join_in_order() -> None:
    whole = joined([answered([1, 2], [1, 2]), answered([3], [4], [0.5])])
    assert whole.truth.tolist() == [1, 2, 3]
    assert whole.std.tolist() == [0, 0, 0.5]


def test_order_kept_counts_pairs_of_rows() -> None:
    truth, mean = np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 4.0])
    assert order_kept_pct(truth, mean, [(0, 1), (1, 2), (2, 0)]) == pytest.approx(100 / 3)
