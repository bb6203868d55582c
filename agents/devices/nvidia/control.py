"""The parts of a real GPU host, and the device-wide settings of its boards: written only after the original is on disk,
and read back as asked for.

What a device held before is None, a lock that what is read contradicts is no lock, and restoring gives back what was
found, not what the driver would choose. The journal is one file: for every device the original of each setting, taken
once before its first write, and what was asked for last, which drivers do not tell of clocks. What a killed agent left
behind is never taken for an original, because the file is there; a reboot resets devices, so it makes the file void.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from agents.devices.base import DeviceSettings, Mode
from agents.devices.parts import Boards, ComputeMode, Crew, Setters, Sharing
from agents.errors import DeviceError, DriverError, NoPermissionError, NotSupportedError, StateFileError
from agents.state import StateDirectory
from agents.wire import decode

JOURNAL_FILE = "journal.json"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Originals:
    """Settings as they were found; those named in `taken` (clock, power, compute_mode, persistence) were written to."""

    taken: frozenset[str] = frozenset()
    power_limit_w: float | None = None
    power_limit_w_asked: float | None = None
    """The limit asked for last; None when that was the original."""
    compute_mode: str = ""
    persistence: bool = False
    clock_mhz_asked: int | None = None
    """The lock this agent asked for; None when it has asked for none."""


class SettingsJournal:
    """Originals by device. Not thread-safe."""

    def __init__(self, state: StateDirectory, boot_id: str) -> None:
        """Raises StateFileError when a journal is there that cannot be read: nobody knows then what to restore."""
        self._state = state
        self._boot_id = boot_id
        self._devices: dict[str, Originals] = {}
        content = state.read_json(JOURNAL_FILE)
        if content is not None:
            self._load(content)

    @property
    def uuids(self) -> tuple[str, ...]:
        """Devices that were written to and not restored since."""
        return tuple(sorted(self._devices))

    def of(self, uuid: str) -> Originals | None:
        """What is known of a device that was written to; None when none of its settings was."""
        return self._devices.get(uuid)

    def take_clock(self, uuid: str, clock_mhz_asked: int | None) -> None:
        """Before locking or resetting the clock. The original is always no lock: drivers do not tell it."""
        found = self._devices.get(uuid, Originals())
        if "clock" not in found.taken or found.clock_mhz_asked != clock_mhz_asked:
            self._keep(uuid, replace(found, taken=found.taken | {"clock"}, clock_mhz_asked=clock_mhz_asked))

    def take_power(self, uuid: str, power_limit_w: float | None, power_limit_w_asked: float | None) -> None:
        """Before writing the power limit: what it is now, which only counts the first time, and what is asked for."""
        found = self._devices.get(uuid, Originals())
        if "power" not in found.taken:
            found = replace(found, taken=found.taken | {"power"}, power_limit_w=power_limit_w)
        if self._devices.get(uuid) != found or found.power_limit_w_asked != power_limit_w_asked:
            self._keep(uuid, replace(found, power_limit_w_asked=power_limit_w_asked))

    def take_compute_mode(self, uuid: str, compute_mode: str) -> None:
        """Before the first write of the compute mode: what it is now."""
        found = self._devices.get(uuid, Originals())
        if "compute_mode" not in found.taken:
            self._keep(uuid, replace(found, taken=found.taken | {"compute_mode"}, compute_mode=compute_mode))

    def take_persistence(self, uuid: str, persistence: bool) -> None:
        """Before the first write of the persistence mode: what it is now."""
        found = self._devices.get(uuid, Originals())
        if "persistence" not in found.taken:
            self._keep(uuid, replace(found, taken=found.taken | {"persistence"}, persistence=persistence))

    def put_back(self, uuid: str, found: Originals | None, *, in_doubt: bool = False) -> None:
        """What was known before a write that did not happen; `in_doubt`: it may have, so that originals stay. A disk
        that cannot be told keeps more than is known here, which the next agent proves or restores.
        """
        before, held = found or Originals(), self._devices.get(uuid)
        if in_doubt and held is not None:
            asked = (before.clock_mhz_asked, before.power_limit_w_asked)
            before = replace(held, clock_mhz_asked=asked[0], power_limit_w_asked=asked[1])
        if before == (held or Originals()):
            return
        self._devices = self._with(uuid, before)
        with contextlib.suppress(StateFileError):
            self._write(self._devices)

    def settle(self, uuid: str, setting: str) -> None:
        found = self._devices.get(uuid)
        if found is not None and setting in found.taken:
            clock = None if setting == "clock" else found.clock_mhz_asked
            power = None if setting == "power" else found.power_limit_w_asked
            left = found.taken - {setting}
            self._keep(uuid, replace(found, taken=left, clock_mhz_asked=clock, power_limit_w_asked=power))

    def _keep(self, uuid: str, found: Originals) -> None:
        """Nothing is believed to be kept that is not on disk. Raises StateFileError."""
        changed = self._with(uuid, found)
        self._write(changed)
        self._devices = changed

    def _with(self, uuid: str, found: Originals) -> dict[str, Originals]:
        changed = {**self._devices, uuid: found}
        return changed if found.taken else {name: each for name, each in changed.items() if name != uuid}

    def _write(self, changed: dict[str, Originals]) -> None:
        devices = {uuid: {**asdict(found), "taken": sorted(found.taken)} for uuid, found in sorted(changed.items())}
        self._state.write_json(JOURNAL_FILE, {"version": VERSION, "boot_id": self._boot_id, "devices": devices})

    def _load(self, content: object) -> None:
        try:
            self._devices = _read(content, self._boot_id)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateFileError(f"{self._state.path / JOURNAL_FILE} is not readable: {error!r}") from error


def _read(content: Any, boot_id: str) -> dict[str, Originals]:
    if content["version"] != VERSION:
        raise ValueError(f"version {content['version']}")
    if content["boot_id"] != boot_id:
        return {}
    devices: dict[str, dict[str, object]] = content["devices"]
    if any(set(plain) != set(asdict(Originals())) for plain in devices.values()):
        raise ValueError("an original that is not whole")
    return {uuid: decode(Originals, plain) for uuid, plain in devices.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostParts:
    boards: Boards
    setters: Setters
    mps: Sharing | None
    """None where there is no MPS; `mps_refusal` says why."""
    plain: Sharing
    """For devices that are not divided: every process has the whole."""
    crew: Crew
    state: StateDirectory
    journal: SettingsJournal
    now_s: Callable[[], float]
    mps_refusal: str = ""
    observing: bool = False
    """Only look: no daemon is started, no worker ended, nothing written."""
    lost: tuple[str, ...] = ()
    """What parts remembered and could not read."""
    left_out: tuple[str, ...] = ()
    """GPUs of this host that are not used, and why."""
    let_go: Callable[[], None] = lambda: None
    """Called last when the host is closed."""

    def sharing(self, mode: Mode) -> Sharing:
        return self.mps if mode is Mode.MPS and self.mps is not None else self.plain


class Onlooker:
    """Setters of an agent that only looks, so that a rehearsal cannot touch a device even by mistake."""

    def lock_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        self._refuse(f"{uuid}: clock {clock_mhz_sm}")

    def limit_power(self, uuid: str, power_limit_w: float | None) -> None:
        self._refuse(f"{uuid}: power limit {power_limit_w}")

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._refuse(f"{uuid}: compute mode {mode}")

    def set_persistence(self, uuid: str, on: bool) -> None:
        self._refuse(f"{uuid}: persistence {on}")

    def refusals(self) -> Mapping[str, str]:
        """What the host itself could not do is not looked for."""
        return {}

    @staticmethod
    def _refuse(what: str) -> None:
        raise NoPermissionError(f"{what} is not set: this agent only looks")


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
        """Devices an earlier agent wrote to, for it may have been killed between writing that down and doing it, and
        those whose driver said that a lock failed, for it may hold all the same."""
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
        self._stay_awake(uuid)
        try:
            self._write(
                uuid,
                lambda: self._journal.take_clock(uuid, clock_mhz_sm),
                lambda: self._setters.lock_clock(uuid, clock_mhz_sm),
            )
        except DeviceError as error:
            if error.retryable:
                self._unproved.add(uuid)
            raise
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
        """Write to a device once its original is kept; when it refuses the write, nothing is kept of it."""
        before = self._journal.of(uuid)
        self._read.pop(uuid, None)
        try:
            keep()
        except StateFileError as error:
            raise DriverError(f"nothing is written to a device whose original is not kept: {error}") from error
        try:
            write()
        except DeviceError as error:
            self._journal.put_back(uuid, before, in_doubt=error.retryable)
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
        """Ask once more for the lock, or its end, that was written down: only then it is known to be so."""
        originals = self._journal.of(uuid)
        if originals is not None and "clock" in originals.taken:
            try:
                self._setters.lock_clock(uuid, originals.clock_mhz_asked)
            except DeviceError:
                # Not now, perhaps later: the helper may be away.
                return
            self._locked_s[uuid] = self._now_s()
            if originals.clock_mhz_asked is None:
                # A full disk only has the next agent ask once more.
                with contextlib.suppress(DriverError):
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
