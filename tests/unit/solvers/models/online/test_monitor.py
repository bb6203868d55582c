"""Learning one outcome at a time: outliers move next to nothing, lasting changes are learned and told once.

The cumulative sums: what alarms, how soon, how seldom by chance. Honest and dishonest intervals, and the binomial
bounds between them. OLTunes' trigger and its tamer form.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.domain.codec import from_plain, to_plain
from solvers.errors import FieldError
from solvers.models.online.monitor import (
    CHANCE,
    COVERAGE_WINDOW,
    LIMIT,
    Cause,
    Coverage,
    Drift,
    Miscalibration,
    Monitor,
    Trigger,
    bounds,
    rebuilt,
    relative_error,
)
from solvers.models.online.outcomes import ESTABLISHED, SURPRISES, WINDOW, Neighbour, Point, Verdict
from tests.unit.solvers.models.told import Learner, forecast_of, outcome


def drifted(residuals: list[float], state: Drift | None = None) -> tuple[Drift, list[int]]:
    state, alarms = state or Drift(), []
    for index, residual in enumerate(residuals):
        state, alarm = state.after(residual, float(index))
        if alarm:
            alarms.append(index)
    return state, alarms


@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_honest_residuals_raise_no_alarm(seed: int) -> None:
    residuals = np.random.default_rng(seed).standard_normal(10_000)
    assert drifted(residuals.tolist())[1] == []


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
    state, alarms = drifted(noise.tolist())
    assert len(alarms) == 1
    assert 200 <= alarms[0] < 200 + within
    assert abs(state.began_s - 200) <= 5


def test_one_residual_of_any_size_is_not_enough() -> None:
    assert drifted([1e9, 0.0, 0.0, 0.0, -1e9, 0.0])[1] == []


def test_it_is_silent_until_it_is_armed_again() -> None:
    state, alarms = drifted([4.0] * 50)
    assert (alarms, state.raised) == ([3], True)
    assert drifted([4.0] * 50, Drift())[1] == [3]


def covered(
    deviations: list[float], state: Coverage | None = None
) -> tuple[Coverage, list[tuple[int, Miscalibration]]]:
    state, found = state or Coverage(), []
    for index, deviation in enumerate(deviations):
        state, alarm = state.after(deviation)
        if alarm is not None:
            found.append((index, alarm))
    return state, found


@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_honest_outcomes_raise_no_alarm(seed: int) -> None:
    assert covered(np.random.default_rng(seed).standard_normal(10_000).tolist())[1] == []


@pytest.mark.parametrize(
    ("scale", "kind"), [(2.0, Miscalibration.OVERCONFIDENT), (0.25, Miscalibration.UNDERCONFIDENT)]
)
def test_dishonest_intervals_are_told_once(scale: float, kind: Miscalibration) -> None:
    deviations = (scale * np.random.default_rng(0).standard_normal(3_000)).tolist()
    state, found = covered(deviations)
    assert [each for _, each in found] == [kind]
    assert found[0][0] < 250
    honest = np.random.default_rng(1).standard_normal(2 * COVERAGE_WINDOW).tolist()
    again = covered(honest, state)[0]
    assert not again.raised
    assert [each for _, each in covered(deviations, again)[1]] == [kind]


def test_bounds_are_the_tightest_that_keep_the_chance() -> None:
    low, high = bounds(200, 0.8)
    mass = [math.comb(200, k) * 0.8**k * 0.2 ** (200 - k) for k in range(201)]
    assert sum(mass[:low]) <= CHANCE < sum(mass[: low + 1])
    assert sum(mass[high + 1 :]) <= CHANCE < sum(mass[high:])
    assert bounds(50, 0.95)[1] == 50


def test_every_outcome_counts_for_the_intervals_that_hold_it() -> None:
    state, _ = covered([0.5, 1.5, 3.0, -0.5])
    assert state.held == (2, 1, 0, 2)
    assert len(covered([0.0] * 1000)[0].held) <= COVERAGE_WINDOW


def triggered(errors: list[float], trigger: Trigger) -> list[bool]:
    window: tuple[float, ...] = ()
    answers = []
    for error in errors:
        window, due = trigger.after(window, error)
        answers.append(due)
    assert len(window) <= trigger.window
    return answers


def test_the_papers_form_asks_after_every_task() -> None:
    paper = Trigger(window=1, least=1, part=1.0)
    assert triggered([0.25, 0.26, -0.3, 0.1], paper) == [False, True, True, False]


def test_a_part_of_the_newest_must_miss() -> None:
    trigger = Trigger(theta=0.25, window=20, least=10, part=0.5)
    assert not any(triggered([0.4, 0.1, 0.1] * 20, trigger))
    answers = triggered([0.1] * 20 + [0.4] * 10, trigger)
    assert answers.index(True) == 29
    assert triggered([0.4] * 10, trigger).index(True) == 9


def test_errors_are_relative_to_what_was_measured() -> None:
    assert relative_error(15.0, 10.0) == 0.5
    assert relative_error(5.0, 10.0) == -0.5


@pytest.mark.parametrize("wrong", [{"theta": 0.0}, {"window": 0}, {"least": 21}, {"part": 1.5}])
def test_senseless_triggers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        Trigger(**wrong)


BATCHES = (1.0, 4.0, 16.0)
NOISE = 0.03


def true_ms(batch: float) -> float:
    return 2.0 + batch


def hear(learner: Learner, index: int, factor: float) -> tuple[float, Verdict, bool]:
    """One outcome, this many times slower than the belief thinks; how far off what is learned then is."""
    batch = BATCHES[index % len(BATCHES)]
    seen = outcome(batch=batch, latency_ms=true_ms(batch) * factor, executions=100.0, seconds=1e9, at_s=float(index))
    learned = learner.hear(seen, forecast_of(true_ms(batch), NOISE))
    assert learned.point is not None
    known = learned.point.latency_ms or true_ms(batch)
    return math.log(known / true_ms(batch)), learned.verdict, learned.drifted


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    part=st.sampled_from((0.1, 0.2)),
    outliers=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5),
)
def test_outliers_of_any_size_hardly_move_what_is_learned(seed: int, part: float, outliers: list[float]) -> None:
    """One report in five or ten is a lie of any size: what is learned stays within 6 % (two deviations of one report).

    The lies are spread by chance, but for never so many in a row at one configuration as would be a change.
    """
    draw = np.random.default_rng(seed)
    learner, in_a_row = Learner.new(), [0] * len(BATCHES)
    for index in range(240):
        own = index % len(BATCHES)
        lies = index >= 15 and draw.random() < part and in_a_row[own] < SURPRISES - 1
        in_a_row[own] = in_a_row[own] + 1 if lies else 0
        factor = outliers[index % len(outliers)] if lies else math.exp(NOISE * draw.standard_normal())
        moved, _, _ = hear(learner, index, factor)
        if learner.points and index >= 30:
            assert abs(moved) < 0.06


@pytest.mark.parametrize("change", [1.3, 0.7])
@pytest.mark.parametrize("seed", range(4))
def test_a_lasting_change_is_learned_and_told_once(change: float, seed: int) -> None:
    """Within eight outcomes of each configuration it is learned to 5 %; drift is told once, until armed again."""
    draw = np.random.default_rng(seed)
    learner, told, moved = Learner.new(), [], 0.0
    for index in range(400):
        factor = math.exp(NOISE * draw.standard_normal()) * (change if index >= 99 else 1.0)
        moved, _, drifted = hear(learner, index, factor)
        if drifted:
            told.append(index)
        if index >= 99 + SURPRISES * len(BATCHES):
            assert abs(moved - math.log(change)) < 0.05
    assert len(told) == 1
    assert 99 <= told[0] < 99 + SURPRISES * len(BATCHES)
    assert learner.monitor.due is Cause.DRIFT


def test_after_a_drift_old_values_are_forgotten_and_it_is_armed_again() -> None:
    draw = np.random.default_rng(5)
    learner, told = Learner.new(), []
    for index in range(700):
        factor = math.exp(NOISE * draw.standard_normal()) * (1.3 if 100 <= index < 400 else 1.0)
        if hear(learner, index, factor)[2]:
            told.append(index)
            monitor, kept = rebuilt(learner.monitor, learner.points.values())
            assert monitor == Monitor(model="resnet50", gpu_type="t4")
            since_s = 100.0 if index < 400 else 400.0
            assert all(at_s >= since_s - 10.0 for point in kept for at_s in point.moments)
            learner = Learner(monitor, {point.configuration: point for point in kept})
    assert len(told) == 2
    assert 100 <= told[0] < 130
    assert 400 <= told[1] < 430


@pytest.mark.parametrize("noise", [0.01, NOISE, 0.1])
def test_honest_beliefs_raise_no_alarm_over_ten_thousand_outcomes(noise: float) -> None:
    draw, learner = np.random.default_rng(2), Learner.new()
    rejected = 0
    for index, factor in enumerate(np.exp(noise * draw.standard_normal(10_000)).tolist()):
        batch = BATCHES[index % 3]
        seen = outcome(batch=batch, latency_ms=true_ms(batch) * factor, executions=9.0, at_s=float(index))
        learned = learner.hear(seen, forecast_of(true_ms(batch), noise))
        rejected += learned.verdict is not Verdict.ADMITTED
        assert (learned.drifted, learned.miscalibrated, learner.monitor.due) == (False, None, None)
    assert rejected < 30


def test_conditions_turn_away_without_a_trace() -> None:
    learner = Learner.new()
    for index in range(50):
        hear(learner, index, 1.0)
    before = (learner.monitor, dict(learner.points))
    for wrong in ({"throttled": True}, {"cold": True}, {"failing": True}, {"executions": 1.0}, {"sm_count": 3}):
        assert learner.hear(outcome(latency_ms=500.0, **wrong), None).verdict is not Verdict.ADMITTED
    assert (learner.monitor, learner.points) == before


def test_a_wrong_belief_is_due_and_waits_longer_each_time_it_does_not_help() -> None:
    learner, due = Learner.new(), []
    for index in range(400):
        seen = outcome(latency_ms=20.0, at_s=float(index))
        learner.hear(seen, forecast_of(10.0, 0.5))
        if learner.monitor.due is not None:
            assert learner.monitor.due is Cause.ERROR
            due.append(index)
            monitor, kept = rebuilt(learner.monitor, learner.points.values())
            assert [len(point.values) for point in kept] == [ESTABLISHED]
            learner = Learner(monitor, {point.configuration: point for point in kept})
    gaps = np.diff(due)
    assert due[0] == 9
    assert gaps.tolist() == [21, 41, 81, 161]


def test_an_overconfident_belief_is_told() -> None:
    draw, learner, found = np.random.default_rng(0), Learner.new(), []
    for index in range(300):
        share = 10 + index % 90
        off = 20.0 * math.exp(0.1 * draw.standard_normal())
        seen = outcome(share_pct_sm=share, batch=2.0 ** (index % 7), latency_ms=off, at_s=float(index))
        learned = learner.hear(seen, forecast_of(20.0, 0.04))
        found += [learned.miscalibrated] if learned.miscalibrated else []
    assert found == [Miscalibration.OVERCONFIDENT]


def test_tiny_errors_of_a_very_sure_belief_are_nobodys_concern() -> None:
    """Promised to a hundredth of a percent, off by half a percent: wrong by fifty deviations, and good enough."""
    learner = Learner.new()
    for index in range(3_000):
        seen = outcome(batch=2.0 ** (index % 7), latency_ms=20.1, at_s=float(index))
        assert learner.hear(seen, forecast_of(20.0, 1e-4)).miscalibrated is None
    assert learner.monitor.coverage.held == ()


def test_without_any_belief_outcomes_still_teach() -> None:
    learner = Learner.new()
    for index in range(10):
        learned = learner.hear(outcome(latency_ms=20.0 + 0.1 * (index % 3), at_s=float(index)), None)
        assert learned.verdict is Verdict.ADMITTED
    assert learner.hear(outcome(latency_ms=40.0), None).verdict is Verdict.OUTLIER
    (point,) = learner.points.values()
    assert point.latency_ms == pytest.approx(20.1)


def test_state_is_bounded_and_plain() -> None:
    draw, learner = np.random.default_rng(7), Learner.new()
    sizes = []
    for index in range(600):
        seen = outcome(
            latency_ms=20.0 * math.exp(0.2 * draw.standard_normal()),
            at_s=float(index),
            neighbours=(Neighbour(model="bert-base", batch=4.0, share_pct_sm=50, busy=0.3),),
        )
        learner.hear(seen, forecast_of(20.0, 0.05))
        sizes.append(len(str(to_plain(learner.monitor))) + len(str(to_plain(next(iter(learner.points.values()))))))
    (point,) = learner.points.values()
    assert len(point.values) <= WINDOW
    assert max(sizes[300:]) < 6_000
    assert from_plain(Monitor, to_plain(learner.monitor)) == learner.monitor
    assert from_plain(Point, to_plain(point)) == point


def test_repeats_are_recognised_whatever_the_small_print() -> None:
    name = outcome(batch=8.0).configuration()
    assert outcome(batch=8.9, latency_ms=1.0, clock_mhz_sm=1580.0).configuration() == name
    assert outcome(batch=12.0).configuration() != name
    assert outcome(share_pct_sm=49).configuration() != name
    one = Neighbour(model="bert-base", batch=4.0, share_pct_sm=30, busy=0.2)
    two = Neighbour(model="resnet50", batch=1.0, share_pct_sm=20, busy=0.2)
    assert (
        outcome(neighbours=(one, two)).configuration()
        == outcome(neighbours=(two, replace(one, busy=0.9))).configuration()
    )
    assert outcome(neighbours=(one,)).configuration() != name
