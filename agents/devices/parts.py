"""The parts of a real GPU host, each behind an interface of its own, so that each can be tested alone and replaced.

`Boards` reads the devices, `Setters` writes what is device-wide (it may live in a privileged process), `Sharing`
divides a device between processes, `Crew` owns worker processes. `agents.devices.nvidia` makes one `Devices` of them.
Units are in the names; all raise `agents.errors.DeviceError` and its kin; no call blocks for more than about ten
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from agents.devices.base import LogRead, WorkerReading, WorkerSample, WorkerSpec
from agents.wire import DeviceInventory


class ComputeMode(StrEnum):
    """Who may open a device: any process, no process, one process (with MPS, that is its server)."""

    DEFAULT = "default"
    PROHIBITED = "prohibited"
    EXCLUSIVE_PROCESS = "exclusive_process"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSettings:
    """Device-wide settings as read back. Drivers do not tell what clock was locked: it is the one asked for, unless
    what is read contradicts it (a clock above the lock), then None. None elsewhere: the driver's default.
    """

    clock_mhz_sm: int | None
    power_limit_w: float | None
    power_limit_w_enforced: float
    """The strictest of all sources, out-of-band management included."""
    compute_mode: ComputeMode
    persistence: bool | None
    """None where the driver has no such mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardReading:
    """A device at one moment. None: this device cannot tell."""

    uuid: str
    power_w: float | None
    energy_j_total: float | None
    """Since the driver was loaded: it may restart from 0."""
    utilisation_pct: float | None
    memory_mib_used: float
    clock_mhz_sm: int
    temperature_c: float | None
    throttle: str
    """Reasons why the clock is below the one asked for, comma-separated; empty when there are none."""
    healthy: bool
    problem: str = ""
    sm_activity_pct: float | None = None
    """From GPM, where there is such a thing: how much of the SMs really worked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process found on a device. `memory_mib` is None where the driver cannot tell."""

    pid: int
    memory_mib: float | None
    mps_client: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardEvent:
    """Something a device said by itself: an XID, an uncorrectable memory error, that it is gone."""

    uuid: str
    kind: str
    """xid, ecc_double_bit, ecc_single_bit, row_remap, unavailable, recovery_action"""
    detail: int
    at_s: float
    """Monotonic."""


