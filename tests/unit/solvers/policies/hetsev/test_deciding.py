"""HetSev without limits on shares: which devices it puts in time slices, and that the verifier agrees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.device import DeviceMode
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import ModelName
from solvers.domain.plan import Plan
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import AntiAffinity, WorkloadKind
from solvers.errors import FieldError
from solvers.planners import registry
from solvers.policies.hetsev.deciding import HetsevParameters, opened, tenants_of
from solvers.policies.hetsev.planner import HetSev
from solvers.verify.checks import is_fatal, verify
from tests import builders

OPEN = Interference(pressure=0.25, sensitivity=1.2, exponent=0.0)


def farm(*types: str, unlimited: Interference | None = OPEN, **changes: Any) -> Snapshot:
    """One GPU of each of these types, and two services of different models that need more than one instance each."""
    devices = [builders.device(f"n{at}", 0, name, **changes) for at, name in enumerate(types)]
    services = [
        builders.service(name, model=ModelName(model), slo=builders.slo(400.0), rate_rps_declared=150.0)
        for name, model in (("one", "resnet50"), ("two", "vgg19"))
    ]
    picture = builders.snapshot(devices, services)
    return replace(picture, profiles=tuple(replace(each, unlimited=unlimited) for each in picture.profiles))


def plan_of(picture: Snapshot, **parameters: Any) -> Plan:
    planner = registry.create("hetsev", {"rate_window_s": 0, "sharing": "unlimited", **parameters})
    request = builders.request(picture)
    plan = registry.think(planner, request, None, SilentReporter()).proposal.plan
    assert plan is not None
    assert not is_fatal(verify(picture, plan, request.movable))
    return plan


def test_instances_share_a_gpu_whole() -> None:
    plan = plan_of(farm("v100"))
    assert {item.workload for item in plan.assignments} == {"demo/one", "demo/two"}
    assert {item.share_pct_sm for item in plan.assignments} == {100}
    assert [item.mode for item in plan.settings] == [DeviceMode.TIME_SLICED]


def test_what_neighbours_do_is_planned_for() -> None:
    beside, alone = plan_of(farm("v100")), plan_of(replace(farm("v100"), services=farm("v100").services[:1]))
    rates = {item.workload: item.capacity_rps for item in beside.assignments}
    assert rates["demo/one"] == pytest.approx(alone.assignments[0].capacity_rps / (1 + 1.2 * 0.25), rel=1e-3)


def test_limits_hold_by_default_and_where_nobody_measured() -> None:
    for plan in (plan_of(farm("v100"), sharing="limited"), plan_of(farm("v100", unlimited=None))):
        assert {item.mode for item in plan.settings} == {DeviceMode.MPS}
        assert sum(item.share_pct_sm for item in plan.assignments) <= 100
    assert HetsevParameters().sharing == "limited"
    with pytest.raises(FieldError):
        HetsevParameters(sharing="some")


def test_a_type_on_which_one_model_was_not_measured_stays_divided() -> None:
    picture = farm("v100", "t4")
    unknown = [each.gpu_type == "t4" and each.model == "vgg19" for each in picture.profiles]
    pairs = zip(picture.profiles, unknown, strict=True)
    profiles = [replace(each, unlimited=None) if out else each for each, out in pairs]
    case = opened(builders.request(replace(picture, profiles=tuple(profiles))), HetsevParameters(sharing="unlimited"))
    assert {device for device, item in case.held.items() if item.mode is DeviceMode.TIME_SLICED} == {"GPU-n0-0"}


def test_devices_for_one_replica_and_with_jobs_are_left_alone() -> None:
    assert {item.mode for item in plan_of(farm("v100", mode=DeviceMode.DEDICATED)).settings} == {DeviceMode.DEDICATED}
    picture = farm("v100", "v100")
    busy = builders.assignment("demo/train#0", picture.devices[0], kind=WorkloadKind.JOB, share_pct_sm=40)
    case = opened(
        builders.request(replace(picture, jobs=(builders.job(),), target=builders.target([busy]))),
        HetsevParameters(sharing="unlimited"),
    )
    assert {device for device, item in case.held.items() if item.mode is DeviceMode.TIME_SLICED} == {"GPU-n1-0"}


def test_devices_in_time_slices_are_used_as_they_are() -> None:
    picture = farm("v100", mode=DeviceMode.TIME_SLICED)
    assert len(plan_of(picture).assignments) == 2
    assert len(plan_of(picture, sharing="limited").assignments) == 1


@pytest.mark.parametrize(("rule", "tenants"), [(AntiAffinity.HARD, 2), (AntiAffinity.SOFT, 4), (AntiAffinity.OFF, 4)])
def test_so_many_can_meet(rule: AntiAffinity, tenants: int) -> None:
    picture, parameters = farm("v100"), HetsevParameters(sharing="unlimited", anti_affinity=rule)
    assert tenants_of(opened(builders.request(picture), parameters), parameters) == tenants
    assert HetSev(parameters=parameters).parameters.anti_affinity is rule


@pytest.mark.parametrize(("resources", "wants"), [("types", 1), ("sums", 2)])
def test_resources_are_counted_by_type_or_in_all(resources: str, wants: int) -> None:
    """Copies of a model may not meet, so one GPU has room for one; in sum its memory holds two. One is placed."""
    picture = farm("t4")
    one = replace(picture.services[0], rate_rps_declared=400.0, replicas_max=3)
    request = builders.request(replace(picture, services=(one,)))
    planner = registry.create("hetsev", {"rate_window_s": 0, "resources": resources})
    proposal = registry.think(planner, request, None, SilentReporter()).proposal
    assert proposal.plan is not None
    assert len(proposal.plan.assignments) == 1
    (started,) = (fact.value for reason in proposal.reasons for fact in reason.facts if fact.name == "started")
    assert started == wants
