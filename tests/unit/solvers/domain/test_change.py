"""From target to plan: the right kinds of change, in the order that frees before it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from solvers.domain.change import Change, ChangeKind, Target, diff
from solvers.domain.device import DeviceMode
from solvers.domain.ids import DeviceId, Digest, Generation, ModelName
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.policy import Objective
from tests import builders
from tests.applied import apply

T4, OTHER = builders.device("a", 0, "t4"), builders.device("a", 1, "t4")
ONE = builders.assignment("demo/vision#0", T4)
LAUNCH_S = {ModelName("resnet50"): 7.0}


def plan(assignments: Iterable[Assignment], settings: Iterable[DeviceSetting] = ()) -> Plan:
    return Plan(
        snapshot=Digest("sha256:0"),
        parent=Generation(1),
        planner="greedy",
        planner_version="1",
        seed=1,
        assignments=tuple(assignments),
        settings=tuple(settings),
        unplaced=(),
        objective=Objective(),
    )


def changes(before: Iterable[Assignment], after: Iterable[Assignment]) -> tuple[Change, ...]:
    return diff(builders.target(before), plan(after), LAUNCH_S).changes


def test_equal_targets_need_no_change() -> None:
    assert changes([ONE], [ONE]) == ()


def test_planned_numbers_and_reasons_are_not_differences() -> None:
    assert (
        changes([ONE], [replace(ONE, latency_ms_planned=1.0, capacity_rps=1.0, power_w_planned=1.0, reasons=())]) == ()
    )


@pytest.mark.parametrize(
    ("change", "kind", "cost_s"),
    [
        ({"device": OTHER.id}, ChangeKind.MOVE, 7.0),
        ({"device": OTHER.id, "share_pct_sm": 20, "batch": 2}, ChangeKind.MOVE, 7.0),
        ({"model": ModelName("bert"), "batch": 2}, ChangeKind.SWAP_MODEL, 10.0),
        ({"share_pct_sm": 40}, ChangeKind.SHRINK_SHARE, 7.0),
        ({"share_pct_sm": 60}, ChangeKind.GROW_SHARE, 7.0),
        ({"memory_mib_limit": 1000}, ChangeKind.SHRINK_MEMORY, 7.0),
        ({"memory_mib_limit": 2000}, ChangeKind.GROW_MEMORY, 7.0),
        ({"batch": 4}, ChangeKind.SET_BATCH, 7.0),
        ({"envelope": replace(ONE.envelope, batch_max=16)}, ChangeKind.SET_ENVELOPE, 7.0),
    ],
)
def test_a_changed_knob_is_one_change(change: dict[str, object], kind: ChangeKind, cost_s: float) -> None:
    after = replace(ONE, **change)  # type: ignore[arg-type]
    expected_s = 0.0 if kind in (ChangeKind.SET_BATCH, ChangeKind.SET_ENVELOPE) else cost_s
    assert changes([ONE], [after]) == (
        Change(kind=kind, subject=ONE.replica, before=ONE, after=after, cost_s=expected_s),
    )


def test_starts_and_stops() -> None:
    assert changes([], [ONE]) == (Change(kind=ChangeKind.START, subject=ONE.replica, after=ONE, cost_s=7.0),)
    assert changes([ONE], []) == (Change(kind=ChangeKind.STOP, subject=ONE.replica, before=ONE),)


def test_a_replica_is_launched_once_however_many_knobs_change() -> None:
    after = replace(ONE, share_pct_sm=20, memory_mib_limit=2000, batch=4)
    found = changes([ONE], [after])
    assert [item.kind for item in found] == [ChangeKind.SHRINK_SHARE, ChangeKind.SET_BATCH, ChangeKind.GROW_MEMORY]
    assert sum(item.cost_s for item in found) == 7.0


def test_what_frees_comes_before_what_takes() -> None:
    before = [replace(ONE, replica=f"demo/vision#{index}") for index in range(4)]
    after = [
        replace(before[0], share_pct_sm=90),
        replace(before[1], share_pct_sm=10),
        replace(before[2], device=OTHER.id),
        replace(ONE, replica="demo/vision#9"),
    ]
    assert [(item.kind, item.subject[-1]) for item in changes(before, after)] == [
        (ChangeKind.STOP, "3"),
        (ChangeKind.SHRINK_SHARE, "1"),
        (ChangeKind.MOVE, "2"),
        (ChangeKind.GROW_SHARE, "0"),
        (ChangeKind.START, "9"),
    ]


class TestSettings:
    DEVICE = DeviceId("GPU-a-0")

    def kinds(self, before: DeviceSetting | None, after: DeviceSetting | None) -> list[ChangeKind]:
        target = Target(generation=Generation(1), settings=(before,) if before else ())
        wanted = plan([], (after,) if after else ())
        transition = diff(target, wanted, LAUNCH_S)
        _, settings = apply(target, transition)
        default = DeviceSetting(device=self.DEVICE)
        assert settings == ((after,) if after and after != default else ())
        return [item.kind for item in transition.changes]

    def setting(self, **changes: object) -> DeviceSetting:
        return replace(DeviceSetting(device=self.DEVICE), **changes)  # type: ignore[arg-type]

    def test_a_missing_setting_is_the_default(self) -> None:
        assert self.kinds(None, self.setting()) == []
        assert self.kinds(self.setting(), None) == []

    def test_lowering_and_raising(self) -> None:
        low = self.setting(clock_mhz_sm=900, power_limit_w=60.0)
        assert self.kinds(None, low) == [ChangeKind.LOWER_CLOCK, ChangeKind.LOWER_POWER]
        assert self.kinds(low, None) == [ChangeKind.RAISE_POWER, ChangeKind.RAISE_CLOCK]
        lower = self.setting(clock_mhz_sm=600, power_limit_w=70.0)
        assert self.kinds(low, lower) == [ChangeKind.LOWER_CLOCK, ChangeKind.RAISE_POWER]

    def test_mode(self) -> None:
        assert self.kinds(None, self.setting(mode=DeviceMode.DEDICATED)) == [ChangeKind.SET_MODE]
