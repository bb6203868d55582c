"""Arrival times: rates are right, order does not matter, sources do not disturb each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.world.arrivals import (
    ArrivalPattern,
    Bursts,
    Daily,
    JobPattern,
    RateCourse,
    RatePoint,
    Replayed,
    Source,
    Spacing,
    Steady,
    arrival_times_s,
    job_arrivals,
    rate_path,
)
from solvers.errors import FieldError

SOURCE = Source(name="demo/vision", seed=3)
PATTERNS: dict[str, ArrivalPattern] = {
    "poisson": Steady(rate_rps=40.0),
    "uniform": Steady(rate_rps=40.0, spacing=Spacing.UNIFORM),
    "bursts": Bursts(rate_rps_calm=10.0, rate_rps_burst=80.0, calm_s_mean=30.0, burst_s_mean=10.0),
    "daily": Daily(rate_rps_mean=30.0, period_s=600.0, spike_at_s=100.0, spike_s=40.0),
    "replayed": Replayed(rates_rps=(5.0, 0.0, 60.0, 20.0), bin_s=45.0),
    "course": RateCourse(points=(RatePoint(at_s=20.0, rate_rps=5.0), RatePoint(at_s=250.0, rate_rps=70.0))),
    "replayed-uniform": Replayed(rates_rps=(5.0, 0.0, 60.0, 20.0), bin_s=45.0, spacing=Spacing.UNIFORM),
}


@pytest.mark.parametrize("name", sorted(PATTERNS))
@given(seed=st.integers(0, 2**32), cut=st.floats(0.0, 300.0), start=st.floats(0.0, 200.0))
def test_stretches_give_together_what_the_whole_gives(name: str, seed: int, cut: float, start: float) -> None:
    pattern, source = PATTERNS[name], Source(name=name, seed=seed)
    middle = min(max(start, cut), 300.0)
    whole = arrival_times_s(pattern, source, start, 300.0)
    later = arrival_times_s(pattern, source, middle, 300.0)
    parts = np.concatenate((arrival_times_s(pattern, source, start, middle), later))
    assert whole.tobytes() == parts.tobytes()
    assert np.all(np.diff(whole) >= 0.0)
    assert np.all((whole >= start) & (whole < 300.0))


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_as_many_arrive_as_the_path_promises(name: str) -> None:
    pattern, span_s = PATTERNS[name], 3600.0
    path = rate_path(pattern, SOURCE, span_s)
    for from_s, until_s in ((0.0, span_s), (700.0, 1300.0), (1000.0, 1045.0)):
        expected = path.mean_rps(from_s, until_s) * (until_s - from_s)
        found = len(arrival_times_s(pattern, SOURCE, from_s, until_s))
        spread = 1.0 if pattern.spacing is Spacing.UNIFORM else 4.0 * expected**0.5 + 4.0
        assert found == pytest.approx(expected, abs=spread)


def test_a_poisson_stream_has_exponential_gaps_and_a_uniform_one_equal_gaps() -> None:
    gaps = np.diff(arrival_times_s(PATTERNS["poisson"], SOURCE, 0.0, 1000.0))
    assert gaps.mean() == pytest.approx(1 / 40, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 40, rel=0.03)
    assert np.diff(arrival_times_s(PATTERNS["uniform"], SOURCE, 0.0, 100.0)) == pytest.approx(1 / 40)


def test_bursts_have_their_mean_and_more_spread_than_poisson() -> None:
    pattern = Bursts(rate_rps_calm=10.0, rate_rps_burst=80.0, calm_s_mean=3.0, burst_s_mean=1.0)
    times = arrival_times_s(pattern, SOURCE, 0.0, 4000.0)
    assert pattern.rate_rps_mean == 27.5
    assert len(times) / 4000.0 == pytest.approx(27.5, rel=0.06)
    counts = np.histogram(times, bins=4000, range=(0.0, 4000.0))[0]
    assert counts.var() > 5.0 * counts.mean()


def test_a_day_begins_at_its_lowest_and_a_spike_multiplies() -> None:
    plain = Daily(rate_rps_mean=100.0, swing=0.5, period_s=1000.0)
    path = rate_path(plain, SOURCE, 2000.0)
    assert path.mean_rps(0.0, 1000.0) == pytest.approx(100.0)
    assert path.rates_rps.min() == pytest.approx(50.0, rel=0.01)
    assert path.rates_rps.argmin() in {0, 287, 288, 575}
    spiky = rate_path(Daily(rate_rps_mean=100.0, period_s=1000.0, spike_at_s=333.0, spike_s=7.5), SOURCE, 2000.0)
    assert spiky.mean_rps(333.0, 340.5) == pytest.approx(4.0 * path.mean_rps(333.0, 340.5), rel=1e-3)
    assert spiky.mean_rps(320.0, 333.0) == pytest.approx(path.mean_rps(320.0, 333.0), rel=1e-3)


def test_a_trace_is_scaled_in_rate_and_in_time_and_repeats() -> None:
    trace = Replayed(rates_rps=(10.0, 30.0), bin_s=60.0, rate_scale=2.0, time_scale=0.5)
    path = rate_path(trace, SOURCE, 120.0)
    assert path.edges_s.tolist() == [0.0, 30.0, 60.0, 90.0, 120.0]
    assert path.rates_rps.tolist() == [20.0, 60.0, 20.0, 60.0]
    silent = Replayed(rates_rps=(0.0,), bin_s=1.0)
    assert len(arrival_times_s(silent, SOURCE, 0.0, 100.0)) == 0


def test_sources_are_independent_and_order_does_not_matter() -> None:
    other = Source(name="demo/speech", seed=3)
    first = arrival_times_s(PATTERNS["poisson"], SOURCE, 0.0, 300.0)
    apart = arrival_times_s(PATTERNS["poisson"], other, 0.0, 300.0)
    again = arrival_times_s(PATTERNS["poisson"], SOURCE, 0.0, 300.0)
    assert first.tobytes() == again.tobytes()
    counts = [np.histogram(times, bins=300, range=(0.0, 300.0))[0] for times in (first, apart)]
    assert abs(np.corrcoef(*counts)[0, 1]) < 0.2
    assert first.tobytes() != arrival_times_s(PATTERNS["poisson"], Source(name="demo/vision", seed=4), 0, 300).tobytes()


def test_jobs_come_at_their_rate_and_a_longer_horizon_only_adds() -> None:
    pattern = JobPattern(jobs_per_h=20.0, iterations_median=1000.0, iterations_sigma=0.5)
    jobs = job_arrivals(pattern, SOURCE, 100 * 3600.0)
    assert len(jobs) == pytest.approx(2000, abs=180)
    assert np.median([job.iterations for job in jobs]) == pytest.approx(1000, rel=0.1)
    assert job_arrivals(pattern, SOURCE, 3600.0) == tuple(job for job in jobs if job.at_s < 3600.0)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Steady(rate_rps=-1.0), "rate_rps"),
        (lambda: Replayed(rates_rps=(), bin_s=1.0), "rates_rps"),
        (lambda: Replayed(rates_rps=(1.0,), bin_s=0.0), "bin_s"),
        (lambda: Daily(rate_rps_mean=1.0, swing=1.5), "swing"),
    ],
)
def test_impossible_patterns_are_refused(make: Callable[[], object], field: str) -> None:
    with pytest.raises(FieldError) as refused:
        make()
    assert refused.value.field == field


def test_a_course_follows_its_points() -> None:
    points = tuple(RatePoint(at_s=at_s, rate_rps=rate) for at_s, rate in ((10.0, 20.0), (110.0, 220.0), (200.0, 40.0)))
    ramp = rate_path(RateCourse(points=points), Source(name="a", seed=1), 400.0)
    assert ramp.mean_rps(0.0, 10.0) == 20.0
    assert ramp.mean_rps(10.0, 110.0) == pytest.approx(120.0)
    assert ramp.mean_rps(50.0, 70.0) == pytest.approx(120.0, rel=0.05)
    assert ramp.mean_rps(200.0, 400.0) == 40.0
    steps = rate_path(RateCourse(points=points, ramp=False), Source(name="a", seed=1), 400.0)
    assert [steps.mean_rps(*ends) for ends in ((0, 110), (110, 200), (200, 400))] == [20.0, 220.0, 40.0]
    shorter = rate_path(RateCourse(points=points), Source(name="a", seed=1), 150.0)
    assert shorter.mean_rps(0.0, 150.0) == pytest.approx(ramp.mean_rps(0.0, 150.0), rel=1e-12)


def test_a_course_refuses_points_that_do_not_rise() -> None:
    for times in ((), (5.0, 5.0), (5.0, 1.0)):
        with pytest.raises(FieldError, match="points must rise"):
            RateCourse(points=tuple(RatePoint(at_s=at_s, rate_rps=1.0) for at_s in times))
