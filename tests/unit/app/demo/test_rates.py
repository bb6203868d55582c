"""The demo's day: waves, crowds, Poisson counts and their split, all from arguments and a seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.demo.traffic import RateShape, TrafficPlan, poisson, read_traffic_plan, split
from solvers.errors import InputError

FRACTIONS = st.floats(min_value=-3, max_value=3)


def test_the_spike_is_four_times_the_wave_and_ends() -> None:
    calm = RateShape(service="p/a", rate_rps_mean=100, swing=0.4, peak_at=0.6)
    crowd = RateShape(service="p/a", rate_rps_mean=100, swing=0.4, peak_at=0.6, spike_at=0.3, spike_length=0.1)
    assert crowd.rate_rps(0.35) == pytest.approx(4 * calm.rate_rps(0.35))
    assert crowd.rate_rps(0.3) == pytest.approx(calm.rate_rps(0.3))
    assert crowd.rate_rps(0.41) == pytest.approx(calm.rate_rps(0.41))
    assert calm.rate_rps(0.6) == pytest.approx(140)
    assert calm.rate_rps(0.1) == pytest.approx(60)


@given(FRACTIONS, st.floats(0, 1), st.floats(0.01, 0.99), st.floats(0, 1))
def test_a_rate_is_never_negative_and_repeats_daily(time: float, swing: float, length: float, spike_at: float) -> None:
    shape = RateShape(service="p/a", rate_rps_mean=10, swing=swing, spike_at=spike_at, spike_length=length)
    assert 0 <= shape.rate_rps(time) <= 10 * (1 + swing) * 4 + 1e-9
    # Days repeat, up to the float dust that a crowd's steep flank magnifies.
    assert shape.rate_rps(time) == pytest.approx(shape.rate_rps(time + 1.0), rel=1e-6, abs=1e-6)


def test_the_mean_over_a_day_is_the_mean() -> None:
    shape = RateShape(service="p/a", rate_rps_mean=50, swing=0.7)
    assert sum(shape.rate_rps(step / 1000) for step in range(1000)) / 1000 == pytest.approx(50)


@pytest.mark.parametrize("mean", [0.3, 5.0, 49.0, 400.0])
def test_counts_have_the_mean_and_spread_of_poisson(mean: float) -> None:
    stream = random.Random(3)
    counts = [poisson(stream, mean) for _ in range(4000)]
    average = sum(counts) / len(counts)
    variance = sum((count - average) ** 2 for count in counts) / len(counts)
    assert average == pytest.approx(mean, rel=0.05)
    assert variance == pytest.approx(mean, rel=0.12)
    assert poisson(stream, 0) == 0


@given(st.integers(0, 500), st.lists(st.floats(0, 10), max_size=6), st.integers())
def test_a_split_loses_nobody(count: int, weights: list[float], seed: int) -> None:
    replicas = [(f"r{index}", weight) for index, weight in enumerate(weights)]
    parts = split(random.Random(seed), count, replicas)
    assert sum(parts.values()) == (count if replicas else 0)
    assert set(parts) <= {name for name, _ in replicas}


def test_a_split_follows_weights() -> None:
    parts = split(random.Random(1), 10_000, [("a", 3.0), ("b", 1.0), ("c", 0.0)])
    assert parts["a"] == pytest.approx(7500, rel=0.05)
    assert parts["c"] == 0


def test_equal_seeds_give_equal_days() -> None:
    plan = TrafficPlan(shapes=(RateShape(service="p/a", rate_rps_mean=9),), day_s=100, starts_at=0.5)
    assert plan.day_fraction(75) == pytest.approx(0.25)
    first, second = (
        [poisson(stream, plan.shapes[0].rate_rps(plan.day_fraction(second))) for second in range(50)]
        for stream in (random.Random(plan.seed), random.Random(plan.seed))
    )
    assert first == second
    assert len(set(first)) > 1


def test_the_shipped_day_is_readable_and_has_a_crowd_of_four() -> None:
    plan = read_traffic_plan(Path(__file__).parents[4] / "examples" / "traffic.yaml")
    assert len(plan.shapes) == 8
    spikes = [shape for shape in plan.shapes if shape.spike_at is not None]
    assert spikes
    assert {shape.spike_factor for shape in spikes} == {4}
    assert 2400 <= plan.day_s <= 3600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shapes: 3\n", "list `shapes`"),
        ("shapes: [{service: p/a}]\n", "rate_rps_mean"),
        ("shapes: [{service: p/a, rate_rps_mean: 1, colour: red}]\n", "unknown fields: colour"),
        ("shapes: [{service: p/a, rate_rps_mean: -1}]\n", "rate_rps_mean must lie"),
        ("shapes: []\nday_s: 0\n", "day_s"),
        ("shapes: [{service: p/a, rate_rps_mean: 1, swing: 2}]\n", "swing"),
        ("shapes: [{service: p/a, rate_rps_mean: 1, spike_length: 0}]\n", "spike"),
        ("a: [", "traffic.yaml"),
    ],
)
def test_a_wrong_plan_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "traffic.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_traffic_plan(file)
    assert message in str(caught.value)
    assert "traffic.yaml" in str(caught.value)
