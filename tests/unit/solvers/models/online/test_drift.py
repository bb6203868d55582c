"""The cumulative sums: what alarms, how soon, how seldom by chance."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.models.online.monitor import LIMIT, Drift


def run(residuals: list[float], state: Drift | None = None) -> tuple[Drift, list[int]]:
    state, alarms = state or Drift(), []
    for index, residual in enumerate(residuals):
        state, alarm = state.after(residual, float(index))
        if alarm:
            alarms.append(index)
    return state, alarms


@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_honest_residuals_raise_no_alarm(seed: int) -> None:
    residuals = np.random.default_rng(seed).standard_normal(10_000)
    assert run(residuals.tolist())[1] == []


def test_the_stated_rate_of_false_alarms() -> None:
    """At a third of the limit, the same formula says one in about 380 for both sides; the sums keep to it."""
    scaled = np.random.default_rng(1).standard_normal(60_000)
    up = down = 0.0
    alarms = 0
    for residual in scaled.tolist():
        up, down = max(0.0, up + residual - 0.5), max(0.0, down - residual - 0.5)
        if max(up, down) > LIMIT / 2.4:
            alarms, up, down = alarms + 1, 0.0, 0.0
    b = LIMIT / 2.4 + 1.166
    expected = 60_000 * 2 * 0.5 / (np.exp(b) - b - 1)
    assert alarms == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize(("shift", "within"), [(1.5, 25), (-1.5, 25), (4.0, 4), (1000.0, 4)])
def test_a_lasting_change_is_found_once_and_its_beginning_told(shift: float, within: int) -> None:
    noise = np.random.default_rng(3).standard_normal(400)
    noise[200:] += shift
    state, alarms = run(noise.tolist())
    assert len(alarms) == 1
    assert 200 <= alarms[0] < 200 + within
    assert abs(state.began_s - 200) <= 5


def test_one_residual_of_any_size_is_not_enough() -> None:
    assert run([1e9, 0.0, 0.0, 0.0, -1e9, 0.0])[1] == []


def test_it_is_silent_until_it_is_armed_again() -> None:
    state, alarms = run([4.0] * 50)
    assert (alarms, state.raised) == ([3], True)
    assert run([4.0] * 50, Drift())[1] == [3]
