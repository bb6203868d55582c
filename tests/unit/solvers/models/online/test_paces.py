"""Which devices are slower than their type, from what settings take."""

from __future__ import annotations

import random
from collections.abc import Iterable
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.models.online.outcomes import Forecast, Neighbour, Outcome, Verdict, conditions
from solvers.models.online.paces import FORGOTTEN_AFTER_S, TRIED_AGAIN_AFTER_S, Paces, SlowDevice, _Others, comparable
from tests.unit.solvers.models import told

SAID = Forecast(mean_ms=10.0, std_ms=1.0)
MINUTE_S = 60.0
PAIR = (("a", 1.5), ("b", 1.0))


def outcome(device: str, minute: int, factor: float = 1.0, **changes: object) -> Outcome:
    plain = {"device": device, "at_s": MINUTE_S * minute, "latency_ms": SAID.mean_ms * factor}
    return told.outcome(**{**plain, **changes})


class Watched:
    """Minute by minute, as learning asks."""

    def __init__(self) -> None:
        self.paces, self.slow, self.minute = Paces(), dict[str, SlowDevice](), 0

    def see(self, outcomes: Iterable[Outcome]) -> None:
        found = list(outcomes)
        self.paces.see(found, [SAID for _ in found])
        self.slow = self.paces.judge(self.slow, MINUTE_S * self.minute)

    def minutes(self, count: int, **factors: float) -> None:
        for _ in range(count):
            self.minute += 1
            self.see(outcome(device, self.minute, factor) for device, factor in factors.items())


def test_one_of_three_is_slow_after_five_minutes_and_not_before() -> None:
    watched = Watched()
    watched.minutes(4, a=1.5, b=1.0, c=1.0)
    assert not watched.slow
    watched.minutes(1, a=1.5, b=1.0, c=1.0)
    assert set(watched.slow) == {"a"}
    assert watched.slow["a"].factor == pytest.approx(1.5)
    assert watched.slow["a"].since_s == 5 * MINUTE_S


def test_who_is_twice_as_slow_is_found_after_two_minutes_by_others_or_by_what_was_before() -> None:
    watched = Watched()
    watched.minutes(6, a=1.0, b=1.0, c=1.0)
    watched.minutes(1, a=2.0, b=1.0, c=1.0)
    assert not watched.slow
    watched.minutes(1, a=2.0, b=1.0, c=1.0)
    assert set(watched.slow) == {"a"}
    assert watched.slow["a"].factor == pytest.approx(2.0)
    watched.minutes(2, a=1.0, b=1.0, c=1.0)
    assert set(watched.slow) == {"a"}
    watched.minutes(3, a=1.0, b=1.0, c=1.0)
    assert not watched.slow
    fresh = Watched()
    fresh.minutes(5, b=1.0, c=1.0)
    fresh.minutes(2, a=2.0, b=1.0, c=1.0)
    assert set(fresh.slow) == {"a"}


def test_two_slow_minutes_are_too_few_where_one_is_not_far_off_or_a_setting_is_well() -> None:
    for first, second in ((1.7, 3.0), (3.0, 1.7)):
        watched = Watched()
        watched.minutes(8, a=1.0, b=1.0)
        watched.minutes(1, a=first, b=1.0)
        watched.minutes(1, a=second, b=1.0)
        assert not watched.slow
    watched = Watched()
    for minute in range(1, 10):
        watched.minute = minute
        watched.see(
            outcome(device, minute, 2.0 if device == "a" and minute > 7 and share == 50 else 1.0, share_pct_sm=share)
            for device in ("a", "b")
            for share in (50, 100)
        )
    assert not watched.slow


def test_the_error_of_a_forecast_is_nobodys_fault() -> None:
    watched = Watched()
    watched.minutes(20, a=1.6, b=1.6, c=1.6)
    assert not watched.slow


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.22, 0.7])
def test_small_differences_are_borne(factor: float) -> None:
    watched = Watched()
    watched.minutes(20, a=factor, b=1.0, c=1.0)
    assert not watched.slow


