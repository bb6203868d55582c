"""Tasks that come to a simulated cluster, and what everybody may know of them before: the same for every contender.

Owns the kinds of tasks with their arrivals, sizes, limits and classes, drawn from the seed alone, and the offline
profiling: so many solo measurements with the truth's noise. The truth holds no kernels to count, so the ratio of Eq. 1
is taken from the time a network computes over the time it waits for DRAM, alone on the profiled GPU at a batch of
eight: its root, for a network's kernels spread around their mean, and half of that, which puts the middle of the
networks of Table 6 near the paper's border.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from lab.arena.forms import Duration, Factor
from lab.arena.loading import ScenarioForm
from lab.benches.tasks.contract import BATCHES, PROCESS_MIB, InferenceTask
from lab.world.arrivals import Bursts, Source, Spacing, Steady, arrival_times_s
from solvers.domain.arrays import Streams
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.value import NAME_PATTERN
from solvers.domain.workload import ModelVariant, QualityClass
from solvers.errors import InputError
from solvers.models.base import Facts, Queries, Samples
from solvers.sim.truth.catalogue import model_on
from solvers.sim.truth.truth import Resident, execution_ms, gpu_truth, memory_mib, parts

MS_PER_S = 1000.0
_RATIO_BATCH = 8
_SHARES_PROFILED = tuple(range(10, 101, 10))
_TRIES_MAX = 6
_LOW_QUALITY_BELOW = 0.5


def quality_class(parameters_million: float, family_million: Iterable[float]) -> QualityClass:
    """Low below half the parameters of the family's largest member, else high."""
    largest = max((parameters_million, *family_million))
    return QualityClass.LOW if parameters_million < _LOW_QUALITY_BELOW * largest else QualityClass.HIGH


Count = Annotated[int, Field(ge=1, le=1_000_000)]
Part = Annotated[float, Field(ge=0, le=1)]


class TaskKindForm(ScenarioForm):
    """Tasks of one model."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    model: ModelName
    family: str | None = None
    """Whose most accurate kind accuracy is held against; the model itself where nobody says."""
    rate_per_s: Annotated[float, Field(gt=0, le=1e6)]
    """Tasks per second on average, before `rate_scale`."""
    slo_ms: Annotated[float, Field(gt=0, le=1e9)]
    """Limit of one batch of `batch` inputs; a task is due after as long for all its batches, one after the other."""
    inputs: tuple[Count, Count]
    """Fewest and most inputs of a task; every number between is as likely."""
    batch: Annotated[int, Field(ge=1, le=256)] = 8
    """The owner's own batch: what schedulers use that do not tune."""
    urgent_part: Part = 0.9
    """Part of these tasks that is latency-critical."""
    patient_factor: Factor = 1.0
    """What the deadline of the other ones is multiplied by."""
    heavy: bool = False
    """Whether owners ask for a large GPU."""
    accuracy_pct: Annotated[float, Field(gt=0, le=100)] | None = None
    compute_memory_ratio: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Eq. 1 of OLTunes; without it, as the simulated GPU tells a profiler."""

    @property
    def known_family(self) -> str:
        return self.family or self.model


class TaskUniformForm(ScenarioForm):
    """Evenly spaced, each kind on its own."""

    pattern: Literal["uniform"]


class TaskPoissonForm(ScenarioForm):
    """At random, at a constant rate."""

    pattern: Literal["poisson"]


class TaskBurstsForm(ScenarioForm):
    """Calm and bursts take turns at random, each kind on its own; factors are of the kind's mean rate."""

    pattern: Literal["bursts"]
    calm_factor: Annotated[float, Field(ge=0, le=1e3)]
    burst_factor: Annotated[float, Field(ge=0, le=1e3)]
    calm: Duration
    burst: Duration


TaskArrivals = TaskUniformForm | TaskPoissonForm | TaskBurstsForm


def pattern_of(arrivals: TaskArrivals, rate_per_s: float) -> Steady | Bursts:
    """How tasks of this mean rate follow each other."""
    if not isinstance(arrivals, TaskBurstsForm):
        return Steady(rate_rps=rate_per_s, spacing=Spacing(arrivals.pattern))
    return Bursts(
        rate_rps_calm=rate_per_s * arrivals.calm_factor,
        rate_rps_burst=rate_per_s * arrivals.burst_factor,
        calm_s_mean=arrivals.calm,
        burst_s_mean=arrivals.burst,
    )


@dataclass(frozen=True, slots=True)
class Coming:
    """A task, when it comes, and the standard normal number of its own luck."""

    at_s: float
    task: InferenceTask
    kind: int
    luck: float


def coming(kinds: Sequence[TaskKindForm], arrivals: TaskArrivals, count: int, seed: int) -> tuple[Coming, ...]:
    """The first `count` tasks. Raises InputError where so many never come."""
    until_s = 1.2 * count / sum(kind.rate_per_s for kind in kinds) + 1.0
    for _ in range(_TRIES_MAX):
        times = [
            arrival_times_s(pattern_of(arrivals, kind.rate_per_s), Source(name=kind.name, seed=seed), 0.0, until_s)
            for kind in kinds
        ]
        if sum(map(len, times)) >= count:
            break
        until_s *= 4.0
    else:
        raise InputError("these rates never give so many tasks")
    merged = sorted((float(at), number) for number, some in enumerate(times) for at in some)[:count]
    streams = Streams(seed)
    draws = [streams.stream(f"tasks/{kind.name}") for kind in kinds]
    return tuple(
        Coming(
            at_s=at,
            task=_task(kinds[number], index, draws[number]),
            kind=number,
            luck=float(draws[number].standard_normal()),
        )
        for index, (at, number) in enumerate(merged)
    )


