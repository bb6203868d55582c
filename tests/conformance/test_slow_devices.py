"""A device that is slower than its type is used last, by whoever minimises what is paid, and is still used in need."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from solvers.domain.change import Target
from solvers.domain.device import Device
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import DeviceId, Generation
from solvers.domain.plan import Plan
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import SLOW_PRICE_FACTOR, DeviceTelemetry
from solvers.models.worth import cost_by_device
from solvers.planners import registry
from solvers.planners.joint.planner import SPEC
from solvers.problems.fleet import open_fleet
from solvers.verify.checks import verify
from solvers.verify.picture import Picture, is_fatal
from tests import builders

DEVICES = tuple(builders.device("a", number, "t4") for number in range(3))
POLICY = builders.policy(cost_basis=CostBasis.DEVICE)
by_price = pytest.mark.parametrize("name", [SPEC.name, "greedy"])


def reading(device: Device, factor: float) -> DeviceTelemetry:
    return DeviceTelemetry(
        device=device.id,
        power_w=20.0,
        utilisation_pct=10.0,
        memory_mib_used=0.0,
        clock_mhz_sm=1590,
        age_s=1.0,
        slow_factor=factor,
    )


def seen(slow: Collection[Device]) -> Snapshot:
    """One service, for which one device is enough, on three of which some are slow."""
    services = [builders.service("vision", rate_rps_declared=60.0)]
    readings = tuple(reading(device, 1.4 if device in slow else 1.0) for device in DEVICES)
    return replace(builders.snapshot(DEVICES, services), policy=POLICY, device_telemetry=readings)


def planned(name: str, picture: Snapshot) -> Plan:
    request = builders.request(picture)
    plan = registry.create(name).propose(request, b"", SilentReporter()).plan
    assert plan is not None
    assert not is_fatal(verify(picture, plan, request.movable))
    return plan


def used(plan: Plan) -> set[DeviceId]:
    return {item.device for item in plan.assignments}


@by_price
def test_any_other_of_its_type_is_used_first(name: str) -> None:
    for slow in DEVICES:
        plan = planned(name, seen([slow]))
        assert plan.assignments
        assert slow.id not in used(plan)


@by_price
def test_it_serves_where_nothing_else_does(name: str) -> None:
    picture = seen(DEVICES)
    assert used(planned(name, picture))
    assert not planned(name, picture).unplaced


def test_who_stands_there_moves_to_one_that_is_not_slow() -> None:
    plan = planned(SPEC.name, seen([]))
    (there,) = used(plan)
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    slow = seen([device for device in DEVICES if device.id == there])
    steady, later = (replace(picture, target=target, taken_at_s=1_000_300.0) for picture in (seen([]), slow))
    assert used(planned(SPEC.name, steady)) == {there}
    assert there not in used(planned(SPEC.name, later))


def test_planner_and_verifier_hold_it_for_equally_dear_and_its_owner_is_billed_as_before() -> None:
    picture = seen([DEVICES[1]])
    fleet, shown = open_fleet(picture, {}), Picture(picture, planned(SPEC.name, picture), ())
    for index, device in enumerate(fleet.devices):
        factor = SLOW_PRICE_FACTOR if device.id == DEVICES[1].id else 1.0
        kind = fleet.class_at(index)
        assert kind.usd_per_h == shown.price_usd_per_h(device)
        assert kind.expected_usd_per_h == shown.expected_usd_per_h(device) == pytest.approx(factor * kind.usd_per_h)
    standing = builders.assignment("demo/vision#0", DEVICES[1])
    (cost,) = cost_by_device(picture, fleet, (standing,), {}).values()
    assert cost >= SLOW_PRICE_FACTOR * fleet.class_at(1).usd_per_h
