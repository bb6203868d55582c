"""What an agent can read from and do to the GPUs of its host, whatever drives them.

Units are in the names. Facts of real back ends that shaped it:

* the share and memory limit of a running MPS client cannot change, so there is `start` and `stop` but no resize:
  whoever wants another size starts a second worker of the same replica (a shadow) and stops the first. Only what a
  process can take over live (batch, latency limit) has a verb, `tune`;
* a set value is a request: nothing is believed until it is read back (`settings`, `workers`), and reads come from the
  device and its processes, not from the memory of what was asked;
* shares are ceilings in percent, rounded to whole SMs; the worker's reading says how many SMs it really got;
* workers are processes of their own: they outlive the agent that started them;
* clocks and power limits are device-wide, need privilege, and are lost on reboot. Each verb's capability comes with a
  reason why it does not work, so that planners do not ask for what a host cannot do;
* energy counters restart with the driver, so `collect` answers joules of an interval, never a running total.

Verbs raise `agents.errors.DeviceError` and its kin. They may be called from any thread: whoever measures on a device
and whoever applies targets use the same ones. Calls take milliseconds, for a start or stop only begins things.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from agents.wire import DeviceInventory, ReplicaTarget, WorkerTarget

P = ParamSpec("P")
R = TypeVar("R")


class Mode(StrEnum):
    MPS = "mps"
    DEDICATED = "dedicated"
    TIME_SLICED = "time_sliced"


class WorkerState(StrEnum):
    """Life of a worker process. A draining worker takes no new requests but still holds its share and memory."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


MEASURED = "profile"
"""The kind of what a profile run starts: it takes requests as a service's worker does, but those are no traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker as it is asked for. `batch`, `latency_ms_limit` and what that counts can be changed while it runs; all
    else is fixed at start.
    """

    replica: str
    kind: str
    workload: str
    project: str
    model: str
    share_pct_sm: int
    memory_mib_limit: int
    batch: int
    latency_ms_limit: float | None = None
    launch_s: float = 0.0
    """How long its owner expects it to take until ready."""
    iterations_total: int | None = None
    iteration_ms_reference: float | None = None
    gpu_type_reference: str | None = None
    latency_execution_only: bool = False
    """Whether the latency limit counts the execution of a request's batch alone, without waiting."""
    worker: WorkerTarget | None = None
    """How its process is started; None where the workload does not say, then only simulated devices can hold it."""

    @property
    def takes_requests(self) -> bool:
        """Jobs and tasks work by themselves."""
        return self.kind in ("service", MEASURED)

    def tuned_as(self, wanted: WorkerSpec) -> WorkerSpec:
        """This worker with everything of another that can be changed while it runs."""
        return replace(
            self,
            batch=wanted.batch,
            latency_ms_limit=wanted.latency_ms_limit,
            latency_execution_only=wanted.latency_execution_only,
        )


def held_pct_sm(spec: WorkerSpec | ReplicaTarget) -> int:
    """Share of the device that a worker takes: each of its processes has the share to itself."""
    return spec.share_pct_sm * _processes(spec)


def needed_pct_sm(held: Iterable[tuple[str, int]], staying: Collection[str]) -> int:
    """Share of the device that those of these workers need, each told by replica and share, whose replicas stay. Shares
    are ceilings: of one replica's workers one serves while the other begins or drains, so the largest counts.
    """
    most: dict[str, int] = {}
    for replica, share_pct in held:
        most[replica] = max(share_pct, most.get(replica, 0))
    return sum(share_pct for replica, share_pct in most.items() if replica in staying)


def held_mib(spec: WorkerSpec | ReplicaTarget) -> int:
    """Memory of the device that a worker may take: each of its processes has the limit to itself."""
    return spec.memory_mib_limit * _processes(spec)


