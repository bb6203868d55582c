"""What the control plane tells a node to hold, and its strict decoding.

Owns the target records, down to how a replica's process is started. Fields that older control planes do not send take
their defaults; unknown ones are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.wire.fields import (
    WireError,
    flag_of,
    items_of,
    number_of,
    object_of,
    optional_number_of,
    optional_text_of,
    plain_text,
    text_of,
    whole_of,
)


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
        """Name of the controller of a device."""
        return device.governor or self.governor


def decode_node_target(plain: object) -> NodeTarget:
    """Strictly decode what an agent is told to hold."""
    top = object_of(plain, NodeTarget)
    return NodeTarget(
        node=text_of(top, "node"),
        generation=whole_of(top, "generation"),
        plan=optional_text_of(top, "plan"),
        devices=tuple(_decode_device(item) for item in items_of(top, "devices")),
        governor=text_of(top, "governor") if "governor" in top else "morak",
    )


def _decode_device(plain: object) -> DeviceTarget:
    item = object_of(plain, DeviceTarget)
    return DeviceTarget(
        uuid=text_of(item, "uuid"),
        mode=text_of(item, "mode"),
        clock_mhz_sm=None if item.get("clock_mhz_sm") is None else whole_of(item, "clock_mhz_sm"),
        power_limit_w=optional_number_of(item, "power_limit_w"),
        replicas=tuple(_decode_replica(replica) for replica in items_of(item, "replicas")),
        governor=optional_text_of(item, "governor"),
    )


def _decode_replica(plain: object) -> ReplicaTarget:
    item = object_of(plain, ReplicaTarget)
    return ReplicaTarget(
        replica=text_of(item, "replica"),
        kind=text_of(item, "kind"),
        workload=text_of(item, "workload"),
        project=text_of(item, "project"),
        model=text_of(item, "model"),
        share_pct_sm=whole_of(item, "share_pct_sm"),
        memory_mib_limit=whole_of(item, "memory_mib_limit"),
        batch=whole_of(item, "batch"),
        batch_min=whole_of(item, "batch_min"),
        batch_max=whole_of(item, "batch_max"),
        clock_mhz_sm_min=whole_of(item, "clock_mhz_sm_min"),
        clock_mhz_sm_max=whole_of(item, "clock_mhz_sm_max"),
        latency_ms_limit=optional_number_of(item, "latency_ms_limit"),
        launch_s=number_of(item, "launch_s"),
        iterations_total=None if item.get("iterations_total") is None else whole_of(item, "iterations_total"),
        iteration_ms_reference=optional_number_of(item, "iteration_ms_reference"),
        gpu_type_reference=optional_text_of(item, "gpu_type_reference"),
        latency_execution_only=flag_of(item, "latency_execution_only"),
        retire_after_s=optional_number_of(item, "retire_after_s"),
        worker=None if item.get("worker") is None else decode_worker(item["worker"]),
    )


def decode_worker(plain: object) -> WorkerTarget:
    """Strictly decode how a replica's process is started; fields that are missing take their defaults."""
    item = object_of(plain, WorkerTarget)
    warm_up, memory = item.get("warm_up"), item.get("host_memory_mib_max")
    return WorkerTarget(
        command=tuple(plain_text(part, "command") for part in items_of(item, "command")),
        environment=tuple(_variable(pair) for pair in (items_of(item, "environment") if "environment" in item else ())),
        working_directory=optional_text_of(item, "working_directory"),
        adapter=text_of(item, "adapter") if "adapter" in item else "http",
        batch_change=optional_text_of(item, "batch_change"),
        ready_path=optional_text_of(item, "ready_path"),
        metrics_path=optional_text_of(item, "metrics_path"),
        metrics_port_offset=whole_of(item, "metrics_port_offset") if "metrics_port_offset" in item else 0,
        warm_up=None if warm_up is None else _decode_warm_up(warm_up),
        drain_s=number_of(item, "drain_s") if "drain_s" in item else 30.0,
        stop_s=number_of(item, "stop_s") if "stop_s" in item else 10.0,
        host_memory_mib_max=None if memory is None else whole_of(item, "host_memory_mib_max"),
        processes_max=whole_of(item, "processes_max") if "processes_max" in item else 1,
    )


def _decode_warm_up(plain: object) -> WarmUpTarget:
    item = object_of(plain, WarmUpTarget)
    return WarmUpTarget(
        path=text_of(item, "path"),
        body=text_of(item, "body"),
        content_type=text_of(item, "content_type"),
        requests=whole_of(item, "requests"),
        timeout_s=number_of(item, "timeout_s"),
    )


def _variable(pair: object) -> tuple[str, str]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise WireError("environment: expected pairs of a name and a value")
    return plain_text(pair[0], "environment"), plain_text(pair[1], "environment")
