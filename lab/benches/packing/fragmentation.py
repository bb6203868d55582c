"""Room that the pods one expects could not use (Weng et al., ATC 2023), and the rule that lets it grow least.

Owns the measure: for each kind of pod, what is left of GPUs too small for it, or all that is left of a host that cannot
take it at all, weighted by how many such pods are expected. It refuses to know when pods come.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from lab.benches.packing.allocation import WHOLE_MILLI, Asks, RoomLeft
from solvers.domain.arrays import Flags, Floats, Whole


@dataclass(frozen=True, slots=True)
class Expected:
    """Pods that are expected, those without a GPU left out; parts sum to 1."""

    cpu_milli: Whole
    gpus: Whole
    gpu_milli: Whole
    allowed: Flags
    part: Floats

    def fragments(self, model: Whole, cpu_milli: Whole, gpu_milli: Whole) -> Floats:
        """GPU thousandths of each room that the expected pod could not use."""
        left = np.maximum(gpu_milli, 0)
        enough = gpu_milli[:, None, :] >= self.gpu_milli[:, None]
        able = (enough.sum(axis=2) >= self.gpus) & (cpu_milli[:, None] >= self.cpu_milli) & self.allowed[:, model].T
        small = np.where(enough, 0, left[:, None, :]).sum(axis=2)
        return np.asarray(np.where(able, small, left.sum(axis=1)[:, None]) @ self.part)


def expected(asks: Asks, counts: Whole, whole_weight: float = 0.0) -> Expected:
    """What history lets expect. A pod with whole GPUs counts 1 + `whole_weight` x GPUs."""
    merged: dict[tuple[int, int, int, tuple[bool, ...]], float] = defaultdict(float)
    for ask in np.nonzero((counts > 0) & (asks.gpus > 0))[0]:
        gpus, milli = int(asks.gpus[ask]), int(asks.gpu_milli[ask])
        weight = 1.0 + whole_weight * gpus * (milli == WHOLE_MILLI)
        key = (int(asks.cpu_milli[ask]), gpus, milli, tuple(bool(one) for one in asks.allowed[ask]))
        merged[key] += weight * int(counts[ask])
    keys = sorted(merged)
    part = np.array([merged[key] for key in keys], dtype=np.float64)
    return Expected(
        cpu_milli=np.array([key[0] for key in keys], dtype=np.int64),
        gpus=np.array([key[1] for key in keys], dtype=np.int64),
        gpu_milli=np.array([key[2] for key in keys], dtype=np.int64),
        allowed=np.array([key[3] for key in keys], dtype=np.bool_).reshape(len(keys), asks.allowed.shape[1]),
        part=part / part.sum() if len(part) else part,
    )


@dataclass(frozen=True, slots=True)
class LeastFragments:
    """Goes where fragments grow least. With `steps`, differences are rounded to so many steps of a sigmoid, as the
    scores of Kubernetes are: places that differ little are then equal.
    """

    expected: Expected
    steps: int = 0

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """Growth in thousandths of a GPU, and the GPU where it is least."""
        before = self.expected.fragments(room.model, room.cpu_milli, room.gpu_milli)
        cpu_milli = room.cpu_milli - asks.cpu_milli[ask]
        cost, pick = np.full(len(before), np.inf), np.zeros(len(before), dtype=np.int64)
        milli = int(asks.gpu_milli[ask])
        for gpu in range(room.gpu_milli.shape[1] if asks.shares(ask) else 1):
            left = room.gpu_milli.copy()
            if asks.shares(ask):
                left[:, gpu] -= milli
            else:
                left[:, : int(asks.gpus[ask])] -= milli
            able = room.gpu_milli[:, gpu] >= milli
            grown = self._rounded(self.expected.fragments(room.model, cpu_milli, left) - before)
            better = able & (grown < cost) if asks.gpus[ask] else grown < cost
            cost[better], pick[better] = grown[better], gpu
        return cost, pick

    def _rounded(self, grown: Floats) -> Floats:
        if not self.steps:
            return grown
        return np.asarray(-np.floor(self.steps / (1 + np.exp(grown / WHOLE_MILLI))), dtype=np.float64)
