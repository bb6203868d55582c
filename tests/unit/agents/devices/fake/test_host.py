"""Simulated devices: hard limits under every sequence of calls, life of workers, samples, what survives a restart."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agents.devices.base import Mode, WorkerState
from agents.devices.fake.host import FakeDevices, FakeOrder
from agents.errors import (
    BusyError,
    ConfigError,
    DeviceError,
    NotFoundError,
    NotSupportedError,
    OutOfMemoryError,
    OutOfRangeError,
)
from agents.state import DEVICES_FILE, StateDirectory
from tests.unit.agents.builders import NODE, FakeClock, fake_devices, worker_spec


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def only_uuid(devices: FakeDevices) -> str:
    return devices.inventory()[0].uuid


def test_inventory_says_what_can_be_done_and_why_not(clock: FakeClock) -> None:
    found = fake_devices(clock, ("T4", "v100")).inventory()
    assert [(device.gpu_type, device.index, device.sm_count) for device in found] == [("t4", 0, 40), ("v100", 1, 80)]
    assert found[0].uuid != found[1].uuid
    assert found[0].capabilities == {"set_clock": "", "set_power": "", "mps": "", "mig": "not simulated"}
    assert found[0] == fake_devices(clock, ("T4", "v100")).inventory()[0]


def test_unknown_gpu_types_are_refused(clock: FakeClock) -> None:
    with pytest.raises(ConfigError, match="t5"):
        fake_devices(clock, ("t5",))


def test_a_worker_starts_becomes_ready_drains_and_ends(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    name = devices.start(only_uuid(devices), worker_spec(share=33))
    assert devices.workers()[0].state is WorkerState.STARTING
    assert devices.workers()[0].sm_count == 26
    clock.pass_s(6.0)
    assert devices.workers()[0].state is WorkerState.READY
    assert devices.offer({"r1": 50.0, "r2": 1.0}, 1.0).unknown == ("r2",)
    clock.pass_s(0.5)
    devices.drain(name)
    assert not devices.workers()[0].drained
    assert devices.offer({"r1": 1.0}, 1.0).not_ready == ("r1",)
    clock.pass_s(2.0)
    assert devices.workers()[0].drained
    devices.stop(name)
    assert devices.workers() == ()
    with pytest.raises(NotFoundError):
        devices.stop(name)


def test_starting_takes_less_with_a_time_factor(clock: FakeClock) -> None:
    devices = FakeDevices(FakeOrder(node=NODE, gpu_types=("v100",), time_factor=10.0), clock, None, "boot")
    devices.start(only_uuid(devices), worker_spec())
    clock.pass_s(0.6)
    assert devices.workers()[0].state is WorkerState.READY


def test_limits_of_a_device_are_enforced_at_every_moment(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    uuid = only_uuid(devices)
    devices.start(uuid, worker_spec("r1", share=70, memory=20_000))
    with pytest.raises(OutOfRangeError, match="101 %"):
        devices.start(uuid, worker_spec("r2", share=101))
    with pytest.raises(OutOfMemoryError, match="33000 of 32768"):
        devices.start(uuid, worker_spec("r2", share=30, memory=13_000))
    with pytest.raises(OutOfMemoryError, match="batch of 64"):
        devices.start(uuid, worker_spec("r2", share=30, memory=2_000, batch=64))
    with pytest.raises(BusyError):
        devices.set_mode(uuid, Mode.DEDICATED)
    with pytest.raises(OutOfRangeError):
        devices.set_clock(uuid, 1531)
    with pytest.raises(OutOfRangeError):
        devices.set_power_limit(uuid, 300.5)
    with pytest.raises(NotSupportedError):
        devices.set_mode(uuid, Mode.TIME_SLICED)
    assert len(devices.workers()) == 1


def test_a_dedicated_device_takes_one_worker(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    uuid = only_uuid(devices)
    devices.set_mode(uuid, Mode.DEDICATED)
    devices.start(uuid, worker_spec("r1", share=50))
    with pytest.raises(BusyError):
        devices.start(uuid, worker_spec("r2", share=50))


def test_batch_and_limit_change_while_running_but_not_beyond_memory(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    name = devices.start(only_uuid(devices), worker_spec(memory=1_200))
    devices.tune(name, worker_spec(share=99, memory=1, batch=4, latency_ms_limit=70.0))
    spec = devices.workers()[0].spec
    assert (spec.batch, spec.latency_ms_limit, spec.share_pct_sm, spec.memory_mib_limit) == (4, 70.0, 30, 1_200)
    with pytest.raises(OutOfMemoryError):
        devices.tune(name, worker_spec(batch=32))


def test_requests_are_conserved_and_served_at_the_offered_rate(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    devices.start(only_uuid(devices), worker_spec())
    clock.pass_s(7.0)
    devices.collect()
    for _ in range(10):
        devices.offer({"r1": 100.0}, 1.0)
        clock.pass_s(1.0)
    (device,) = devices.collect()
    (worker,) = device.workers
    assert 980.0 < worker.arrived <= 1000.0
    assert worker.completed + worker.dropped + worker.queue_length == pytest.approx(worker.arrived)
    assert worker.completed > 950.0
    assert worker.held_s == pytest.approx(10.0)
    assert worker.latency_ms_p50 is not None
    assert worker.latency_ms_p99 is not None
    assert 2.0 < worker.latency_ms_p50 < worker.latency_ms_p99 < 200.0
    assert 0.0 < worker.energy_j < device.energy_j
    assert device.energy_j == pytest.approx(10.0 * device.power_w)
    assert 10.0 < device.utilisation_pct < 100.0
    clock.pass_s(1.0)
    rest = devices.collect()[0].workers[0]
    assert worker.arrived + rest.arrived == pytest.approx(1000.0)
    assert worker.completed + rest.completed == pytest.approx(1000.0)


def test_overload_drops_what_cannot_be_in_time(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    devices.start(only_uuid(devices), worker_spec())
    clock.pass_s(7.0)
    for _ in range(10):
        devices.offer({"r1": 5000.0}, 1.0)
        clock.pass_s(1.0)
    (worker,) = devices.collect()[0].workers
    assert worker.dropped > worker.completed > 1000.0
    assert worker.latency_ms_p99 is not None
    assert worker.latency_ms_p99 <= 200.0 * 1.001


def test_a_neighbour_makes_it_slower_and_a_lower_clock_too(clock: FakeClock) -> None:
    def p50_ms(devices: FakeDevices) -> float:
        clock.pass_s(10.0)
        devices.collect()
        for _ in range(5):
            devices.offer({"r1": 60.0, "r2": 120.0}, 1.0)
            clock.pass_s(1.0)
        return next(
            worker.latency_ms_p50 or 0.0
            for worker in devices.collect()[0].workers
            if worker.reading.spec.replica == "r1"
        )

    alone, beside, slowed = (fake_devices(clock) for _ in range(3))
    for devices in (alone, beside, slowed):
        devices.start(only_uuid(devices), worker_spec("r1"))
    beside.start(only_uuid(beside), worker_spec("r2", model="vgg19"))
    slowed.set_clock(only_uuid(slowed), 765)
    assert p50_ms(alone) * 1.02 < p50_ms(beside)
    assert p50_ms(alone) * 1.3 < p50_ms(slowed)


def test_training_makes_progress_and_stops_at_its_end(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    job = {"kind": "job", "batch": 1, "latency_ms_limit": None, "iteration_ms_reference": 100.0}
    devices.start(only_uuid(devices), worker_spec("j1", share=100, iterations_total=50, **job))
    clock.pass_s(8.0)
    first = devices.collect()[0].workers[0].iterations_done
    assert first is not None
    assert 15 <= first <= 20
    clock.pass_s(60.0)
    second = devices.collect()[0].workers[0].iterations_done
    assert second is not None
    assert first + second == 50
    clock.pass_s(10.0)
    (device,) = devices.collect()
    assert device.workers[0].iterations_done == 0
    assert device.utilisation_pct == pytest.approx(0.0)


def test_a_task_works_off_its_inputs_without_anybody_asking(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    task = {"kind": "task", "latency_ms_limit": None, "iterations_total": 5000}
    devices.start(only_uuid(devices), worker_spec("t1", share=100, **task))
    clock.pass_s(60.0)
    (worker,) = devices.collect()[0].workers
    assert worker.completed == worker.iterations_done == 5000


def test_a_worker_that_ended_is_sampled_once_more(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    name = devices.start(only_uuid(devices), worker_spec())
    clock.pass_s(8.0)
    devices.collect()
    devices.offer({"r1": 30.0}, 1.0)
    clock.pass_s(0.5)
    devices.stop(name)
    clock.pass_s(0.5)
    (worker,) = devices.collect()[0].workers
    assert worker.gone
    assert worker.held_s == pytest.approx(0.5)
    assert worker.completed + worker.dropped == pytest.approx(worker.arrived) == pytest.approx(30.0)
    assert devices.collect()[0].workers == ()


def test_workers_and_settings_outlive_the_agent_but_not_a_reboot(clock: FakeClock, tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    before = fake_devices(clock, state=state)
    uuid = only_uuid(before)
    before.set_clock(uuid, 1380)
    before.set_power_limit(uuid, 200.0)
    name = before.start(uuid, worker_spec())
    clock.pass_s(30.0)
    after = fake_devices(clock, state=state)
    (found,) = after.workers()
    assert (found.worker, found.spec, found.state) == (name, worker_spec(), WorkerState.READY)
    assert (after.settings(uuid).clock_mhz_sm, after.settings(uuid).power_limit_w) == (1380, 200.0)
    assert after.start(uuid, worker_spec("r2")) > name
    rebooted = fake_devices(clock, state=state, boot_id="next boot")
    assert rebooted.workers() == ()
    assert rebooted.settings(uuid).clock_mhz_sm is None


def test_a_broken_state_file_costs_the_workers_and_is_said(clock: FakeClock, tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.write_text(DEVICES_FILE, '{"version": 1, "boards": 3}')
    devices = fake_devices(clock, state=state)
    assert devices.workers() == ()
    assert "KeyError" in devices.state_lost


def test_restore_gives_default_clocks_and_power_back(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    uuid = only_uuid(devices)
    devices.set_clock(uuid, 765)
    devices.set_power_limit(uuid, 150.0)
    devices.restore()
    assert (devices.settings(uuid).clock_mhz_sm, devices.settings(uuid).power_limit_w) == (None, None)


def test_a_power_limit_throttles_and_says_so(clock: FakeClock) -> None:
    devices = fake_devices(clock)
    uuid = only_uuid(devices)
    devices.set_power_limit(uuid, 150.0)
    task = {"kind": "task", "latency_ms_limit": None, "model": "vgg19", "batch": 16}
    devices.start(uuid, worker_spec("t1", share=100, **task))
    clock.pass_s(30.0)
    devices.collect()
    clock.pass_s(10.0)
    (device,) = devices.collect()
    assert device.throttle == "power_cap"
    assert device.clock_mhz_sm < 1530
    assert device.power_w <= 150.0 * 1.04


class AnySequenceOfCalls(RuleBasedStateMachine):
    """Whatever is called in whatever order, no device is ever over its share or memory."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.devices = fake_devices(self.clock, ("t4", "a100"))

    @rule(
        device=st.integers(0, 1),
        replica=st.sampled_from(["r1", "r2", "r3"]),
        share=st.integers(-5, 120),
        memory=st.integers(0, 90_000),
        kind=st.sampled_from(["service", "job", "task"]),
    )
    def start(self, device: int, replica: str, share: int, memory: int, kind: str) -> None:
        spec = worker_spec(replica, share=share, memory=memory, kind=kind, iteration_ms_reference=50.0)
        self.attempt("start", self.devices.inventory()[device].uuid, spec)

    @precondition(lambda self: self.devices.workers())
    @rule(data=st.data(), verb=st.sampled_from(["drain", "stop"]))
    def end(self, data: st.DataObject, verb: str) -> None:
        self.attempt(verb, data.draw(st.sampled_from([worker.worker for worker in self.devices.workers()])))

    @precondition(lambda self: self.devices.workers())
    @rule(data=st.data(), batch=st.integers(0, 64))
    def tune(self, data: st.DataObject, batch: int) -> None:
        worker = data.draw(st.sampled_from([worker.worker for worker in self.devices.workers()]))
        self.attempt("tune", worker, worker_spec(batch=batch))

    @rule(device=st.integers(0, 1), clock=st.none() | st.integers(100, 2000), watts=st.none() | st.floats(0, 500))
    def set_device(self, device: int, clock: int | None, watts: float | None) -> None:
        uuid = self.devices.inventory()[device].uuid
        self.attempt("set_clock", uuid, clock)
        self.attempt("set_power_limit", uuid, watts)

    @rule(device=st.integers(0, 1), mode=st.sampled_from(Mode))
    def set_mode(self, device: int, mode: Mode) -> None:
        self.attempt("set_mode", self.devices.inventory()[device].uuid, mode)

    @rule(seconds=st.floats(0.0, 20.0), requests=st.floats(0.0, 1e4))
    def live(self, seconds: float, requests: float) -> None:
        self.devices.offer({"r1": requests, "r2": requests / 2}, 1.0)
        self.clock.pass_s(seconds)

    @rule()
    def collect(self) -> None:
        for sample in self.devices.collect():
            assert sample.power_w >= 0.0
            for worker in sample.workers:
                assert worker.completed >= 0.0
                assert worker.queue_length >= 0.0

    def attempt(self, verb: str, *arguments: object) -> None:
        with contextlib.suppress(DeviceError):
            getattr(self.devices, verb)(*arguments)

    @invariant()
    def nothing_is_over_its_limits(self) -> None:
        for device in self.devices.inventory():
            workers = [worker for worker in self.devices.workers() if worker.uuid == device.uuid]
            assert sum(worker.spec.memory_mib_limit for worker in workers) <= device.memory_mib
            assert all(worker.sm_count <= device.sm_count for worker in workers)
            assert all(1 <= worker.spec.share_pct_sm <= 100 for worker in workers)