def _task(kind: TaskKindForm, index: int, draw: np.random.Generator) -> InferenceTask:
    urgent = bool(draw.random() < kind.urgent_part)
    inputs = int(draw.integers(kind.inputs[0], kind.inputs[1] + 1))
    batches = -(-inputs // kind.batch)
    # Lambda lies in the middle of its class' range, as nothing says where else.
    return InferenceTask(
        id=f"{index:06d}-{kind.name}",
        model=kind.model,
        latency_weight=0.75 if urgent else 0.25,
        deadline_s=batches * kind.slo_ms / MS_PER_S * (1.0 if urgent else kind.patient_factor),
        inputs=inputs,
        batch_declared=kind.batch,
        heavy=kind.heavy,
    )


def told(kinds: Sequence[TaskKindForm], facts: Facts, profiled_on: GpuTypeName) -> Facts:
    """What schedulers know of models and GPU types: memory and kernels as the profiler measures them; variants are high
    or low among those that occur here. Raises InputError for a model or type that nobody described.
    """
    missing = [kind.model for kind in kinds if kind.model not in facts.models]
    if missing:
        raise InputError(f"nobody has described the model {missing[0]}")
    described = {kind.model: facts.models[kind.model] for kind in kinds}
    models: dict[str, ModelVariant] = {}
    for kind in kinds:
        known = described[kind.model]
        family = [each.parameters_million for each in described.values() if each.family == known.family]
        first_mib, last_mib = memory_mib(kind.model, 1), memory_mib(kind.model, BATCHES[-1])
        each_mib = (last_mib - first_mib) / (BATCHES[-1] - 1)
        models[kind.model] = replace(
            known,
            memory_mib_weights=max(1.0, first_mib - each_mib - PROCESS_MIB),
            memory_mib_per_input=each_mib,
            compute_memory_ratio=kind.compute_memory_ratio or _ratio(kind.model, profiled_on),
            quality_class=quality_class(known.parameters_million, family),
        )
    return replace(facts, models=models)


def _ratio(model: ModelName, gpu_type: GpuTypeName) -> float:
    gpu = gpu_truth(gpu_type)
    if gpu is None:
        raise InputError(f"no simulated GPU is called {gpu_type}")
    resident = Resident(model=model, share_pct_sm=100, batch=_RATIO_BATCH)
    # Halving the clock of the SMs doubles the time of computing and leaves DRAM as it is.
    full, half = gpu.clock_mhz_sm_max, gpu.clock_mhz_sm_max / 2.0
    kernels_ms, slower_ms = (parts(gpu, model_on(gpu, model), resident, clock).device_ms for clock in (full, half))
    compute_ms = slower_ms - kernels_ms
    return float(0.5 * np.sqrt(max(compute_ms, 1e-3) / max(kernels_ms - compute_ms, 1e-3)))


def profiled(kinds: Sequence[TaskKindForm], gpu_types: Sequence[GpuTypeName], rows: int, seed: int) -> Samples:
    """Solo measurements of random configurations, dealt evenly to all models and types."""
    draw = Streams(seed).stream("profiling")
    pairs = [(kind.model, gpu_type) for kind in kinds for gpu_type in sorted(set(gpu_types))]
    picked = [pairs[index % len(pairs)] for index in range(rows)]
    batches = draw.choice(BATCHES, size=rows)
    shares = draw.choice(_SHARES_PROFILED, size=rows)
    luck = draw.standard_normal(rows)
    found = [
        _measured(model, gpu_type, int(batch), int(share), float(noise))
        for (model, gpu_type), batch, share, noise in zip(picked, batches, shares, luck, strict=True)
    ]
    fits = np.array([ms is not None for ms in found], dtype=np.bool_)
    queries = Queries.of([model for model, _ in picked], [gpu_type for _, gpu_type in picked], batches, shares)
    latency = np.array([np.nan if ms is None else ms for ms in found])
    return Samples.of(queries.take(fits), latency[fits])


def _measured(model: ModelName, gpu_type: GpuTypeName, batch: int, share: int, noise: float) -> float | None:
    gpu = gpu_truth(gpu_type)
    if gpu is None or memory_mib(model, batch) > gpu.memory_mib:
        return None
    return execution_ms(gpu, Resident(model=model, share_pct_sm=share, batch=batch), gpu.clock_mhz_sm_max, noise=noise)


def accuracy_lost_pct(kinds: Sequence[TaskKindForm]) -> Mapping[str, float]:
    """By kind: how much less accurate than the family's most accurate kind; 0 where nobody knows."""
    best: dict[str, float] = {}
    for kind in kinds:
        if kind.accuracy_pct is not None:
            best[kind.known_family] = max(best.get(kind.known_family, 0.0), kind.accuracy_pct)
    return {
        kind.name: 0.0 if kind.accuracy_pct is None else best[kind.known_family] - kind.accuracy_pct for kind in kinds
    }
