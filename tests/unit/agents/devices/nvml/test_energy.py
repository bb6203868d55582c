"""Joules of an interval, whatever the counter does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.devices.nvml import EnergyMeter


def test_the_counter_s_rise_is_what_was_used() -> None:
    meter = EnergyMeter()
    assert meter.advance(0.0, 5000.0, 100.0) == 0.0
    assert meter.advance(1.0, 5090.0, 100.0) == 90.0
    assert meter.advance(2.0, 5090.0, 100.0) == 0.0


def test_a_restarted_counter_is_bridged_by_power() -> None:
    meter = EnergyMeter()
    meter.advance(0.0, 5000.0, 100.0)
    assert meter.advance(2.0, 10.0, 200.0) == 300.0
    assert meter.advance(3.0, 160.0, 200.0) == 150.0


def test_without_power_a_restarted_counter_gives_what_it_counted() -> None:
    meter = EnergyMeter()
    meter.advance(0.0, 5000.0, None)
    assert meter.advance(2.0, 10.0, None) == 10.0


def test_power_alone_is_integrated() -> None:
    meter = EnergyMeter()
    assert meter.advance(0.0, None, 100.0) == 0.0
    assert meter.advance(2.0, None, 300.0) == 400.0
    assert meter.advance(3.0, None, None) == 300.0
    assert meter.advance(4.0, None, None) == 0.0


def test_a_counter_that_appears_later_does_not_count_the_past() -> None:
    meter = EnergyMeter()
    meter.advance(0.0, None, None)
    assert meter.advance(1.0, 1e9, None) == 0.0
    assert meter.advance(2.0, 1e9 + 5.0, None) == 5.0


@given(st.lists(st.tuples(st.floats(0, 1e9) | st.none(), st.floats(0, 1000) | st.none()), max_size=20))
def test_energy_is_never_negative(readings: list[tuple[float | None, float | None]]) -> None:
    meter = EnergyMeter()
    assert all(meter.advance(float(at), joules, watts) >= 0.0 for at, (joules, watts) in enumerate(readings))


@given(st.lists(st.floats(0, 1000), min_size=2, max_size=20))
def test_a_rising_counter_is_counted_whole(steps: list[float]) -> None:
    meter, total, used = EnergyMeter(), 0.0, 0.0
    meter.advance(0.0, total, 50.0)
    for at, step in enumerate(steps, 1):
        total += step
        used += meter.advance(float(at), total, 50.0)
    assert used == pytest.approx(total)
