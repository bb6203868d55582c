"""Devices that are lent: the applier leaves them alone, and claims them when the target has something there."""

from __future__ import annotations

import random

import pytest

from agents.devices.base import Reservations
from agents.loop.apply import Applier
from tests.unit.agents.builders import (
    NODE,
    FakeClock,
    device_target,
    fake_devices,
    node_target,
    replica_target,
    worker_spec,
)


def test_a_lent_device_is_left_alone_and_the_target_counts_as_held() -> None:
    clock = FakeClock()
    devices = fake_devices(clock)
    uuid = devices.inventory()[0].uuid
    applier = Applier(NODE, devices, clock, random.Random(1))
    assert applier.reservations.lend(uuid)
    devices.start(uuid, worker_spec("measured"))
    devices.set_clock(uuid, devices.inventory()[0].clocks_mhz_sm[0])
    applier.accept(node_target(1, device_target(uuid)))
    assert applier.run_pass().settled
    assert [worker.spec.replica for worker in devices.workers()] == ["measured"]
    assert devices.settings(uuid).clock_mhz_sm is not None
    assert not applier.reservations.is_claimed(uuid)
    applier.reservations.give_back(uuid)
    for _ in range(100):
        applier.run_pass()
        clock.pass_s(1.0)
    assert devices.workers() == ()
    assert devices.settings(uuid).clock_mhz_sm is None


def test_a_target_with_replicas_claims_a_lent_device() -> None:
    clock = FakeClock()
    devices = fake_devices(clock)
    uuid = devices.inventory()[0].uuid
    applier = Applier(NODE, devices, clock, random.Random(1))
    applier.reservations.lend(uuid)
    applier.accept(node_target(1, device_target(uuid, replica_target())))
    assert not applier.run_pass().settled
    assert applier.reservations.is_claimed(uuid)
    assert devices.workers() == ()
    applier.reservations.give_back(uuid)
    applier.run_pass()
    assert [worker.spec.replica for worker in devices.workers()] == ["r1"]


def test_a_device_is_lent_once_and_its_return_is_told() -> None:
    told: list[bool] = []
    reservations = Reservations()
    reservations.when_back = lambda: told.append(True)
    assert reservations.lend("GPU-1")
    assert not reservations.lend("GPU-1")
    reservations.claim("GPU-2")
    assert not reservations.is_claimed("GPU-2")
    reservations.claim("GPU-1")
    reservations.give_back("GPU-1")
    assert told == [True]
    assert not reservations.is_claimed("GPU-1")
    assert reservations.lend("GPU-1")


@pytest.mark.parametrize("lent", [True, False])
def test_without_replicas_nothing_is_claimed(lent: bool) -> None:
    clock = FakeClock()
    devices = fake_devices(clock)
    uuid = devices.inventory()[0].uuid
    applier = Applier(NODE, devices, clock, random.Random(1))
    if lent:
        applier.reservations.lend(uuid)
    applier.accept(node_target(1, device_target(uuid)))
    applier.run_pass()
    assert not applier.reservations.is_claimed(uuid)