def test_one_slow_minute_in_five_and_one_fast_one_decide_nothing() -> None:
    watched = Watched()
    watched.minutes(8, a=1.0, b=1.0)
    watched.minutes(1, a=3.0, b=1.0)
    watched.minutes(8, a=1.0, b=1.0)
    assert not watched.slow
    watched.minutes(2, a=1.5, b=1.0)
    watched.minutes(1, a=1.0, b=1.0)
    watched.minutes(2, a=1.5, b=1.0)
    assert set(watched.slow) == {"a"}


def test_noise_of_seven_per_cent_calls_nobody_slow() -> None:
    drawn, watched = random.Random(5), Watched()
    found = 0
    for _ in range(3000):
        watched.minutes(1, **{name: drawn.lognormvariate(0.0, 0.07) for name in "abcd"})
        found += bool(watched.slow)
    assert found == 0


def test_who_recovers_is_told_to_be_well_and_begins_anew() -> None:
    watched = Watched()
    watched.minutes(10, a=1.5, b=1.0)
    assert set(watched.slow) == {"a"}
    watched.minutes(4, a=1.0, b=1.0)
    watched.minutes(1, a=1.0, b=1.0)
    assert not watched.slow


def test_another_setting_of_one_model_says_nothing() -> None:
    """Interference that was not foreseen is of the neighbour, not of the device."""
    watched, beside = Watched(), (Neighbour(model="bert-base", batch=4.0, share_pct_sm=50),)
    for minute in range(1, 20):
        watched.minute = minute
        watched.see([outcome("a", minute, 1.6, neighbours=beside), outcome("b", minute), outcome("c", minute)])
        assert not watched.slow


def test_two_models_that_become_slower_at_once_bear_witness_without_others() -> None:
    watched = Watched()

    def minute(number: int, factors: tuple[float, float]) -> None:
        watched.minute = number
        first, second = factors
        watched.see(
            [
                outcome("a", number, first),
                outcome("a", number, second, model="bert-base"),
                outcome("b", number, model="vgg19"),
            ]
        )

    for number in range(1, 13):
        minute(number, (1.3, 0.8))
    assert not watched.slow
    for number in range(13, 30):
        minute(number, (1.3 * 1.4, 0.8))
        assert not watched.slow, "one model alone"
    for number in range(30, 40):
        minute(number, (1.3 * 1.4, 0.8 * 1.4))
    assert not watched.slow, "the first became usual before the second did"
    for number in range(40, 45):
        minute(number, (1.3 * 2.0, 0.8 * 2.0))
    assert set(watched.slow) == {"a"}
    for number in range(45, 90):
        minute(number, (1.3 * 2.0, 0.8 * 2.0))
    assert set(watched.slow) == {"a"}, "it does not become usual while it lasts"


def test_where_every_device_of_a_type_becomes_slower_none_is_called_slow() -> None:
    watched = Watched()
    for number in range(1, 40):
        watched.minute, factor = number, 1.0 if number < 15 else 1.5
        models = {"a": ("m1", "m2"), "b": ("m3", "m4")}
        watched.see(outcome(device, number, factor, model=model) for device, each in models.items() for model in each)
        assert not watched.slow


def test_a_slow_device_bears_no_witness() -> None:
    watched = Watched()
    watched.minutes(6, a=1.5, b=1.0, c=1.0)
    watched.minutes(12, a=1.5, b=1.45, c=1.0)
    assert set(watched.slow) == {"a", "b"}


def test_who_holds_nothing_stays_slow_until_it_is_time_to_try() -> None:
    watched = Watched()
    watched.minutes(6, a=1.5, b=1.0)
    seen_s = watched.slow["a"].seen_s
    watched.minutes(100, b=1.0)
    assert seen_s < watched.slow["a"].seen_s < 20 * MINUTE_S
    seen_s = watched.slow["a"].seen_s
    watched.minute = int((seen_s + TRIED_AGAIN_AFTER_S) / MINUTE_S) + 1
    watched.see([])
    assert not watched.slow


