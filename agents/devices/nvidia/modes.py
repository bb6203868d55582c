"""How the devices of a host are shared, that it stays so, and what of it is on record for the next agent.

The change between modes, the opening anew of daemons that crashed (with back-off), and the compute mode that keeps
processes from passing a daemon by. Where that mode cannot be set, workers run all the same, each of them checked, and
it is said. A device of a mode that the host does not know gets none of it. The register is one file of the state
directory: modes, and who was given what part. Parts are written down before they are given, so that what a killed agent
gave away is found and taken back; a register that cannot be read is begun anew, for daemons and workers are found all
the same.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from typing import Any

from agents.devices.base import Mode, WorkerSpec
from agents.devices.nvidia.control import BoardControl, HostParts
from agents.devices.parts import ComputeMode, ShareOrder, Sharing
from agents.errors import DeviceError, DriverError, NoPermissionError, NotSupportedError, StateFileError
from agents.state import StateDirectory
from agents.wire import decode, mirrored

REGISTER_FILE = "nvidia.json"
VERSION = 1
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPart:
    order: ShareOrder
    mode: Mode
    sm_count: int = 0
    """What it was proved to have; 0 before that."""


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
        return dict(self._parts)

    def part(self, worker: str) -> WorkerPart | None:
        return self._parts.get(worker)

    def give(self, part: WorkerPart) -> None:
        """Write a part down. Raises DriverError when it cannot be kept: then it must not be given."""
        changed = {**self._parts, part.order.worker: part}
        try:
            self._write(self._modes, changed)
        except StateFileError as error:
            raise DriverError(f"a part that is not on record is not given: {error}") from error
        self._parts = changed

    def prove(self, worker: str, sm_count: int) -> None:
        """Keep what a worker was proved to have, for an agent that comes when nobody can tell."""
        part = self._parts.get(worker)
        if part is not None and part.sm_count != sm_count:
            with contextlib.suppress(DriverError):
                self.give(replace(part, sm_count=sm_count))

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
    described = spec.worker
    named = dict(described.environment) if described is not None else {}
    connections = named.get(CONNECTIONS, "")
    return mirrored(
        ShareOrder,
        spec,
        worker=worker,
        uuid=uuid,
        processes_max=1 if described is None else described.processes_max,
        connections=int(connections) if connections.isdigit() else 2,
    )


def _plain(part: WorkerPart) -> dict[str, object]:
    kept = {"mode": part.mode.value, "sm_count": part.sm_count}
    return kept | {name: each for name, each in asdict(part.order).items() if name != "worker"}


def _part(worker: str, plain: dict[str, object]) -> WorkerPart:
    order = {name: each for name, each in plain.items() if name not in ("mode", "sm_count")}
    sm_count = int(str(plain.get("sm_count", 0)))
    return WorkerPart(
        order=decode(ShareOrder, {"worker": worker, **order}), mode=Mode(str(plain["mode"])), sm_count=sm_count
    )


BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 30.0
OPEN_EVERY_S = 5.0
"""A daemon that answers is looked at closely so often."""
COMPUTE_MODE_EVERY_S = 30.0
"""A driver that was loaded anew has forgotten compute modes; so often that is looked at."""


@dataclass(slots=True)
class _Daemon:
    problem: str = ""
    backoff_s: float = 0.0
    not_before_s: float = 0.0


class Modes:
    """Modes of all devices. Not thread-safe."""

    def __init__(self, parts: HostParts, register: Register, control: BoardControl) -> None:
        self._parts = parts
        self._register = register
        self._control = control
        self._daemons: dict[str, _Daemon] = {}
        self._open_to_all: dict[str, str] = {}
        self._looked_s: dict[str, float] = {}
        self._opened_s: dict[str, float] = {}
        self._lives: dict[str, int] = {}

    def daemon_life(self, uuid: str) -> int:
        """How often a device's daemon was found gone while it had workers."""
        return self._lives.get(uuid, 0)

    def mode(self, uuid: str) -> Mode:
        known = self._register.mode(uuid)
        if known is not None:
            return known
        mps = self._parts.mps
        return Mode.MPS if mps is not None and mps.running(uuid) else Mode.DEDICATED

    def change(self, uuid: str, mode: Mode) -> None:
        """Share an empty device in another way."""
        if mode is Mode.MPS:
            mps = self._mps()
            self._guard(uuid)
            mps.open(uuid)
            self._daemons.pop(uuid, None)
        else:
            refusal = self.leave(uuid)
            if refusal and mode is Mode.TIME_SLICED:
                raise NoPermissionError(f"{uuid} is open to one process only, and cannot be opened to all: {refusal}")
        self._register.set_mode(uuid, mode)

    def leave(self, uuid: str) -> str:
        """End a device's daemon and let everybody open the device again; why the latter is not possible, empty when it
        is.
        """
        mps = self._parts.mps
        if mps is not None and self.mode(uuid) is Mode.MPS:
            # Also when it has crashed: it left servers and a pipe directory then.
            mps.shut(uuid)
        self._daemons.pop(uuid, None)
        self._open_to_all.pop(uuid, None)
        return self._control.want_compute_mode(uuid, ComputeMode.DEFAULT)

    def ready(self, uuid: str) -> Sharing:
        """The sharing of a device that is about to get a worker. Raises SharingError."""
        mode = self.mode(uuid)
        if mode is Mode.MPS:
            self._guard(uuid)
            self._mps().open(uuid)
        return self._parts.sharing(mode)

    def tend(self, uuid: str) -> None:
        """See to the daemon of a device that has workers. Never raises: what is wrong is told by `problems`."""
        mps = self._parts.mps
        if mps is None or self.mode(uuid) is not Mode.MPS:
            return
        now_s = self._parts.now_s()
        daemon = self._daemons.setdefault(uuid, _Daemon())
        if now_s < daemon.not_before_s:
            return
        try:
            if now_s - self._looked_s.get(uuid, float("-inf")) >= COMPUTE_MODE_EVERY_S:
                self._guard(uuid)
            gone = not mps.running(uuid)
            if gone:
                self._lives[uuid] = self.daemon_life(uuid) + 1
            if gone or daemon.problem or now_s - self._opened_s.get(uuid, float("-inf")) >= OPEN_EVERY_S:
                mps.open(uuid)
                self._opened_s[uuid] = now_s
        except DeviceError as error:
            daemon.problem = f"{uuid}: {error}"
            daemon.backoff_s = min(BACKOFF_S_MAX, max(BACKOFF_S_MIN, 2.0 * daemon.backoff_s))
            daemon.not_before_s = now_s + daemon.backoff_s
        else:
            self._daemons[uuid] = _Daemon()

    def problems(self) -> list[str]:
        """Daemons that are down or in fault, and devices that a process could open without its limits."""
        found = []
        for uuid, daemon in sorted(self._daemons.items()):
            told = self._parts.mps.problem(uuid) if self._parts.mps is not None else ""
            if daemon.problem or told:
                found.append(daemon.problem or f"{uuid}: {told}")
        return found + [
            f"{uuid}: the compute mode cannot keep processes from passing MPS by ({reason}); every worker is checked"
            for uuid, reason in sorted(self._open_to_all.items())
        ]

    def _guard(self, uuid: str) -> None:
        """Let nobody but the daemon's server open the device, before any client comes."""
        refusal = self._control.want_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS)
        self._looked_s[uuid] = self._parts.now_s()
        self._open_to_all.pop(uuid, None)
        if refusal:
            self._open_to_all[uuid] = refusal

    def _mps(self) -> Sharing:
        if self._parts.mps is None:
            raise NotSupportedError(self._parts.mps_refusal or "there is no MPS on this host")
        return self._parts.mps
