"""OLTunes' closed formulas: workload class, estimated power, affinity, urgency, quality class.

Owns the printed forms, with the readings that make their own worked examples come out. It refuses to choose: scores of
candidates are in `oltunes_candidates`, groups are formed by whoever plans.

Symbols: ratio(X) kernels above 50 % of compute throughput over kernels above 50 % of memory throughput (Eq. 1), EPC
estimated power consumption (Eq. 7), a(A, B) affinity of two workloads (Eq. 9), aff its mean over a group (Eq. 10), v
affinity of two variants (Eq. 11).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from solvers.domain.arrays import Floats
from solvers.domain.value import check_not_negative, check_positive, check_range
from solvers.domain.workload import QualityClass
from solvers.errors import InputError

COMPUTE_RATIO_MIN = 1.2
"""From this ratio on a model is compute-intensive."""
KERNEL_THROUGHPUT_PCT_MIN = 50.0
"""From this part of the peak on a kernel counts."""
AFFINITY_MIN = 70.0
GROUP_SIZE_MAX = 4
IDLE_W = 60.0
"""Base power of every GPU in the paper's example and evaluation."""
LATENCY_CRITICAL_ABOVE = 0.5
_LOW_QUALITY_BELOW = 0.5
_VARIANT_AFFINITY = {
    frozenset((QualityClass.HIGH, QualityClass.LOW)): 100.0,
    frozenset((QualityClass.LOW,)): 50.0,
    frozenset((QualityClass.HIGH,)): 0.0,
}


class WorkloadClass(StrEnum):
    """Which resource a model's kernels press on more."""

    COMPUTE_INTENSIVE = "compute_intensive"
    MEMORY_INTENSIVE = "memory_intensive"


def compute_memory_ratio(compute_kernels: int, memory_kernels: int) -> float:
    """Eq. 1. Where one of the counts is 0 the other alone is considered, which is a 1 in place of the 0: three kernels
    heavy on memory and none on compute give a third. A model without any heavy kernel gives 1.
    """
    check_not_negative("compute_kernels", compute_kernels)
    check_not_negative("memory_kernels", memory_kernels)
    return max(compute_kernels, 1) / max(memory_kernels, 1)


def workload_class(ratio: float) -> WorkloadClass:
    """Compute-intensive from 1.2 on."""
    check_positive("ratio", ratio)
    return WorkloadClass.COMPUTE_INTENSIVE if ratio >= COMPUTE_RATIO_MIN else WorkloadClass.MEMORY_INTENSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerTerms:
    """What Eq. 7 takes, element-wise: SM utilisation and memory used as parts of 1."""

    idle_w: ArrayLike
    tdp_w: ArrayLike
    sm_utilisation: ArrayLike
    memory_used: ArrayLike
    latency_s: ArrayLike

    def variable_w(self) -> Floats:
        """Power above idle."""
        above_idle_w = np.asarray(self.tdp_w, dtype=np.float64) - np.asarray(self.idle_w, dtype=np.float64)
        return np.asarray(above_idle_w * np.asarray(self.sm_utilisation) * np.asarray(self.memory_used))


def epc_score(terms: PowerTerms) -> Floats:
    """Eq. 7 as printed: lower is better. Base power is not multiplied by time, so this is a rank and no unit; repairing
    it would turn the paper's own choice around (see `energy_j`).
    """
    return np.asarray(np.asarray(terms.idle_w) + terms.variable_w() * np.asarray(terms.latency_s))


def energy_j(terms: PowerTerms) -> Floats:
    """The same terms with all power multiplied by time: joules, for reports."""
    return np.asarray((np.asarray(terms.idle_w) + terms.variable_w()) * np.asarray(terms.latency_s))


def efficiency_tflops_per_w(fp32_tflops: float, tdp_w: float) -> float:
    """The paper's measure of GPU types (its Table 2 has two values interchanged)."""
    check_positive("tdp_w", tdp_w)
    return fp32_tflops / tdp_w


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


def quality_class(parameters_million: float, family_million: Iterable[float]) -> QualityClass:
    """Low below half the parameters of the family's largest member, else high."""
    check_positive("parameters_million", parameters_million)
    largest = max((parameters_million, *family_million))
    return QualityClass.LOW if parameters_million < _LOW_QUALITY_BELOW * largest else QualityClass.HIGH


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
        """Mean of the two."""
        return (self.workload + self.variant) / 2.0

    def admits(self, threshold: float = AFFINITY_MIN) -> bool:
        """Whether the task may join."""
        return self.total >= threshold


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
