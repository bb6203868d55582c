"""Every controller keeps its envelope, holds without measurements, survives being written, and follows its own rule."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.control.controllers import DEFAULT, controller, names
from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    GovernorDecision,
    ReplicaReading,
    Setting,
    state_from_plain,
    state_to_plain,
)
from solvers.domain.policy import GOVERNORS, governor_of
from tests.unit.solvers.control.plant import CLOCKS_MHZ, Model, Plant, envelope_for

ONE = Plant(models=(Model(fixed_ms=2.0, input_ms=0.5, power_w=160.0),))
TWO = Plant(models=(Model(fixed_ms=2.0, input_ms=0.5, power_w=60.0), Model(fixed_ms=1.0, input_ms=1.0, power_w=80.0)))
BASELINES = ("batchdvfs", "clipper_l", "clipper_p", "dfs")


def start(envelope: DeviceEnvelope) -> Setting:
    return Setting(batches=(1,) * len(envelope.replicas), clock_mhz_sm=600)


def driven(name: str, plant: Plant, envelope: DeviceEnvelope, periods: int) -> list[GovernorDecision]:
    loop = controller(name)
    state, decisions = loop.first(envelope, start(envelope)), list[GovernorDecision]()
    for _ in range(periods):
        decisions.append(loop.step(envelope, state, plant.reading(state.setting)))
        state = decisions[-1].state
    return decisions


def power_w(plant: Plant, setting: Setting) -> float:
    found = plant.reading(setting).power_w
    assert found is not None
    return found


def test_the_names_are_known_and_others_are_refused() -> None:
    assert set(names()) == {DEFAULT, *BASELINES}
    with pytest.raises(ValueError, match="batchdvfs, clipper_l"):
        controller("nobody")


def test_the_domain_knows_every_controller() -> None:
    assert {item.name for item in GOVERNORS} == set(names())


@pytest.mark.parametrize("name", names())
def test_who_is_said_to_keep_latencies_makes_late_batches_smaller_and_no_other_does(name: str) -> None:
    envelope = envelope_for(ONE, 260.0, (25.0,))
    planned = Setting(batches=(64,), clock_mhz_sm=CLOCKS_MHZ[-1])
    late = ONE.reading(planned).replicas[0].latency_ms
    assert late is not None
    assert late > 25.0
    loop = controller(name)
    state = loop.first(envelope, planned)
    for _ in range(60):
        state = loop.step(envelope, state, ONE.reading(state.setting)).state
    on_time = (ONE.reading(replace(state.setting, clock_mhz_sm=CLOCKS_MHZ[-1])).replicas[0].latency_ms or 0.0) <= 27.5
    assert governor_of(name).keeps_latency is on_time


@pytest.mark.parametrize("name", names())
def test_who_is_said_to_move_the_clock_alone_leaves_batches_and_no_other_does(name: str) -> None:
    decisions = driven(name, ONE, envelope_for(ONE, 130.0, (25.0,)), 60)
    batches = {decision.state.setting.batches for decision in decisions}
    assert governor_of(name).clock_alone is (len(batches) == 1)


def test_morak_begins_low_where_the_clock_is_open_and_never_above_what_was_planned() -> None:
    envelope, loop = envelope_for(ONE, 200.0, (100.0,)), controller("morak")
    highest = Setting(batches=(1,), clock_mhz_sm=CLOCKS_MHZ[-1])
    assert loop.first(envelope, highest).setting.clock_mhz_sm == min(each for each in CLOCKS_MHZ if each >= 600)
    lowest = Setting(batches=(1,), clock_mhz_sm=CLOCKS_MHZ[0])
    assert loop.first(envelope, lowest).setting == lowest
    closed = replace(envelope, clocks_mhz_sm=())
    assert loop.first(closed, highest).setting == highest


@pytest.mark.parametrize("name", names())
@given(
    cap_w=st.none() | st.floats(45.0, 260.0),
    limit_ms=st.none() | st.floats(2.0, 300.0),
    factors=st.lists(st.tuples(st.floats(0.3, 2.0), st.floats(0.3, 2.0)), min_size=25, max_size=25),
)
@settings(max_examples=8, deadline=None)
def test_whatever_is_measured_the_envelope_is_kept(
    name: str, cap_w: float | None, limit_ms: float | None, factors: list[tuple[float, float]]
) -> None:
    envelope, loop = envelope_for(TWO, cap_w, (limit_ms, None)), controller(name)
    state = loop.first(envelope, start(envelope))
    for power, latency in factors:
        found = TWO.reading(state.setting)
        assert found.power_w is not None
        slowed = tuple(
            replace(item, latency_ms=None if item.latency_ms is None else item.latency_ms * latency)
            for item in found.replicas
        )
        seen = replace(found, power_w=found.power_w * power, replicas=slowed)
        decision = loop.step(envelope, state, seen)
        assert decision.state.setting.clock_mhz_sm in CLOCKS_MHZ
        assert all(1 <= batch <= 64 for batch in decision.state.setting.batches)
        assert decision.state.period == state.period + 1
        late = limit_ms is not None and (slowed[0].latency_ms or 0.0) > limit_ms
        assert decision.bad == (late or (cap_w is not None and found.power_w * power > cap_w))
        state = state_from_plain(json.loads(json.dumps(state_to_plain(decision.state))))
        assert state == decision.state


@pytest.mark.parametrize("name", names())
def test_without_measurements_everything_is_held(name: str) -> None:
    envelope, loop = envelope_for(TWO, 150.0, (100.0, 100.0)), controller(name)
    state = loop.first(envelope, start(envelope))
    for blind in (DeviceReading(power_w=None, replicas=()), DeviceReading(power_w=90.0, replicas=(), stale=True)):
        decision = loop.step(envelope, state, blind)
        assert decision.held
        assert decision.state.setting == state.setting


@pytest.mark.parametrize("name", names())
def test_a_batch_that_does_not_fill_does_not_grow(name: str) -> None:
    envelope, loop = envelope_for(ONE, 150.0, (100.0,)), controller(name)
    state = loop.first(envelope, start(envelope))
    seen = DeviceReading(power_w=50.0, replicas=(ReplicaReading(replica="r0", latency_ms=5.0, filled=False),))
    assert loop.step(envelope, state, seen).state.setting.batches <= state.setting.batches


@pytest.mark.parametrize("name", names())
def test_under_another_envelope_the_loop_stays_inside(name: str) -> None:
    before = envelope_for(ONE, 150.0, (100.0,))
    state = driven(name, ONE, before, 60)[-1].state
    narrow = replace(before, replicas=(replace(before.replicas[0], batch_max=3),), clocks_mhz_sm=CLOCKS_MHZ[:5])
    found = controller(name).fitted(narrow, state, Setting(batches=(2,), clock_mhz_sm=CLOCKS_MHZ[0]))
    assert found.setting.batches[0] <= 3
    assert found.setting.clock_mhz_sm in CLOCKS_MHZ[:5]
    assert found.period == state.period


def test_clipper_climbs_by_one_and_falls_by_a_tenth_at_the_highest_clock() -> None:
    envelope = envelope_for(ONE, 60.0, (25.0,))
    decisions = driven("clipper_l", ONE, envelope, 120)
    batches = [decision.state.setting.batches[0] for decision in decisions]
    assert {decision.state.setting.clock_mhz_sm for decision in decisions} == {CLOCKS_MHZ[-1]}
    assert batches[:3] == [2, 3, 4]
    assert {new - old for old, new in pairwise(batches[60:])} == {1, -4}
    assert all(power_w(ONE, decision.state.setting) > 60.0 for decision in decisions[60:])
    assert not any(decision.repartition for decision in decisions)


def test_clipper_by_power_follows_the_cap_whatever_the_latency() -> None:
    decisions = driven("clipper_p", ONE, envelope_for(ONE, 130.0, (0.1,)), 120)
    drawn = [power_w(ONE, decision.state.setting) for decision in decisions[60:]]
    assert 120.0 < min(drawn) <= 130.0 < max(drawn) < 140.0
    assert all(decision.bad for decision in decisions)


def test_dfs_moves_the_clock_alone_and_keeps_the_cap_whatever_the_latency() -> None:
    decisions = driven("dfs", ONE, envelope_for(ONE, 130.0, (0.1,)), 120)
    assert {decision.state.setting.batches for decision in decisions} == {(64,)}
    assert len({decision.state.setting for decision in decisions[60:]}) == 1
    assert 0.9 * 130.0 < power_w(ONE, decisions[-1].state.setting) <= 130.0
    assert all(decision.bad and decision.repartition is None for decision in decisions)


def test_batchdvfs_finds_the_largest_batch_under_the_cap_by_halving() -> None:
    top = CLOCKS_MHZ[-1]
    envelope = replace(envelope_for(ONE, 130.0, (0.1,)), clocks_mhz_sm=(top,))
    decisions = driven("batchdvfs", ONE, envelope, 12)
    fitting = [batch for batch in range(1, 65) if power_w(ONE, Setting(batches=(batch,), clock_mhz_sm=top)) <= 130.0]
    assert decisions[-1].state.setting.batches == (max(fitting),)
    assert len({decision.state.setting for decision in decisions[7:]}) == 1


def test_batchdvfs_lowers_the_clock_when_a_batch_of_one_is_too_much_and_raises_it_at_the_ceiling() -> None:
    hungry = Plant(models=(Model(fixed_ms=2.0, input_ms=0.5, power_w=900.0),))
    loop, envelope = controller("batchdvfs"), envelope_for(hungry, 80.0, (None,))
    state = loop.first(envelope, Setting(batches=(1,), clock_mhz_sm=2100))
    clocks = []
    for _ in range(150):
        state = loop.step(envelope, state, hungry.reading(state.setting)).state
        clocks.append(state.setting.clock_mhz_sm)
    assert clocks[-1] < 2100
    assert power_w(hungry, state.setting) <= 80.0
    roomy = driven("batchdvfs", ONE, envelope_for(ONE, 190.0, (None,)), 80)[-1].state.setting
    assert roomy.clock_mhz_sm > 600
    assert 0.95 * 190.0 * 0.97 < power_w(ONE, roomy) <= 190.0
