"""Where not everybody can be served, who counts most for the room it takes goes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.planners.registry import propose
from solvers.verify.checks import verify
from tests import builders


def scarce(heavy_rps: float, light_rps: float) -> Snapshot:
    """Two GPUs; the heavy network's preferred replicas are the larger ones and serve little."""
    return builders.snapshot(
        [builders.device("a", index, "t4") for index in range(2)],
        [
            builders.service("heavy", model="big", slo=builders.slo(400.0), rate_rps_declared=heavy_rps),
            builders.service("light", model="small", slo=builders.slo(400.0), rate_rps_declared=light_rps),
        ],
        profiles=[
            builders.profile("big", "t4", work=8.0, shares=(50, 100)),
            builders.profile("small", "t4", work=0.5, shares=(25, 50, 100)),
        ],
    )


def planned(picture: Snapshot) -> Plan:
    plan = propose("greedy", builders.request(picture)).plan
    assert plan is not None
    assert {finding.severity.value for finding in verify(picture, plan)} <= {"warning"}
    return plan


def served_rps(plan: Plan, name: str) -> float:
    return sum(item.capacity_rps for item in plan.assignments if item.workload == f"demo/{name}")


def test_from_nothing() -> None:
    plan = planned(scarce(2000.0, 600.0))
    assert served_rps(plan, "light") >= 600.0


def test_what_stands_yields_when_that_serves_notably_more() -> None:
    before = planned(scarce(60.0, 1.0))
    target = builders.target(before.assignments, settings=before.settings)
    plan = planned(replace(scarce(2000.0, 600.0), target=target))
    assert served_rps(plan, "light") >= 600.0


def test_priority_still_goes_first() -> None:
    picture = scarce(2000.0, 600.0)
    heavy, light = picture.services
    urgent = replace(picture, services=(replace(heavy, priority=heavy.priority + 1), light))
    assert served_rps(planned(urgent), "heavy") > served_rps(planned(picture), "heavy")


@pytest.mark.parametrize("stands", [False, True])
def test_who_has_one_device_to_go_to_has_it_before_who_has_others(stands: bool) -> None:
    """The larger one, to which an L4 is cheapest, would take all of the only one."""
    wide = builders.service("fast", slo=builders.slo(12.0))
    narrow = builders.service(gpu_types_allowed=("l4",))
    picture = builders.lab([narrow, wide])
    if stands:
        first = planned(builders.lab([wide]))
        assert {item.device for item in first.assignments} == {"GPU-a-2"}
        picture = replace(picture, target=builders.target(first.assignments, settings=first.settings))
    plan = planned(picture)
    assert not plan.unplaced
    assert {item.device for item in plan.assignments if item.workload == "demo/vision"} == {"GPU-a-2"}
