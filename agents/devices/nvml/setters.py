"""What is device-wide, written with this process's own privilege: clock, power limit, compute mode, persistence.

The device's own bounds come first, then the call, then reading back. Nothing is rounded to what a device might like
better: a value it does not list is refused, with what it does. What a clock lock does is a request to the driver; that
the clock stays below it for power or heat is no error, that it stays above is one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial

from agents.devices.nvml.binding import Nvml
from agents.devices.nvml.boards import CLOCK_MHZ_SAME, COMPUTE_MODES, POWER_W_SAME, NvmlBoards
from agents.devices.nvml.inventory import CLOCK_SM, BoardFacts
from agents.devices.parts import SETTINGS, ComputeMode
from agents.errors import DeviceError, DriverError, NoPermissionError, NotSupportedError, OutOfRangeError

SETTLE_S, SETTLE_STEP_S = 1.0, 0.02
"""How long a clock may take to come down to its lock, and how often that is looked at."""
CODES = {mode: code for code, mode in COMPUTE_MODES.items()}


class NvmlSetters:
    """Setters on the devices of some boards. Creating it tries, with a write that changes nothing, whether it may write
    at all. `pause` waits between looks at a clock that has not come down yet.
    """

    def __init__(self, boards: NvmlBoards, pause: Callable[[float], None] = time.sleep) -> None:
        self._boards = boards
        self._pause = pause
        self._forbidden = ""
        self._try_to_write()

    def lock_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        facts = self._able(uuid, "set_clock")
        if clock_mhz_sm is None:
            self._run(facts, lambda nvml: nvml.call("nvmlDeviceResetGpuLockedClocks", facts.board))
        else:
            self._lock(facts, clock_mhz_sm)
        self._boards.note_clock(uuid, clock_mhz_sm)

    def limit_power(self, uuid: str, power_limit_w: float | None) -> None:
        facts = self._able(uuid, "set_power")
        self._run(facts, lambda nvml: _limit_power(nvml, facts, power_limit_w))

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """A MIG device has a mode of its own."""
        facts = self._able(uuid, "set_compute_mode")

        def write(nvml: Nvml) -> None:
            nvml.call("nvmlDeviceSetComputeMode", facts.handle, CODES[mode])
            found = int(nvml.call("nvmlDeviceGetComputeMode", facts.handle))
            if found != CODES[mode]:
                raise DriverError(f"{uuid}: compute mode {mode} was set, {found} is read back")

        self._run(facts, write)

    def set_persistence(self, uuid: str, on: bool) -> None:
        facts = self._able(uuid, "set_persistence")

        def write(nvml: Nvml) -> None:
            nvml.call("nvmlDeviceSetPersistenceMode", facts.board, int(on))
            if bool(nvml.call("nvmlDeviceGetPersistenceMode", facts.board)) is not on:
                raise DriverError(f"{uuid}: persistence mode was set to {on} and is read back otherwise")

        self._run(facts, write)

    def refusals(self) -> Mapping[str, str]:
        """A verb is refused here when this process may not write, or when no device can do it; what a
        single device cannot is in its inventory. A process that was refused once is tried again: rights come and go.
        """
        if self._forbidden:
            self._try_to_write()
        if self._forbidden:
            return dict.fromkeys(SETTINGS, self._forbidden)
        reasons = {verb: {facts.capabilities[verb] for facts in self._boards.devices()} for verb in SETTINGS}
        return {verb: "; ".join(sorted(found)) for verb, found in reasons.items() if "" not in found}

    def _able(self, uuid: str, verb: str) -> BoardFacts:
        facts = self._boards.facts(uuid)
        if facts.capabilities[verb]:
            raise NotSupportedError(f"{uuid}: {facts.capabilities[verb]}")
        return facts

    def _run(self, facts: BoardFacts, write: Callable[[Nvml], object]) -> None:
        try:
            self._boards.driver.run(facts.uuid, write)
        except NoPermissionError as error:
            self._forbidden = f"this process may not write to GPUs: {error}"
            raise

    def _try_to_write(self) -> None:
        """Write a value that is already there, where there is one: drivers tell who may write in no other way."""
        self._forbidden = ""
        for facts in self._boards.devices():
            try:
                if self._boards.driver.run(facts.uuid, partial(_write_as_is, facts)):
                    return
            except NoPermissionError as error:
                self._forbidden = f"this process may not write to GPUs: {error}"
                return
            except DeviceError:
                continue

    def _lock(self, facts: BoardFacts, clock_mhz: int) -> None:
        """Lock the clock, and wait until it is at the lock or below it."""
        clocks = facts.clocks_mhz_sm
        if isinstance(clock_mhz, bool) or clock_mhz not in clocks:
            raise OutOfRangeError(
                f"{facts.uuid}: {clock_mhz} MHz is not one of its clocks ({_near(clocks, clock_mhz)})"
            )
        self._run(facts, lambda nvml: nvml.call("nvmlDeviceSetGpuLockedClocks", facts.board, clock_mhz, clock_mhz))

        def look(nvml: Nvml) -> int:
            return int(nvml.call("nvmlDeviceGetClockInfo", facts.board, CLOCK_SM))

        looks = round(SETTLE_S / SETTLE_STEP_S)
        while (found := self._boards.driver.run(facts.uuid, look)) > clock_mhz + CLOCK_MHZ_SAME and looks > 0:
            self._pause(SETTLE_STEP_S)
            looks -= 1
        if found > clock_mhz + CLOCK_MHZ_SAME:
            raise DriverError(f"{facts.uuid}: locked at {clock_mhz} MHz, but the clock is at {found} MHz")


def _limit_power(nvml: Nvml, facts: BoardFacts, power_limit_w: float | None) -> None:
    wanted_w = facts.power_limit_w_default if power_limit_w is None else power_limit_w
    low_mw, high_mw = nvml.call("nvmlDeviceGetPowerManagementLimitConstraints", facts.board)
    if wanted_w is None or not math.isfinite(wanted_w) or not low_mw <= round(1000.0 * wanted_w) <= high_mw:
        raise OutOfRangeError(f"{facts.uuid}: {wanted_w} W is outside {low_mw / 1000:g} to {high_mw / 1000:g} W")
    nvml.call("nvmlDeviceSetPowerManagementLimit", facts.board, round(1000.0 * wanted_w))
    found_w = nvml.call("nvmlDeviceGetPowerManagementLimit", facts.board) / 1000.0
    if abs(found_w - wanted_w) > POWER_W_SAME:
        raise DriverError(f"{facts.uuid}: a power limit of {wanted_w:g} W was set, {found_w:g} W is read back")


def _write_as_is(facts: BoardFacts, nvml: Nvml) -> bool:
    persistence = nvml.maybe("nvmlDeviceGetPersistenceMode", facts.board)
    if persistence is not None:
        nvml.call("nvmlDeviceSetPersistenceMode", facts.board, persistence)
        return True
    limit_mw = nvml.maybe("nvmlDeviceGetPowerManagementLimit", facts.board)
    if limit_mw is not None:
        nvml.call("nvmlDeviceSetPowerManagementLimit", facts.board, limit_mw)
    return limit_mw is not None


def _near(clocks: tuple[int, ...], clock_mhz: int) -> str:
    below = [clock for clock in clocks if clock < clock_mhz]
    above = [clock for clock in clocks if clock > clock_mhz]
    nearest = ", ".join(f"{clock} MHz" for clock in (*below[-1:], *above[:1]))
    return f"{clocks[0]} to {clocks[-1]} MHz; nearest: {nearest}"
