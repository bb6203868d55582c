"""What devices had before an agent wrote to them, and what it asked of them, on disk before it is done.

Owns one file: for every device the original of each setting, taken once before its first write, and what was asked for
last, which drivers do not tell of clocks. What an agent that was killed left behind is never taken for an original,
because the file is there; a reboot resets devices, so it makes the file void (boot id). It refuses to write to devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.errors import StateFileError
from agents.state import StateDirectory

JOURNAL_FILE = "journal.json"
VERSION = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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


def host_boot_id() -> str:
    """Changes when the host boots."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError as error:
        raise StateFileError(f"cannot read {_BOOT_ID}: {error.strerror}") from error


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

    def put_back(self, uuid: str, found: Originals | None) -> None:
        """What was known before a write that did not happen."""
        if self._devices.get(uuid) != found:
            self._keep(uuid, found or Originals())

    def settle(self, uuid: str, setting: str) -> None:
        """A setting has its original again."""
        found = self._devices.get(uuid)
        if found is not None and setting in found.taken:
            clock = None if setting == "clock" else found.clock_mhz_asked
            power = None if setting == "power" else found.power_limit_w_asked
            left = found.taken - {setting}
            self._keep(uuid, replace(found, taken=left, clock_mhz_asked=clock, power_limit_w_asked=power))

    def _keep(self, uuid: str, found: Originals) -> None:
        """Nothing is believed to be kept that is not on disk. Raises StateFileError."""
        changed = {**self._devices, uuid: found}
        if not found.taken:
            del changed[uuid]
        self._write(changed)
        self._devices = changed

    def _write(self, changed: dict[str, Originals]) -> None:
        devices = {
            uuid: {
                "taken": sorted(found.taken),
                "power_limit_w": found.power_limit_w,
                "power_limit_w_asked": found.power_limit_w_asked,
                "compute_mode": found.compute_mode,
                "persistence": found.persistence,
                "clock_mhz_asked": found.clock_mhz_asked,
            }
            for uuid, found in sorted(changed.items())
        }
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
    return {
        str(uuid): Originals(
            taken=frozenset(str(name) for name in plain["taken"]),
            power_limit_w=_watts(plain["power_limit_w"]),
            power_limit_w_asked=_watts(plain["power_limit_w_asked"]),
            compute_mode=str(plain["compute_mode"]),
            persistence=bool(plain["persistence"]),
            clock_mhz_asked=None if plain["clock_mhz_asked"] is None else int(plain["clock_mhz_asked"]),
        )
        for uuid, plain in content["devices"].items()
    }


def _watts(plain: Any) -> float | None:
    return None if plain is None else float(plain)
