"""The trained actor's arithmetic: what it sees, its layers, and the places and units it chooses, in numpy alone.

Owns the order of the state's numbers and of the output's heads, shared by training and planning, and the projection of
asked units onto whole GPUs. A model has two heads: its GPU, and its level of units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.policies.inss.projecting import project

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Doubles = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Whole = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
NOWHERE = -1
QUEUE_MAX = 4.0
"""Queues beyond so many seconds of the highest rate look alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an actor is made for: models with their highest rates, GPUs with their units and memory."""

    models: tuple[str, ...]
    rate_rps_max: tuple[float, ...]
    gpu_types: tuple[str, ...]
    units: tuple[int, ...]
    memory_mib: tuple[float, ...]

    @property
    def levels(self) -> int:
        """How many sizes a model can ask for: one to all units of the largest GPU."""
        return max(self.units)

    @property
    def state_size(self) -> int:
        """Used memory by GPU; rate, queue and place by model."""
        return len(self.gpu_types) + len(self.models) * (2 + len(self.gpu_types))

    @property
    def heads(self) -> tuple[int, ...]:
        """Sizes of all heads in their order: every model's GPU, then every model's level."""
        return (len(self.gpu_types),) * len(self.models) + (self.levels,) * len(self.models)

    def state(self, used_mib: Doubles, rates_rps: Doubles, queues: Doubles, places: Whole) -> Vector:
        """Everything as parts of what it can be; places one-hot, all zero for NOWHERE."""
        highest = np.array(self.rate_rps_max)
        where = (places[:, None] == np.arange(len(self.gpu_types))[None, :]).astype(np.float64)
        parts = (
            used_mib / np.array(self.memory_mib),
            rates_rps / highest,
            np.minimum(queues / highest, QUEUE_MAX),
            where.ravel(),
        )
        return np.concatenate(parts).astype(np.float32)

    def granted(self, places: Sequence[int], levels: Sequence[int]) -> list[int]:
        """Units by model: all of a GPU's given away in proportion to what is asked (level 0 asks for one unit)."""
        found = [0] * len(places)
        for gpu, units in enumerate(self.units):
            mine = [model for model, place in enumerate(places) if place == gpu]
            shares = project([levels[model] + 1.0 for model in mine], units, spread=True)
            for model, share in zip(mine, shares, strict=True):
                found[model] = share
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorLayer:
    """Rows by output, as training keeps them."""

    weights: Vector
    bias: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class InssActor:
    """Layers with rectifiers between them; the last one's outputs are the heads' logits."""

    layers: tuple[ActorLayer, ...]

    def logits(self, state: Vector) -> Vector:
        """Of one state, or of one a row."""
        flow = state
        for layer in self.layers[:-1]:
            flow = np.maximum(flow @ layer.weights.T + layer.bias, np.float32(0.0))
        last = self.layers[-1]
        return np.asarray(flow @ last.weights.T + last.bias)

    def choice(self, shape: Shape, state: Vector) -> tuple[list[int], list[int]]:
        """The likeliest GPU and level of every model."""
        logits, models = self.logits(state), len(shape.models)
        split = models * len(shape.gpu_types)
        places = np.argmax(logits[:split].reshape(models, -1), axis=1)
        levels = np.argmax(logits[split:].reshape(models, -1), axis=1)
        return [int(place) for place in places], [int(level) for level in levels]
