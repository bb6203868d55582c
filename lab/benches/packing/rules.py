"""Rules by which others place pods one by one, and placement where the least fragments are left (FGD).

Owns the measure: for each kind of pod, what is left of GPUs too small for it, or all that is left of a host that cannot
take it at all, weighted by how many such pods are expected.
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


SCORE_MAX = 100
GPUS_MAX = 8


@dataclass(frozen=True, slots=True)
class Anywhere:
    """Every place is as good; of the GPUs that fit, one by chance."""

    chance: np.random.Generator

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """No cost."""
        able = room.gpu_milli >= max(1, int(asks.gpu_milli[ask]))
        return np.zeros(len(room.model)), np.asarray((able * self.chance.random(able.shape)).argmax(axis=1))


@dataclass(frozen=True, slots=True)
class ByFit:
    """Least (or most) room left of CPU and GPU together, each by the most that a host has; the fullest (or emptiest)
    GPU.
    """

    cpu_milli_max: int
    most: bool = False

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """Room left, in steps."""
        gpu_milli = np.maximum(room.gpu_milli, 0).sum(axis=1) - asks.need_milli[ask]
        left = ((room.cpu_milli - asks.cpu_milli[ask]) / self.cpu_milli_max + gpu_milli / (GPUS_MAX * WHOLE_MILLI)) / 2
        cost = np.floor(SCORE_MAX * left)
        return (-cost if self.most else cost), _gpu(asks, ask, room, emptiest=self.most)


@dataclass(frozen=True, slots=True)
class ByDotProduct:
    """Least product of what a host has left and what the pod asks for, by the most that a host has; on the GPU where
    that is least.
    """

    cpu_milli_max: int

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """The product, in steps."""
        pick = _gpu(asks, ask, room, emptiest=False)
        cpu = room.cpu_milli / self.cpu_milli_max * asks.cpu_milli[ask] / self.cpu_milli_max
        gpu_milli = np.maximum(room.gpu_milli, 0).sum(axis=1) / (GPUS_MAX * WHOLE_MILLI)
        gpu = gpu_milli * asks.need_milli[ask] / (GPUS_MAX * WHOLE_MILLI)
        return np.floor(SCORE_MAX * (cpu + gpu) / 2), pick


@dataclass(frozen=True, slots=True)
class ByPacking:
    """GPUs that others use already before idle ones of busy hosts before idle hosts; fullest first. Pods without a GPU
    go where least of GPUs is left.
    """

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """Classes far apart, then room."""
        pick = _gpu(asks, ask, room, emptiest=False)
        if not asks.gpus[ask]:
            return np.maximum(room.gpu_milli, 0).sum(axis=1).astype(np.float64), pick
        idle = (room.gpu_milli == WHOLE_MILLI).sum(axis=1)
        there = (room.gpu_milli >= 0).sum(axis=1)
        taken = room.gpu_milli[np.arange(len(pick)), pick]
        shared = asks.shares(ask) & (taken < WHOLE_MILLI)
        on_busy = np.where(shared, taken * SCORE_MAX // WHOLE_MILLI // 10, SCORE_MAX // 2 + asks.gpus[ask])
        return np.where(idle == there, SCORE_MAX + idle, on_busy).astype(np.float64), pick


def _gpu(asks: Asks, ask: int, room: RoomLeft, *, emptiest: bool) -> Whole:
    """Position of the fullest (or emptiest) GPU that a sharing pod fits on; rooms fall with the position."""
    if not asks.shares(ask) or emptiest:
        return np.zeros(len(room.model), dtype=np.int64)
    return np.asarray((room.gpu_milli >= asks.gpu_milli[ask]).sum(axis=1) - 1)
