"""Writes are bounded by the device, read back, and refused with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pynvml
import pytest

from agents.devices.nvml import NvmlBoards, NvmlSetters
from agents.devices.parts import SETTINGS, ComputeMode, Setters
from agents.errors import DriverError, LostError, NoPermissionError, NotFoundError, NotSupportedError, OutOfRangeError
from tests.standins.nvml import PRESETS, Lacks, NvmlStandIn
from tests.standins.nvml.double import installed
from tests.unit.agents.devices.nvml.conftest import Opener, with_gpus


def no_pause(seconds: float) -> None:
    """Settle at once."""


@with_gpus("h100")
def test_the_sm_clock_is_locked_and_reset(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    setters: Setters = NvmlSetters(boards, no_pause)
    host.load(uuid, 30.0)
    setters.lock_clock(uuid, 1005)
    assert host.state(uuid)["clock_mhz_sm"] == 1005
    assert host.gpu(uuid).locked_min == 1005
    assert boards.settings(uuid).clock_mhz_sm == 1005
    assert boards.reading(uuid).clock_mhz_sm == 1005
    setters.lock_clock(uuid, None)
    assert host.state(uuid)["clock_mhz_sm"] is None
    assert boards.settings(uuid).clock_mhz_sm is None


@pytest.mark.parametrize("clock_mhz", [0, 299, 301, 1591, 5001, 0xFFFFFF01, 0xFFFFFF02, -15, True])
def test_a_clock_outside_the_table_is_refused_unsent(host: NvmlStandIn, opened: Opener, clock_mhz: int) -> None:
    setters, uuid = NvmlSetters(opened(), no_pause), host.uuids[0]
    before = host.state(uuid)
    with pytest.raises(OutOfRangeError, match="300 to 1590 MHz"):
        setters.lock_clock(uuid, clock_mhz)
    assert host.state(uuid) == before


def test_a_refused_clock_names_its_neighbours(host: NvmlStandIn, opened: Opener) -> None:
    with pytest.raises(OutOfRangeError, match=r"1000 MHz is not one of its clocks .*nearest: 990 MHz, 1005 MHz"):
        NvmlSetters(opened(), no_pause).lock_clock(host.uuids[0], 1000)


@with_gpus("h100")
def test_a_lock_that_is_accepted_and_does_nothing_is_an_error(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid, pauses = opened(), host.uuids[0], list[float]()
    host.ignore_locks(uuid)
    host.load(uuid, 10.0)
    with pytest.raises(DriverError, match="locked at 1005 MHz, but the clock is at 1980 MHz"):
        NvmlSetters(boards, pauses.append).lock_clock(uuid, 1005)
    assert sum(pauses) == pytest.approx(1.0)
    assert boards.settings(uuid).clock_mhz_sm is None


@with_gpus("h100")
def test_a_clock_that_comes_down_slowly_is_waited_for(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid, pauses = opened(), host.uuids[0], list[float]()
    host.ignore_locks(uuid)
    host.load(uuid, 10.0)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        host.ignore_locks(uuid, ignores=len(pauses) < 3)

    NvmlSetters(boards, pause).lock_clock(uuid, 1005)
    assert len(pauses) == 3
    assert boards.settings(uuid).clock_mhz_sm == 1005


@with_gpus("h100")
def test_heat_below_the_lock_is_no_error(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    host.load(uuid, 50.0)
    host.throttle(uuid, 0x40, 705)
    NvmlSetters(boards, no_pause).lock_clock(uuid, 1500)
    assert (boards.reading(uuid).clock_mhz_sm, boards.reading(uuid).throttle) == (705, "hw_thermal")
    assert boards.settings(uuid).clock_mhz_sm == 1500


def test_the_power_limit_is_set_and_reset(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    setters = NvmlSetters(boards, no_pause)
    setters.limit_power(uuid, 62.5)
    assert host.state(uuid)["power_limit_w"] == boards.settings(uuid).power_limit_w == 62.5
    setters.limit_power(uuid, None)
    assert host.state(uuid)["power_limit_w"] == 70.0
    assert boards.settings(uuid).power_limit_w is None


@pytest.mark.parametrize("power_w", [0.0, 59.9, 70.1, -60.0, math.inf, math.nan])
def test_a_power_limit_outside_the_constraints_is_refused_unsent(
    host: NvmlStandIn, opened: Opener, power_w: float
) -> None:
    setters, uuid = NvmlSetters(opened(), no_pause), host.uuids[0]
    before = host.state(uuid)
    with pytest.raises(OutOfRangeError, match="is outside 60 to 70 W"):
        setters.limit_power(uuid, power_w)
    assert host.state(uuid) == before


def test_a_stricter_limit_from_outside_is_seen(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    host.limit_outside(uuid, 61.0)
    NvmlSetters(boards, no_pause).limit_power(uuid, 65.0)
    found = boards.settings(uuid)
    assert (found.power_limit_w, found.power_limit_w_enforced) == (65.0, 61.0)


def test_the_trusted_power_setter_is_the_one_used(
    host: NvmlStandIn, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    setters, uuid = NvmlSetters(opened(), no_pause), host.uuids[0]
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    host.fail_setters(uuid, 999)
    assert pynvml.nvmlDeviceSetPowerManagementLimit_v2(gpu, 0, 65_000) == 0
    with pytest.raises(DriverError, match=r"nvmlDeviceSetPowerManagementLimit: .*NVML 999"):
        setters.limit_power(uuid, 65.0)


def lies(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A call reports success and does nothing."""
    monkeypatch.setattr(pynvml, name, lambda *_: None)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("nvmlDeviceSetPowerManagementLimit", lambda setters, uuid: setters.limit_power(uuid, 61.0)),
        ("nvmlDeviceSetComputeMode", lambda setters, uuid: setters.set_compute_mode(uuid, ComputeMode.PROHIBITED)),
        ("nvmlDeviceSetPersistenceMode", lambda setters, uuid: setters.set_persistence(uuid, True)),
    ],
)
def test_a_write_that_did_nothing_is_found_out(
    host: NvmlStandIn,
    opened: Opener,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    write: Callable[[NvmlSetters, str], None],
) -> None:
    setters = NvmlSetters(opened(), no_pause)
    lies(monkeypatch, name)
    with pytest.raises(DriverError, match="read back"):
        write(setters, host.uuids[0])


