"""Messages between control plane and agents: plain frozen records, standard library only, the single page of `agents`
that `app` may import; it validates what it receives with them. What a node is told, what agents and gateways send.

Times are seconds since the epoch as the sender's clock shows them; intervals come from monotonic clocks. In what is
read a flag is no number, a text none either; a whole number may stand for a fraction. Unknown fields are refused.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, dataclass_transform

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PROTOCOL_VERSION, OVERLAP = 1, "overlap"
"""OVERLAP is a capability of devices whose agent lets replicas retire beside shares that are all given away."""
READS, HISTORY, AUTHORITY = "Headroom-Reads", "history", "Headroom-Authority"
"""A header of requests for a target, its value where an agent reads epochs; one of answers: the signer by digest."""
NUMBER_MAX = 1e15
"""No number of a report is larger, where nothing else is said: sums of many are finite as well."""
T = TypeVar("T")
_STEERING = re.compile(
    # The loader and the C library; shells; interpreters and virtual machines; libraries that load others by name.
    r"LD_.*|GLIBC_TUNABLES|MALLOC_.*|GCONV_PATH|GETCONF_DIR|LOCPATH|N(LS|IS_)PATH|TZDIR|HOSTALIASES|LOCALDOMAIN"
    r"|RES_OPTIONS|RESOLV_HOST_CONF|PATH|HOME|ENV|BASH.*|SHELLOPTS|PS4|IFS|CDPATH|ZDOTDIR|PYTHON.*|PERL.*|RUBY.*|LUA_.*"
    r"|GEM_(HOME|PATH)|NODE_(OPTIONS|PATH)|PHPRC|PHP_INI_SCAN_DIR|R_(PROFILE|ENVIRON).*|JAVA_(HOME|TOOL_OPTIONS)"
    r"|_?JAVA_OPTIONS|JDK_JAVA_OPTIONS|CLASSPATH|DOTNET_.*|CORECLR_.*|OPENSSL_(CONF|MODULES|ENGINES)"
    r"|(CUDA|NVTX)_INJECTION.*|NCCL_.*PLUGIN|OMP_TOOL.*|OCL_ICD_.*|VK_.*"
)


def steers(variable: str) -> bool:
    """Whether a variable of this name has programs load, run or find other code than what they were started as."""
    return _STEERING.fullmatch(variable) is not None


# --- What a node is told


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
    """The process of a replica, as its workload describes it (`solvers.domain.worker`). None: as the adapter does."""

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
    from_files: tuple[tuple[str, str], ...] | None = None
    from_environment: tuple[tuple[str, str], ...] | None = None
    from_commands: tuple[tuple[str, str], ...] | None = None
    """More variables; the node alone knows what files hold, its agent's variables are, a program answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTarget:
    """A replica process to hold. What is here forces a new process when it changes, but for `batch`."""

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
    """All a node must hold, whole. Agents refuse generations older than theirs, older epochs and other clusters."""

    node: str
    generation: int
    plan: str | None
    devices: tuple[DeviceTarget, ...]
    governor: str = "morak"
    """Controller that moves batches and clocks inside their envelopes, where a device has none of its own."""
    cluster_id: str | None = None
    """Whose history this generation belongs to; told to agents that ask for it (`READS`), by servers that know."""
    epoch: int | None = None

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
    node waits for live replicas to leave; without, it refuses a device that has some."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """Somebody reads what a replica's processes write: so many lines first, then what comes."""

    request: int
    replica: str
    lines: int


# --- What agents and gateways send: who they are, what they saw, what they read back


@dataclass_transform(kw_only_default=True, frozen_default=True)
def _message(cls: type[T]) -> type[T]:
    made: Any = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    made.__pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}
    return cast("type[T]", made)


@_message
class DeviceInventory:
    """What an agent found at start. Capabilities map a verb (`set_clock`, `set_power`, `mps`, `mig`) to '' (works) or
    why it does not."""

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
    worker_host: str | None = None
    """Host under which processes of its replicas answer; None: that of the endpoint, or whence this node calls."""
    csr: str | None = None
    """A request (PEM) to sign this node's key; None where nobody would."""


@_message
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
class Report:
    """One node, one interval, everything. (node, boot_id, sequence) is unique; a retry repeats it. `cluster_id` and
    `epoch` are of the target whose generation was applied."""

    node: str
    boot_id: str
    sequence: int
    observed_at_s: float
    interval_s: float
    generation_applied: int
    devices: tuple[DeviceReport, ...]
    replicas: tuple[ReplicaReport, ...]
    cluster_id: str | None = None
    epoch: int | None = None


