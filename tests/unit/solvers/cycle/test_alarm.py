"""When demand calls for a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from solvers.cycle.alarm import KNOWN_S, JumpWatch, demand_alarms, risen
from solvers.domain.change import Target
from solvers.domain.ids import ServiceId
from tests.builders import demand
from tests.unit.app.services.whatif.small_fleet import POLICY, assignment

LABELS = ServiceId("vision/labels")


@pytest.mark.parametrize(
    ("rate_rps", "alarmed"),
    [
        (119.0, False),  # 120 requests per second stand: the headroom may be used up
        (121.0, True),
        (53.0, True),  # with its headroom less than half of what stands
        (56.0, False),
    ],
)
def test_demand_beyond_or_far_below_what_stands_is_alarming(rate_rps: float, alarmed: bool) -> None:
    policy = replace(POLICY, demand_headroom=1.1, demand_noise_sigmas=0.0)
    target = Target(
        assignments=(assignment("vision/labels", "GPU-a0"), assignment("vision/labels", "GPU-a1", ordinal=1))
    )
    found = demand_alarms([demand(LABELS, rate_rps)], target, lambda _: policy, {LABELS: 75.0})
    assert found == ((LABELS,) if alarmed else ())


def test_demand_that_the_last_cycle_knew_raises_no_second_alarm() -> None:
    assert demand_alarms([demand(LABELS, 500.0)], Target(), lambda _: POLICY, {LABELS: 480.0}) == ()
    assert demand_alarms([demand(LABELS, 500.0)], Target(), lambda _: POLICY, {LABELS: 400.0}) == (LABELS,)
    assert demand_alarms([demand(LABELS, 500.0)], Target(), lambda _: POLICY, {}) == (LABELS,)


def jumps(counts: Sequence[float], began_s: float = 0.0, watch: JumpWatch | None = None) -> list[int]:
    """In which seconds a load of so many requests jumped."""
    watch = watch or JumpWatch()
    return [second for second, count in enumerate(counts) if watch.take(count, 1.0, began_s + second)]


def test_a_jump_is_told_in_the_second_second_that_shows_it_whole() -> None:
    calm = [100.0] * 60
    # It began late in its first second; the next may be all of it.
    assert jumps([*calm, 160.0, 400.0, 400.0, 400.0]) == [0 + 1, 61]
    assert jumps([*calm, 400.0, *calm]) == [1]


def test_what_is_known_is_no_jump_until_it_is_forgotten() -> None:
    watch = JumpWatch()
    assert jumps([100.0, 100.0, 400.0, 400.0, 100.0, 400.0, 400.0], 0.0, watch) == [1, 3]
    assert jumps([400.0] * 5, KNOWN_S - 5.0, watch) == []
    assert jumps([100.0] * 5, KNOWN_S, watch) == []
    assert jumps([400.0] * 5, KNOWN_S + 5.0, watch) == []
    assert jumps([100.0] * 5, 2 * KNOWN_S, watch) == []
    assert jumps([400.0] * 5, 2 * KNOWN_S + 5.0, watch) == []
    # Further up by a tenth is told again, by less is not.
    assert jumps([420.0] * 5, 2 * KNOWN_S + 10.0, watch) == []
    assert jumps([520.0] * 5, 2 * KNOWN_S + 15.0, watch) == [1]
    quiet = JumpWatch()
    assert jumps([400.0] * 3, 0.0, quiet) == [1]
    jumps([100.0], KNOWN_S, quiet)
    jumps([100.0], 2 * KNOWN_S, quiet)
    assert jumps([400.0] * 3, 2 * KNOWN_S + 1.0, quiet) == [1]


@pytest.mark.parametrize("rate_rps", [0.5, 3.0, 20.0, 100.0, 2000.0])
def test_chance_is_no_jump(rate_rps: float) -> None:
    found = jumps(np.random.default_rng(int(rate_rps)).poisson(rate_rps, 20_000).tolist())
    # What nobody knew before is news at first.
    assert [second for second in found if second > 10] == []


def test_what_was_counted_in_a_moment_is_taken_for_that_of_a_second() -> None:
    watch = JumpWatch()
    assert jumps([100.0] * 10, 0.0, watch) == [1]
    assert not any(watch.take(40.0, 0.1, 20.0 + moment / 10) for moment in range(10))


def test_rates_have_risen_when_they_are_notably_above_what_is_known() -> None:
    known = {LABELS: 100.0}
    assert risen({LABELS: 109.0}, known) == {}
    assert risen({LABELS: 111.0, "vision/new": 3.0, "vision/idle": 0.0}, known) == {LABELS: 111.0, "vision/new": 3.0}
