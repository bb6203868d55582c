"""The composed host: which part does what, when a worker is ready, what is given back, and what an operator is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.devices.base import DeviceSample, Mode, WorkerState
from agents.devices.nvidia.host import SERVER_NAME, NvidiaDevices, Strangers
from agents.devices.parts import BoardEvent, ComputeMode, GpuProcess
from agents.errors import (
    BusyError,
    DeviceError,
    DeviceTimeoutError,
    DriverError,
    NoPermissionError,
    NotFoundError,
    NotSupportedError,
    OutOfMemoryError,
    OutOfRangeError,
    SharingError,
    WorkerError,
)
from agents.processes import MARK
from tests.unit.agents.builders import FakeClock, worker_spec
from tests.unit.agents.devices.nvidia.doubles import (
    COMMAND,
    SM_COUNT,
    CardSetters,
    World,
    WorldCrew,
    described,
    uuid_of,
)

UUID, OTHER = uuid_of(0), uuid_of(1)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def devices(world: World) -> NvidiaDevices:
    found = world.devices()
    found.set_mode(UUID, Mode.MPS)
    return found


def start(devices: NvidiaDevices, world: World, replica: str = "r1", share: int = 30, **more: object) -> str:
    """A worker that had time to come up."""
    name = devices.start(UUID, worker_spec(replica, share, worker=COMMAND, **more))
    world.pass_s(3.0)
    return name


def states(devices: NvidiaDevices) -> dict[str, tuple[WorkerState, int]]:
    return {each.spec.replica: (each.state, each.sm_count) for each in devices.workers()}


def sample(devices: NvidiaDevices) -> DeviceSample:
    return next(each for each in devices.collect() if each.uuid == UUID)


def late(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    """The driver does what it is asked, and says that it did not."""
    write = getattr(CardSetters, setting)

    def answer(setters: CardSetters, uuid: str, value: object) -> None:
        write(setters, uuid, value)
        raise DeviceTimeoutError("no answer")

    monkeypatch.setattr(CardSetters, setting, answer)


class TestModes:
    """How a device is shared."""

    def test_mps_means_a_daemon_that_nobody_can_pass_by(self, world: World, devices: NvidiaDevices) -> None:
        assert devices.settings(UUID).mode is Mode.MPS
        assert (world.cards[UUID].daemon, world.cards[UUID].compute_mode) == (True, ComputeMode.EXCLUSIVE_PROCESS)
        devices.set_mode(UUID, Mode.DEDICATED)
        assert (world.cards[UUID].daemon, world.cards[UUID].compute_mode) == (False, ComputeMode.DEFAULT)
        assert devices.settings(UUID).mode is Mode.DEDICATED

    def test_a_device_with_workers_keeps_its_mode(self, world: World, devices: NvidiaDevices) -> None:
        start(devices, world)
        devices.workers()
        with pytest.raises(BusyError, match="1 workers"):
            devices.set_mode(UUID, Mode.TIME_SLICED)

    def test_without_privilege_it_goes_on_and_says_so(self, world: World) -> None:
        world.refusals = dict.fromkeys(("set_compute_mode", "set_clock"), "not root")
        devices = world.devices()
        devices.set_mode(UUID, Mode.MPS)
        assert start(devices, world)
        assert states(devices) == {"r1": (WorkerState.READY, 32)}
        (problem,) = devices.problems()
        assert "compute mode" in problem
        assert "not root" in problem
        capabilities = devices.inventory()[0].capabilities or {}
        assert (capabilities["set_clock"], capabilities["mps"]) == ("not root", "")

    def test_without_mps_there_is_only_the_whole(self, world: World) -> None:
        devices = world.devices(mps=False)
        assert "not there" in (devices.inventory()[0].capabilities or {})["mps"]
        with pytest.raises(NotSupportedError, match="not there"):
            devices.set_mode(UUID, Mode.MPS)
        devices.set_mode(UUID, Mode.TIME_SLICED)
        start(devices, world, "a", 50)
        start(devices, world, "b", 50)
        assert states(devices) == {"a": (WorkerState.READY, SM_COUNT), "b": (WorkerState.READY, SM_COUNT)}

    def test_a_device_that_stays_open_to_one_process_is_not_shared_in_turns(self, world: World) -> None:
        world.cards[UUID].compute_mode = ComputeMode.EXCLUSIVE_PROCESS
        world.refusals = {"set_compute_mode": "not root"}
        devices = world.devices()
        with pytest.raises(NoPermissionError, match="one process only"):
            devices.set_mode(UUID, Mode.TIME_SLICED)
        devices.set_mode(UUID, Mode.DEDICATED)
        assert devices.settings(UUID).mode is Mode.DEDICATED

    def test_the_next_agent_knows_the_mode(self, world: World, devices: NvidiaDevices) -> None:
        devices.set_mode(OTHER, Mode.TIME_SLICED)
        again = world.devices()
        assert (again.settings(UUID).mode, again.settings(OTHER).mode) == (Mode.MPS, Mode.TIME_SLICED)

    def test_a_mode_that_cannot_be_written_down_is_not_used(self, world: World, devices: NvidiaDevices) -> None:
        world.state.full = True
        with pytest.raises(DriverError):
            devices.set_mode(OTHER, Mode.TIME_SLICED)
        assert devices.settings(OTHER).mode is Mode.DEDICATED

    def test_a_driver_that_forgot_the_compute_mode_is_told_again(self, world: World, devices: NvidiaDevices) -> None:
        start(devices, world)
        world.cards[UUID].compute_mode = ComputeMode.DEFAULT
        world.pass_s(30.0)
        devices.workers()
        assert world.cards[UUID].compute_mode is ComputeMode.EXCLUSIVE_PROCESS


class TestStarting:
    """What a device admits."""

    def test_names_rise_and_go_on_rising_with_the_next_agent(self, world: World, devices: NvidiaDevices) -> None:
        first = start(devices, world, "a", 10)
        assert (first, start(devices, world, "b", 10)) == ("a@00000001", "b@00000002")
        world.state.files.pop("nvidia.json")
        again = world.devices()
        again.workers()
        assert start(again, world, "c", 10) == "c@00000003"

    @pytest.mark.parametrize(
        ("more", "error"),
        [
            ({"share": 101}, OutOfRangeError),
            ({"share": 0}, OutOfRangeError),
            ({"memory": 39_000}, OutOfMemoryError),
            ({"memory": 20_000, "worker": replace(COMMAND, processes_max=2)}, OutOfMemoryError),
        ],
    )
    def test_what_does_not_fit_is_refused_before_anything_is_given(
        self, world: World, devices: NvidiaDevices, more: dict[str, Any], error: type[DeviceError]
    ) -> None:
        start(devices, world)
        devices.workers()
        with pytest.raises(error):
            devices.start(UUID, worker_spec("r2", **({"worker": COMMAND} | more)))
        assert list(world.granted) == ["r1@00000001"]

    def test_a_dedicated_device_takes_one(self, world: World, devices: NvidiaDevices) -> None:
        devices.set_mode(UUID, Mode.DEDICATED)
        start(devices, world)
        with pytest.raises(BusyError, match="dedicated"):
            start(devices, world, "r2")

    def test_a_launch_that_fails_leaves_no_part_behind(self, world: World, devices: NvidiaDevices) -> None:
        world.fault = lambda verb, uuid: WorkerError("no such program") if verb == "launch" else None
        with pytest.raises(WorkerError):
            start(devices, world)
        assert (world.granted, world.devices().workers()) == ({}, ())

    def test_what_has_no_process_described_is_refused(self, world: World, devices: NvidiaDevices) -> None:
        with pytest.raises(WorkerError, match="describes no process"):
            devices.start(UUID, worker_spec("r1"))
        assert world.granted == {}

    def test_a_part_that_cannot_be_written_down_is_not_given(self, world: World, devices: NvidiaDevices) -> None:
        world.state.full = True
        with pytest.raises(DriverError, match="not on record"):
            start(devices, world)
        assert (world.granted, world.processes) == ({}, {})

    def test_connections_of_its_environment_count(self, world: World, devices: NvidiaDevices) -> None:
        many = replace(COMMAND, environment=(("CUDA_DEVICE_MAX_CONNECTIONS", "8"),), processes_max=2)
        devices.start(UUID, worker_spec("r1", 20, worker=many))
        (order,) = world.granted.values()
        assert (order.connections, order.processes_max) == (8, 2)

    def test_an_unknown_device_is_unknown_to_every_verb(self, devices: NvidiaDevices) -> None:
        for call in (
            lambda: devices.settings("GPU-x"),
            lambda: devices.set_mode("GPU-x", Mode.MPS),
            lambda: devices.set_clock("GPU-x", None),
            lambda: devices.set_power_limit("GPU-x", None),
            lambda: devices.start("GPU-x", described(worker_spec())),
            lambda: devices.stop("r9@1"),
        ):
            with pytest.raises(NotFoundError):
                call()


class TestReadiness:
    """A worker is ready when it answers and its limits are proved."""

    def test_it_starts_then_is_ready_with_the_sms_it_really_has(self, world: World, devices: NvidiaDevices) -> None:
        devices.start(UUID, worker_spec("r1", 25, worker=COMMAND))
        assert states(devices) == {"r1": (WorkerState.STARTING, 0)}
        world.pass_s(3.0)
        assert states(devices) == {"r1": (WorkerState.READY, 27)}

    def test_one_that_runs_without_its_limits_is_ended_and_told(self, world: World, devices: NvidiaDevices) -> None:
        world.bypassing = True
        start(devices, world)
        (found,) = devices.workers()
        assert found.state is WorkerState.FAILED
        assert "no client" in found.problem
        world.pass_s(1.0)
        assert devices.workers() == ()
        assert world.granted == {}

    def test_one_that_answers_and_has_not_opened_its_device_is_not_ready(
        self, world: World, devices: NvidiaDevices
    ) -> None:
        name = start(devices, world)
        process = world.processes[name]
        world.fault = lambda verb, uuid: DeviceTimeoutError("slow") if verb == "processes" else None
        (found,) = devices.workers()
        assert (found.state, found.problem) == (WorkerState.STARTING, "the device does not tell its processes")
        world.fault = lambda verb, uuid: None
        process.ready_at_s = world.clock() - 1.0
        assert states(devices) == {"r1": (WorkerState.READY, 32)}

    def test_what_was_proved_stays_while_nobody_can_tell(self, world: World, devices: NvidiaDevices) -> None:
        start(devices, world)
        assert states(devices)["r1"][0] is WorkerState.READY
        world.fault = lambda verb, uuid: SharingError("no answer") if verb == "check" else None
        world.pass_s(60.0)
        assert states(devices) == {"r1": (WorkerState.READY, 32)}

    def test_what_an_earlier_agent_proved_stays_while_nobody_can_tell(
        self, world: World, devices: NvidiaDevices
    ) -> None:
        start(devices, world)
        assert states(devices)["r1"][0] is WorkerState.READY
        # Longer than any start may take: it must not pass for one that never came up.
        world.pass_s(3600.0)
        world.fault = lambda verb, uuid: DeviceTimeoutError("busy") if verb in ("check", "processes") else None
        assert states(world.devices()) == {"r1": (WorkerState.READY, 32)}
        world.fault = lambda verb, uuid: None
        world.cards[UUID].served.clear()
        assert states(world.devices())["r1"][0] is WorkerState.FAILED

    def test_a_daemon_that_crashed_is_opened_and_its_clients_are_found_out(
        self, world: World, devices: NvidiaDevices
    ) -> None:
        start(devices, world)
        devices.workers()
        world.crash_daemon(UUID)
        assert states(devices)["r1"][0] is WorkerState.FAILED
        assert world.cards[UUID].daemon

    def test_a_daemon_that_cannot_be_opened_is_told_and_tried_again(self, world: World, devices: NvidiaDevices) -> None:
        start(devices, world)
        devices.workers()
        world.crash_daemon(UUID)
        tries: list[float] = []

        def fault(verb: str, uuid: str) -> DeviceError | None:
            if verb == "open":
                tries.append(world.clock())
            return SharingError("it will not start") if verb in ("open", "check") else None

        world.fault = fault
        for _ in range(100):
            devices.workers()
            world.pass_s(1.0)
        assert 4 <= len(tries) <= 10
        assert any("will not start" in problem for problem in devices.problems())
        world.fault = lambda verb, uuid: None
        world.pass_s(30.0)
        devices.workers()
        assert not any("will not start" in problem for problem in devices.problems())

    def test_a_lost_register_costs_no_worker(self, world: World, devices: NvidiaDevices) -> None:
        start(devices, world)
        world.state.files["nvidia.json"] = "{"
        again = world.devices()
        assert "JSON" in again.state_lost
        assert states(again) == {"r1": (WorkerState.READY, 32)}


class TestEnding:
    """Nobody is killed undrained, and nothing stays behind."""

    def test_a_client_is_taken_off_its_server_and_its_part_taken_back(
        self, world: World, devices: NvidiaDevices
    ) -> None:
        name = start(devices, world)
        pid = world.processes[name].pid
        devices.drain(name)
        devices.workers()
        world.pass_s(2.0)
        assert [(each.state, each.drained) for each in devices.workers()] == [(WorkerState.DRAINING, True)]
        devices.stop(name)
        devices.stop(name)
        assert world.ended_clients == [pid]
        assert [each.drained for each in devices.workers()] == [True]
        world.pass_s(1.0)
        assert (devices.workers(), world.granted) == ((), {})
        assert world.devices().workers() == ()

    def test_a_part_that_cannot_be_taken_back_now_is_taken_back_later(
        self, world: World, devices: NvidiaDevices
    ) -> None:
        name = start(devices, world)
        devices.workers()
        devices.stop(name)
        world.pass_s(1.0)
        world.fault = lambda verb, uuid: SharingError("no answer") if verb == "revoke" else None
        devices.workers()
        assert list(world.granted) == [name]
        world.fault = lambda verb, uuid: None
        devices.workers()
        assert world.granted == {}

    def test_parts_of_an_agent_killed_while_it_gave_them_are_taken_back(self, world: World) -> None:
        devices = world.devices()
        devices.set_mode(UUID, Mode.MPS)
        world.fault = lambda verb, uuid: pytest.fail("killed") if verb == "launch" else None
        with pytest.raises(pytest.fail.Exception):
            start(devices, world)
        assert len(world.granted) == 1
        world.fault = lambda verb, uuid: None
        world.devices().workers()
        assert world.granted == {}


class TestSettings:
    """Clocks and power limits, and what a device had before."""

    def test_what_an_operator_had_set_is_none_and_comes_back(self, world: World, devices: NvidiaDevices) -> None:
        world.cards[UUID].power_limit_w = 350.0
        assert devices.settings(UUID).power_limit_w is None
        devices.set_power_limit(UUID, 200.0)
        assert (devices.settings(UUID).power_limit_w, world.cards[UUID].persistence) == (200.0, True)
        devices.set_power_limit(UUID, 350.0)
        assert devices.settings(UUID).power_limit_w == 350.0
        devices.set_power_limit(UUID, None)
        assert (devices.settings(UUID).power_limit_w, world.cards[UUID].power_limit_w) == (None, 350.0)

    def test_a_lock_that_the_clock_contradicts_is_none(self, world: World, devices: NvidiaDevices) -> None:
        devices.set_clock(UUID, 900)
        assert devices.settings(UUID).clock_mhz_sm == 900
        world.cards[UUID].clock_lock = None
        world.pass_s(5.0)
        assert devices.settings(UUID).clock_mhz_sm is None

    def test_a_clock_held_lower_by_heat_contradicts_nothing(self, world: World, devices: NvidiaDevices) -> None:
        devices.set_clock(UUID, 900)
        world.cards[UUID].throttled = True
        world.pass_s(5.0)
        assert devices.settings(UUID).clock_mhz_sm == 900
        assert sample(devices).throttle == "hw_thermal"

    @pytest.mark.parametrize(("clock", "power"), [(905, None), (None, 99.0), (None, 401.0)])
    def test_what_the_device_does_not_have_is_refused(
        self, devices: NvidiaDevices, clock: int | None, power: float | None
    ) -> None:
        with pytest.raises(OutOfRangeError):
            devices.set_clock(UUID, clock) if clock is not None else devices.set_power_limit(UUID, power)

    def test_nothing_is_written_whose_original_is_not_kept(self, world: World, devices: NvidiaDevices) -> None:
        world.state.full = True
        for call in (lambda: devices.set_clock(UUID, 900), lambda: devices.set_power_limit(UUID, 200.0)):
            with pytest.raises(DriverError, match="not kept"):
                call()
        assert (world.cards[UUID].clock_lock, world.cards[UUID].power_limit_w) == (None, None)

    def test_a_write_that_failed_is_no_lock(self, world: World, devices: NvidiaDevices) -> None:
        world.fault = lambda verb, uuid: DeviceTimeoutError("no answer") if verb == "set_clock" else None
        with pytest.raises(DeviceTimeoutError):
            devices.set_clock(UUID, 900)
        assert devices.settings(UUID).clock_mhz_sm is None

    def test_a_lock_whose_driver_said_that_it_failed_is_given_back(
        self, world: World, devices: NvidiaDevices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as failing:
            late(failing, "lock_clock")
            with pytest.raises(DeviceTimeoutError):
                devices.set_clock(UUID, 900)
        assert world.cards[UUID].clock_lock == 900
        world.devices().restore()
        assert world.cards[UUID].clock_lock is None

    def test_nobody_is_told_that_there_is_no_lock_before_it_was_given_back(
        self, world: World, devices: NvidiaDevices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        devices.set_clock(OTHER, 1200)
        with monkeypatch.context() as failing:
            late(failing, "lock_clock")
            for uuid in (UUID, OTHER):
                with pytest.raises(DeviceTimeoutError):
                    devices.set_clock(uuid, 900)
        assert [devices.settings(uuid).clock_mhz_sm for uuid in (UUID, OTHER)] == [None, 1200]
        assert [world.cards[uuid].clock_lock for uuid in (UUID, OTHER)] == [None, 1200]

    @pytest.mark.parametrize("setting", ["limit_power", "set_persistence", "set_compute_mode"])
    def test_what_may_have_been_written_is_restored(
        self, world: World, setting: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        devices = world.devices()
        with monkeypatch.context() as failing:
            late(failing, setting)
            for_all = setting == "set_compute_mode"
            with pytest.raises(DeviceTimeoutError):
                devices.set_mode(UUID, Mode.MPS) if for_all else devices.set_power_limit(UUID, 200.0)
        devices.restore()
        card = world.cards[UUID]
        assert (card.power_limit_w, card.persistence, card.compute_mode) == (None, False, ComputeMode.DEFAULT)

    def test_a_refused_lock_is_none_also_where_the_disk_is_full_by_then(
        self, world: World, devices: NvidiaDevices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(setters: CardSetters, uuid: str, clock_mhz_sm: int | None) -> None:
            world.state.full = True
            raise NoPermissionError("not root")

        with monkeypatch.context() as failing:
            failing.setattr(CardSetters, "lock_clock", refuse)
            with pytest.raises(NoPermissionError):
                devices.set_clock(UUID, 900)
        world.cards[UUID].throttled = True
        assert devices.settings(UUID).clock_mhz_sm is None

    def test_a_stricter_limit_of_another_source_is_told(
        self, world: World, devices: NvidiaDevices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        devices.set_power_limit(UUID, 300.0)
        parts = world.parts()
        found = replace(parts.boards.settings(UUID), power_limit_w_enforced=180.0)
        monkeypatch.setattr(parts.boards, "settings", lambda uuid: found)
        again = NvidiaDevices(parts)
        assert again.settings(UUID).power_limit_w == 300.0
        assert again.problems() == (f"{UUID}: another source limits the power to 180 W, not 300 W",)

    def test_restoring_gives_everything_back_and_ends_daemons_nobody_uses(
        self, world: World, devices: NvidiaDevices
    ) -> None:
        devices.set_mode(OTHER, Mode.MPS)
        devices.set_clock(UUID, 900)
        devices.set_power_limit(UUID, 200.0)
        start(devices, world)
        devices.restore()
        card, other = world.cards[UUID], world.cards[OTHER]
        assert (card.clock_lock, card.power_limit_w, card.persistence) == (None, None, False)
        assert (card.compute_mode, other.compute_mode) == (ComputeMode.DEFAULT, ComputeMode.DEFAULT)
        assert (card.daemon, other.daemon) == (True, False)
        assert len(world.processes) == 1

    def test_one_device_that_cannot_be_restored_does_not_keep_the_others(
        self, world: World, devices: NvidiaDevices
    ) -> None:
        devices.set_clock(UUID, 900)
        devices.set_clock(OTHER, 900)
        world.cards[UUID].lost = True
        with pytest.raises(DeviceError):
            devices.restore()
        assert world.cards[OTHER].clock_lock is None
        world.cards[UUID].lost = False
        world.devices().restore()
        assert world.cards[UUID].clock_lock is None

    def test_settings_are_given_back_though_nobody_can_tell_who_works(
        self, world: World, devices: NvidiaDevices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        devices.set_clock(UUID, 900)
        start(devices, world)

        def lost(crew: WorldCrew) -> None:
            raise WorkerError("nobody looks after the workers any more")

        monkeypatch.setattr(WorldCrew, "found", lost)
        with pytest.raises(WorkerError):
            devices.restore()
        assert (world.cards[UUID].clock_lock, world.cards[UUID].daemon) == (None, True)


class TestAccounts:
    """What is told of devices and workers."""

    def test_energy_is_divided_by_share_and_time_and_the_rest_is_the_devices(
        self, world: World, devices: NvidiaDevices
    ) -> None:
        start(devices, world, "a", 30)
        start(devices, world, "b", 50)
        devices.workers()
        devices.collect()
        world.pass_s(10.0)
        found = sample(devices)
        assert found.energy_j == pytest.approx(1500.0)
        energies = {each.reading.spec.replica: each.energy_j for each in found.workers}
        assert energies == pytest.approx({"a": 450.0, "b": 750.0})
        assert {each.reading.sm_count for each in found.workers} == {32, 54}

    def test_memory_is_that_of_its_processes(self, world: World, devices: NvidiaDevices) -> None:
        start(devices, world, memory=4000)
        devices.workers()
        found = sample(devices)
        assert ([each.memory_mib_used for each in found.workers], found.memory_mib_used) == ([2000.0], 2400.0)

    def test_memory_the_driver_does_not_tell_counts_nothing(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parts = world.parts()
        real = parts.boards.processes
        monkeypatch.setattr(
            parts.boards, "processes", lambda uuid: tuple(replace(each, memory_mib=None) for each in real(uuid))
        )
        devices = NvidiaDevices(parts)
        devices.set_mode(UUID, Mode.MPS)
        start(devices, world)
        assert states(devices)["r1"][0] is WorkerState.READY
        assert [each.memory_mib_used for each in sample(devices).workers] == [0.0]

    @pytest.mark.parametrize(("activity", "told"), [(None, 50.0), (12.5, 12.5), (0.0, 0.0)])
    def test_activity_of_the_sms_is_told_where_there_is_it(
        self, world: World, activity: float | None, told: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parts = world.parts()
        found = replace(parts.boards.reading(UUID), sm_activity_pct=activity)
        monkeypatch.setattr(parts.boards, "reading", lambda uuid: found)
        assert sample(NvidiaDevices(parts)).utilisation_pct == told

    def test_a_counter_that_began_anew_counts_from_its_beginning(self, world: World, devices: NvidiaDevices) -> None:
        world.cards[UUID].energy_j = 5000.0
        devices.collect()
        world.cards[UUID].energy_j = 40.0
        assert sample(devices).energy_j == pytest.approx(40.0)

    def test_a_lost_device_is_unhealthy_and_says_why(self, world: World, devices: NvidiaDevices) -> None:
        start(devices, world)
        devices.workers()
        world.cards[UUID].lost = True
        found = sample(devices)
        assert (found.healthy, found.energy_j, len(found.workers)) == (False, 0.0, 1)
        assert any("fallen off the bus" in problem for problem in devices.problems())

    def test_gpus_that_are_not_used_are_told(self, world: World) -> None:
        left_out = ("GPU 1 is left out: lost (NVML 15)",)
        assert NvidiaDevices(replace(world.parts(), left_out=left_out)).problems() == left_out

    def test_what_a_device_says_is_told_for_a_while(self, world: World, devices: NvidiaDevices) -> None:
        said = [("xid", 31), ("xid", 31), ("ecc_single_bit", 0)]
        world.events = [BoardEvent(uuid=UUID, kind=kind, detail=detail, at_s=0.0) for kind, detail in said]
        devices.collect()
        assert devices.problems() == (f"{UUID}: xid 31, 2 times",)
        world.pass_s(601.0)
        devices.collect()
        assert devices.problems() == ()

    def test_an_xid_that_asks_for_a_reset_condemns_a_device_until_the_agent_ends(
        self, world: World, devices: NvidiaDevices
    ) -> None:
        world.events = [BoardEvent(uuid=UUID, kind="xid", detail=79, at_s=0.0)]
        assert not sample(devices).healthy
        world.pass_s(1000.0)
        assert not sample(devices).healthy
        assert devices.problems() == (f"{UUID}: XID 79: the GPU needs a reset",)
        assert sample(world.devices()).healthy

    def test_a_device_that_needs_a_reset_is_unhealthy(self, world: World, devices: NvidiaDevices) -> None:
        world.cards[UUID].healthy = False
        assert not sample(devices).healthy
        assert devices.problems() == (f"{UUID}: XID 95: reset the device",)

    def test_strangers_are_named_and_left_alone(self, world: World, devices: NvidiaDevices) -> None:
        world.cards[UUID].strangers = {4_000_000: 512.0}
        start(devices, world)
        devices.workers()
        devices.collect()
        assert devices.problems() == ()
        world.pass_s(5.0)
        devices.collect()
        (problem,) = devices.problems()
        assert problem.endswith("not this agent's: pid 4000000 (not visible here) with 512 MiB")
        assert world.cards[UUID].strangers == {4_000_000: 512.0}

    def test_children_that_left_their_session_are_the_workers(
        self, world: World, devices: NvidiaDevices, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        child = 4_000_000
        name = start(devices, world)
        marks = {child: f"{name}/mark", child + 1: f"{name}/another", child + 2: ""}
        monkeypatch.setattr("agents.processes.PROC", tmp_path / "proc")
        for pid, mark in marks.items():
            (tmp_path / "proc" / str(pid)).mkdir(parents=True)
            (tmp_path / "proc" / str(pid) / "environ").write_text(f"{MARK}={mark}\0", encoding="ascii")
        world.cards[UUID].strangers = dict.fromkeys(marks, 512.0)
        world.cards[UUID].served.add(child)
        world.pass_s(2.0)
        assert states(devices)["r1"][0] is WorkerState.READY
        devices.collect()
        world.pass_s(5.0)
        before = sample(devices).workers[0].memory_mib_used
        (problem,) = devices.problems()
        assert str(child + 1) in problem
        assert str(child + 2) in problem
        assert str(child) + " " not in problem
        world.cards[UUID].strangers.pop(child)
        devices.workers()
        world.pass_s(5.0)
        assert sample(devices).workers[0].memory_mib_used < before, "what the child used was the worker's"

        # One that is no client has what nobody granted.
        world.cards[UUID].strangers[child] = 512.0
        world.cards[UUID].served.discard(child)
        world.pass_s(5.0)
        (reading,) = devices.workers()
        assert reading.state is WorkerState.FAILED
        assert reading.problem == f"pid {child} is no client of the device's server"

    def test_workers_of_devices_that_are_not_managed_any_more_are_told(
        self, world: World, devices: NvidiaDevices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start(devices, world)
        parts = world.parts()
        left = parts.boards.inventory()[1:]
        monkeypatch.setattr(parts.boards, "inventory", lambda: left)
        again = NvidiaDevices(parts)
        world.fault = lambda verb, uuid: NotFoundError("no such device") if uuid == UUID else None
        again.workers()
        assert again.problems() == (f"{UUID}: has workers of an earlier agent, but this one does not manage it",)


def test_mps_servers_and_workers_that_just_started_are_no_strangers(tmp_path: Path) -> None:
    for pid, name in ((7, SERVER_NAME), (8, "python")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    clock = FakeClock()
    strangers = Strangers(clock, tmp_path)
    there = {UUID: [GpuProcess(pid=pid, memory_mib=None, mps_client=False) for pid in (9, 8, 7, 6, 5)]}
    strangers.look(there, frozenset({6}))
    clock.pass_s(6.0)
    strangers.look(there, frozenset({6, 5}))
    (told,) = strangers.problems()
    assert told.endswith("not this agent's: pid 8 (python), pid 9 (not visible here)")
    strangers.look({UUID: []}, frozenset())
    assert strangers.problems() == []


def test_observing_changes_nothing(world: World, devices: NvidiaDevices) -> None:
    world.bypassing = True
    start(devices, world)
    world.crash_daemon(UUID)
    files = dict(world.state.files)
    onlooker = world.devices(observing=True)
    assert [each.state for each in onlooker.workers()] == [WorkerState.FAILED]
    world.pass_s(5.0)
    assert (len(world.processes), world.cards[UUID].daemon, world.state.files) == (1, False, files)
