"""Steady state: warming up is cut off, disturbances start anew, tight intervals end it, and hopeless ones say so."""

from __future__ import annotations

import random

import pytest

from agents.profiling.session import WINDOWS_MAX, WINDOWS_MIN, MeasurementWindow, interval, judge


def windows(*means: float) -> list[MeasurementWindow]:
    return [MeasurementWindow(latency_ms_mean=mean) for mean in means]


def test_equal_windows_end_as_soon_as_there_are_enough() -> None:
    assert not judge(windows(*[5.0] * (WINDOWS_MIN - 1))).done
    verdict = judge(windows(*[5.0] * WINDOWS_MIN))
    assert verdict.done
    assert verdict.mean_ms == 5.0
    assert verdict.half_width_pct == 0.0
    assert verdict.from_window == 0


def test_warming_up_does_not_count() -> None:
    means = [9.0, 7.5, 6.2, 5.4, *[5.0, 5.01, 4.99, 5.0, 5.01, 4.99, 5.0, 5.0]]
    verdict = judge(windows(*means))
    assert verdict.done
    assert verdict.from_window >= 3
    assert verdict.mean_ms == pytest.approx(5.0, rel=0.01)


def test_a_disturbance_starts_anew() -> None:
    found = windows(5.0, 5.0, 5.0, 5.0, 5.0)
    found.insert(4, MeasurementWindow(latency_ms_mean=8.0, clean=False))
    verdict = judge(found)
    assert not verdict.done
    assert verdict.mean_ms is None


def test_wide_scatter_goes_on_and_ends_with_the_reason() -> None:
    draw = random.Random(3)
    means = [draw.uniform(1.0, 20.0) for _ in range(WINDOWS_MAX)]
    assert not judge(windows(*means[:10])).done
    verdict = judge(windows(*means))
    assert verdict.done
    assert "only" in verdict.problem
    assert verdict.mean_ms is not None


def test_a_board_that_throttles_to_the_end_has_no_result() -> None:
    found = [MeasurementWindow(latency_ms_mean=5.0, clean=False)] * WINDOWS_MAX
    verdict = judge(found)
    assert verdict.done
    assert verdict.mean_ms is None
    assert "held down" in verdict.problem


def test_the_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 * (1.0 / 3.0) ** 0.5)


def test_the_interval_holds_its_mean_about_as_often_as_it_says() -> None:
    draw = random.Random(7)
    held = 0
    for _ in range(400):
        mean, half = interval([draw.gauss(10.0, 1.0) for _ in range(8)])
        held += abs(mean - 10.0) <= half
    assert 0.92 <= held / 400 <= 0.98
