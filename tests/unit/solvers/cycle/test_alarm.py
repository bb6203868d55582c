"""When demand calls for a cycle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.cycle.alarm import demand_alarms
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
