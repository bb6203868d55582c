"""How long demand is remembered goes by what a shorter memory would have cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.cycle.memory import Past, memory_s
from solvers.domain.arrays import Floats
from solvers.domain.policy import Policy
from tests import builders

HALF_S = 5.0
WHOLE_S = 600.0
POLICY = Policy(name=builders.policy().name)
HOUR = int(3600.0 / HALF_S)


def remembered_s(
    rates_rps: Floats, *, percentile: float = 99.0, launch_s: float = 5.0, policy: Policy = POLICY
) -> float:
    service = builders.service()
    service = replace(service, slo=replace(service.slo, percentile=percentile))
    return memory_s(Past(half_s=HALF_S, rates_rps=np.asarray(rates_rps, dtype=float)), service, policy, launch_s)


def wave(count: int = HOUR, period_s: float = 1800.0) -> Floats:
    """Between 100 and 500 requests/s, to and fro."""
    return np.asarray(300.0 - 200.0 * np.cos(2.0 * np.pi * HALF_S * np.arange(count) / period_s))


def spikes(every_s: float, count: int = HOUR) -> Floats:
    """Twenty seconds of 400 requests/s among 100."""
    at_s = HALF_S * np.arange(count)
    return np.where(at_s % every_s < 20.0, 400.0, 100.0)


def test_a_slow_wave_is_remembered_for_a_tenth() -> None:
    assert remembered_s(wave()) == 0.1 * WHOLE_S


@pytest.mark.parametrize(("every_s", "known_s"), [(45.0, 60.0), (100.0, 120.0), (200.0, 300.0), (400.0, 600.0)])
def test_who_returns_is_remembered_until_then(every_s: float, known_s: float) -> None:
    assert remembered_s(spikes(every_s) * (wave() + 1700.0) / 2000.0) == known_s


def test_who_returns_later_than_the_policy_remembers_is_no_later_for_it() -> None:
    """As much is late with the whole memory."""
    assert remembered_s(spikes(900.0)) == 0.1 * WHOLE_S


def test_who_never_fell_has_shown_nothing() -> None:
    assert remembered_s(np.full(HOUR, 100.0)) == WHOLE_S
    fell = np.full(HOUR, 100.0)
    fell[: HOUR // 2] = 300.0
    assert remembered_s(fell) == WHOLE_S
    fell[HOUR // 4 : HOUR // 2] = 100.0
    fell[-HOUR // 4 :] = 30.0
    assert remembered_s(fell) == 0.1 * WHOLE_S


def test_before_an_hour_nothing_at_all_may_have_lacked() -> None:
    soon = int(1700.0 / HALF_S)
    assert remembered_s(wave(soon)) == 0.1 * WHOLE_S
    assert remembered_s(wave(period_s=600.0)[: int(1190.0 / HALF_S)]) == WHOLE_S
    jumped = wave()
    jumped[40:44] = 2000.0
    assert remembered_s(jumped[:soon]) == WHOLE_S
    assert remembered_s(jumped) == 0.1 * WHOLE_S


def test_what_launches_slowly_is_let_go_slowly() -> None:
    """A wave of ten minutes rises by more than the margin while replicas launch for a minute."""
    rates = wave(period_s=600.0)
    assert remembered_s(rates, launch_s=5.0) < remembered_s(rates, launch_s=60.0) == WHOLE_S


def test_a_strict_promise_remembers_longer() -> None:
    """One rise in an hour finds two seconds' worth too little."""
    rates = wave()
    rates[400:402] = 1.7 * rates[400:402]
    found = [remembered_s(rates, percentile=percentile) for percentile in (90.0, 99.9)]
    assert found[0] < found[1]


def test_a_policy_that_looks_back_further_than_an_hour_learns_nothing() -> None:
    policy = replace(POLICY, demand_lookback_s=3600.0)
    assert remembered_s(wave(), policy=policy) == 3600.0


def test_no_memory_is_shorter_than_half_a_minute() -> None:
    lookbacks_s = (30.0, 59.0, 60.0, 150.0, 300.0)
    found = [remembered_s(wave(), policy=replace(POLICY, demand_lookback_s=each)) for each in lookbacks_s]
    assert found == [30.0, 59.0, 30.0, 30.0, 30.0]


def test_no_memory_is_shorter_than_two_bins_of_who_reports_seldom() -> None:
    found = memory_s(Past(half_s=4 * HALF_S, rates_rps=wave()[::4]), builders.service(), POLICY, 5.0)
    assert found == 0.2 * WHOLE_S


def test_a_past_of_counts_has_whole_bins_and_what_is_sure_of_half_of_one() -> None:
    past = Past.of(np.array([0.0, 500.0, 0.0, 0.0, 4.0]))
    assert past.rates_rps.tolist() == pytest.approx([0.0, (500.0 - 3.0 * np.sqrt(500.0)) / 5.0, 50.0, 0.0, 0.4])


@pytest.mark.parametrize("seconds", [1.0, 5.0, 10.0, 35.0, 60.0, 1000.0])
def test_the_busiest_of_so_long_is_that_of_each_window(seconds: float) -> None:
    rates = np.random.default_rng(7).gamma(1.0, 100.0, 60)
    count = max(1, round(seconds / HALF_S))
    each = [rates[max(0, at + 1 - count) : at + 1].max() for at in range(len(rates))]
    assert Past(half_s=HALF_S, rates_rps=rates).busiest(seconds).tolist() == each
