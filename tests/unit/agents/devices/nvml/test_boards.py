"""What a device does, what is set on it and who uses it."""

from __future__ import annotations

import os
from dataclasses import replace

import pynvml
import pytest

from agents.devices.nvml import NvmlBoards
from agents.devices.nvml.boards import parse_selection
from agents.devices.nvml.telemetry import THROTTLE, throttle_words
from agents.devices.parts import ComputeMode
from agents.errors import ConfigError, DeviceTimeoutError, DriverError, LostError
from tests.standins.nvml import PRESETS, Lacks, Missing, NvmlStandIn
from tests.unit.agents.devices.nvml.conftest import Clock, Opener, impatient, with_gpus
from tests.waiting import wait_until


def until_back(boards: NvmlBoards) -> None:
    """Wait until no call hangs any more."""
    wait_until(lambda: not boards.driver.hangs())


@with_gpus("h100")
def test_a_busy_gpu_is_read(host: NvmlStandIn, opened: Opener, clock: Clock) -> None:
    boards, uuid = opened(), host.uuids[0]
    host.add_process(uuid, os.getpid(), 3000, mps=True)
    host.load(uuid, 50.0)
    before = boards.reading(uuid)
    clock.now_s += 2.0
    after = boards.reading(uuid)
    assert before.uuid == uuid
    assert before.power_w == pytest.approx(70 + (770 - 70) * 0.5)
    assert after.energy_j_total is not None
    assert before.energy_j_total is not None
    assert after.energy_j_total - before.energy_j_total == pytest.approx(2.0 * before.power_w, abs=0.01)
    assert (before.utilisation_pct, before.memory_mib_used, before.temperature_c) == (50.0, 3000.0, 57.0)
    assert before.clock_mhz_sm == 1980
    assert (before.throttle, before.healthy, before.problem) == ("", True, "")


@with_gpus("h100", "t4")
def test_sm_activity_compares_two_readings(host: NvmlStandIn, opened: Opener, clock: Clock) -> None:
    boards, (h100, t4) = opened(), host.uuids
    host.load(h100, 60.0)
    assert boards.reading(h100).sm_activity_pct is None
    clock.now_s += 0.05
    assert boards.reading(h100).sm_activity_pct is None
    clock.now_s += 0.2
    assert boards.reading(h100).sm_activity_pct == pytest.approx(42.0)
    clock.now_s += 0.05
    assert boards.reading(h100).sm_activity_pct == pytest.approx(42.0)
    clock.now_s += 1.0
    host.load(h100, 20.0)
    assert boards.reading(h100).sm_activity_pct == pytest.approx(28.0)
    assert boards.reading(t4).sm_activity_pct is None


@with_gpus(replace(PRESETS["a100-40gb-mig"], lacks=0))
def test_sm_activity_of_a_slice_is_asked_of_its_gpu(host: NvmlStandIn, opened: Opener, clock: Clock) -> None:
    boards, slice_uuid = opened(), host.plans[0].migs[0].uuid
    host.load(host.uuids[0], 50.0)
    assert boards.reading(slice_uuid).sm_activity_pct is None
    clock.now_s += 1.0
    assert boards.reading(slice_uuid).sm_activity_pct == pytest.approx(35.0)


@with_gpus("h100")
def test_sm_activity_that_is_gone_is_not_asked_for_again(host: NvmlStandIn, opened: Opener, clock: Clock) -> None:
    boards, uuid = opened(), host.uuids[0]
    host.gpu(uuid).lacks |= Lacks.GPM
    assert boards.reading(uuid).sm_activity_pct is None
    host.gpu(uuid).lacks = 0
    clock.now_s += 1.0
    boards.reading(uuid)
    clock.now_s += 1.0
    assert boards.reading(uuid).sm_activity_pct is None


