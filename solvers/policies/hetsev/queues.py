"""HetSev's queues of instances that wait for a place, and the rounds in which they are tried.

Owns the grouping (k groups of like memory and model by medians under the L1 distance), the weighted fairness between
groups (length times median waiting time) and the end of the search: everybody is tried once after the last success. It
refuses to know devices: it is told how to seat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Floats
from solvers.domain.ids import ModelName, WorkloadId

ROUNDS_OF_MEDIANS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """One instance without a place, and how long it has been so."""

    workload: WorkloadId
    model: ModelName
    memory_mib: int
    waited_s: float


def weight(waits_s: Sequence[float]) -> float:
    """What a queue counts: its length times its median waiting time."""
    return len(waits_s) * float(np.median(waits_s)) if waits_s else 0.0


def grouped(pending: Sequence[Pending], groups: int, rng: np.random.Generator) -> list[list[int]]:
    """Numbers of like instances together, each group by falling waiting time."""
    if not pending:
        return []
    models = sorted({item.model for item in pending})
    most = max(item.memory_mib for item in pending) or 1
    points = np.array([[item.memory_mib / most, *(float(item.model == name) for name in models)] for item in pending])
    label = _medians(points, groups, rng)
    order = sorted(range(len(pending)), key=lambda number: (-pending[number].waited_s, number))
    return [[number for number in order if label[number] == group] for group in sorted(set(label.tolist()))]


def _medians(points: Floats, groups: int, rng: np.random.Generator) -> NDArray[np.intp]:
    distinct = np.unique(points, axis=0)
    chosen = rng.choice(len(distinct), size=min(groups, len(distinct)), replace=False)
    centres = distinct[np.sort(chosen)]
    label = np.zeros(len(points), dtype=np.intp)
    for _ in range(ROUNDS_OF_MEDIANS):
        nearest = np.abs(points[:, None, :] - centres[None, :, :]).sum(axis=2).argmin(axis=1)
        moved = bool((nearest != label).any())
        label = nearest
        for group in range(len(centres)):
            if (label == group).any():
                centres[group] = np.median(points[label == group], axis=0)
        if not moved:
            break
    return label


def seat_all(
    pending: Sequence[Pending], queues: Sequence[Sequence[int]], round_size: int, seat: Callable[[int], bool]
) -> list[int]:
    """Try everybody, fairly between queues; the numbers of those that found no place."""
    waiting = [list(queue) for queue in queues]
    tried: set[int] = set()
    while chosen := _round(pending, waiting, tried, round_size):
        for number in chosen:
            if not seat(number):
                tried.add(number)
                continue
            tried.clear()
            waiting = [[other for other in queue if other != number] for queue in waiting]
    return sorted(number for queue in waiting for number in queue)


def _round(pending: Sequence[Pending], waiting: list[list[int]], tried: set[int], size: int) -> list[int]:
    """The next instances: again and again the head of the weightiest queue."""
    left = [[number for number in queue if number not in tried] for queue in waiting]
    chosen: list[int] = []
    while len(chosen) < size and any(left):
        weights = [weight([pending[number].waited_s for number in queue]) for queue in left]
        best = max(range(len(left)), key=lambda at: (bool(left[at]), weights[at], len(left[at]), -at))
        chosen.append(left[best].pop(0))
    return chosen
