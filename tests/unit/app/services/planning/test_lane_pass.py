"""Lanes of one pass see one picture, and a planner is asked the same only once."""

from __future__ import annotations

from dataclasses import replace

from app.services.planning.planning import LanePass
from solvers.domain.snapshot import Snapshot
from solvers.planners.base import PlanRequest, Thought
from solvers.planners.registry import propose
from tests import builders


class Counting:
    """An observer, a runner and a memory that count what they are asked."""

    def __init__(self) -> None:
        self.looks, self.thoughts, self.kept = 0, 0, dict[str, bytes]()

    def observe(self) -> Snapshot:
        self.looks += 1
        return replace(builders.lab([builders.service()]), taken_at_s=float(self.looks))

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        self.thoughts += 1
        return Thought(proposal=propose("greedy", request), state=b"later")

    def recall(self, planner: str) -> bytes | None:
        return self.kept.get(planner)

    def keep(self, planner: str, state: bytes) -> None:
        self.kept[planner] = state


def cycle(sight: LanePass, movable: tuple[str, ...] | None = None) -> Thought:
    """What a lane does with it."""
    state = sight.recall("greedy")
    thought = sight.think("greedy", builders.request(sight.observe(), movable), state)
    if thought.state is not None:
        sight.keep("greedy", thought.state)
    return thought


def test_equal_questions_of_one_pass_are_asked_once() -> None:
    world = Counting()
    sight = LanePass(world, world, world)
    assert cycle(sight) is cycle(sight)
    assert (world.looks, world.thoughts) == (1, 1)
    assert world.kept == {"greedy": b"later"}


def test_whoever_may_move_less_is_asked_for() -> None:
    world = Counting()
    sight = LanePass(world, world, world)
    cycle(sight)
    cycle(sight, ())
    assert (world.looks, world.thoughts) == (1, 2)


def test_after_a_change_everything_is_looked_at_anew() -> None:
    world = Counting()
    sight = LanePass(world, world, world)
    before = cycle(sight)
    sight.renew()
    assert cycle(sight) is not before
    assert (world.looks, world.thoughts) == (2, 2)
    assert sight.recall("greedy") == b"later"
