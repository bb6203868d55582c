"""Devices in time slices: shares do not divide them, so several replicas may have one whole; neighbours still count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.codec import digest
from solvers.domain.device import DeviceMode
from solvers.domain.evidence import FindingCode, Severity
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.policy import CostBasis
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity
from solvers.models.worth import worth_of
from solvers.verify.bounds import slowdown
from solvers.verify.checks import verify
from solvers.verify.picture import Picture
from tests import builders

T4 = builders.device("a", 0, "t4")
SLICED = DeviceSetting(device=T4.id, mode=DeviceMode.TIME_SLICED)
DIVIDED, OPEN = Interference(pressure=0.4, sensitivity=0.5), Interference(pressure=0.25, sensitivity=2.0)


def world(unlimited: Interference | None = OPEN, **changes: Any) -> Snapshot:
    free = Affinity(anti_affinity=AntiAffinity.OFF)
    service = builders.service("vision", affinity=free, slo=builders.slo(500.0), rate_rps_declared=10.0)
    picture = builders.snapshot([T4], [service], **changes)
    known = (replace(each, interference=DIVIDED, unlimited=unlimited) for each in picture.profiles)
    return replace(picture, profiles=tuple(known))


def whole(count: int, **changes: Any) -> tuple[Assignment, ...]:
    """Replicas that may use all SMs and serve little."""
    made = {"share_pct_sm": 100, "capacity_rps": 10.0, "power_w_planned": 200.0, "memory_mib_limit": 2048, **changes}
    return tuple(builders.assignment(f"demo/vision#{at}", T4, **made) for at in range(count))


def plan_of(picture: Snapshot, items: tuple[Assignment, ...], *settings: DeviceSetting) -> Plan:
    return Plan(
        snapshot=digest(picture),
        parent=picture.target.generation,
        planner="hand",
        planner_version="1",
        seed=1,
        assignments=items,
        settings=settings,
        unplaced=(),
        objective=worth_of(picture, builders.everything_movable(picture), items, settings).objective,
    )


def codes(picture: Snapshot, plan: Plan) -> set[FindingCode]:
    return {item.code for item in verify(picture, plan) if item.severity is Severity.FATAL}


class TestShares:
    def test_their_sum_is_not_limited_in_time_slices(self) -> None:
        picture = world()
        assert codes(picture, plan_of(picture, whole(3), SLICED)) == set()

    def test_it_is_everywhere_else(self) -> None:
        picture = world()
        assert FindingCode.SHARE_EXCEEDED in codes(picture, plan_of(picture, whole(2)))
        alone = replace(SLICED, mode=DeviceMode.DEDICATED)
        found = codes(picture, plan_of(picture, whole(2), alone))
        assert {FindingCode.SHARE_EXCEEDED, FindingCode.DEDICATED_BROKEN} <= found

    def test_the_plans_setting_counts_and_without_one_the_device_as_it_is(self) -> None:
        sliced = replace(T4, mode=DeviceMode.TIME_SLICED)
        picture = replace(world(), devices=(sliced,))
        assert codes(picture, plan_of(picture, whole(2))) == set()
        divided = codes(picture, plan_of(picture, whole(2), replace(SLICED, mode=DeviceMode.MPS)))
        assert FindingCode.SHARE_EXCEEDED in divided

    def test_each_of_them_and_memory_and_numbers_are_limited_as_ever(self) -> None:
        picture = world()
        assert FindingCode.SHARE_INVALID in codes(picture, plan_of(picture, whole(1, share_pct_sm=101), SLICED))
        large = plan_of(picture, whole(3, memory_mib_limit=6000), SLICED)
        assert codes(picture, large) == {FindingCode.MEMORY_EXCEEDED}
        crowd = replace(picture, policy=replace(picture.policy, replicas_per_device_max=2))
        assert codes(crowd, plan_of(crowd, whole(3), SLICED)) == {FindingCode.CLIENTS_EXCEEDED}


class TestNeighbours:
    def factor(self, picture: Snapshot, count: int, *settings: DeviceSetting) -> float:
        items = whole(count)
        return slowdown(Picture(picture, plan_of(picture, items, *settings), ()), items[0], T4)

    def test_only_what_was_measured_without_limits_counts(self) -> None:
        assert self.factor(world(), 1, SLICED) == 1.0
        assert self.factor(world(), 3, SLICED) == pytest.approx(1 + 2.0 * 2 * 0.25)
        assert self.factor(world(), 3) == pytest.approx(1 + 0.5 * 2 * 0.4)

    def test_where_nobody_measured_they_take_turns_and_the_margin_comes_on_top(self) -> None:
        margin = world().policy.interference_margin
        assert self.factor(world(unlimited=None), 3, SLICED) == pytest.approx(3 * margin)
        assert self.factor(world(unlimited=None), 1, SLICED) == 1.0

    def test_a_promise_that_neighbours_break_is_found(self) -> None:
        picture = world(unlimited=replace(OPEN, sensitivity=100.0))
        assert FindingCode.LATENCY_EXCEEDED in {
            item.code for item in verify(picture, plan_of(picture, whole(2), SLICED))
        }
        assert codes(picture, plan_of(picture, whole(1), SLICED)) == set()

    def test_planners_reckon_as_the_verifier_does(self) -> None:
        """The plan's objective calls at risk what cannot be shown to keep its promise."""
        for unlimited, at_risk in ((OPEN, False), (replace(OPEN, sensitivity=100.0), True)):
            picture = world(unlimited)
            assert (plan_of(picture, whole(2), SLICED).objective.slo_risk > 0) is at_risk


def test_a_device_is_billed_once() -> None:
    picture = world()
    by_share = replace(picture, policy=replace(picture.policy, cost_basis=CostBasis.SHARE))
    one, three = (plan_of(by_share, whole(count), SLICED) for count in (1, 3))
    assert one.objective.cost_usd_per_h == three.objective.cost_usd_per_h > 0
    assert codes(by_share, three) == set()
