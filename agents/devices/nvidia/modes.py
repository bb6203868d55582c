"""How the devices of a host are shared, and that it stays so: daemons, and who may open a device.

Owns the change between modes, the opening anew of daemons that crashed (with back-off), and the compute mode that keeps
processes from passing a daemon by. Where that mode cannot be set, workers run all the same, each of them checked, and
it is said. A device of a mode that the host does not know gets none of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.devices.base import Mode
from agents.devices.nvidia.control import BoardControl
from agents.devices.nvidia.parts import HostParts
from agents.devices.nvidia.register import Register
from agents.devices.parts import ComputeMode, Sharing
from agents.errors import DeviceError, NoPermissionError, NotSupportedError

BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 30.0
OPEN_EVERY_S = 5.0
"""A daemon that answers is looked at closely so often."""
COMPUTE_MODE_EVERY_S = 30.0
"""A driver that was loaded anew has forgotten compute modes; so often that is looked at."""


@dataclass(slots=True)
class _Daemon:
    """Trouble with a device's daemon."""

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
        """How a device is shared."""
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