TestAnySequenceOfCalls = AnySequenceOfCalls.TestCase
TestAnySequenceOfCalls.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def overloaded(clock: FakeClock, *, latency_ms_limit: float, execution_only: bool) -> tuple[float, float, float]:
    """Completed, violated and dropped of a replica that is offered far more than it can do for five seconds."""
    devices = fake_devices(clock)
    spec = worker_spec(share=50, latency_ms_limit=latency_ms_limit, latency_execution_only=execution_only)
    devices.start(only_uuid(devices), spec)
    clock.pass_s(6.0)
    devices.workers()
    for _ in range(5):
        devices.offer({"r1": 6000.0}, 1.0)
        clock.pass_s(1.0)
    worker = devices.collect()[0].workers[0]
    return worker.completed, worker.violated, worker.dropped


def test_a_limit_on_execution_alone_is_not_broken_by_waiting(clock: FakeClock) -> None:
    completed, violated, dropped = overloaded(clock, latency_ms_limit=200.0, execution_only=False)
    assert completed > 0.0
    assert violated + dropped > 0.0
    completed, violated, dropped = overloaded(FakeClock(), latency_ms_limit=200.0, execution_only=True)
    assert completed > 0.0
    assert violated == 0.0
    completed, violated, _ = overloaded(FakeClock(), latency_ms_limit=1.0, execution_only=True)
    assert violated == completed > 0.0
