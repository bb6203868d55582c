"""Learning one outcome at a time: outliers move next to nothing, lasting changes are learned and told once."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.domain.codec import from_plain, to_plain
from solvers.models.online.monitor import Cause, Miscalibration, Monitor, rebuilt
from solvers.models.online.outcomes import ESTABLISHED, SURPRISES, WINDOW, Neighbour, Point, Verdict
from tests.unit.solvers.models.told import Learner, forecast_of, outcome

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