def _processes(spec: WorkerSpec | ReplicaTarget) -> int:
    return 1 if spec.worker is None else spec.worker.processes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReading:
    worker: str
    """Names the process; a replica and its shadow have different ones. Later workers sort after earlier ones."""
    uuid: str
    spec: WorkerSpec
    sm_count: int
    state: WorkerState
    state_s: float
    """Seconds it has been in this state."""
    drained: bool
    """Draining, and nothing waits or executes any more."""
    endpoint: str | None = None
    """Base URL of this very process; None where it has none of its own."""
    problem: str = ""
    """Why it failed, or what keeps it from being ready."""
    stalled: str = ""
    """That it runs and does nothing, as far as it tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """Device-wide settings as read back. None: what the device had before an agent wrote to it."""

    uuid: str
    mode: Mode
    clock_mhz_sm: int | None
    power_limit_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSample:
    """What a worker did since the last `collect`. Counts are requests, `executions` batches; latencies are end to end,
    `execution_ms_mean` is that of one batch alone.
    """

    reading: WorkerReading
    gone: bool
    """It ended during the interval; this is its last sample."""
    held_s: float
    memory_mib_used: float
    arrived: float = 0.0
    completed: float = 0.0
    violated: float = 0.0
    dropped: float = 0.0
    queue_length: float = 0.0
    batch_mean: float = 0.0
    latency_ms_p50: float | None = None
    latency_ms_p95: float | None = None
    latency_ms_p99: float | None = None
    energy_j: float = 0.0
    iterations_done: int | None = None
    executions: float = 0.0
    execution_ms_mean: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """What a device did since the last `collect`, with all workers it had in that time."""

    uuid: str
    power_w: float
    energy_j: float
    utilisation_pct: float
    memory_mib_used: float
    clock_mhz_sm: int
    temperature_c: float | None
    throttle: str
    """Why the clock is below the one asked for; empty when it is not."""
    healthy: bool
    workers: tuple[WorkerSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """Lines that a replica's workers wrote, how far each worker was read, and why there are none."""

    lines: tuple[str, ...] = ()
    places: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None


class Devices(Protocol):
    def inventory(self) -> tuple[DeviceInventory, ...]:
        """What there is; does not change while the agent runs."""

    def settings(self, uuid: str) -> DeviceSettings:
        """Read back a device's settings."""

    def workers(self) -> tuple[WorkerReading, ...]:
        """Read back every worker process found, also those of an earlier agent."""

    def set_mode(self, uuid: str, mode: Mode) -> None:
        """Change how workers share the device. Raises BusyError while it has workers."""

    def set_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        """Lock the SM clock to a value of the device's table, or reset it."""

    def set_power_limit(self, uuid: str, power_limit_w: float | None) -> None:
        """Set the board's power limit within its constraints, or reset it."""

    def start(self, uuid: str, spec: WorkerSpec) -> str:
        """Launch a worker and return its name at once; it is STARTING until it reads back READY. Raises BusyError when
        the share or the client slots of the device do not suffice, OutOfMemoryError when its memory does not.
        """

    def tune(self, worker: str, spec: WorkerSpec) -> None:
        """Hand a running worker the batch and latency limit of `spec`."""

    def drain(self, worker: str) -> None:
        """Send it no new requests; it finishes what it has."""

    def stop(self, worker: str) -> None:
        """End the process and free what it held; also one that has not drained."""

    def collect(self) -> tuple[DeviceSample, ...]:
        """What every device and worker did since the last call."""

    def problems(self) -> tuple[str, ...]:
        """What an operator must know of the devices now, beside failing verbs: foreign processes, limits that nobody
        enforces, devices that need a reset. In a stable order, without anything that changes by the second. Quick.
        """

    def read_log(self, replica: str, lines: int, places: Mapping[str, int] | None) -> LogRead:
        """The last lines that a replica's workers wrote; with places, what came since. Quick."""

    def restore(self) -> None:
        """Give every device the clocks, power limit and compute mode it had before."""

    def close(self) -> None:
        """Let go of the devices; workers go on."""


class HasLock(Protocol):
    lock: threading.RLock


H = TypeVar("H", bound=HasLock)


def one_at_a_time(verb: Callable[Concatenate[H, P], R]) -> Callable[Concatenate[H, P], R]:
    """Have a verb wait for the one before it."""

    @wraps(verb)
    def waiting(devices: H, /, *arguments: P.args, **named: P.kwargs) -> R:
        with devices.lock:
            return verb(devices, *arguments, **named)

    return waiting


class Reservations:
    """Which devices are lent to a profile run, and whether their owner wants them back: the hand-shake between the
    thread that applies targets, which leaves a lent device alone and claims it when the target puts replicas there, and
    the one that measures, which then ends its run and gives the device back. Safe from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: set[str] = set()
        self._claimed: set[str] = set()
        self.when_back: Callable[[], None] = lambda: None
        """Called after a device was given back."""

    def lend(self, uuid: str) -> bool:
        """Lend a device; False when it is lent already."""
        with self._lock:
            if uuid in self._lent:
                return False
            self._lent.add(uuid)
            return True

    def give_back(self, uuid: str) -> None:
        """The run is over and has cleaned up."""
        with self._lock:
            self._lent.discard(uuid)
            self._claimed.discard(uuid)
        self.when_back()

    def is_lent(self, uuid: str) -> bool:
        with self._lock:
            return uuid in self._lent

    def claim(self, uuid: str) -> None:
        """The target wants the device: the run on it shall end."""
        with self._lock:
            if uuid in self._lent:
                self._claimed.add(uuid)

    def is_claimed(self, uuid: str) -> bool:
        with self._lock:
            return uuid in self._claimed
