"""Device-wide settings of boards: written only after the original is on disk, and read back as asked for.

Owns the meeting of boards, setters and journal: what a device held before is None, a lock that what is read contradicts
is no lock, and restoring gives back what was found, not what the driver would choose. It refuses to decide what is set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agents.devices.base import DeviceSettings, Mode
from agents.devices.nvidia.parts import HostParts
from agents.devices.parts import ComputeMode
from agents.errors import DeviceError, DriverError, NoPermissionError, NotSupportedError, StateFileError

CLOCK_TOLERANCE_MHZ = 30
"""Clocks move in steps of 15 MHz or so; a reading within two of them does not contradict a lock."""
CLOCK_SETTLE_S = 2.0
"""After a lock was asked for, readings say nothing about it for so long."""
POWER_TOLERANCE_W = 0.5
READ_AGE_S_MAX = 2.0
"""What was read so lately, with nothing written since, is not read again."""


class BoardControl:
    """Settings of all boards of a host. Not thread-safe."""

    def __init__(self, parts: HostParts) -> None:
        self._boards = parts.boards
        self._setters = parts.setters
        self._journal = parts.journal
        self._now_s = parts.now_s
        self._observing = parts.observing
        self._locked_s: dict[str, float] = {}
        self._unproved = set(parts.journal.uuids)
        """Devices an earlier agent wrote to: it may have been killed between writing that down and doing it."""
        self._limits: dict[str, str] = {}
        self._read: dict[str, tuple[float, DeviceSettings]] = {}

    def held(self, uuid: str, mode: Mode) -> DeviceSettings:
        """Read back. Raises DeviceError."""
        read_s, found = self._read.get(uuid, (float("-inf"), None))
        if found is None or self._now_s() - read_s >= READ_AGE_S_MAX:
            if uuid in self._unproved and not self._observing:
                self._prove(uuid)
            found = self._look(uuid, mode)
            self._read[uuid] = (self._now_s(), found)
        return replace(found, mode=mode)

    def _look(self, uuid: str, mode: Mode) -> DeviceSettings:
        settings = self._boards.settings(uuid)
        originals = self._journal.of(uuid)
        clock, power = settings.clock_mhz_sm, None
        if originals is not None and originals.clock_mhz_asked is not None:
            clock = self._confirmed(uuid, clock, originals.clock_mhz_asked)
        if originals is not None and "power" in originals.taken:
            power, asked = settings.power_limit_w, originals.power_limit_w_asked
            # A limit that equals the driver's default reads back as none.
            found = settings.power_limit_w_enforced if power is None else power
            if asked is not None and abs(found - asked) <= POWER_TOLERANCE_W:
                power = asked
            elif _same(power, originals.power_limit_w):
                power = None
            self._note_limit(uuid, power, settings.power_limit_w_enforced)
        return DeviceSettings(uuid=uuid, mode=mode, clock_mhz_sm=clock, power_limit_w=power)

    def problems(self) -> list[str]:
        """Limits that another source holds lower."""
        return [problem for _, problem in sorted(self._limits.items())]

    def set_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        """Lock or unlock the SM clock."""
        self._stay_awake(uuid)
        self._write(
            uuid,
            lambda: self._journal.take_clock(uuid, clock_mhz_sm),
            lambda: self._setters.lock_clock(uuid, clock_mhz_sm),
        )
        self._locked_s[uuid] = self._now_s()
        if clock_mhz_sm is None:
            self._settle(uuid, "clock")

    def set_power(self, uuid: str, power_limit_w: float | None) -> None:
        """Set the power limit, or give it back its original."""
        self._stay_awake(uuid)
        held = self._boards.settings(uuid).power_limit_w
        originals = self._journal.of(uuid)
        original = originals.power_limit_w if originals is not None and "power" in originals.taken else held
        self._write(
            uuid,
            lambda: self._journal.take_power(uuid, held, power_limit_w),
            lambda: self._setters.limit_power(uuid, original if power_limit_w is None else power_limit_w),
        )
        if power_limit_w is None:
            self._settle(uuid, "power")

    def want_compute_mode(self, uuid: str, mode: ComputeMode) -> str:
        """See to it that the compute mode is this one; why that is not possible here, empty when it is."""
        held = self._boards.settings(uuid).compute_mode
        if held is mode:
            return ""
        refusal = self._setters.refusals().get("set_compute_mode", "")
        if refusal:
            return refusal
        try:
            self._write(
                uuid,
                lambda: self._journal.take_compute_mode(uuid, held.value),
                lambda: self._setters.set_compute_mode(uuid, mode),
            )
        except (NoPermissionError, NotSupportedError) as error:
            return str(error)
        return ""

    def restore(self, uuid: str) -> list[DeviceError]:
        """Give a device back every original; what did not work stays in the journal."""
        originals = self._journal.of(uuid)
        if originals is None:
            return []
        writes: dict[str, Callable[[], None]] = {
            "clock": lambda: self._setters.lock_clock(uuid, None),
            "power": lambda: self._setters.limit_power(uuid, originals.power_limit_w),
            "compute_mode": lambda: self._setters.set_compute_mode(uuid, ComputeMode(originals.compute_mode)),
            "persistence": lambda: self._setters.set_persistence(uuid, originals.persistence),
        }
        failed = []
        for setting, write in writes.items():
            if setting not in originals.taken:
                continue
            try:
                write()
                self._settle(uuid, setting)
            except DeviceError as error:
                failed.append(error)
        return failed

    def _write(self, uuid: str, keep: Callable[[], None], write: Callable[[], None]) -> None:
        """Write to a device once its original is kept; when the write fails, nothing is kept of it."""
        before = self._journal.of(uuid)
        self._read.pop(uuid, None)
        try:
            keep()
        except StateFileError as error:
            raise DriverError(f"nothing is written to a device whose original is not kept: {error}") from error
        try:
            write()
        except DeviceError as error:
            try:
                self._journal.put_back(uuid, before)
            except StateFileError as unkept:
                raise DriverError(f"{error}; {unkept}") from error
            raise

    def _settle(self, uuid: str, setting: str) -> None:
        try:
            self._journal.settle(uuid, setting)
        except StateFileError as error:
            raise DriverError(str(error)) from error

    def _stay_awake(self, uuid: str) -> None:
        """Power limits are lost when the driver unloads a device without clients, unless it is kept loaded. Where that
        cannot be said, limits are set again when they read back otherwise.
        """
        if self._boards.settings(uuid).persistence is False and "set_persistence" not in self._setters.refusals():
            try:
                self._write(
                    uuid,
                    lambda: self._journal.take_persistence(uuid, False),
                    lambda: self._setters.set_persistence(uuid, True),
                )
            except (NoPermissionError, NotSupportedError):
                return

    def _prove(self, uuid: str) -> None:
        """Ask once more for the lock, or its end, that an earlier agent wrote down: only then it is known to be so."""
        originals = self._journal.of(uuid)
        if originals is not None and "clock" in originals.taken:
            try:
                self._setters.lock_clock(uuid, originals.clock_mhz_asked)
            except (NoPermissionError, NotSupportedError):
                # Not now, perhaps later: the helper may be away.
                return
            self._locked_s[uuid] = self._now_s()
            if originals.clock_mhz_asked is None:
                self._settle(uuid, "clock")
        self._unproved.discard(uuid)

    def _confirmed(self, uuid: str, told: int | None, asked: int) -> int | None:
        """The lock asked for, unless the clock runs above it."""
        fresh = self._now_s() - self._locked_s.get(uuid, float("-inf")) < CLOCK_SETTLE_S
        if told == asked or fresh:
            return asked
        return asked if self._boards.reading(uuid).clock_mhz_sm <= asked + CLOCK_TOLERANCE_MHZ else None

    def _note_limit(self, uuid: str, power_limit_w: float | None, enforced_w: float) -> None:
        self._limits.pop(uuid, None)
        if power_limit_w is not None and enforced_w < power_limit_w - POWER_TOLERANCE_W:
            self._limits[uuid] = f"{uuid}: another source limits the power to {enforced_w:g} W, not {power_limit_w:g} W"


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= POWER_TOLERANCE_W