def test_another_belief_makes_nobody_slow_or_well() -> None:
    """Two models of one device alone: what they took before is held against the new belief, too."""
    watched, said = Watched(), [SAID, SAID]

    def minutes(first: int, last: int, factor: float) -> None:
        for number in range(first, last):
            watched.minute = number
            found = [outcome("a", number, factor), outcome("a", number, factor, model="bert-base")]
            watched.paces.see([*found, outcome("b", number, model="vgg19")], [*said, SAID])
            watched.slow = watched.paces.judge(watched.slow, MINUTE_S * number)

    def believe(mean_ms: float) -> None:
        said[:] = [Forecast(mean_ms=mean_ms, std_ms=1.0)] * 2
        told = [said[0] if item.device == "a" else SAID for item in watched.paces.newest()]
        watched.paces.foretold(told)

    minutes(1, 12, 1.0)
    believe(5.0)
    minutes(12, 20, 1.0)
    assert not watched.slow, "the belief became faster, and no device slower"
    minutes(20, 23, 1.5)
    believe(7.0)
    minutes(23, 26, 1.5)
    assert set(watched.slow) == {"a"}
    assert watched.slow["a"].factor == pytest.approx(1.5)
    believe(15.0)
    minutes(26, 40, 1.5)
    assert set(watched.slow) == {"a"}, "the belief became slower, and it is as slow as before"
    minutes(40, 46, 1.0)
    assert not watched.slow


def test_where_another_belief_knows_nothing_what_was_seen_is_forgotten() -> None:
    watched = Watched()
    watched.minutes(4, a=1.5, b=1.0)
    watched.paces.foretold([None for _ in watched.paces.newest()])
    watched.minutes(4, a=1.5, b=1.0)
    assert not watched.slow
    watched.minutes(1, a=1.5, b=1.0)
    assert set(watched.slow) == {"a"}


def test_what_was_learned_before_this_process_began_holds() -> None:
    watched = Watched()
    watched.slow = {"a": SlowDevice(device="a", gpu_type="t4", factor=1.5, since_s=0.0, seen_s=0.0)}
    watched.minutes(10, a=1.3, b=1.0)
    assert watched.slow["a"].factor == pytest.approx(1.3)


def test_a_minute_that_is_read_twice_counts_once() -> None:
    watched = Watched()
    watched.minutes(2, a=1.5, b=1.0)
    for _ in range(5):
        watched.see([outcome("a", 2, 1.5), outcome("b", 2)])
    assert not watched.slow


def test_what_was_not_seen_for_long_is_forgotten() -> None:
    watched = Watched()
    watched.minutes(10, a=1.0, b=1.0)
    watched.minute = int(10 + FORGOTTEN_AFTER_S / MINUTE_S + 1)
    watched.see([])
    assert not watched.paces._tracks


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, True),
        ({"dropped_fraction": 0.5}, True),
        ({"device_slow": True}, True),
        ({"throttled": True}, True),
        ({"throttled": True, "clock_mhz_asked": 1600.0}, True),
        ({"throttled": True, "hindered": True}, True),
        ({"cold": True}, False),
        ({"beside_training": True}, False),
        ({"device_healthy": False}, False),
        ({"failing": True}, False),
        ({"executions": 3.0}, False),
        ({"clock_mhz_asked": 1200.0}, False),
    ],
)
def test_conditions_under_which_devices_are_compared(changes: dict[str, Any], said: bool) -> None:
    assert comparable(outcome("a", 1, **changes)) is said


def test_a_slow_device_teaches_nothing() -> None:
    assert conditions(outcome("a", 1, device_slow=True)) is Verdict.SLOW_DEVICE


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0]), max_size=9))
def test_the_median_of_the_others(levels: list[float]) -> None:
    others = _Others(levels)
    for index, level in enumerate(levels):
        rest = [*levels[:index], *levels[index + 1 :]]
        assert others.median(level) == (pytest.approx(median(rest)) if rest else None)
    assert others.median(None) == (pytest.approx(median(levels)) if levels else None)


