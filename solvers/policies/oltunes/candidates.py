"""OLTunes' choice of configurations for a task (Eq. 4 to 6): which GPU types, and on them which batch, share, memory.

Owns the score and the ranking. Eq. 4 adds quantities of different units, so each of its four terms is brought to 0..1
over the task's candidates before it is weighted, and the raw values stay in the record; estimated power is taken off,
as the paper's worked example does and its formula does not. It refuses to predict.

Symbols: lambda latency weight, alpha weight of slack, beta intensity of load, T deadline, y1 latency, y2 throughput,
EPC estimated power, G the two best GPU types, D the kept configurations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats
from solvers.domain.value import check_not_negative, check_positive
from solvers.errors import InputError
from solvers.models.base import Queries
from solvers.policies.oltunes.scores import is_latency_critical

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
    memory_mib: Floats
    latency_ms: Floats
    throughput_rps: Floats
    epc: Floats

    def __post_init__(self) -> None:
        columns = (self.memory_mib, self.latency_ms, self.throughput_rps, self.epc)
        if any(len(column) != len(self.configurations) for column in columns):
            raise InputError("every configuration needs memory, latency, throughput and estimated power")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Scores of all candidates with their normalised terms, and the rows kept, best first."""

    score: Floats
    latency: Floats
    throughput: Floats
    slack: Floats
    power: Floats
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
    return Scored(
        score=score,
        latency=latency,
        throughput=throughput,
        slack=slack,
        power=power,
        kept=_kept(score, candidates.configurations),
    )


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