class Boards(Protocol):
    """Reads the devices of a host. Needs no privilege."""

    def inventory(self) -> tuple[DeviceInventory, ...]:
        """The devices this agent may use, MIG devices as devices of their own. Does not change while it runs."""

    def settings(self, uuid: str) -> BoardSettings:
        """Read settings back."""

    def reading(self, uuid: str) -> BoardReading:
        """Read a device. Raises LostError when it is gone."""

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Every compute process on a device, whoever started it."""

    def events(self) -> tuple[BoardEvent, ...]:
        """What devices said since the last call."""

    def close(self) -> None:
        """Let go of the driver."""


SETTINGS = ("set_clock", "set_power", "set_compute_mode", "set_persistence")
"""What setters write, as inventories speak of it."""


class Setters(Protocol):
    """Writes what is device-wide. Each call checks the device's own bounds first and reads back what it can; None
    resets to the driver's default.
    """

    def lock_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        """Lock the SM clock. A lock is a request: power and heat may hold the clock lower."""

    def limit_power(self, uuid: str, power_limit_w: float | None) -> None:
        """Set the board's power limit."""

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Say who may open the device. Lost on reboot."""

    def set_persistence(self, uuid: str, on: bool) -> None:
        """Keep the driver's state without clients."""

    def refusals(self) -> Mapping[str, str]:
        """Why a setting cannot be written here, by its capability (`SETTINGS`); one that can is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOrder:
    """A worker's part of a device."""

    worker: str
    uuid: str
    share_pct_sm: int
    memory_mib_limit: int
    processes_max: int = 1
    """Processes that may use the device; each has the share and the limit for itself."""
    connections: int = 2
    """CUDA_DEVICE_MAX_CONNECTIONS of its environment, if it sets that: more than 2 take the room of more clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCheck:
    """What a worker's processes really have. `problem` is empty when share, memory limit and server are as ordered;
    otherwise the worker runs without its limits and must not stay.
    """

    sm_count: int
    problem: str = ""
    pending: bool = False
    """No process of the worker has opened the device yet, or nobody can tell now: there is no proof so far."""


class Sharing(Protocol):
    """Divides devices between processes: MPS in protocol 2 or 3, or nothing at all."""

    def open(self, uuid: str) -> None:
        """See to it that the device's daemon runs and holds what it shall; starts it, and replays after a crash. Quick
        when all is well. Raises SharingError.
        """

    def shut(self, uuid: str) -> None:
        """End the device's daemon. Raises BusyError while it has clients."""

    def running(self, uuid: str) -> bool:
        """Whether the device's daemon answers, this agent's or an earlier one's."""

    def grant(self, order: ShareOrder) -> Mapping[str, str]:
        """The environment in which a worker's process is bound to its part. Raises BusyError when no client slot is
        left.
        """

    def check(self, order: ShareOrder, pids: tuple[int, ...]) -> ShareCheck:
        """Prove that these processes, those of the worker that were found on the device, are on the device's server
        with share and memory limit as ordered. May be called every second: what is proved is not proved again.
        """

    def end_client(self, order: ShareOrder, pid: int) -> None:
        """Take a drained process off the server, so that killing it cannot wedge its neighbours. No error when it is
        no client any more.
        """

    def revoke(self, order: ShareOrder) -> None:
        """Forget a worker's part."""

    def problem(self, uuid: str) -> str:
        """What is wrong with the device's daemon (down, in fault), empty when nothing is."""

    def close(self) -> None:
        """Let go of the daemons; they and their clients go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewOrder:
    """A worker to launch. `environment` comes from `Sharing`, `device_memory_mib` sizes what is a fraction of it.
    `apart`: the memory it sees is its own limit, whatever others of its device take.
    """

    worker: str
    uuid: str
    spec: WorkerSpec
    environment: Mapping[str, str]
    device_memory_mib: int
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewReading:
    """A worker as the crew finds it. `reading.sm_count` is 0: the crew knows nothing of devices. `answering`: it
    answers readiness and warm-up; whether it counts as ready is decided with the sharing's check.
    """

    reading: WorkerReading
    pids: tuple[int, ...]
    answering: bool
    mark: str = ""
    """What its processes have in their environment, also those that are not among `pids`; empty where nothing is."""


class Crew(Protocol):
    """Worker processes of a host. They outlive the agent; another agent on the same state directory finds them."""

    def launch(self, order: CrewOrder) -> None:
        """Start a process and return at once. Raises WorkerError, NotSupportedError when the spec has no command."""

    def found(self) -> tuple[CrewReading, ...]:
        """Every worker, read back from its process. Dead ones are FAILED until they are ended."""

    def tune(self, worker: str, spec: WorkerSpec) -> None:
        """Hand a running worker another batch size or limit, as its adapter does that."""

    def drain(self, worker: str) -> None:
        """Take it out of the routes, let the routers learn of it, then have it finish what it has. Returns at once."""

    def end(self, worker: str, before_kill: Callable[[int], None]) -> None:
        """Begin to end it: SIGTERM, then after `stop_s` `before_kill(pid)` and SIGKILL. Returns at once; the worker is
        found until its last process is gone.
        """

    def samples(self) -> tuple[WorkerSample, ...]:
        """What every worker did since the last call, from its metrics; `energy_j` and `memory_mib_used` are 0 here."""

    def read_log(self, replica: str, lines: int, places: Mapping[str, int] | None) -> LogRead:
        """The last lines that a replica's workers wrote; with places, what came since."""

    def close(self) -> None:
        """Let go; workers go on."""
