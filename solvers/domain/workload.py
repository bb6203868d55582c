"""The work: model variants, services with their SLOs, training jobs, offline tasks.

Checks keep impossible wishes out: latency 0, negative rates, NaN, a floor above its ceiling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from solvers.domain.device import LABELS_MAX, Label, Taint
from solvers.domain.ids import GpuTypeName, JobId, ModelName, PolicyName, ProjectName, ServiceId, TaskId
from solvers.domain.profile import MEMORY_MIB_MAX, TokenLengths
from solvers.domain.value import (
    DISTINCT,
    NAME,
    NAME_PATTERN,
    NOT_NEGATIVE,
    POSITIVE,
    SHOWN,
    at_most,
    check_positive,
    check_range,
    check_text,
    declarable,
    distinct,
    late,
    refusals,
    value,
    within,
)
from solvers.domain.worker import WorkerCommand, check_variable
from solvers.errors import FieldError

ALTERNATIVES_MAX, LAYER_KINDS_MAX, TOLERATIONS_MAX = 64, 64, 64
AVOIDED_MAX, GPU_TYPES_MAX, VARIABLES_MAX = 256, 256, 256
GpuTypesAllowed = Annotated[tuple[GpuTypeName, ...], declarable(GPU_TYPES_MAX), DISTINCT]
Tolerations = Annotated[tuple[Taint, ...], declarable(TOLERATIONS_MAX)]
Labels = Annotated[tuple[Label, ...], at_most(LABELS_MAX), distinct("key")]


class QualityClass(StrEnum):
    """Place of a variant in its family."""

    HIGH = "high"
    LOW = "low"


@value
class LayerCount:
    """How often one kind of layer occurs in a network."""

    kind: Annotated[str, NAME]
    count: Annotated[int, NOT_NEGATIVE]


@value
class ModelVariant:
    """One network as it is deployed."""

    name: Annotated[ModelName, NAME]
    family: Annotated[str, NAME]
    parameters_million: Annotated[float, POSITIVE]
    memory_mib_weights: Annotated[float, POSITIVE]
    memory_mib_per_input: Annotated[float, NOT_NEGATIVE] = 0.0
    gflop_per_input: Annotated[float | None, POSITIVE] = None
    quality_class: QualityClass = QualityClass.HIGH
    accuracy_pct: Annotated[float | None, within(0, 100)] = None
    compute_memory_ratio: Annotated[float | None, NOT_NEGATIVE] = None
    layers: Annotated[tuple[LayerCount, ...], declarable(LAYER_KINDS_MAX), distinct("kind")] = ()
    launch_s: Annotated[float, NOT_NEGATIVE] = 10.0
    kv_cache_mib_per_token: Annotated[float | None, POSITIVE] = None


_SIZES_MAX = {
    "parameters_million": 1e9,
    "memory_mib_weights": MEMORY_MIB_MAX,
    "memory_mib_per_input": MEMORY_MIB_MAX,
    "gflop_per_input": 1e12,
    "compute_memory_ratio": 1e9,
    "launch_s": 1e6,
    "kv_cache_mib_per_token": MEMORY_MIB_MAX,
}
_LAYERS_OF_A_KIND_MAX = 1_000_000
_SERVICE_ID = re.compile("/".join(2 * [NAME_PATTERN.strip("^$")]))


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
SLO_MAX = 1e9
"""Of milliseconds, seconds and requests per second."""
AMOUNT = within(0, 1e9)
"""Of $/h, GPUs and requests per second; who means no limit may say this much."""


@value
class Slo:
    """A service-level objective. Exactly the fields of its kind are set; percentile is in percent (99 = p99)."""

    kind: SloKind = SloKind.LATENCY
    latency_ms: float | None = None
    percentile: Annotated[float, within(1, 100)] = 99.0
    scope: SloScope = SloScope.END_TO_END
    first_token_ms: float | None = None
    inter_token_ms: float | None = None
    deadline_s: float | None = None
    throughput_rps_min: float | None = None

    def _rules(self) -> Iterator[FieldError]:
        for kind, fields in _SLO_FIELDS.items():
            for field in fields:
                number: float | None = getattr(self, field)
                yield from refusals(_check_promise, field, number)
                if kind is self.kind and number is None:
                    yield FieldError(field, f"an SLO of kind {self.kind.value} needs {field}")
                if kind is not self.kind and number is not None:
                    yield FieldError(field, f"an SLO of kind {self.kind.value} has no {field}")


def _check_promise(field: str, number: float | None) -> None:
    check_positive(field, number)
    check_range(field, number, 0, SLO_MAX)


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
    avoid_services: Annotated[tuple[ServiceId, ...], declarable(AVOIDED_MAX), DISTINCT] = ()
    dedicated: bool = False
    failure_domains_min: Annotated[int, within(1, 64)] = 1


@value
class Service:
    """An inference offering: a model variant, its SLO, its expected traffic and how Headroom may treat it."""

    project: Annotated[ProjectName, NAME]
    name: Annotated[str, NAME]
    model: Annotated[ModelName, NAME]
    slo: Slo
    rate_rps_declared: Annotated[float, NOT_NEGATIVE, AMOUNT]
    class_lambda: Annotated[float, within(0, 0.999999)] = 0.9
    priority: Annotated[int, within(0, 1000)] = 100
    replicas_min: Annotated[int, within(0, 1024)] = 1
    replicas_max: Annotated[int, within(1, 1024)] = 16
    gpu_types_allowed: GpuTypesAllowed = ()
    alternatives: Annotated[tuple[ModelName, ...], at_most(ALTERNATIVES_MAX), DISTINCT] = ()
    accuracy_pct_min: Annotated[float | None, within(0, 100)] = None
    affinity: Affinity = Affinity()
    tolerations: Tolerations = ()
    budget_usd_per_h: Annotated[float | None, POSITIVE, AMOUNT] = None
    mode: ServiceMode = ServiceMode.AUTO
    policy: PolicyName | None = None
    """Who plans it, on the devices of that policy's pool; None: the default policy."""
    tokens: TokenLengths | None = None
    """For an SLO of kind `tokens`; without it such a service cannot be planned."""
    worker: WorkerCommand | None = None
    """The process of a replica; needed on real GPU hosts, not read by simulated ones."""
    labels: Labels = late(())

    def _rules(self) -> Iterator[FieldError]:
        if self.replicas_min > self.replicas_max:
            yield FieldError("replicas_min", "replicas_min must not exceed replicas_max")
        if self.tokens is not None and self.slo.kind is not SloKind.TOKENS:
            yield FieldError("tokens", f"a service with an SLO of kind {self.slo.kind.value} has no tokens")
        if self.id in self.affinity.avoid_services:
            yield FieldError("affinity", "a service cannot avoid itself; use anti_affinity")

    @property
    def id(self) -> ServiceId:
        """`project/name`."""
        return ServiceId(f"{self.project}/{self.name}")