@_message
class DeviceReadBack:
    """What a device holds now, read from the device and its processes."""

    uuid: str
    mode: str
    clock_mhz_sm: int | None
    power_limit_w: float | None


@_message
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
    cluster_id: str | None = None
    """As in the target that is read back; of a refused one, as in the target that the node holds instead."""
    epoch: int | None = None


@_message
class LogPiece:
    """What came since the last piece of a request, or why nothing does."""

    lines: tuple[str, ...]
    problem: str | None = None


@_message
class RateSample:
    """Offered load of one service at the edge over an interval, whether or not anybody served it."""

    service: str
    """Id of the service (`project/name`)."""
    arrived: float
    interval_s: float
    unrouted: float = 0.0


@_message
class EdgeReport:
    """Offered load as a gateway (or the demo's traffic source) counts it. (gateway, boot_id, sequence) is unique."""

    gateway: str
    boot_id: str
    sequence: int
    observed_at_s: float
    samples: tuple[RateSample, ...]


# --- Writing and reading


def encode(message: DataclassInstance) -> dict[str, object]:
    """Plain JSON data. What later versions added is left out where it says nothing, for those who do not know of it."""
    return asdict(message, dict_factory=_told)


def _told(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return {name: value for name, value in pairs if name not in _ADDED or value is not None}


_ADDED = {"governor", "worker_host", "cluster_id", "epoch", "from_environment", "from_files", "from_commands", "csr"}
_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class WireError(ValueError):
    """A message that does not follow this package."""


def decode(kind: type[T], plain: object) -> T:
    """A record of this kind. Raises WireError naming the field."""
    return cast("T", _read(kind, plain, kind.__name__))


def decode_items(kind: type[T], plain: object) -> tuple[T, ...]:
    """The records that an answer lists as `items`; none where it is no object at all."""
    listed = _listed(tuple, (kind, ...), plain.get("items"), "items") if isinstance(plain, dict) else ()
    return cast("tuple[T, ...]", listed)


def mirrored(kind: type[T], /, *sources: object, **own: object) -> T:
    """A record of what the first of others holds under the same names, and of values of its own; no default counts."""
    known = cast("type", kind)
    for name in _fields(known).keys() - own.keys():
        holder = next((source for source in sources if hasattr(source, name)), None)
        if holder is None:
            raise TypeError(f"{kind.__name__}: nobody tells {name}")
        own[name] = getattr(holder, name)
    return kind(**own)


def _read(kind: object, plain: object, name: str) -> object:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (known,) = (each for each in inner if each is not types.NoneType)
        return None if plain is None else _read(known, plain, name)
    if origin in (tuple, frozenset):
        return _listed(origin, inner, plain, name)
    if origin is dict:
        if not isinstance(plain, dict):
            raise WireError(f"{name}: expected an object")
        return {_read(str, key, name): _read(inner[1], value, f"{name}/{key}") for key, value in plain.items()}
    assert isinstance(kind, type)
    if is_dataclass(kind):
        return _record(kind, plain)
    if issubclass(kind, Enum):
        try:
            return kind(plain)
        except ValueError:
            raise WireError(f"{name}: expected one of {', '.join(str(each.value) for each in kind)}") from None
    if kind is float and type(plain) is int and abs(plain) < 1e308:
        return float(plain)
    if type(plain) is not kind:
        raise WireError(f"{name}: expected {_WORDS[kind]}")
    return plain


def _listed(origin: object, inner: tuple[object, ...], plain: object, name: str) -> object:
    if not isinstance(plain, list | tuple):
        raise WireError(f"{name}: expected a list")
    if origin is frozenset:
        return frozenset(_read(inner[0], item, name) for item in plain)
    if inner[-1] is Ellipsis:
        return tuple(_read(inner[0], item, name) for item in plain)
    if len(plain) != len(inner):
        raise WireError(f"{name}: expected {len(inner)} items together")
    return tuple(_read(each, item, name) for each, item in zip(inner, plain, strict=True))


def _record(kind: type, plain: object) -> object:
    if not isinstance(plain, Mapping):
        raise WireError(f"{kind.__name__}: expected an object")
    known = _fields(kind)
    unknown = set(plain) - set(known)
    if unknown:
        raise WireError(f"{kind.__name__}: unknown fields {sorted(unknown)}")
    return kind(
        **{
            name: _read(form, plain.get(name), name)
            for name, (form, has_default) in known.items()
            if name in plain or not has_default
        }
    )


@cache
def _fields(kind: type) -> dict[str, tuple[object, bool]]:
    """The form of each field, and whether it has a default."""
    forms = typing.get_type_hints(kind)
    return {
        field.name: (forms[field.name], field.default is not MISSING or field.default_factory is not MISSING)
        for field in fields(kind)
    }
