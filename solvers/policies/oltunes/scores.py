"""What OLTunes reckons of tasks: classes, urgency, affinity, estimated power, and which configurations it keeps.

Eq. 4 adds quantities of different units, so each of its four terms is brought to 0..1 over the task's candidates before
it is weighted, and the raw values stay in the record; estimated power is taken off, as the paper's worked example does
and its formula does not. Spare memory goes to patient tasks first, by throughput with a larger batch, then to urgent
ones by latency; only what is strictly better, one task of a group at most.

Symbols: lambda latency weight, alpha weight of slack, beta intensity of load, T deadline, y1 latency, y2 throughput,
EPC estimated power, G the two best GPU types, D the kept configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.domain.arrays import Flags, Floats
from solvers.domain.value import check_not_negative, check_positive, check_range
from solvers.domain.workload import ModelVariant, QualityClass
from solvers.errors import InputError
from solvers.models.base import Queries

IDLE_W = 60.0
"""Base power of every GPU in the paper's example and evaluation."""
LATENCY_CRITICAL_ABOVE = 0.5
_VARIANT_AFFINITY = {
    frozenset((QualityClass.HIGH, QualityClass.LOW)): 100.0,
    frozenset((QualityClass.LOW,)): 50.0,
    frozenset((QualityClass.HIGH,)): 0.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerTerms:
    """What Eq. 7 takes, element-wise: SM utilisation (the share stands for it) and memory used as parts of 1."""

    idle_w: ArrayLike
    tdp_w: ArrayLike
    sm_utilisation: ArrayLike
    memory_used: ArrayLike
    latency_s: ArrayLike


def epc_score(terms: PowerTerms) -> Floats:
    """Eq. 7 as printed: lower is better. Base power is not multiplied by time, so this is a rank and no unit; energy,
    with all power multiplied by time, would turn the paper's own choice around.
    """
    above_idle_w = np.asarray(terms.tdp_w, dtype=np.float64) - np.asarray(terms.idle_w, dtype=np.float64)
    variable_w = above_idle_w * np.asarray(terms.sm_utilisation) * np.asarray(terms.memory_used)
    return np.asarray(np.asarray(terms.idle_w) + variable_w * np.asarray(terms.latency_s))


def is_latency_critical(latency_weight: float) -> bool:
    """Whether a task's lambda makes it latency-critical rather than throughput-oriented. Lambda is below 1: throughput
    never falls out altogether.
    """
    check_range("latency_weight", latency_weight, 0.0, 1.0)
    if latency_weight >= 1.0:
        raise InputError("latency_weight must be below 1")
    return latency_weight > LATENCY_CRITICAL_ABOVE


def urgency(deadline_s: float, latency_s_mean: float) -> float:
    """Deadline over mean predicted latency of the candidates: the smaller, the sooner."""
    check_positive("deadline_s", deadline_s)
    check_positive("latency_s_mean", latency_s_mean)
    return deadline_s / latency_s_mean


def workload_affinity(ratio: float, other: float) -> float:
    """Eq. 9: from 50 (alike) towards 100 (opposite)."""
    return float(100.0 / (1.0 + np.exp(-abs(ratio - other))))


def variant_affinity(quality: QualityClass, other: QualityClass) -> float:
    """Eq. 11: 100 for a high and a low variant, 50 for two low ones, 0 for two high ones."""
    return _VARIANT_AFFINITY[frozenset((quality, other))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Character:
    """What affinity knows of a task: Eq. 1 of its model and the quality class of its variant."""

    ratio: float
    quality: QualityClass


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAffinity:
    """Of a task to a group: both means over the group's tasks."""

    workload: float
    variant: float

    @property
    def total(self) -> float:
        return (self.workload + self.variant) / 2.0


def affinity(task: Character, group: Sequence[Character]) -> TaskAffinity:
    """Eq. 9 to 11 of a task and the tasks already in a group. Raises InputError for an empty group, which anybody may
    join.
    """
    if not group:
        raise InputError("an empty group has no affinity")
    return TaskAffinity(
        workload=float(np.mean([workload_affinity(task.ratio, other.ratio) for other in group])),
        variant=float(np.mean([variant_affinity(task.quality, other.quality) for other in group])),
    )


GPU_TYPES_KEPT = 2
PER_GPU_TYPE_KEPT = 3
_NONE = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWish:
    """What a task asks for. `cluster_utilisation` (0..1) is how loaded the cluster is, which is beta."""

    latency_weight: float
    deadline_ms: float
    cluster_utilisation: float
    slack_weight: float = 0.5

    def __post_init__(self) -> None:
        is_latency_critical(self.latency_weight)
        check_positive("deadline_ms", self.deadline_ms)
        check_not_negative("slack_weight", self.slack_weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Every configuration of a task and what is predicted of it, one per row."""

    configurations: Queries
    latency_ms: Floats
    throughput_rps: Floats
    epc: Floats

    def __post_init__(self) -> None:
        columns = (self.latency_ms, self.throughput_rps, self.epc)
        if any(len(column) != len(self.configurations) for column in columns):
            raise InputError("every configuration needs latency, throughput and estimated power")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Scores of all candidates, and the rows kept, best first."""

    score: Floats
    kept: NDArray[np.intp]


def scored(candidates: Candidates, wish: TaskWish) -> Scored:
    """Eq. 4 for every row and the choice of Eq. 5 and 6: the best configurations of the GPU types whose best is best.
    Rows without a prediction score nothing and are never kept. Equal scores keep the order of rows.
    """
    known = np.isfinite(candidates.latency_ms) & np.isfinite(candidates.throughput_rps) & np.isfinite(candidates.epc)
    known &= candidates.latency_ms > 0.0
    # The reciprocal is normalised, not the latency: one over a normalised latency would explode at the best row.
    latency = _normalised(1.0 / np.where(known, candidates.latency_ms, 1.0), known)
    throughput = _normalised(candidates.throughput_rps, known)
    slack = _normalised(np.maximum(0.0, wish.deadline_ms - candidates.latency_ms), known)
    power = _normalised(candidates.epc, known)
    load = min(max(wish.cluster_utilisation, 0.0), 1.0)
    weighted = wish.latency_weight * latency + (1.0 - wish.latency_weight) * throughput
    score = np.where(known, weighted + wish.slack_weight * slack - load * power, -np.inf)
    return Scored(score=score, kept=_kept(score, candidates.configurations))


def _normalised(values: Floats, known: Flags) -> Floats:
    """Known values brought to 0..1; all 0 where they do not differ."""
    inside = values[known]
    low, high = (float(inside.min()), float(inside.max())) if len(inside) else (0.0, 0.0)
    if high <= low:
        return np.zeros(len(values))
    return np.where(known, (values - low) / (high - low), 0.0)


def best_types(score: Floats, gpu_type: NDArray[Any]) -> list[str]:
    """Eq. 5: the types whose best is best; rows without a score are none."""
    return _by_score(score, gpu_type)[0][:GPU_TYPES_KEPT]


def best_rows(score: Floats, label: NDArray[Any]) -> dict[Any, NDArray[np.intp]]:
    """Eq. 6: the best rows of each label, best first."""
    labels, order = _by_score(score, label)
    return {wanted: order[label[order] == wanted][:PER_GPU_TYPE_KEPT] for wanted in labels}


def _by_score(score: Floats, label: NDArray[Any]) -> tuple[list[Any], NDArray[np.intp]]:
    """Labels and rows that have a score, best first; equal ones in the order of rows."""
    order = np.argsort(-score, kind="stable")
    order = order[np.isfinite(score[order])]
    return list(dict.fromkeys(label[order].tolist())), order


def _kept(score: Floats, configurations: Queries) -> NDArray[np.intp]:
    """Rows of the best GPU types, type by type, best first within each."""
    rows = best_rows(score, configurations.gpu_type)
    return np.concatenate([_NONE, *(rows[wanted] for wanted in best_types(score, configurations.gpu_type))])


def character_of(known: ModelVariant | None) -> Character:
    """What affinity looks at; a model whose kernels nobody counted counts as balanced, one nobody knows as high."""
    if known is None:
        return Character(ratio=1.0, quality=QualityClass.HIGH)
    return Character(ratio=known.compute_memory_ratio or 1.0, quality=known.quality_class)


def run_ms(inputs: float, batch: NDArray[Any], latency_ms: Floats) -> Floats:
    """Time of a task: of all its batches, one after the other."""
    return np.asarray(np.maximum(1.0, np.ceil(inputs / batch)) * latency_ms)


def ever_full(inputs: float, batch: NDArray[Any]) -> Flags:
    """Batches that a task of so many inputs fills at least by half; larger ones only cost memory."""
    return np.asarray(batch < 2 * inputs)


def welcome(who: Character, sitting: Sequence[Character], affinity_min: float) -> bool:
    """Whether affinity to those who sit there lets somebody join."""
    return not sitting or affinity(who, sitting).total >= affinity_min


RECORDS_MIN = 2
SLICED_SHARE_MAX_PCT = 50.0
"""A group that wants more than half of the SMs is not squeezed into a part of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is believed of a configuration: time of the whole task, in any unit, and inputs per second."""

    batch: int
    run: float
    throughput_rps: float


def patient_first(urgent: Sequence[bool]) -> list[int]:
    """In which order the tasks of a group are looked at."""
    return sorted(range(len(urgent)), key=lambda place: urgent[place])


def better(current: Record, records: Sequence[Record], *, urgent: bool) -> list[int]:
    """Records that are strictly better than the current one, best first: for urgent tasks by time, for patient ones by
    throughput, with a larger batch. Of one record nobody can choose.
    """
    if len(records) < RECORDS_MIN:
        return []
    places = range(len(records))
    if urgent:
        sooner = [place for place in places if records[place].run < current.run]
        return sorted(sooner, key=lambda place: records[place].run)
    more = [place for place in places if records[place].batch > current.batch]
    more = [place for place in more if records[place].throughput_rps > current.throughput_rps]
    return sorted(more, key=lambda place: -records[place].throughput_rps)


def worth_a_slice(share_pct: float, spare_mib: float, spare_mib_min: float) -> bool:
    """Whether what a group leaves of a GPU is worth a MIG slice of its own; a minimum of 0: never."""
    return 0.0 < spare_mib_min <= spare_mib and share_pct <= SLICED_SHARE_MAX_PCT
