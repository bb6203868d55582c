"""gpulet: sizes, pairs, the efficient partition, the check for interference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.baselines.gpulet import GpuLet, GpuletParameters
from solvers.domain.evidence import ReasonCode
from solvers.domain.profile import Profile
from tests import builders
from tests.unit.lab.baselines.course import Course, farm


def pressing(profile: Profile, pct: float) -> Profile:
    """A profile whose use of L2 and bandwidth was measured at a whole GPU, in proportion to the share."""
    points = tuple(
        replace(item, l2_util_pct=pct * item.share_pct_sm / 100, dram_util_pct=pct * item.share_pct_sm / 100)
        for item in profile.points
    )
    return replace(profile, points=points)


def test_partitions_are_of_few_sizes_and_at_most_two_on_a_gpu() -> None:
    services = [builders.service(name, model=name, rate_rps_declared=60.0) for name in ("a", "b", "c", "d")]
    plan = Course("gpulet", builders.snapshot([builders.device("v", at, "v100") for at in range(2)], services)).step()
    assert len(plan.assignments) == 4
    assert {item.share_pct_sm for item in plan.assignments} <= {20, 40, 50, 60, 80, 100}
    devices = [item.device for item in plan.assignments]
    assert {devices.count(device) for device in devices} == {2}


def test_a_third_partition_is_refused() -> None:
    services = [builders.service(name, model=name, rate_rps_declared=20.0) for name in ("a", "b", "c")]
    plan = Course("gpulet", builders.snapshot([builders.device("v", 0, "v100")], services)).step()
    assert len(plan.assignments) == 2
    assert ReasonCode.NEIGHBOURS_PRESSURE in {item.code for item in plan.unplaced[0].reasons}
    wide = GpuLet(GpuletParameters(partitions_max=3))
    assert (
        len(Course("gpulet", builders.snapshot([builders.device("v", 0, "v100")], services), wide).step().assignments)
        == 3
    )


def test_neighbours_that_press_are_kept_apart() -> None:
    services = [
        builders.service(name, model=name, slo=builders.slo(16.0), rate_rps_declared=30.0) for name in ("a", "b")
    ]
    devices = [builders.device("v", at, "v100") for at in range(2)]
    used: list[int] = []
    for pct in (1.0, 100.0):
        profiles = [pressing(builders.profile(name, "v100"), pct) for name in ("a", "b", "resnet50")]
        plan = Course("gpulet", builders.snapshot(devices, services, profiles=profiles)).step()
        assert not plan.unplaced
        used.append(len({item.device for item in plan.assignments}))
    assert used[0] <= used[1]


@pytest.mark.parametrize("rate", [20.0, 300.0, 1200.0])
def test_the_rate_is_served(rate: float) -> None:
    plan = Course("gpulet", farm(builders.service())).step(vision=rate)
    assert not plan.unplaced
    assert sum(item.capacity_rps for item in plan.assignments) >= rate
    assert all(item.batch <= 32 for item in plan.assignments)
