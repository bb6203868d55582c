"""What agents and gateways send: who they are, what they saw, what they read back.

The control plane validates what it receives with these same records at its edge. Times are seconds since the epoch as
the sender's clock shows them; intervals come from monotonic clocks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PROTOCOL_VERSION = 1

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
    endpoint: str | None = None
    """Base URL of this very process; None where replicas answer under the node's endpoint."""


@_message
@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionReport:
    """What the controller of a device asks for after bad periods in a row: more share for a replica, from a donor or
    from what is free, or, where power is the cause, a replica less.
    """

    uuid: str
    cause: str
    replica: str
    donor: str | None
    share_pct_sm: int


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
    wishes: tuple[RepartitionReport, ...] = ()


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
    """Plain JSON data of a message. A device without a controller of its own says nothing of it, so that agents that do
    not know of such a thing read it too.
    """
    return asdict(message, dict_factory=_told)


def _told(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return {name: value for name, value in pairs if name != "governor" or value is not None}