@value
class TrainingJob:
    """An iterative job that may fill spare share. Times are for the whole of the named reference GPU type."""

    project: Annotated[ProjectName, NAME]
    name: Annotated[str, NAME]
    model: Annotated[ModelName, NAME]
    iterations_total: Annotated[int, POSITIVE]
    iteration_ms_reference: Annotated[float, POSITIVE]
    gpu_type_reference: Annotated[GpuTypeName, NAME]
    memory_mib: Annotated[int, POSITIVE]
    memory_mib_resident_min: int | None = late(None)
    """How much of it must be on the device at least, for a program that keeps the rest on its host and moves it by
    itself, within whatever memory limit it is given. None: all of it.
    """
    share_pct_sm_min: Annotated[int, within(1, 100)] = 10
    share_pct_sm_max: int = 100
    gpu_types_allowed: GpuTypesAllowed = ()
    priority: Annotated[int, within(0, 1000)] = 10
    value_usd_per_h: Annotated[float, NOT_NEGATIVE, AMOUNT] = 0.0
    evictions_max: Annotated[int, NOT_NEGATIVE] = 100
    tolerations: Tolerations = ()
    mode: ServiceMode = ServiceMode.AUTO
    worker: WorkerCommand | None = None
    policy: PolicyName | None = late(None)
    """Who plans it, on the devices of that policy's pool; None: the default policy."""
    labels: Labels = late(())

    def _rules(self) -> Iterator[FieldError]:
        yield from refusals(check_range, "memory_mib_resident_min", self.memory_mib_resident_min, 1, self.memory_mib)
        yield from refusals(check_range, "share_pct_sm_max", self.share_pct_sm_max, self.share_pct_sm_min, 100)

    @property
    def id(self) -> JobId:
        """`project/name`."""
        return JobId(f"{self.project}/{self.name}")


