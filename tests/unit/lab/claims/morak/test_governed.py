"""One device under a controller: what was held is measured, the same twice, and the board does not keep the cap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.claims.morak.governed import GovernedCourse, GovernedDevice, GovernedLimits, GovernedPart, alone_ms, govern
from solvers.control.controllers import controller, names
from solvers.control.records import Setting
from solvers.sim.truth.truth import gpu_truth

GPU = gpu_truth("rtx-2080ti")
assert GPU is not None
PARTS = (
    GovernedPart(model="googlenet", share_pct_sm=30, batch_max=64),
    GovernedPart(model="mobilenet", share_pct_sm=20, batch_max=64),
)
DEVICE = GovernedDevice(
    gpu=GPU, parts=PARTS, limits=GovernedLimits(power_w_cap=120.0, latency_ms=60.0), clocks_mhz_sm=GPU.clocks_mhz_sm
)
START = Setting(batches=(1, 1), clock_mhz_sm=600)
QUIET = GovernedCourse(periods=120, seed=1, latency_noise=0.0, power_noise=0.0)


@pytest.mark.parametrize("name", names())
def test_the_same_seed_gives_the_same_run_and_another_seed_another(name: str) -> None:
    course = GovernedCourse(periods=40, seed=5)
    first, second = (govern(DEVICE, controller(name), START, course) for _ in range(2))
    assert first == second
    assert govern(DEVICE, controller(name), START, replace(course, seed=6)) != first


def test_a_period_shows_the_setting_that_was_held_in_it() -> None:
    periods = govern(DEVICE, controller("morak"), START, QUIET).periods
    assert periods[0].setting == START
    for period in periods:
        # What a copy adds and a gap takes away is in the answer, not in the cycle; of these two GoogLeNet has them.
        shift_ms = period.setting.batches[0] * (0.0248 - 0.0498)
        cycles = (period.latency_ms[0] - shift_ms, period.latency_ms[1])
        rates = [1000.0 * batch / ms for batch, ms in zip(period.setting.batches, cycles, strict=True)]
        assert period.rate_rps == pytest.approx(rates)
    last = periods[-1]
    assert last.keeps(DEVICE.limits)
    assert last.setting.batches > START.batches
    assert not replace(last, power_w=120.1).keeps(DEVICE.limits)
    assert not replace(last, latency_ms=(10.0, 60.1)).keeps(DEVICE.limits)


def test_who_does_not_look_at_the_cap_exceeds_it() -> None:
    greedy = replace(DEVICE, limits=GovernedLimits(power_w_cap=90.0, latency_ms=300.0))
    last = govern(greedy, controller("clipper_l"), START, QUIET).periods[-1]
    assert last.power_w > 90.0
    assert last.setting.clock_mhz_sm == greedy.clocks_mhz_sm[-1]


def test_a_run_goes_on_where_another_ended_under_other_limits() -> None:
    loop = controller("morak")
    settled = govern(DEVICE, loop, START, QUIET)
    tighter = replace(DEVICE, limits=GovernedLimits(power_w_cap=90.0, latency_ms=60.0))
    way = govern(tighter, loop, settled.state, replace(QUIET, periods=21)).periods
    assert way[0].setting == settled.state.setting
    assert not way[0].keeps(tighter.limits)
    assert way[-1].keeps(tighter.limits)


def test_a_point_of_a_profile_is_of_the_whole_batch_at_the_highest_clock() -> None:
    assert GPU is not None
    by_share = [alone_ms(GPU, replace(PARTS[0], share_pct_sm=share)) for share in (20, 50, 100)]
    assert by_share == sorted(by_share, reverse=True)
    assert alone_ms(GPU, replace(PARTS[0], batch_max=8)) < by_share[0]
