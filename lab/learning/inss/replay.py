"""Transitions to learn from: a ring that forgets the oldest.

Owns their arrays, the draw of a mini-batch and their way into a checkpoint and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers.policies.inss.actor import Vector, Whole

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Batch:
    """A transition a row; actions have a column for every head."""

    states: Vector
    actions: Whole
    rewards: Vector
    following: Vector


@dataclass(slots=True)
class ReplayBuffer:
    """`count` of all that were ever put; the ring holds the last ones."""

    states: Vector
    actions: Whole
    rewards: Vector
    following: Vector
    count: int = 0

    @staticmethod
    def empty(capacity: int, state_size: int, heads: int) -> ReplayBuffer:
        """Room for so many transitions."""
        return ReplayBuffer(
            states=np.zeros((capacity, state_size), dtype=np.float32),
            actions=np.zeros((capacity, heads), dtype=np.int64),
            rewards=np.zeros(capacity, dtype=np.float32),
            following=np.zeros((capacity, state_size), dtype=np.float32),
        )

    def __len__(self) -> int:
        return min(self.count, len(self.rewards))

    def put(self, batch: Batch) -> None:
        """Remember all of these."""
        places = (self.count + np.arange(len(batch.rewards))) % len(self.rewards)
        self.states[places], self.actions[places] = batch.states, batch.actions
        self.rewards[places], self.following[places] = batch.rewards, batch.following
        self.count += len(batch.rewards)

    def draw(self, size: int, random: np.random.Generator) -> Batch:
        """So many at random, each as likely; one may come twice. Raises ValueError while there is nothing."""
        if not len(self):
            raise ValueError("nothing was remembered yet")
        rows = random.integers(0, len(self), size)
        return Batch(self.states[rows], self.actions[rows], self.rewards[rows], self.following[rows])

    def arrays(self) -> dict[str, Array]:
        """What is held, by name."""
        held = len(self)
        return {
            "states": self.states[:held],
            "actions": self.actions[:held],
            "rewards": self.rewards[:held],
            "following": self.following[:held],
        }

    def restore(self, arrays: Mapping[str, Array], count: int) -> None:
        """Hold what another one of this size held."""
        held = len(arrays["rewards"])
        self.states[:held], self.actions[:held] = arrays["states"], arrays["actions"]
        self.rewards[:held], self.following[:held] = arrays["rewards"], arrays["following"]
        self.count = count
