"""Reports: intervals, order, consistency of rows."""

from __future__ import annotations

import pytest

from agents.devices.base import MEASURED
from agents.devices.fake.host import FakeDevices
from agents.loop.collect import GONE_KEPT_MAX, INTERVAL_S_MAX, Collector, Sampler
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


def test_what_a_profile_run_started_is_no_replica(devices: FakeDevices, clock: FakeClock) -> None:
    """Measuring is no traffic; what the device drew for it is told all the same."""
    cutter = collector(devices, clock)
    v100, t4 = (device.uuid for device in devices.inventory())
    clock.pass_s(5.0)
    idle_j = {row.uuid: row.energy_j for row in cutter.cut(0).devices}
    devices.start(v100, worker_spec("profile-team-svc", share=60, kind=MEASURED, launch_s=0.1))
    devices.start(t4, worker_spec("a", share=50))
    clock.pass_s(5.0)
    cutter.cut(0)
    for _ in range(5):
        devices.offer({"profile-team-svc": 500.0}, 1.0)
        clock.pass_s(1.0)
    measuring = devices.workers()[0].spec
    assert (measuring.kind, measuring.takes_requests) == (MEASURED, True)
    report = cutter.cut(0)
    assert [row.replica for row in report.replicas] == ["a"]
    assert {row.uuid: row.share_pct_sm_total for row in report.devices} == {v100: 0, t4: 50}
    drawn_j = {row.uuid: row.energy_j for row in report.devices}
    assert drawn_j[v100] > 1.2 * idle_j[v100]


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


# --- Readers with intervals of their own: everybody sees everything once, and sums stay sums.


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


def test_who_does_not_read_costs_no_more_memory_for_every_worker_that_was() -> None:
    clock = FakeClock()
    devices = busy(clock)
    samples = Sampler(devices, clock, ("reports", "profiling"))
    (stays,) = (worker.worker for worker in devices.workers())
    newest = ""
    for _ in range(GONE_KEPT_MAX + 20):
        newest = devices.start(devices.inventory()[0].uuid, worker_spec("r2", share=10, launch_s=0.0))
        clock.pass_s(1.0)
        devices.stop(newest)
        clock.pass_s(1.0)
        assert newest in [worker.reading.worker for worker in samples.take("reports")[0].workers]
    found = [worker.reading.worker for worker in samples.take("profiling")[0].workers]
    assert len(found) <= GONE_KEPT_MAX + 2
    assert {stays, newest} <= set(found)
