"""`Sharing` by MPS, where a daemon per device is held to what was granted and every worker is proved to be on it, and
by nothing at all.

MPS fails open, so nothing counts as limited until `agents.mps.proofs` has proved it. Who may open a device is
device-wide and set elsewhere, before any client; how much is granted in all is the caller's matter.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.devices.parts import ShareCheck, ShareOrder
from agents.errors import (
    BusyError,
    BypassError,
    DeviceError,
    DeviceTimeoutError,
    NotFoundError,
    OutOfRangeError,
    SharingError,
)
from agents.mps.daemon import DOWN, DaemonProcess, MpsDevice, await_until
from agents.mps.memo import Memo
from agents.mps.proofs import Proofs
from agents.mps.protocols import MpsClient
from agents.processes import ProcessId, environment_of, identify
from agents.state import StateDirectory

SYSTEM_RUNTIME = Path("/run/headroom")
CONNECTIONS = 2
"""Hardware connections of an MPS client unless it asks for more."""
CLIENTS = 48
CLIENTS_SINCE_13_1 = 60
CUDA_13_1 = 13010


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsOptions:
    state_dir: Path
    pipe_base: Path
    control_binary: str
    protocol: str
    """auto, 2 or 3; auto takes 3 where the driver has it."""
    sm_counts: Mapping[str, int]
    """SMs of each whole device."""
    client_slots: Mapping[str, int]
    """Clients each device has room for."""
    probe_command: tuple[str, ...]
    many_users: bool = False
    """Workers are of users of their own."""


def default_pipe_base(environment: Mapping[str, str], state_dir: Path, system: Path = SYSTEM_RUNTIME) -> Path:
    """The first of the system's, the user's runtime directory and the state directory that this user may write to."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    for parent, child in ((system, "mps"), (Path(runtime) if runtime else None, "hr/mps")):
        if parent is not None and parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
            return parent / child
    return state_dir / "mps"


def client_slots(cuda_version: int, *, device_part: float = 1.0) -> int:
    """Clients a device has room for. `cuda_version`: the driver's (13010 is 13.1); `device_part`: a MIG slice's."""
    whole = CLIENTS_SINCE_13_1 if cuda_version >= CUDA_13_1 else CLIENTS
    return max(1, int(whole * device_part))


DEFAULT_PIPE = "/tmp/nvidia-mps"
"""Where processes look for a daemon that are told nothing."""


class NoSharing:
    """Devices that are not divided: one process has the whole of it, or several take turns; MIG devices are among them.

    There is no daemon, and one check: a process that became the client of some daemon all the same has limits that
    nobody ordered.
    """

    def __init__(self, sm_counts: Mapping[str, int], default_pipe: Path = Path(DEFAULT_PIPE)) -> None:
        self._sm_counts = sm_counts
        self._default_pipe = default_pipe

    def open(self, uuid: str) -> None:
        """Nothing to open."""

    def shut(self, uuid: str) -> None:
        """Nothing to shut."""

    def running(self, uuid: str) -> bool:
        self._sm_count(uuid)
        return False

    def grant(self, order: ShareOrder) -> Mapping[str, str]:
        self._sm_count(order.uuid)
        return {"CUDA_VISIBLE_DEVICES": order.uuid}

    def check(self, order: ShareOrder, pids: tuple[int, ...]) -> ShareCheck:
        """Every process has all SMs, unless it is on a daemon."""
        sm_count = self._sm_count(order.uuid)
        living = [pid for pid in pids if identify(pid) is not None]
        problem = next(filter(None, map(self._stray, living)), "")
        return ShareCheck(sm_count=sm_count, problem=problem, pending=not living)

    def end_client(self, order: ShareOrder, pid: int) -> None:
        """Nobody is a client."""

    def revoke(self, order: ShareOrder) -> None:
        """Nothing is remembered."""

    def problem(self, uuid: str) -> str:
        self._sm_count(uuid)
        return ""

    def close(self) -> None:
        """Nothing to let go."""

    def _sm_count(self, uuid: str) -> int:
        if uuid not in self._sm_counts:
            raise NotFoundError(f"there is no device {uuid}")
        return self._sm_counts[uuid]

    def _stray(self, pid: int) -> str:
        told = (environment_of(pid) or {}).get("CUDA_MPS_PIPE_DIRECTORY")
        pipe = Path(told) if told else self._default_pipe
        if (pipe / "control").is_socket():
            return f"process {pid} is a client of the MPS daemon in {pipe}, on a device that is not shared"
        return ""


LEAVE_S = 3.0
"""How long a client may take to be off its server."""
PROBE_SLOTS = 1
LOGS = "mps-logs"


