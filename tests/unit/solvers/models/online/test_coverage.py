"""Honest and dishonest intervals, and the binomial bounds between them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from solvers.models.online.monitor import CHANCE, COVERAGE_WINDOW, Coverage, Miscalibration, bounds


def run(deviations: list[float], state: Coverage | None = None) -> tuple[Coverage, list[tuple[int, Miscalibration]]]:
    state, found = state or Coverage(), []
    for index, deviation in enumerate(deviations):
        state, alarm = state.after(deviation)
        if alarm is not None:
            found.append((index, alarm))
    return state, found


@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_honest_outcomes_raise_no_alarm(seed: int) -> None:
    assert run(np.random.default_rng(seed).standard_normal(10_000).tolist())[1] == []


@pytest.mark.parametrize(
    ("scale", "kind"), [(2.0, Miscalibration.OVERCONFIDENT), (0.25, Miscalibration.UNDERCONFIDENT)]
)
def test_dishonest_intervals_are_told_once(scale: float, kind: Miscalibration) -> None:
    deviations = (scale * np.random.default_rng(0).standard_normal(3_000)).tolist()
    state, found = run(deviations)
    assert [each for _, each in found] == [kind]
    assert found[0][0] < 250
    honest = np.random.default_rng(1).standard_normal(2 * COVERAGE_WINDOW).tolist()
    again = run(honest, state)[0]
    assert not again.raised
    assert [each for _, each in run(deviations, again)[1]] == [kind]


def test_bounds_are_the_tightest_that_keep_the_chance() -> None:
    low, high = bounds(200, 0.8)
    mass = [math.comb(200, k) * 0.8**k * 0.2 ** (200 - k) for k in range(201)]
    assert sum(mass[:low]) <= CHANCE < sum(mass[: low + 1])
    assert sum(mass[high + 1 :]) <= CHANCE < sum(mass[high:])
    assert bounds(50, 0.95)[1] == 50


def test_every_outcome_counts_for_the_intervals_that_hold_it() -> None:
    state, _ = run([0.5, 1.5, 3.0, -0.5])
    assert state.held == (2, 1, 0, 2)
    assert len(run([0.0] * 1000)[0].held) <= COVERAGE_WINDOW
