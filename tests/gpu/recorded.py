"""Boards that repeat what real hardware once said, and the recorder that writes it down.

Owns the recording's form: JSON lines of `{"t_s": …, "uuid": …, "call": …, "value": …}`, seconds since the recording
began, or `"error": {"code": …, "message": …}` where the call failed. A replay answers with what was last said at that
time, an event once. What a recording does not hold is refused, never made up.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from agents.devices.parts import BoardEvent, BoardReading, Boards, BoardSettings, ComputeMode, GpuProcess
from agents.errors import ConfigError, DeviceError, NotFoundError
from agents.wire import DeviceInventory

T = TypeVar("T")
HOST = ""
"""In place of a UUID, for calls about the whole host."""


class RecordingBoards:
    """Other boards, whose every answer is written to a file as a line of its own. Closing it closes them; the file is
    its opener's.
    """

    def __init__(self, boards: Boards, file: TextIO, now_s: Callable[[], float] = time.monotonic) -> None:
        self._boards = boards
        self._file = file
        self._now_s = now_s
        self._began_s = now_s()
        self._lock = threading.Lock()

    def inventory(self) -> tuple[DeviceInventory, ...]:
        """See `Boards`."""
        return self._keep(HOST, "inventory", self._boards.inventory, _plain_all)

    def settings(self, uuid: str) -> BoardSettings:
        """See `Boards`."""
        return self._keep(uuid, "settings", lambda: self._boards.settings(uuid), asdict)

    def reading(self, uuid: str) -> BoardReading:
        """See `Boards`."""
        return self._keep(uuid, "reading", lambda: self._boards.reading(uuid), asdict)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """See `Boards`."""
        return self._keep(uuid, "processes", lambda: self._boards.processes(uuid), _plain_all)

    def events(self) -> tuple[BoardEvent, ...]:
        """See `Boards`. Moments without events leave no line."""
        found = self._boards.events()
        for event in found:
            self._write(event.uuid, "event", {"value": asdict(event)})
        return found

    def close(self) -> None:
        """See `Boards`."""
        self._boards.close()

    def _keep(self, uuid: str, call: str, ask: Callable[[], T], plain: Callable[[T], object]) -> T:
        try:
            found = ask()
        except DeviceError as error:
            self._write(uuid, call, {"error": {"code": error.code, "message": str(error)}})
            raise
        self._write(uuid, call, {"value": plain(found)})
        return found

    def _write(self, uuid: str, call: str, said: Mapping[str, object]) -> None:
        line = {"t_s": round(self._now_s() - self._began_s, 6), "uuid": uuid, "call": call, **said}
        with self._lock:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


@dataclass(slots=True)
class _Track:
    """What was said to one question, in order of time."""

    times_s: list[float] = field(default_factory=list)
    said: list[Mapping[str, Any]] = field(default_factory=list)


class RecordedBoards:
    """Boards of a recording, which begins to play when it is opened. Raises ConfigError when the file is none."""

    def __init__(self, path: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._tracks: dict[tuple[str, str], _Track] = {}
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                self._add(json.loads(line))
            self._inventory = _devices(self._tracks[HOST, "inventory"].said[0]["value"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is no recording of boards: {type(error).__name__}: {error}") from error
        self._now_s = now_s
        self._began_s = now_s()
        self._events_given = 0

    @property
    def ends_s(self) -> float:
        """Time of the last line."""
        return max(track.times_s[-1] for track in self._tracks.values())

    def inventory(self) -> tuple[DeviceInventory, ...]:
        """See `Boards`."""
        return self._inventory

    def settings(self, uuid: str) -> BoardSettings:
        """See `Boards`."""
        said = dict(self._said(uuid, "settings"))
        return BoardSettings(**(said | {"compute_mode": ComputeMode(said["compute_mode"])}))

    def reading(self, uuid: str) -> BoardReading:
        """See `Boards`."""
        return BoardReading(**self._said(uuid, "reading"))

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """See `Boards`."""
        return tuple(GpuProcess(**process) for process in self._said(uuid, "processes"))

    def events(self) -> tuple[BoardEvent, ...]:
        """See `Boards`. Their times are those of the replay."""
        elapsed_s = self._now_s() - self._began_s
        due = sorted(
            (at_s, uuid, number)
            for (uuid, call), track in self._tracks.items()
            if call == "event"
            for number, at_s in enumerate(track.times_s)
            if at_s <= elapsed_s
        )
        fresh, self._events_given = due[self._events_given :], len(due)
        return tuple(
            BoardEvent(**(dict(self._tracks[uuid, "event"].said[number]["value"]) | {"at_s": self._began_s + at_s}))
            for at_s, uuid, number in fresh
        )

    def close(self) -> None:
        """See `Boards`."""

    def _add(self, line: Mapping[str, Any]) -> None:
        track = self._tracks.setdefault((str(line["uuid"]), str(line["call"])), _Track())
        at_s = float(line["t_s"])
        if track.times_s and at_s < track.times_s[-1]:
            raise ValueError(f"{at_s} s comes after {track.times_s[-1]} s")
        if "value" not in line and "error" not in line:
            raise ValueError("a line holds neither value nor error")
        track.times_s.append(at_s)
        track.said.append(line)

    def _said(self, uuid: str, call: str) -> Any:
        """What the device last said by now, and at its first word before it."""
        track = self._tracks.get((uuid, call))
        if track is None:
            raise NotFoundError(f"the recording holds no {call} of {uuid}")
        line = track.said[max(0, bisect_right(track.times_s, self._now_s() - self._began_s) - 1)]
        if "error" in line:
            raise _error(line["error"])
        return line["value"]


def _plain_all(found: tuple[Any, ...]) -> list[object]:
    return [asdict(item) for item in found]


def _devices(plain: list[Mapping[str, Any]]) -> tuple[DeviceInventory, ...]:
    return tuple(DeviceInventory(**(dict(item) | {"clocks_mhz_sm": tuple(item["clocks_mhz_sm"])})) for item in plain)


def _error(plain: Mapping[str, str]) -> DeviceError:
    """The recorded error, as the class that has its code."""
    kinds = {kind.code: kind for kind in _below(DeviceError)}
    return kinds.get(plain["code"], DeviceError)(plain["message"])


def _below(kind: type[DeviceError]) -> list[type[DeviceError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _below(child))]
