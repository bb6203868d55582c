"""The work: model variants, services with their SLOs, training jobs, offline tasks.

Owns what users declare and the checks that keep impossible wishes out (latency 0, negative rates, NaN, a floor above
its ceiling). It refuses to know where anything runs.
"""

from __future__ import annotations

from enum import StrEnum

from solvers.domain.device import Taint
from solvers.domain.ids import GpuTypeName, JobId, ModelName, PolicyName, ProjectName, ServiceId, TaskId
from solvers.domain.profile import TokenLengths
from solvers.domain.value import (
    check_distinct,
    check_name,
    check_not_negative,
    check_positive,
    check_range,
    check_text,
    late,
    value,
)
from solvers.domain.worker import WorkerCommand
from solvers.errors import FieldError


class QualityClass(StrEnum):
    """Place of a variant in its family."""

    HIGH = "high"
    LOW = "low"


@value
class LayerCount:
    """How often one kind of layer occurs in a network."""

    kind: str
    count: int

    def __post_init__(self) -> None:
        check_name("kind", self.kind)
        check_not_negative("count", self.count)


@value
class ModelVariant:
    """One network as it is deployed."""

    name: ModelName
    family: str
    parameters_million: float
    memory_mib_weights: float
    memory_mib_per_input: float = 0.0
    gflop_per_input: float | None = None
    quality_class: QualityClass = QualityClass.HIGH
    accuracy_pct: float | None = None
    compute_memory_ratio: float | None = None
    layers: tuple[LayerCount, ...] = ()
    launch_s: float = 10.0
    kv_cache_mib_per_token: float | None = None

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_name("family", self.family)
        check_positive("parameters_million", self.parameters_million)
        check_positive("memory_mib_weights", self.memory_mib_weights)
        check_not_negative("memory_mib_per_input", self.memory_mib_per_input)
        check_positive("gflop_per_input", self.gflop_per_input)
        check_range("accuracy_pct", self.accuracy_pct, 0, 100)
        check_not_negative("compute_memory_ratio", self.compute_memory_ratio)
        check_not_negative("launch_s", self.launch_s)
        check_positive("kv_cache_mib_per_token", self.kv_cache_mib_per_token)
        check_distinct("layers", (layer.kind for layer in self.layers))


class SloKind(StrEnum):
    """What is promised: request latency, token latencies, a deadline, or a minimum throughput."""

    LATENCY = "latency"
    TOKENS = "tokens"
    DEADLINE = "deadline"
    THROUGHPUT = "throughput"


class SloScope(StrEnum):
    """What a latency covers: the request end to end, or the execution alone."""

    END_TO_END = "end_to_end"
    EXECUTION = "execution"


_SLO_FIELDS = {
    SloKind.LATENCY: ("latency_ms",),
    SloKind.TOKENS: ("first_token_ms", "inter_token_ms"),
    SloKind.DEADLINE: ("deadline_s",),
    SloKind.THROUGHPUT: ("throughput_rps_min",),
}


@value
class Slo:
    """A service-level objective. Exactly the fields of its kind are set; percentile is in percent (99 = p99)."""

    kind: SloKind = SloKind.LATENCY
    latency_ms: float | None = None
    percentile: float = 99.0
    scope: SloScope = SloScope.END_TO_END
    first_token_ms: float | None = None
    inter_token_ms: float | None = None
    deadline_s: float | None = None
    throughput_rps_min: float | None = None

    def __post_init__(self) -> None:
        check_range("percentile", self.percentile, 1, 100)
        for kind, fields in _SLO_FIELDS.items():
            for field in fields:
                number: float | None = getattr(self, field)
                check_positive(field, number)
                if kind is self.kind and number is None:
                    raise FieldError(field, f"an SLO of kind {self.kind.value} needs {field}")
                if kind is not self.kind and number is not None:
                    raise FieldError(field, f"an SLO of kind {self.kind.value} has no {field}")


class ServiceMode(StrEnum):
    """How far Headroom may go: not at all, plan only, plan and ask, plan and act."""

    OFF = "off"
    SHADOW = "shadow"
    APPROVE = "approve"
    AUTO = "auto"


class AntiAffinity(StrEnum):
    """Whether two replicas of one service may share a device: never, unwillingly, freely."""

    HARD = "hard"
    SOFT = "soft"
    OFF = "off"


@value
class Affinity:
    """Neighbour rules of a service. `avoid_services` are ids that must not share a device with it."""

    anti_affinity: AntiAffinity = AntiAffinity.HARD
    avoid_services: tuple[ServiceId, ...] = ()
    dedicated: bool = False
    failure_domains_min: int = 1

    def __post_init__(self) -> None:
        check_distinct("avoid_services", self.avoid_services)
        check_range("failure_domains_min", self.failure_domains_min, 1, 64)


