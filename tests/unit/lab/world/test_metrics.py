"""Books: percentiles within their step, windows that count only where something happened, parts above a limit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.world.ledger import BINS, Flow, ServiceBook, Sums, bin_of, bins_of, over_part, percentile_ms, spread_bins
from solvers.domain.ids import ServiceId


def book(**changes: object) -> ServiceBook:
    made = ServiceBook(service=ServiceId("a/b"), limit_ms=10.0, percentile=95.0, execution_only=False)
    for name, number in changes.items():
        setattr(made, name, number)
    return made


def test_percentiles_are_at_most_a_step_too_high() -> None:
    latency_ms = np.random.default_rng(1).lognormal(3.0, 1.0, 20_000)
    histogram = np.bincount(bins_of(latency_ms), minlength=BINS).astype(np.float64)
    for percentile in (1.0, 50.0, 95.0, 99.0, 100.0):
        exact = float(np.percentile(latency_ms, percentile, method="inverted_cdf"))
        found = percentile_ms(histogram, percentile)
        assert found is not None
        assert exact <= found * (1 + 1e-9) <= exact * 1.0201
    assert percentile_ms(np.zeros(BINS), 99.0) is None


def test_one_latency_stands_where_many_do() -> None:
    latency_ms = np.geomspace(1e-4, 1e10, 500)
    assert [bin_of(float(each)) for each in latency_ms] == bins_of(latency_ms).tolist()
    assert bin_of(1e-4) == 0
    assert bin_of(1e10) == BINS - 1


def test_windows_count_when_something_was_asked_and_ended() -> None:
    made = book()
    made.take(Flow(asked=10.0, completed=8.0, late=1.0, dropped=2.0))
    seen = made.close_window()
    assert (seen.asked, seen.completed) == (10.0, 8.0)
    made.take(Flow(asked=5.0))
    made.close_window()
    made.take(Flow(completed=5.0))
    made.close_window()
    found = made.outcome(10.0)
    assert (found.windows, found.windows_violation_pct_mean) == (1, 30.0)
    assert (found.asked, found.completed, found.late, found.dropped) == (15.0, 13.0, 1.0, 2.0)
    assert found.violation_pct == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("flow", "changes", "attained"),
    [
        (Flow(asked=100.0, completed=100.0, late=5.0), {}, True),
        (Flow(asked=100.0, completed=100.0, late=5.1), {}, False),
        (Flow(asked=100.0, completed=95.0, dropped=5.1), {}, False),
        (Flow(asked=100.0), {}, False),
        (Flow(), {}, True),
        (Flow(asked=100.0, completed=100.0), {"rps_min": 10.0}, True),
        (Flow(asked=100.0, completed=100.0), {"rps_min": 10.1}, False),
    ],
)
def test_a_service_keeps_its_promise_by_its_percentile(flow: Flow, changes: dict[str, float], attained: bool) -> None:
    made = book(**changes)
    made.take(flow)
    assert made.outcome(10.0).attained is attained


def test_what_comes_before_a_new_beginning_is_forgotten() -> None:
    made = book()
    made.take(Flow(asked=1.0, completed=1.0))
    made.histogram[3] = 1.0
    made.close_window()
    made.begin_anew()
    found = made.outcome(1.0)
    assert (found.asked, found.completed, found.windows, found.latency_ms_p50) == (0.0, 0.0, 0, None)


def test_sums_add_up_field_by_field() -> None:
    made = Sums(seconds=1.0, energy_j=2.0)
    made.add(Sums(seconds=3.0, device_usd=4.0))
    assert made == Sums(seconds=4.0, energy_j=2.0, device_usd=4.0)


def test_the_part_above_a_limit_is_that_of_the_distribution() -> None:
    sigma, mean_ms = 0.2, 10.0
    draws = mean_ms * np.exp(sigma * np.random.default_rng(1).standard_normal(100_000) - 0.5 * sigma * sigma)
    for limit_ms in (8.0, 10.0, 13.0):
        assert over_part(sigma, mean_ms, limit_ms) == pytest.approx(float(np.mean(draws > limit_ms)), abs=0.005)
    assert over_part(0.0, 10.0, 9.9) == 1.0
    assert over_part(0.0, 10.0, 10.0) == over_part(0.2, 10.0, None) == 0.0


def test_nine_equal_parts_keep_mean_and_spread() -> None:
    middles = [0.01 * 1.02 ** (place + 0.5) for place in spread_bins(0.2, 10.0)]
    assert np.mean(middles) == pytest.approx(10.0, rel=0.02)
    assert np.std(np.log(middles)) == pytest.approx(0.2, rel=0.1)
    assert math.isclose(np.median(middles), 10.0 * math.exp(-0.02), rel_tol=0.02)