@pytest.mark.parametrize("code", [2, 4, 6, 21])
def test_what_is_not_told_now_is_asked_again(
    host: NvmlStandIn, opened: Opener, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    boards, uuid = opened(), host.uuids[0]

    def silent(handle: object) -> None:
        raise pynvml.NVMLError(code)

    with monkeypatch.context() as patch:
        patch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", silent)
        assert boards.reading(uuid).utilisation_pct is None
    assert boards.reading(uuid).utilisation_pct == 0.0


@with_gpus("a100-40gb-mig")
def test_a_slice_has_no_power_of_its_own(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    large, small = (mig.uuid for mig in host.plans[0].migs)
    host.add_process(large, os.getpid(), 700)
    found = boards.reading(large)
    assert (found.power_w, found.energy_j_total, found.utilisation_pct) == (None, None, None)
    assert (found.memory_mib_used, found.clock_mhz_sm, found.temperature_c) == (700.0, 1410, 71.0)
    assert boards.reading(small).memory_mib_used == 0.0
    assert [process.pid for process in boards.processes(large)] == [os.getpid()]
    assert boards.processes(small) == ()
    assert boards.settings(small).compute_mode is ComputeMode.DEFAULT


@with_gpus(
    replace(
        PRESETS["t4"],
        lacks=Lacks.ENERGY | Lacks.UTILISATION | Lacks.POWER | Lacks.TEMPERATURE | Lacks.ECC | Lacks.INSTANT_POWER,
    )
)
def test_what_a_device_cannot_tell_is_none_and_asked_once(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    found = boards.reading(uuid)
    assert (found.power_w, found.energy_j_total, found.utilisation_pct, found.temperature_c) == (None,) * 4
    assert found.healthy
    before = host.gpu(uuid).reads
    boards.reading(uuid)
    assert host.gpu(uuid).reads - before <= 6


@with_gpus("h100")
def test_a_reading_is_cheap(host: NvmlStandIn, opened: Opener, clock: Clock) -> None:
    boards, uuid = opened(), host.uuids[0]
    boards.reading(uuid)
    clock.now_s += 1.0
    before = host.gpu(uuid).reads
    boards.reading(uuid)
    assert 5 <= host.gpu(uuid).reads - before <= 10


def test_old_names_are_used_where_new_ones_are_missing(host: NvmlStandIn, opened: Opener) -> None:
    host.miss(Missing.TEMPERATURE_V | Missing.EVENT_REASONS | Missing.MEMORY_V2 | Missing.MPS_PROCESSES)
    host.throttle(host.uuids[0], 0x40)
    host.add_process(host.uuids[0], os.getpid(), 100)
    boards = opened()
    found = boards.reading(host.uuids[0])
    assert (found.temperature_c, found.throttle, found.memory_mib_used) == (71.0, "hw_thermal", 356.0)
    assert [process.mps_client for process in boards.processes(host.uuids[0])] == [False]


@with_gpus("t4")
def test_power_falls_back_to_the_average(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    host.gpu(uuid).lacks |= Lacks.INSTANT_POWER
    assert boards.reading(uuid).power_w == 10.0


def test_a_power_limit_shows_as_throttling(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    host.load(uuid, 100.0)
    found = boards.reading(uuid)
    assert found.throttle == "power_cap"
    assert found.clock_mhz_sm < 1590
    assert found.power_w is not None
    assert found.power_w <= 70.0


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, ""),
        (0x1 | 0x2, ""),
        (0x4 | 0x20, "power_cap,sw_thermal"),
        (0x1 | 0x8 | 0x40 | 0x80, "hw_slowdown,hw_thermal,power_brake"),
        (0x8000, "0x8000"),
    ],
)
def test_reasons_are_words(mask: int, words: str) -> None:
    assert throttle_words(mask) == words


def test_every_reason_of_the_binding_has_a_word() -> None:
    bits = {
        value
        for name, value in vars(pynvml).items()
        if name.startswith(("nvmlClocksEventReason", "nvmlClocksThrottleReason"))
        and isinstance(value, int)
        and not name.endswith(("All", "None"))
    }
    assert len(bits) >= 9
    assert bits - {0x1, 0x2} == set(THROTTLE)


@pytest.mark.parametrize(
    "case",
    [
        ("nvmlDeviceGetTemperatureV", 2**31 - 1, "temperature_c"),
        ("nvmlDeviceGetTotalEnergyConsumption", 2**64 - 1, "energy_j_total"),
        ("nvmlDeviceGetPowerUsage", 2**32 - 1, "power_w"),
    ],
)
def test_numbers_that_mean_nothing_are_filtered(
    host: NvmlStandIn, opened: Opener, monkeypatch: pytest.MonkeyPatch, case: tuple[str, int, str]
) -> None:
    symbol, value, field = case
    boards = opened()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda *_: [])
    monkeypatch.setattr(pynvml, symbol, lambda *_: value)
    assert getattr(boards.reading(host.uuids[0]), field) is None


def test_processes_of_all_kinds_are_listed(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    assert boards.processes(uuid) == ()
    host.add_process(uuid, os.getpid(), 500)
    host.add_process(uuid, 999_999_001, 800, mps=True, imaginary=True)
    host.add_process(uuid, 999_999_002, None, mps=True, imaginary=True)
    host.add_process(uuid, 999_999_003, 70)
    found = {process.pid: (process.memory_mib, process.mps_client) for process in boards.processes(uuid)}
    assert found == {os.getpid(): (500.0, False), 999_999_001: (800.0, True), 999_999_002: (None, True)}
    host.forget_memory(uuid)
    assert {process.memory_mib for process in boards.processes(uuid)} == {None}


def test_a_process_list_that_grows_meanwhile_is_read_again(
    host: NvmlStandIn, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    boards = opened()
    answers = iter([pynvml.NVMLError(7)])

    def once(handle: object) -> list[object]:
        for failure in answers:
            raise failure
        return []

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", once)
    assert boards.processes(host.uuids[0]) == ()


def test_settings_are_read_back(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    found = boards.settings(uuid)
    assert (found.clock_mhz_sm, found.power_limit_w) == (None, None)
    assert (found.power_limit_w_enforced, found.compute_mode, found.persistence) == (70.0, ComputeMode.DEFAULT, False)
    gpu = host.gpu(uuid)
    gpu.limit_mw, gpu.compute_mode, gpu.persistence = 65_000, 3, 1
    host.limit_outside(uuid, 62.0)
    found = boards.settings(uuid)
    assert (found.power_limit_w, found.power_limit_w_enforced) == (65.0, 62.0)
    assert (found.compute_mode, found.persistence) == (ComputeMode.EXCLUSIVE_PROCESS, True)


def test_a_clock_above_its_lock_is_no_lock(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    host.load(uuid, 10.0)
    host.gpu(uuid).locked_min = host.gpu(uuid).locked_max = 900
    boards.note_clock(uuid, 900)
    assert boards.settings(uuid).clock_mhz_sm == 900
    host.gpu(uuid).locked_min = host.gpu(uuid).locked_max = 0
    assert boards.settings(uuid).clock_mhz_sm is None
    boards.note_clock(uuid, None)


def test_a_lost_gpu_is_lost_to_every_read_and_back_when_it_is(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    host.lose(uuid)
    for ask in (boards.reading, boards.settings, boards.processes):
        with pytest.raises(LostError):
            ask(uuid)
    host.lose(uuid, lost=False)
    assert boards.reading(uuid).healthy


@with_gpus("t4", "t4")
def test_a_hanging_gpu_does_not_hold_the_others(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    host.hang(60_000, host.uuids[0])
    try:
        with impatient(boards.driver), pytest.raises(DeviceTimeoutError):
            boards.reading(host.uuids[0])
        assert boards.reading(host.uuids[1]).healthy
        with pytest.raises(DeviceTimeoutError, match="still hangs"):
            boards.settings(host.uuids[0])
    finally:
        host.hang(0, host.uuids[0])
    until_back(boards)
    assert boards.reading(host.uuids[0]).healthy


def test_memory_errors_and_the_driver_s_advice_make_a_gpu_unhealthy(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    gpu = host.gpu(uuid)
    gpu.ecc_uncorrected = 5
    assert boards.reading(uuid).healthy
    gpu.ecc_uncorrected = 7
    assert boards.reading(uuid).problem == "2 uncorrectable memory errors since the agent began to look"
    gpu.ecc_uncorrected = 0
    assert boards.reading(uuid).healthy
    gpu.recovery_action = 4
    found = boards.reading(uuid)
    assert (found.healthy, found.problem) == (False, "the driver says that it must be drained and reset")


@with_gpus("t4", "t4")
def test_closing_beside_a_hanging_call_leaves_the_library_open(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    host.hang(60_000, host.uuids[0])
    try:
        with impatient(boards.driver), pytest.raises(DeviceTimeoutError):
            boards.reading(host.uuids[0])
        boards.close()
        assert pynvml.nvmlDeviceGetCount() == 2
    finally:
        host.hang(0, host.uuids[0])
    until_back(boards)


def test_a_start_that_fails_leaves_nothing_open(host: NvmlStandIn, opened: Opener) -> None:
    with pytest.raises(ConfigError):
        opened("nvml:GPU-none")
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


@with_gpus("h100")
def test_a_closed_driver_answers_nothing(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    boards.reading(host.uuids[0])
    boards.close()
    with pytest.raises(DriverError, match="NVML 1"):
        boards.reading(host.uuids[0])


# --- Only GPUs that were named are used.


@pytest.mark.parametrize(
    ("text", "prefixes"),
    [
        ("nvml:all", ()),
        ("nvml:GPU-12ab", ("GPU-12ab",)),
        ("nvml:GPU-12ab, MIG-77", ("GPU-12ab", "MIG-77")),
    ],
)
def test_a_selection_is_read(text: str, prefixes: tuple[str, ...]) -> None:
    assert parse_selection(text) == prefixes


@pytest.mark.parametrize("text", ["nvml:", "nvml", "all", "nvml:0,1", "nvml:GPU-a,", "fake:T4", "nvml:all,GPU-1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected nvml:all or nvml:GPU-UUID"):
        parse_selection(text)


@with_gpus("t4", "t4", "h100")
def test_the_named_gpus_are_taken(host: NvmlStandIn, opened: Opener) -> None:
    chosen = opened(f"nvml:{host.uuids[2][:12]},{host.uuids[0]}")
    assert [device.uuid for device in chosen.inventory()] == [host.uuids[0], host.uuids[2]]


@with_gpus("t4", "t4")
def test_a_prefix_must_fit_one_gpu(host: NvmlStandIn, opened: Opener) -> None:
    with pytest.raises(ConfigError, match="fits several GPUs"):
        opened("nvml:GPU-")
    with pytest.raises(ConfigError, match="no usable GPU's UUID begins with GPU-zz"):
        opened("nvml:GPU-zz")


@with_gpus("t4", "t4")
def test_a_named_gpu_that_is_gone_does_not_cost_the_others(host: NvmlStandIn, opened: Opener) -> None:
    chosen = opened(f"nvml:{host.uuids[1]},GPU-zz")
    assert [device.uuid for device in chosen.inventory()] == [host.uuids[1]]
    assert chosen.left_out == ("no usable GPU's UUID begins with GPU-zz",)


@with_gpus("t4", "a100-40gb-mig")
def test_a_cut_gpu_s_uuid_takes_its_slices(host: NvmlStandIn, opened: Opener) -> None:
    parent, (first, second) = host.uuids[1], host.plans[1].migs
    assert [device.uuid for device in opened(f"nvml:{parent}").inventory()] == [first.uuid, second.uuid]
    assert [device.uuid for device in opened(f"nvml:{second.uuid}").inventory()] == [second.uuid]


@with_gpus("t4", "t4")
def test_a_gpu_that_cannot_be_opened_is_left_out_and_named(host: NvmlStandIn, opened: Opener) -> None:
    host.forbid_handle(host.uuids[0])
    boards = opened()
    assert [device.uuid for device in boards.inventory()] == [host.uuids[1]]
    assert len(boards.notes) == 1
    assert "GPU 0 is left out" in boards.notes[0]
    assert "NVML 4" in boards.notes[0]
    with pytest.raises(ConfigError, match="GPU 0 is left out"):
        opened(f"nvml:{host.uuids[0]}")


@with_gpus("t4", "t4")
def test_a_lost_gpu_does_not_take_the_others_along(host: NvmlStandIn, opened: Opener) -> None:
    host.lose(host.uuids[1])
    boards = opened()
    assert [device.uuid for device in boards.inventory()] == [host.uuids[0]]
    assert "NVML 15" in boards.notes[0]


def test_no_usable_gpu_is_an_error(host: NvmlStandIn, opened: Opener) -> None:
    host.forbid_handle(host.uuids[0])
    with pytest.raises(ConfigError, match="no NVIDIA GPU can be used here: GPU 0 is left out"):
        opened()