@value
class OfflineTask:
    """A finite amount of inference with a deadline, or a floor on throughput, and no user waiting."""

    project: Annotated[ProjectName, NAME]
    name: Annotated[str, NAME]
    model: Annotated[ModelName, NAME]
    inputs_total: Annotated[int, POSITIVE]
    slo: Slo
    class_lambda: Annotated[float, within(0, 0.999999)] = 0.3
    priority: Annotated[int, within(0, 1000)] = 50
    gpu_types_allowed: GpuTypesAllowed = ()
    tolerations: Tolerations = ()
    mode: ServiceMode = ServiceMode.AUTO
    worker: WorkerCommand | None = None
    policy: PolicyName | None = late(None)
    """Who plans it, on the devices of that policy's pool; None: the default policy."""
    labels: Labels = late(())

    def _rules(self) -> Iterator[FieldError]:
        if self.slo.kind not in (SloKind.DEADLINE, SloKind.THROUGHPUT):
            yield FieldError("slo", "an offline task has an SLO of kind deadline or throughput")

    @property
    def id(self) -> TaskId:
        """`project/name`."""
        return TaskId(f"{self.project}/{self.name}")


Work = Service | TrainingJob | OfflineTask


class WorkloadKind(StrEnum):
    """Which of the three a workload id names."""

    SERVICE = "service"
    JOB = "job"
    TASK = "task"


@value
class Project:
    """A tenant. A quota bounds a sum over its workloads, `_max` each of them; None means no limit."""

    name: Annotated[ProjectName, NAME]
    description: Annotated[str, SHOWN] = ""
    quota_gpus: Annotated[float | None, NOT_NEGATIVE, AMOUNT] = None
    """GPUs (shares summed) that workloads may hold; plans keep it. The others are kept where workloads are declared."""
    quota_replicas_min: Annotated[int | None, NOT_NEGATIVE] = late(None)
    quota_budget_usd_per_h: Annotated[float | None, NOT_NEGATIVE, AMOUNT] = late(None)
    """With it, every service has a budget of its own."""
    priority_max: Annotated[int | None, within(0, 1000)] = late(None)
    quota_workloads: Annotated[int | None, NOT_NEGATIVE] = late(None)
    environment_allowed: Annotated[tuple[str, ...], declarable(VARIABLES_MAX), DISTINCT] = late(())
    """Variables that its workers may be given though they steer programs, where a node's owner allows them, too."""
    labels: Labels = late(())
    """Of its workloads, too, as far as they do not say otherwise themselves."""

    def __post_init__(self) -> None:
        if self.description:
            check_text("description", self.description, 512)

    @property
    def bounded(self) -> bool:
        """Whether what its workloads may declare is bounded."""
        quotas = (self.quota_replicas_min, self.quota_budget_usd_per_h, self.quota_workloads)
        return any(item is not None for item in (*quotas, self.priority_max))


def unlike_older(document: object) -> Iterator[FieldError]:
    """What is asked of new documents alone, by pointers. Not checked by values: older ones are still to be read."""
    if isinstance(document, ModelVariant):
        for field, most in _SIZES_MAX.items():
            yield from refusals(check_range, field, getattr(document, field), 0, most)
        for index, layer in enumerate(document.layers[:LAYER_KINDS_MAX]):
            yield from refusals(check_range, f"layers/{index}/count", layer.count, 0, _LAYERS_OF_A_KIND_MAX)
    if isinstance(document, Project):
        for index, name in enumerate(document.environment_allowed[:VARIABLES_MAX]):
            yield from refusals(check_variable, f"environment_allowed/{index}", name)
    if not isinstance(document, Service):
        return
    if document.slo.kind is SloKind.TOKENS and document.tokens is None:
        yield FieldError("tokens", "a service with an SLO of kind tokens says how long its requests are")
    for index, name in enumerate(document.affinity.avoid_services):
        if not _SERVICE_ID.fullmatch(name):
            yield FieldError(f"affinity/avoid_services/{index}", f"a service is named PROJECT/NAME, got {name[:80]!r}")
