"""What devices and processes do not tell, kept for the next agent on this host: modes, and who was given what part.

Owns one file of the state directory. Parts are written down before they are given, so that what a killed agent gave
away is found and taken back. A register that cannot be read is begun anew: daemons and workers are found all the same.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from agents.devices.base import Mode, WorkerSpec
from agents.devices.parts import ShareOrder
from agents.errors import DriverError, StateFileError
from agents.state import StateDirectory

REGISTER_FILE = "nvidia.json"
VERSION = 1
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPart:
    """A worker's part of a device, and the mode in which it was given."""

    order: ShareOrder
    mode: Mode


class Register:
    """Modes by device and parts by worker. Not thread-safe."""

    def __init__(self, state: StateDirectory) -> None:
        self.lost = ""
        """Why an earlier register was not used; empty when it was, or when there was none."""
        self._state = state
        self._modes: dict[str, Mode] = {}
        self._parts: dict[str, WorkerPart] = {}
        self._started = 0
        try:
            content: Any = state.read_json(REGISTER_FILE)
            if content is not None:
                self._load(content)
        except (StateFileError, KeyError, TypeError, ValueError, AttributeError) as error:
            self.lost = f"{type(error).__name__}: {error}"

    def mode(self, uuid: str) -> Mode | None:
        """How a device was shared last."""
        return self._modes.get(uuid)

    def set_mode(self, uuid: str, mode: Mode) -> None:
        """Remember how a device is shared. Raises DriverError when that cannot be kept."""
        if self._modes.get(uuid) is mode:
            return
        try:
            self._write({**self._modes, uuid: mode}, self._parts)
        except StateFileError as error:
            raise DriverError(f"a mode that is not on record is not used: {error}") from error
        self._modes[uuid] = mode

    def next_name(self, replica: str) -> str:
        """The name of another worker of a replica; it sorts after all names given before."""
        self._started += 1
        return f"{replica}@{self._started:08d}"

    def skip(self, worker: str) -> None:
        """Give no name at or below that of a worker that was found."""
        number = worker.rpartition("@")[2]
        if number.isdigit():
            self._started = max(self._started, int(number))

    @property
    def parts(self) -> dict[str, WorkerPart]:
        """Parts given, by worker."""
        return dict(self._parts)

    def part(self, worker: str) -> WorkerPart | None:
        """What a worker was given."""
        return self._parts.get(worker)

    def give(self, part: WorkerPart) -> None:
        """Write a part down. Raises DriverError when it cannot be kept: then it must not be given."""
        changed = {**self._parts, part.order.worker: part}
        try:
            self._write(self._modes, changed)
        except StateFileError as error:
            raise DriverError(f"a part that is not on record is not given: {error}") from error
        self._parts = changed

    def take_back(self, worker: str) -> None:
        """Forget a part. Where that cannot be written down, the next agent takes it back once more."""
        if self._parts.pop(worker, None) is not None:
            with contextlib.suppress(StateFileError):
                self._write(self._modes, self._parts)

    def _write(self, modes: dict[str, Mode], parts: dict[str, WorkerPart]) -> None:
        content = {
            "version": VERSION,
            "started": self._started,
            "modes": {uuid: mode.value for uuid, mode in sorted(modes.items())},
            "parts": {name: _plain(part) for name, part in sorted(parts.items())},
        }
        self._state.write_json(REGISTER_FILE, content)

    def _load(self, content: Any) -> None:
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}")
        started = int(content["started"])
        modes = {str(uuid): Mode(mode) for uuid, mode in content["modes"].items()}
        parts = {str(name): _part(str(name), plain) for name, plain in content["parts"].items()}
        self._started, self._modes, self._parts = started, modes, parts


def share_order(worker: str, uuid: str, spec: WorkerSpec) -> ShareOrder:
    """What a worker of this kind takes of its device."""
    described = spec.worker
    named = dict(described.environment) if described is not None else {}
    connections = named.get(CONNECTIONS, "")
    return ShareOrder(
        worker=worker,
        uuid=uuid,
        share_pct_sm=spec.share_pct_sm,
        memory_mib_limit=spec.memory_mib_limit,
        processes_max=1 if described is None else described.processes_max,
        connections=int(connections) if connections.isdigit() else 2,
    )


def _plain(part: WorkerPart) -> dict[str, object]:
    order = part.order
    return {
        "mode": part.mode.value,
        "uuid": order.uuid,
        "share_pct_sm": order.share_pct_sm,
        "memory_mib_limit": order.memory_mib_limit,
        "processes_max": order.processes_max,
        "connections": order.connections,
    }


def _part(worker: str, plain: Any) -> WorkerPart:
    order = ShareOrder(
        worker=worker,
        uuid=str(plain["uuid"]),
        share_pct_sm=int(plain["share_pct_sm"]),
        memory_mib_limit=int(plain["memory_mib_limit"]),
        processes_max=int(plain["processes_max"]),
        connections=int(plain["connections"]),
    )
    return WorkerPart(order=order, mode=Mode(plain["mode"]))
