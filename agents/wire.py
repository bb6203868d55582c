"""Messages between control plane and agents: plain frozen records, standard library only, the single module of
`agents` that `app` may import.

Owns field names, units and the strict decoding of what an agent receives. The control plane validates what it receives
with these same records at its edge. Times are seconds since the epoch as the sender's clock shows them; intervals come
from monotonic clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PROTOCOL_VERSION = 1


class WireError(ValueError):
    """A message that does not follow this module."""


T = TypeVar("T")


def _message(cls: type[T]) -> type[T]:
    marked: Any = cls
    marked.__pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}
    return cls


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInventory:
    """What an agent found at start. Capabilities map a verb (`set_clock`, `set_power`, `mps`, `mig`) to '' (works) or
    why it does not.
    """

    uuid: str
    gpu_type: str
    product: str
    index: int
    memory_mib: int
    sm_count: int
    clocks_mhz_sm: tuple[int, ...]
    power_limit_w_min: float
    power_limit_w_max: float
    parent_uuid: str | None = None
    mig_profile: str | None = None
    driver_version: str = ""
    capabilities: dict[str, str] | None = None


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """First message of an agent, sent with the join token. `boot_id` changes at every agent start."""

    node: str
    boot_id: str
    agent_version: str
    protocol_version: int
    rack: str
    failure_domain: str
    region: str
    endpoint: str | None
    """Base URL under which this node's replicas answer; None when nothing listens."""
    devices: tuple[DeviceInventory, ...]


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Answer to Join: the node's own token and its intervals."""

    node: str
    token: str
    report_interval_s: float
    generation: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTarget:
    """One device's settings and replicas. None leaves the driver's default."""

    uuid: str
    mode: str
    clock_mhz_sm: int | None
    power_limit_w: float | None
    replicas: tuple[ReplicaTarget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTarget:
    """All a node must hold, whole. Older generations than the one applied are refused by the agent."""

    node: str
    generation: int
    plan: str | None
    devices: tuple[DeviceTarget, ...]


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """One device over one interval."""

    uuid: str
    power_w: float
    energy_j: float
    """Energy used in this interval."""
    utilisation_pct: float
    memory_mib_used: float
    clock_mhz_sm: int
    temperature_c: float | None = None
    share_pct_sm_total: int = 0
    throttle: str = ""
    healthy: bool = True


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """One process of a replica over one interval; a replica and its shadow are two of them, and one that ended within
    the interval appears once more. Latencies are end to end; None when nothing finished. `executions` are batches of
    `batch_mean` requests on average, and `execution_ms_mean` what one of them took without any waiting; None when
    none was executed, or when the back end cannot tell. `held_s` is how long it held its share. Requests are
    conserved: queue before + arrived = completed + dropped + queue after. `violated` are those completed later than
    the limit; `dropped` were given up because they would have been late, and are not in `violated`.
    `iterations_done` are those of this interval (jobs), or inputs (tasks).
    """

    replica: str
    kind: str
    workload: str
    project: str
    model: str
    uuid: str
    state: str
    share_pct_sm: int
    sm_count: int
    memory_mib_limit: int
    memory_mib_used: float
    batch: int
    held_s: float
    arrived: float
    completed: float
    violated: float
    dropped: float
    queue_length: float
    batch_mean: float
    latency_ms_p50: float | None = None
    latency_ms_p95: float | None = None
    latency_ms_p99: float | None = None
    energy_j: float = 0.0
    iterations_done: int | None = None
    executions: float = 0.0
    execution_ms_mean: float | None = None


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One node, one interval, everything: devices and replicas in one message. (node, boot_id, sequence) is unique; a
    retry repeats it.
    """

    node: str
    boot_id: str
    sequence: int
    observed_at_s: float
    interval_s: float
    generation_applied: int
    devices: tuple[DeviceReport, ...]
    replicas: tuple[ReplicaReport, ...]


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReadBack:
    """What a device holds now, read from the device and its processes, not from memory of what was asked."""

    uuid: str
    mode: str
    clock_mhz_sm: int | None
    power_limit_w: float | None


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReadBack:
    """A replica as found running."""

    replica: str
    uuid: str
    share_pct_sm: int
    sm_count: int
    memory_mib_limit: int
    batch: int
    ready: bool


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReceipt:
    """How far a node got with a generation: outcome applied, partial or refused, and what it reads back."""

    node: str
    boot_id: str
    generation: int
    plan: str | None
    outcome: str
    observed_at_s: float
    elapsed_ms: float
    devices: tuple[DeviceReadBack, ...]
    replicas: tuple[ReplicaReadBack, ...]
    problems: tuple[str, ...] = ()


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class RateSample:
    """Offered load of one service at the edge over an interval, whether or not anybody served it."""

    service: str
    """`project/name`."""
    arrived: float
    interval_s: float
    unrouted: float = 0.0


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeReport:
    """Offered load as a gateway (or the demo's traffic source) counts it. (gateway, boot_id, sequence) is unique."""

    gateway: str
    boot_id: str
    sequence: int
    observed_at_s: float
    samples: tuple[RateSample, ...]


def encode(message: DataclassInstance) -> dict[str, object]:
    """Plain JSON data of a message."""
    return asdict(message)


def decode_node_target(plain: object) -> NodeTarget:
    """Strictly decode what an agent is told to hold."""
    top = _object(plain, NodeTarget)
    return NodeTarget(
        node=_text(top, "node"),
        generation=_whole(top, "generation"),
        plan=_optional_text(top, "plan"),
        devices=tuple(_decode_device(item) for item in _items(top, "devices")),
    )


def _decode_device(plain: object) -> DeviceTarget:
    item = _object(plain, DeviceTarget)
    return DeviceTarget(
        uuid=_text(item, "uuid"),
        mode=_text(item, "mode"),
        clock_mhz_sm=None if item.get("clock_mhz_sm") is None else _whole(item, "clock_mhz_sm"),
        power_limit_w=_optional_number(item, "power_limit_w"),
        replicas=tuple(_decode_replica(replica) for replica in _items(item, "replicas")),
    )


def _decode_replica(plain: object) -> ReplicaTarget:
    item = _object(plain, ReplicaTarget)
    return ReplicaTarget(
        replica=_text(item, "replica"),
        kind=_text(item, "kind"),
        workload=_text(item, "workload"),
        project=_text(item, "project"),
        model=_text(item, "model"),
        share_pct_sm=_whole(item, "share_pct_sm"),
        memory_mib_limit=_whole(item, "memory_mib_limit"),
        batch=_whole(item, "batch"),
        batch_min=_whole(item, "batch_min"),
        batch_max=_whole(item, "batch_max"),
        clock_mhz_sm_min=_whole(item, "clock_mhz_sm_min"),
        clock_mhz_sm_max=_whole(item, "clock_mhz_sm_max"),
        latency_ms_limit=_optional_number(item, "latency_ms_limit"),
        launch_s=_number(item, "launch_s"),
        iterations_total=None if item.get("iterations_total") is None else _whole(item, "iterations_total"),
        iteration_ms_reference=_optional_number(item, "iteration_ms_reference"),
        gpu_type_reference=_optional_text(item, "gpu_type_reference"),
        latency_execution_only=_yes_or_no(item, "latency_execution_only"),
        retire_after_s=_optional_number(item, "retire_after_s"),
    )


def _object(plain: object, kind: type) -> Mapping[str, object]:
    if not isinstance(plain, dict):
        raise WireError(f"{kind.__name__}: expected an object")
    unknown = set(plain) - {field.name for field in fields(kind)}
    if unknown:
        raise WireError(f"{kind.__name__}: unknown fields {sorted(unknown)}")
    return plain


def _items(item: Mapping[str, object], name: str) -> list[object]:
    found = item.get(name)
    if not isinstance(found, list):
        raise WireError(f"{name}: expected a list")
    return found


def _text(item: Mapping[str, object], name: str) -> str:
    found = item.get(name)
    if isinstance(found, Enum) or not isinstance(found, str):
        raise WireError(f"{name}: expected text")
    return found


def _yes_or_no(item: Mapping[str, object], name: str) -> bool:
    found = item.get(name, False)
    if not isinstance(found, bool):
        raise WireError(f"{name}: expected true or false")
    return found


def _optional_text(item: Mapping[str, object], name: str) -> str | None:
    return None if item.get(name) is None else _text(item, name)


def _whole(item: Mapping[str, object], name: str) -> int:
    found = item.get(name)
    if isinstance(found, bool) or not isinstance(found, int):
        raise WireError(f"{name}: expected a whole number")
    return found


def _number(item: Mapping[str, object], name: str) -> float:
    found = item.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise WireError(f"{name}: expected a number")
    return float(found)


def _optional_number(item: Mapping[str, object], name: str) -> float | None:
    return None if item.get(name) is None else _number(item, name)