@value
class Service:
    """An inference offering: a model variant, its SLO, its expected traffic and how Headroom may treat it."""

    project: ProjectName
    name: str
    model: ModelName
    slo: Slo
    rate_rps_declared: float
    class_lambda: float = 0.9
    priority: int = 100
    replicas_min: int = 1
    replicas_max: int = 16
    gpu_types_allowed: tuple[GpuTypeName, ...] = ()
    alternatives: tuple[ModelName, ...] = ()
    accuracy_pct_min: float | None = None
    affinity: Affinity = Affinity()
    tolerations: tuple[Taint, ...] = ()
    budget_usd_per_h: float | None = None
    mode: ServiceMode = ServiceMode.AUTO
    policy: PolicyName | None = None
    """Who plans it, on the devices of that policy's pool; None: the default policy."""
    tokens: TokenLengths | None = None
    """For an SLO of kind `tokens`; without it such a service cannot be planned."""
    worker: WorkerCommand | None = None
    """The process of a replica; needed on real GPU hosts, not read by simulated ones."""

    def __post_init__(self) -> None:
        check_name("project", self.project)
        check_name("name", self.name)
        check_name("model", self.model)
        check_not_negative("rate_rps_declared", self.rate_rps_declared)
        check_range("rate_rps_declared", self.rate_rps_declared, 0, 1e9)
        check_range("class_lambda", self.class_lambda, 0, 0.999999)
        check_range("priority", self.priority, 0, 1000)
        check_range("replicas_min", self.replicas_min, 0, 1024)
        check_range("replicas_max", self.replicas_max, 1, 1024)
        if self.replicas_min > self.replicas_max:
            raise FieldError("replicas_min", "replicas_min must not exceed replicas_max")
        check_range("accuracy_pct_min", self.accuracy_pct_min, 0, 100)
        check_positive("budget_usd_per_h", self.budget_usd_per_h)
        check_distinct("gpu_types_allowed", self.gpu_types_allowed)
        check_distinct("alternatives", self.alternatives)
        if self.tokens is not None and self.slo.kind is not SloKind.TOKENS:
            raise FieldError("tokens", f"a service with an SLO of kind {self.slo.kind.value} has no tokens")
        if self.id in self.affinity.avoid_services:
            raise FieldError("affinity", "a service cannot avoid itself; use anti_affinity")

    @property
    def id(self) -> ServiceId:
        """`project/name`."""
        return ServiceId(f"{self.project}/{self.name}")

    @property
    def latency_critical(self) -> bool:
        """Class LC (λ above 0.5) rather than throughput-oriented."""
        return self.class_lambda > 0.5


@value
class TrainingJob:
    """An iterative job that may fill spare share. Times are for the whole of the named reference GPU type."""

    project: ProjectName
    name: str
    model: ModelName
    iterations_total: int
    iteration_ms_reference: float
    gpu_type_reference: GpuTypeName
    memory_mib: int
    memory_mib_resident_min: int | None = late(None)
    """How much of it must be on the device at least, for a program that keeps the rest on its host and moves it by
    itself, within whatever memory limit it is given. None: all of it.
    """
    share_pct_sm_min: int = 10
    share_pct_sm_max: int = 100
    gpu_types_allowed: tuple[GpuTypeName, ...] = ()
    priority: int = 10
    value_usd_per_h: float = 0.0
    evictions_max: int = 100
    tolerations: tuple[Taint, ...] = ()
    mode: ServiceMode = ServiceMode.AUTO
    worker: WorkerCommand | None = None
    policy: PolicyName | None = late(None)
    """Who plans it, on the devices of that policy's pool; None: the default policy."""

    def __post_init__(self) -> None:
        check_name("project", self.project)
        check_name("name", self.name)
        check_name("model", self.model)
        check_name("gpu_type_reference", self.gpu_type_reference)
        check_positive("iterations_total", self.iterations_total)
        check_positive("iteration_ms_reference", self.iteration_ms_reference)
        check_positive("memory_mib", self.memory_mib)
        check_range("memory_mib_resident_min", self.memory_mib_resident_min, 1, self.memory_mib)
        check_range("share_pct_sm_min", self.share_pct_sm_min, 1, 100)
        check_range("share_pct_sm_max", self.share_pct_sm_max, self.share_pct_sm_min, 100)
        check_range("priority", self.priority, 0, 1000)
        check_not_negative("value_usd_per_h", self.value_usd_per_h)
        check_not_negative("evictions_max", self.evictions_max)
        check_distinct("gpu_types_allowed", self.gpu_types_allowed)

    @property
    def id(self) -> JobId:
        """`project/name`."""
        return JobId(f"{self.project}/{self.name}")


@value
class OfflineTask:
    """A finite amount of inference with a deadline, or a floor on throughput, and no user waiting."""

    project: ProjectName
    name: str
    model: ModelName
    inputs_total: int
    slo: Slo
    class_lambda: float = 0.3
    priority: int = 50
    gpu_types_allowed: tuple[GpuTypeName, ...] = ()
    tolerations: tuple[Taint, ...] = ()
    mode: ServiceMode = ServiceMode.AUTO
    worker: WorkerCommand | None = None
    policy: PolicyName | None = late(None)
    """Who plans it, on the devices of that policy's pool; None: the default policy."""

    def __post_init__(self) -> None:
        check_name("project", self.project)
        check_name("name", self.name)
        check_name("model", self.model)
        check_positive("inputs_total", self.inputs_total)
        if self.slo.kind not in (SloKind.DEADLINE, SloKind.THROUGHPUT):
            raise FieldError("slo", "an offline task has an SLO of kind deadline or throughput")
        check_range("class_lambda", self.class_lambda, 0, 0.999999)
        check_range("priority", self.priority, 0, 1000)
        check_distinct("gpu_types_allowed", self.gpu_types_allowed)

    @property
    def id(self) -> TaskId:
        """`project/name`."""
        return TaskId(f"{self.project}/{self.name}")


class WorkloadKind(StrEnum):
    """Which of the three a workload id names."""

    SERVICE = "service"
    JOB = "job"
    TASK = "task"


@value
class Project:
    """A tenant. Quota is the highest number of GPUs (shares summed) its workloads may hold; None means no limit."""

    name: ProjectName
    description: str = ""
    quota_gpus: float | None = None

    def __post_init__(self) -> None:
        check_name("name", self.name)
        if self.description:
            check_text("description", self.description, 512)
        check_not_negative("quota_gpus", self.quota_gpus)