class MpsSharing:
    def __init__(self, options: MpsOptions, now_s: Callable[[], float]) -> None:
        self._options = options
        self._now_s = now_s
        self._memo = Memo(StateDirectory(options.state_dir))
        self._proofs = Proofs(self._memo, options.sm_counts, options.probe_command, now_s)
        self._lock = threading.Lock()
        self._devices: dict[str, MpsDevice] = {}

    @property
    def state_lost(self) -> str:
        """Why the state file could not be read; empty when it could."""
        return self._memo.lost

    def open(self, uuid: str) -> None:
        """See to it that the daemon runs, has a server that takes clients, and holds what was granted. Raises
        SharingError, also while it is still starting: then try again.
        """
        self._device(uuid).open()

    def shut(self, uuid: str) -> None:
        """End the daemon and remove its pipe directory. Raises BusyError while it has clients or parts are granted."""
        device = self._device(uuid)
        granted = self._memo.orders(uuid)
        if granted:
            raise BusyError(f"{uuid} is still granted to {granted[0].worker}")
        clients = device.clients()
        if clients and not any(identify(client.pid) for client in clients):
            # A server hears a moment later than this host that a client has ended.
            await_until(lambda: not device.clients(), LEAVE_S)
            clients = device.clients()
        if clients:
            raise BusyError(f"the daemon of {uuid} still has clients, such as process {clients[0].pid}")
        device.shut()

    def running(self, uuid: str) -> bool:
        return self._device(uuid).answers()

    def grant(self, order: ShareOrder) -> Mapping[str, str]:
        """Make room for a worker. Raises BusyError when no client slot is left, SharingError when the daemon is not
        well: a worker started then would run without its limits.
        """
        if not 1 <= order.share_pct_sm <= 100 or order.memory_mib_limit < 1:
            raise OutOfRangeError(f"no part of a device: {order.share_pct_sm} %, {order.memory_mib_limit} MiB")
        device = self._device(order.uuid)
        trouble, seat = device.trouble(now=True), device.seat
        if trouble or seat is None:
            raise SharingError(f"{order.uuid}: {trouble or DOWN}")
        self._take_slots(order)
        before = self._memo.order(order.worker)
        self._memo.put_order(order)
        try:
            device.hold()
        except DeviceError:
            if before is None:
                self._memo.forget_order(order.worker)
            else:
                self._memo.put_order(before)
            raise
        return seat.protocol.environment(seat.pipe, order)

    def check(self, order: ShareOrder, pids: tuple[int, ...]) -> ShareCheck:
        """Prove that a worker's processes have what was ordered. Pending as long as none of them is there, or the
        daemon or the probe cannot tell yet.
        """
        sm_count = self._memo.sm_count(order.uuid, order.share_pct_sm) or 0
        processes = tuple(filter(None, map(identify, pids)))
        if not processes:
            return ShareCheck(sm_count=sm_count, pending=True)
        if self._memo.order(order.worker) is None:
            # The file was lost, but here is the worker: what it has must be held again after the next crash. Where it
            # cannot be written down now, that is tried with the next check.
            with contextlib.suppress(SharingError):
                self._memo.put_order(order)
        try:
            return ShareCheck(sm_count=self._prove(order, processes))
        except BypassError as error:
            return ShareCheck(sm_count=sm_count, problem=str(error))
        except DeviceError:
            return ShareCheck(sm_count=sm_count, pending=True)

    def end_client(self, order: ShareOrder, pid: int) -> None:
        """Take a drained process off its server and wait until it is. Raises DeviceTimeoutError when it stays."""
        device = self._device(order.uuid)
        client = _client(device, pid)
        if client is None:
            return
        try:
            device.terminate(client)
        except SharingError:
            if _client(device, pid) is not None:
                raise
        if not await_until(lambda: _client(device, pid) is None, LEAVE_S):
            raise DeviceTimeoutError(f"process {pid} is still a client {LEAVE_S:.0f} s after it was told to leave")

    def revoke(self, order: ShareOrder) -> None:
        """Forget a worker's part. What the daemon cannot drop at once is dropped when limits are next held."""
        self._memo.forget_order(order.worker)
        self._proofs.forget(order.worker)
        device = self._device(order.uuid)
        if device.lives:
            with contextlib.suppress(DeviceError):
                device.hold()

    def problem(self, uuid: str) -> str:
        device = self._device(uuid)
        return device.trouble() if self._memo.daemon(uuid) is not None else ""

    def close(self) -> None:
        """Daemons and clients go on."""
        with self._lock:
            self._devices.clear()

    def _device(self, uuid: str) -> MpsDevice:
        options = self._options
        if uuid not in options.sm_counts:
            raise NotFoundError(f"there is no device {uuid}")
        with self._lock:
            if uuid not in self._devices:
                logs = options.state_dir / LOGS
                daemon = DaemonProcess(
                    uuid, options.control_binary, options.pipe_base, logs, many_users=options.many_users
                )
                self._devices[uuid] = MpsDevice(daemon, self._memo, options.protocol, self._now_s)
            return self._devices[uuid]

    def _prove(self, order: ShareOrder, processes: tuple[ProcessId, ...]) -> int:
        seat = self._device(order.uuid).seat
        if seat is None:
            raise BypassError(DOWN)
        return self._proofs.prove(order, processes, seat)

    def _take_slots(self, order: ShareOrder) -> None:
        """Refuse a worker that leaves no slot for the probe. The shadow of a worker counts like any other."""
        others = [other for other in self._memo.orders(order.uuid) if other.worker != order.worker]
        there_are = self._options.client_slots.get(order.uuid, 0)
        taken = sum(map(_slots, others)) + PROBE_SLOTS
        if taken + _slots(order) > there_are:
            raise BusyError(f"{order.worker} takes {_slots(order)} client slots; {taken} of {there_are} are taken")


def _client(device: MpsDevice, pid: int) -> MpsClient | None:
    return next((client for client in device.clients() if client.pid == pid), None)


def _slots(order: ShareOrder) -> int:
    """Room for clients that a worker takes: one per process, more where it asks for more connections than usual."""
    return order.processes_max * max(1, -(-order.connections // CONNECTIONS))