@pytest.mark.parametrize("mode", list(ComputeMode))
def test_compute_modes_are_set(host: NvmlStandIn, opened: Opener, mode: ComputeMode) -> None:
    boards, uuid = opened(), host.uuids[0]
    NvmlSetters(boards, no_pause).set_compute_mode(uuid, mode)
    assert boards.settings(uuid).compute_mode is mode
    assert host.state(uuid)["compute_mode"] == {"default": 0, "prohibited": 2, "exclusive_process": 3}[mode]


def test_persistence_is_set(host: NvmlStandIn, opened: Opener) -> None:
    boards, uuid = opened(), host.uuids[0]
    setters = NvmlSetters(boards, no_pause)
    setters.set_persistence(uuid, True)
    assert boards.settings(uuid).persistence is True
    setters.set_persistence(uuid, False)
    assert boards.settings(uuid).persistence is False


@with_gpus("a100-40gb-mig")
def test_a_slice_has_a_compute_mode_and_nothing_else_to_set(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    setters = NvmlSetters(boards, no_pause)
    large, small = (mig.uuid for mig in host.plans[0].migs)
    setters.set_compute_mode(small, ComputeMode.EXCLUSIVE_PROCESS)
    assert host.mig(small).compute_mode == 3
    assert boards.settings(small).compute_mode is ComputeMode.EXCLUSIVE_PROCESS
    assert boards.settings(large).compute_mode is ComputeMode.DEFAULT
    for write in (
        lambda: setters.lock_clock(small, 1005),
        lambda: setters.limit_power(small, 200.0),
        lambda: setters.set_persistence(small, True),
    ):
        with pytest.raises(NotSupportedError, match="belongs to its whole GPU"):
            write()


def all_writes(boards: NvmlBoards, setters: NvmlSetters, uuid: str) -> list[Callable[[], None]]:
    return [
        lambda: setters.lock_clock(uuid, boards.facts(uuid).clocks_mhz_sm[0]),
        lambda: setters.limit_power(uuid, boards.facts(uuid).power_limit_w_max),
        lambda: setters.set_compute_mode(uuid, ComputeMode.DEFAULT),
        lambda: setters.set_persistence(uuid, True),
    ]


@with_gpus("h100")
def test_without_privilege_every_verb_is_refused_with_the_reason(host: NvmlStandIn, opened: Opener) -> None:
    with installed(host.double(privileged=False)):
        boards = opened()
        setters = NvmlSetters(boards, no_pause)
        assert set(setters.refusals()) == set(SETTINGS)
        assert all("may not write" in reason and "NVML 4" in reason for reason in setters.refusals().values())
        for write in all_writes(boards, setters, host.uuids[0]):
            with pytest.raises(NoPermissionError):
                write()
        assert boards.reading(host.uuids[0]).healthy
        boards.close()
    assert host.state(host.uuids[0])["power_limit_w"] == 700.0


@with_gpus("h100")
def test_privilege_that_goes_away_is_noticed(host: NvmlStandIn, opened: Opener) -> None:
    setters = NvmlSetters(opened(), no_pause)
    assert setters.refusals() == {}
    host.forbid_setters()
    with pytest.raises(NoPermissionError):
        setters.limit_power(host.uuids[0], 400.0)
    assert set(setters.refusals()) == set(SETTINGS)
    host.forbid_setters(forbidden=False)
    assert setters.refusals() == {}


@with_gpus("h100")
def test_trying_whether_it_may_write_changes_nothing(host: NvmlStandIn, opened: Opener) -> None:
    uuid = host.uuids[0]
    host.gpu(uuid).limit_mw, host.gpu(uuid).persistence = 450_000, 1
    NvmlSetters(opened(), no_pause)
    state = host.state(uuid)
    assert (state["power_limit_w"], state["persistence"], state["setter_calls"]) == (450.0, True, 1)


@with_gpus(replace(PRESETS["t4"], lacks=Lacks.PERSISTENCE | Lacks.MIG))
def test_without_persistence_the_power_limit_tells_who_may_write(host: NvmlStandIn, opened: Opener) -> None:
    host.forbid_setters()
    assert set(NvmlSetters(opened(), no_pause).refusals()) == set(SETTINGS)
    host.forbid_setters(forbidden=False)
    assert set(NvmlSetters(opened(), no_pause).refusals()) == {"set_persistence"}


@with_gpus(replace(PRESETS["t4"], lacks=Lacks.POWER_LIMIT | Lacks.MIG), "t4")
def test_a_verb_that_some_device_can_is_not_refused(host: NvmlStandIn, opened: Opener) -> None:
    setters = NvmlSetters(opened(), no_pause)
    assert setters.refusals() == {}
    with pytest.raises(NotSupportedError, match="power limit cannot be set"):
        setters.limit_power(host.uuids[0], 65.0)
    setters.limit_power(host.uuids[1], 65.0)
    assert host.state(host.uuids[1])["power_limit_w"] == 65.0


@with_gpus("t4", "t4")
def test_a_device_that_fails_does_not_hide_who_may_write(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    host.lose(host.uuids[0])
    host.forbid_setters()
    assert set(NvmlSetters(boards, no_pause).refusals()) == set(SETTINGS)


def test_faults_come_through(host: NvmlStandIn, opened: Opener) -> None:
    setters, uuid = NvmlSetters(opened(), no_pause), host.uuids[0]
    host.lose(uuid)
    with pytest.raises(LostError):
        setters.lock_clock(uuid, 300)
    with pytest.raises(NotFoundError):
        setters.lock_clock("GPU-other", 300)
