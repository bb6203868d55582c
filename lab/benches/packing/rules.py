"""Rules that the study of openb compares (Weng et al., ATC 2023): random, best fit, worst fit, dot product, packing.

Owns their scores, from the study's description; fragmentation gradient descent is
`lab.benches.packing.fragmentation`'s. Scores have a hundred steps, as in Kubernetes, and equal ones are settled by
chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.benches.packing.allocation import WHOLE_MILLI, Asks, RoomLeft
from solvers.domain.arrays import Floats, Whole

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
