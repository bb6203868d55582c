"""Plans for devices in time slices keep the contract too: HetSev's own, and everybody's after HetSev."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from solvers.domain.device import DeviceMode
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import Generation
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.planners import registry
from solvers.verify.checks import is_fatal, verify
from tests import builders
from tests.property.worlds import worlds_with_target

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
CROWDED = Interference(pressure=0.3, sensitivity=1.5, exponent=0.0)
AFTER = ("hetsev", "greedy", "joint", "k8s_hpa", "gslice")


def measured(picture: Snapshot) -> Snapshot:
    """Everything was measured without limits on shares."""
    return replace(picture, profiles=tuple(replace(each, unlimited=CROWDED) for each in picture.profiles))


def followed(picture: Snapshot) -> Snapshot:
    """The picture once HetSev's plan without limits stands; it must verify."""
    planner = registry.create("hetsev", {"sharing": "unlimited", "anti_affinity": "soft"})
    request = builders.request(picture)
    plan = registry.think(planner, request, None, SilentReporter()).proposal.plan
    assert plan is not None
    assert not is_fatal(verify(picture, plan, request.movable))
    generation = Generation(picture.target.generation + 1)
    return replace(picture, target=builders.target(plan.assignments, settings=plan.settings, generation=generation))


@given(picture=worlds_with_target())
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
def test_plans_of_random_worlds_verify_twice(picture: Snapshot) -> None:
    followed(followed(measured(picture)))


@pytest.fixture(scope="module")
def shared() -> Snapshot:
    services = [builders.service("one"), builders.service("two"), builders.service("big", rate_rps_declared=900.0)]
    picture = followed(measured(builders.lab(services)))
    devices = [item.device for item in picture.target.assignments]
    assert len(devices) > len(set(devices))
    assert {item.mode for item in picture.target.settings} == {DeviceMode.TIME_SLICED}
    return picture


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "free"])
@pytest.mark.parametrize("name", AFTER)
def test_whoever_plans_next_makes_a_valid_plan(shared: Snapshot, name: str, pinned: bool) -> None:
    movable = [item for item in builders.everything_movable(shared) if not (pinned and item == "demo/one")]
    request = builders.request(shared, movable)
    plan = registry.think(registry.create(name), request, None, SilentReporter()).proposal.plan
    assert plan is not None
    found = verify(shared, plan, request.movable)
    assert not is_fatal(found), found
