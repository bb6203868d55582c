"""Readers with intervals of their own: everybody sees everything once, and sums stay sums."""

from __future__ import annotations

import pytest

from agents.devices.fake.host import FakeDevices
from agents.loop.collect import Sampler
from tests.unit.agents.builders import FakeClock, fake_devices, worker_spec


def busy(clock: FakeClock) -> FakeDevices:
    devices = fake_devices(clock, ("v100",))
    devices.start(devices.inventory()[0].uuid, worker_spec(share=50, launch_s=1.0))
    clock.pass_s(30.0)
    devices.collect()
    return devices


def test_a_slow_reader_sees_what_quick_ones_saw_added_up() -> None:
    clock = FakeClock()
    devices = busy(clock)
    samples = Sampler(devices, clock, ("governor", "reports"))
    quick = []
    for _ in range(5):
        devices.offer({"r1": 100.0}, 1.0)
        clock.pass_s(1.0)
        quick.append(samples.take("governor")[0])
    (slow,) = samples.take("reports")
    assert slow.energy_j == pytest.approx(sum(sample.energy_j for sample in quick))
    assert slow.power_w == pytest.approx(sum(sample.power_w for sample in quick) / 5)
    mine = [sample.workers[0] for sample in quick]
    (worker,) = slow.workers
    assert worker.arrived == pytest.approx(sum(each.arrived for each in mine))
    assert worker.completed == pytest.approx(sum(each.completed for each in mine))
    assert worker.completed > 0.0
    assert worker.held_s == pytest.approx(5.0)
    executions = sum(each.executions for each in mine)
    assert worker.executions == pytest.approx(executions)
    assert worker.batch_mean == pytest.approx(sum(each.batch_mean * each.executions for each in mine) / executions)
    assert worker.latency_ms_p99 == max(each.latency_ms_p99 or 0.0 for each in mine)
    assert worker.queue_length == mine[-1].queue_length


def test_what_was_seen_is_not_seen_again() -> None:
    clock = FakeClock()
    devices = busy(clock)
    samples = Sampler(devices, clock, ("a", "b"))
    devices.offer({"r1": 100.0}, 1.0)
    clock.pass_s(1.0)
    first = samples.take("a")[0]
    clock.pass_s(1.0)
    second = samples.take("a")[0]
    clock.pass_s(1.0)
    third = samples.take("a")[0]
    assert first.workers[0].arrived + second.workers[0].arrived == pytest.approx(100.0)
    assert third.workers[0].arrived == 0.0
    both = samples.take("b")[0]
    assert both.workers[0].arrived == pytest.approx(100.0)
    assert both.energy_j == pytest.approx(first.energy_j + second.energy_j + third.energy_j)


def test_a_worker_that_ended_in_between_keeps_its_last_row() -> None:
    clock = FakeClock()
    devices = busy(clock)
    samples = Sampler(devices, clock, ("a", "b"))
    name = devices.workers()[0].worker
    clock.pass_s(1.0)
    samples.take("a")
    devices.stop(name)
    clock.pass_s(1.0)
    samples.take("a")
    (worker,) = samples.take("b")[0].workers
    assert worker.gone
    assert 1.0 <= worker.held_s <= 2.0
