"""Applying the difference reaches the plan, from any target; applying twice is applying once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from solvers.domain.change import Target, diff
from solvers.domain.device import DeviceMode
from solvers.domain.ids import DeviceId, Digest, Generation, ModelName, ReplicaId
from solvers.domain.plan import Assignment, DeviceSetting, Envelope, Plan
from solvers.domain.policy import Objective
from solvers.verify.picture import knobs
from tests import builders
from tests.applied import apply

DEVICES = [builders.device("a", index, "t4") for index in range(3)]


@st.composite
def assignments(draw: st.DrawFn) -> tuple[Assignment, ...]:
    """Up to six replicas with any knobs; rules do not matter here."""
    ordinals = draw(st.sets(st.integers(0, 7), max_size=6))
    return tuple(
        replace(
            builders.assignment(f"demo/vision#{ordinal}", draw(st.sampled_from(DEVICES))),
            replica=ReplicaId(f"demo/vision#{ordinal}"),
            model=ModelName(draw(st.sampled_from(("resnet50", "bert")))),
            share_pct_sm=draw(st.integers(1, 100)),
            memory_mib_limit=draw(st.sampled_from((512, 1024, 2048))),
            batch=draw(st.sampled_from((1, 4, 8))),
            envelope=Envelope(
                batch_min=1, batch_max=draw(st.sampled_from((8, 16))), clock_mhz_sm_min=900, clock_mhz_sm_max=1590
            ),
            capacity_rps=draw(st.floats(1, 100)),
        )
        for ordinal in sorted(ordinals)
    )


@st.composite
def settings_(draw: st.DrawFn) -> tuple[DeviceSetting, ...]:
    """Any settings of any devices."""
    return tuple(
        DeviceSetting(
            device=DeviceId(device.id),
            mode=draw(st.sampled_from(tuple(DeviceMode))),
            clock_mhz_sm=draw(st.sampled_from((None, 900, 1590))),
            power_limit_w=draw(st.sampled_from((None, 60.0, 70.0))),
        )
        for device in DEVICES
        if draw(st.booleans())
    )


def plan(held: tuple[Assignment, ...], settings: tuple[DeviceSetting, ...]) -> Plan:
    return Plan(
        snapshot=Digest("sha256:0"),
        parent=Generation(0),
        planner="any",
        planner_version="1",
        seed=0,
        assignments=held,
        settings=settings,
        unplaced=(),
        objective=Objective(),
    )


@given(assignments(), settings_(), assignments(), settings_())
def test_diff_then_apply_reaches_the_plan(
    before: tuple[Assignment, ...],
    settings_before: tuple[DeviceSetting, ...],
    after: tuple[Assignment, ...],
    settings_after: tuple[DeviceSetting, ...],
) -> None:
    target = Target(generation=Generation(1), assignments=before, settings=settings_before)
    wanted = plan(after, settings_after)
    held, settings = apply(target, diff(target, wanted, {}))
    assert [(item.replica, knobs(item)) for item in held] == [(item.replica, knobs(item)) for item in after]
    assert settings == tuple(item for item in settings_after if item != DeviceSetting(device=item.device))
    reached = Target(generation=Generation(2), assignments=held, settings=settings)
    assert diff(reached, wanted, {}).changes == ()
