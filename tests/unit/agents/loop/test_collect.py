"""Reports: intervals, order, consistency of rows, and the bounded buffer."""

from __future__ import annotations

import pytest

from agents.devices.fake.host import FakeDevices
from agents.loop.collect import INTERVAL_S_MAX, Collector, ReportBuffer
from agents.wire import Report
from tests.unit.agents.builders import NODE, FakeClock, fake_devices, worker_spec


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def devices(clock: FakeClock) -> FakeDevices:
    return fake_devices(clock, ("v100", "t4"))


def collector(devices: FakeDevices, clock: FakeClock, wall: FakeClock | None = None) -> Collector:
    return Collector(NODE, "boot-1", devices.collect, (clock, wall or FakeClock(5e8)))


def test_intervals_come_from_the_monotonic_clock_and_sequences_rise(devices: FakeDevices, clock: FakeClock) -> None:
    cutter = collector(devices, clock)
    clock.pass_s(5.0)
    first = cutter.cut(0)
    clock.pass_s(7.5)
    second = cutter.cut(3)
    assert [(report.sequence, report.interval_s, report.generation_applied) for report in (first, second)] == [
        (1, 5.0, 0),
        (2, 7.5, 3),
    ]


def test_a_wall_clock_that_runs_backwards_is_not_reported(devices: FakeDevices, clock: FakeClock) -> None:
    wall = FakeClock(5e8)
    cutter = collector(devices, clock, wall)
    clock.pass_s(1.0)
    moments = [cutter.cut(0).observed_at_s]
    for step_s in (-100.0, 50.0, 100.0):
        wall.pass_s(step_s)
        clock.pass_s(1.0)
        moments.append(cutter.cut(0).observed_at_s)
    assert moments == [5e8, 5e8, 5e8, 5e8 + 50.0]


def test_a_long_sleep_is_one_long_interval_at_most(devices: FakeDevices, clock: FakeClock) -> None:
    cutter = collector(devices, clock)
    devices.start(devices.inventory()[0].uuid, worker_spec())
    clock.pass_s(3 * INTERVAL_S_MAX)
    report = cutter.cut(0)
    assert report.interval_s == INTERVAL_S_MAX
    assert report.replicas[0].held_s == INTERVAL_S_MAX


def test_rows_of_replicas_add_up_to_their_device(devices: FakeDevices, clock: FakeClock) -> None:
    cutter = collector(devices, clock)
    v100, t4 = (device.uuid for device in devices.inventory())
    devices.start(v100, worker_spec("a", share=40))
    devices.start(v100, worker_spec("a", share=30))
    gone = devices.start(v100, worker_spec("b", share=30))
    devices.start(t4, worker_spec("c", share=50))
    clock.pass_s(10.0)
    cutter.cut(0)
    clock.pass_s(2.0)
    devices.stop(gone)
    clock.pass_s(3.0)
    report = cutter.cut(0)
    shares = {device.uuid: device.share_pct_sm_total for device in report.devices}
    assert shares == {v100: 70, t4: 50}
    rows = [(row.replica, row.share_pct_sm, row.state, round(row.held_s, 6)) for row in report.replicas]
    assert sorted(rows) == [
        ("a", 30, "ready", 5.0),
        ("a", 40, "ready", 5.0),
        ("b", 30, "draining", 2.0),
        ("c", 50, "ready", 5.0),
    ]
    for device in report.devices:
        mine = [row for row in report.replicas if row.uuid == device.uuid]
        assert sum(row.energy_j for row in mine) <= device.energy_j
        assert sum(row.memory_mib_used for row in mine) == pytest.approx(device.memory_mib_used)
        assert sum(row.share_pct_sm * row.held_s for row in mine) <= 100 * report.interval_s


def test_executions_are_told_apart_from_waiting(devices: FakeDevices, clock: FakeClock) -> None:
    """Under light load a request waits little, under heavy load long; a batch of a size takes the same either way."""
    cutter = collector(devices, clock)
    v100 = devices.inventory()[0].uuid
    devices.start(v100, worker_spec("a", share=100, batch=1))
    clock.pass_s(20.0)
    starting = cutter.cut(0).replicas[0]
    assert (starting.executions, starting.execution_ms_mean) == (0.0, None)
    told = []
    for rate_rps in (5.0, 120.0):
        for _ in range(20):
            devices.offer({"a": rate_rps}, 1.0)
            clock.pass_s(1.0)
        row = cutter.cut(0).replicas[0]
        assert row.executions * row.batch_mean == pytest.approx(row.completed)
        assert row.execution_ms_mean is not None
        assert row.latency_ms_p99 is not None
        told.append((row.execution_ms_mean, row.latency_ms_p99))
    assert told[0][0] == pytest.approx(told[1][0], rel=0.03)
    assert told[1][1] > 1.5 * told[1][0]


def report(sequence: int) -> Report:
    return Report(
        node=NODE,
        boot_id="boot-1",
        sequence=sequence,
        observed_at_s=1.0,
        interval_s=1.0,
        generation_applied=0,
        devices=(),
        replicas=(),
    )


def test_the_buffer_keeps_order_and_forgets_what_is_acknowledged() -> None:
    buffer = ReportBuffer()
    for sequence in range(1, 6):
        buffer.add(report(sequence))
    buffer.settle(buffer.oldest(2))
    buffer.settle([report(4)], refused=True)
    assert [each.sequence for each in buffer.oldest(10)] == [3, 5]
    assert (len(buffer), buffer.lost, buffer.refused) == (2, 0, 1)


def test_a_full_buffer_loses_the_oldest_and_counts_them() -> None:
    buffer = ReportBuffer(kept_max=3)
    for sequence in range(1, 6):
        buffer.add(report(sequence))
    assert [each.sequence for each in buffer.oldest(10)] == [3, 4, 5]
    assert buffer.lost == 2
