"""How finely plans tell numbers: rounding must not make sound plans look short."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.snapshot import Snapshot
from solvers.planners import writer
from solvers.planners.registry import propose
from solvers.verify.checks import verify
from tests import builders

SECONDS = 7.0017
"""Of one request, alone on the GPU."""


def slow(replicas: int) -> Snapshot:
    """A service of slow replicas whose rate needs exactly so many of them."""
    policy = builders.policy(demand_headroom=1.0, demand_noise_sigmas=0.0)
    rate_rps = replicas * policy.utilisation_max / SECONDS * (1 - 1e-9)
    profile = builders.profile(batches=(1,), shares=(100,))
    points = tuple(replace(point, latency_ms_mean=1000 * SECONDS) for point in profile.points)
    devices = [builders.device(f"n{index // 8:02d}", index % 8, "t4") for index in range(replicas + 8)]
    service = builders.service(slo=builders.slo(600_000.0), rate_rps_declared=rate_rps, replicas_max=1000)
    return builders.snapshot(devices, [service], profiles=[replace(profile, points=points)], policy=policy)


@pytest.mark.parametrize("planner", ["greedy", "joint"])
def test_many_slow_replicas_suffice_although_each_promise_is_rounded_down(planner: str) -> None:
    picture = slow(150)
    plan = propose(planner, builders.request(picture)).plan
    assert plan is not None
    assert len(plan.assignments) == 150
    assert plan.unplaced == ()
    assert verify(picture, plan) == ()


def test_coarser_steps_would_leave_such_a_plan_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RATE_STEPS", 1e4)
    picture = slow(150)
    plan = propose("greedy", builders.request(picture)).plan
    assert plan is not None
    assert [finding.code.value for finding in verify(picture, plan)] == ["capacity_short"]


@pytest.mark.parametrize("rate_rps", [0.0, 0.123456789, 7.0, 123456.7891234567])
def test_a_told_rate_is_no_more_than_was_found(rate_rps: float) -> None:
    assert 0.0 <= rate_rps - writer.rounded_rps(rate_rps) < 1.1e-7
