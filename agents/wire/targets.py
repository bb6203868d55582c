"""What the control plane tells a node: what to hold, down to how a replica's process is started, and what to measure.

A field without a default may be None only where its type says so; an older control plane need not send it then.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpTarget:
    """Requests a new worker must answer before it is ready: POST with a body, GET without."""

    path: str
    body: str
    content_type: str
    requests: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTarget:
    """The process of a replica, as its workload describes it (`solvers.domain.worker`). None leaves it to the
    adapter.
    """

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    working_directory: str | None = None
    adapter: str = "http"
    batch_change: str | None = None
    ready_path: str | None = None
    metrics_path: str | None = None
    metrics_port_offset: int = 0
    warm_up: WarmUpTarget | None = None
    drain_s: float = 30.0
    stop_s: float = 10.0
    host_memory_mib_max: int | None = None
    processes_max: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTarget:
    """A replica process to hold. Everything that forces a new process when it changes is here with `batch`, which does
    not.
    """

    replica: str
    kind: str
    workload: str
    project: str
    model: str
    share_pct_sm: int
    memory_mib_limit: int
    batch: int
    batch_min: int
    batch_max: int
    clock_mhz_sm_min: int
    clock_mhz_sm_max: int
    latency_ms_limit: float | None
    launch_s: float
    iterations_total: int | None = None
    """Iterations of a job, or inputs of a task, after which the replica idles; None: no end."""
    iteration_ms_reference: float | None = None
    gpu_type_reference: str | None = None
    """The GPU type whose whole `iteration_ms_reference` was measured on; None: that of the replica's own device."""
    latency_execution_only: bool = False
    """Whether the latency limit counts the execution of a request's batch alone, without waiting."""
    retire_after_s: float | None = None
    """None: hold it. Else it is on its way out: if it runs, it may go on for so long after the target was accepted,
    unless its room is needed; it is never started."""
    worker: WorkerTarget | None = None
    """None where the workload describes no process; only simulated devices can hold it then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTarget:
    """One device's settings and replicas. None leaves the driver's default."""

    uuid: str
    mode: str
    clock_mhz_sm: int | None
    power_limit_w: float | None
    replicas: tuple[ReplicaTarget, ...]
    governor: str | None = None
    """Its own controller; None: the node's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTarget:
    """All a node must hold, whole. Older generations than the one applied are refused by the agent."""

    node: str
    generation: int
    plan: str | None
    devices: tuple[DeviceTarget, ...]
    governor: str = "morak"
    """Name of the controller that moves batches and clocks inside their envelopes (`solvers.control`), where a device
    has none of its own.
    """

    def governor_of(self, device: DeviceTarget) -> str:
        return device.governor or self.governor


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSubject:
    """A service whose process is measured."""

    service: str
    project: str
    model: str
    launch_s: float
    worker: WorkerTarget | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOrder:
    """A run: measure `subject` on a device for at most `budget_s`, alone or `beside` another service. With `drain` the
    node waits for the device's live replicas to leave; without, it refuses a device that has some.
    """

    run: int
    uuid: str
    subject: ProfileSubject
    beside: ProfileSubject | None
    budget_s: float
    drain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePointAsked:
    """A configuration to measure; `clock_mhz_sm` None is the device's highest."""

    batch: int
    share_pct_sm: int
    clock_mhz_sm: int | None