def changing(watched: Watched, factor: float, minutes: int, std_ms: float = 0.5) -> int:
    """Two models on `a` whose shares change every other minute, beside one that is well; minutes until it is slow."""
    said, before = Forecast(mean_ms=10.0, std_ms=std_ms), watched.minute
    for number in range(before + 1, before + minutes + 1):
        watched.minute, share = number, 30 + 5 * (number // 2 % 3)
        found = [
            *(outcome("a", number, factor, model=model, share_pct_sm=share) for model in ("resnet50", "bert-base")),
            outcome("b", number, model="vgg19", share_pct_sm=20 + share),
        ]
        watched.paces.see(found, [said for _ in found])
        watched.slow = watched.paces.judge(watched.slow, MINUTE_S * number)
        if watched.slow:
            assert set(watched.slow) == {"a"}
            return number - before
    return 0


def test_where_plans_change_all_the_time_forecasts_tell() -> None:
    assert changing(Watched(), 1.5, 20) == 5
    assert changing(Watched(), 1.2, 40) == 0
    assert changing(Watched(), 1.5, 40, std_ms=1.5) == 0, "a belief that is so unsure says nothing"
    watched = Watched()
    assert changing(watched, 1.0, 6) == 0
    assert changing(watched, 2.0, 20) == 2
    assert changing(Watched(), 2.0, 40, std_ms=2.5) == 0


@pytest.mark.parametrize(
    ("factor", "std_ms", "beside", "found"), [(2.0, 0.5, 0, 2), (1.5, 0.5, 0, 0), (2.0, 2.5, 0, 0), (2.0, 0.5, 1, 0)]
)
def test_one_model_alone_tells_of_a_device_that_is_far_off_its_forecast(
    factor: float, std_ms: float, beside: int, found: int
) -> None:
    """No two devices have one setting, as on a small fleet, but the same model elsewhere is as foretold."""
    watched, said, slow_since = Watched(), Forecast(mean_ms=10.0, std_ms=std_ms), 6
    near = beside * (Neighbour(model="bert-base", batch=4.0, share_pct_sm=50),)
    for number in range(1, 20):
        watched.minute, share = number, 30 + 5 * (number // 2 % 3)
        seen = [
            outcome("a", number, factor if number > slow_since else 1.0, share_pct_sm=share, neighbours=near),
            outcome("b", number, share_pct_sm=20 + share),
        ]
        watched.paces.see(seen, [said for _ in seen])
        watched.slow = watched.paces.judge(watched.slow, MINUTE_S * number)
        if watched.slow:
            break
    assert set(watched.slow) == ({"a"} if found else set())
    assert not found or watched.minute - slow_since == found


def test_what_forecasts_are_off_by_elsewhere_is_not_the_devices_fault() -> None:
    watched = Watched()
    for number in range(1, 30):
        watched.minute, share = number, 30 + 5 * (number // 2 % 3)
        found = [
            outcome(device, number, 1.5, model=model, share_pct_sm=share + shift)
            for device, shift in (("a", 0), ("b", 7), ("c", 14))
            for model in ("resnet50", "bert-base")
        ]
        watched.see(found)
        assert not watched.slow


def test_who_was_slow_by_forecasts_is_well_by_them() -> None:
    watched = Watched()
    assert changing(watched, 1.5, 20) == 5
    said = Forecast(mean_ms=10.0, std_ms=0.5)
    for number in range(6, 20):
        watched.minute = number
        found = [outcome("a", number, model="vgg19", share_pct_sm=40 + number), outcome("b", number, model="bert-base")]
        watched.paces.see(found, [said, said])
        watched.slow = watched.paces.judge(watched.slow, MINUTE_S * number)
    assert not watched.slow


def test_clocks_that_a_limit_sets_are_one_setting() -> None:
    watched = Watched()
    for number in range(1, 7):
        watched.minute, clock = number, 900.0 + 37.0 * number
        driven: dict[str, Any] = {"throttled": True, "clock_mhz_asked": None, "clock_mhz_sm": clock}
        watched.see(outcome(name, number, factor, **driven) for name, factor in PAIR)
    assert len(watched.paces.newest()) == 2 * len(PAIR)
    assert set(watched.slow) == {"a"}
