"""The ring of transitions forgets the oldest, and comes back from a checkpoint as it was."""

from __future__ import annotations

import numpy as np
import pytest

from lab.learning.world import Batch, ReplayBuffer


def batch(numbers: list[int]) -> Batch:
    states = np.array([[number, number] for number in numbers], dtype=np.float32)
    actions = np.array([[number] for number in numbers], dtype=np.int64)
    return Batch(states, actions, np.array(numbers, dtype=np.float32), states + 1)


def test_the_oldest_is_forgotten() -> None:
    replay = ReplayBuffer.empty(4, 2, 1)
    for first in range(0, 6, 2):
        replay.put(batch([first, first + 1]))
    assert len(replay) == 4
    drawn = replay.draw(200, np.random.default_rng(0))
    assert set(drawn.rewards.tolist()) == {2.0, 3.0, 4.0, 5.0}
    assert (drawn.states[:, 0] == drawn.rewards).all()
    assert (drawn.actions[:, 0] == drawn.rewards).all()
    assert (drawn.following[:, 1] == drawn.rewards + 1).all()


def test_nothing_can_be_drawn_from_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        ReplayBuffer.empty(4, 2, 1).draw(1, np.random.default_rng(0))


@pytest.mark.parametrize("count", [3, 7])
def test_it_comes_back_as_it_was(count: int) -> None:
    replay, other = ReplayBuffer.empty(5, 2, 1), ReplayBuffer.empty(5, 2, 1)
    for number in range(count):
        replay.put(batch([number]))
    other.restore(replay.arrays(), replay.count)
    for each in (replay, other):
        each.put(batch([90]))
    first, second = (each.draw(50, np.random.default_rng(1)) for each in (replay, other))
    assert (first.rewards == second.rewards).all()
    assert (first.states == second.states).all()
