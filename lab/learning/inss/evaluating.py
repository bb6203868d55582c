"""How good an actor is: its placements beside the integer programme's and the most there is, on the same rates.

Owns the comparison over fresh episodes. It refuses the policy that explores: the likeliest choice of every head counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.learning.inss.ceiling import Ceiling
from lab.learning.inss.deploying import Deployment
from lab.learning.inss.environment import Environment, StepOutcome
from lab.learning.inss.programme import CAUTIONS, optimum
from lab.learning.inss.truth import Truth
from solvers.domain.streams import Streams
from solvers.policies.inss.actor import InssActor


@dataclass(frozen=True, slots=True)
class Score:
    """Means over seconds: of the actor, of the most that its places can earn with other units, of the best that the
    programme's placements do, and of the most there is.
    """

    actor: float
    actor_places: float
    programme: float
    bound: float
    actor_violated: float
    programme_violated: float
    actor_rps: float
    programme_rps: float
    seconds: int


def evaluate(truth: Truth, actor: InssActor, penalty: float, span: tuple[int, int], seed: int) -> Score:
    """Over `span` = (episodes, seconds of each)."""
    episodes, seconds = span
    streams, rows = Streams(seed), list[tuple[StepOutcome, StepOutcome, float, float]]()
    mine, other = (Environment.of(truth, penalty, streams.stream("inss-unused")) for _ in range(2))
    for episode in range(episodes):
        purpose = f"inss-evaluate-{episode}"
        state = mine.begin(streams.stream(purpose))
        other.begin(streams.stream(purpose))
        ceiling, settled = Ceiling.of(truth, mine.rates_rps, penalty), _settled(other, penalty)
        bound = ceiling.most()
        for second in range(seconds):
            if second and second % truth.setting.hold_s == 0:
                ceiling, settled = Ceiling.of(truth, mine.rates_rps, penalty), _settled(other, penalty)
                bound = ceiling.most()
            places, levels = actor.choice(mine.shape, state)
            possible = ceiling.with_places(places)
            here = mine.step(places, levels)
            there = other.live(Deployment.of(truth, settled[0], settled[1], other.rates_rps))
            rows.append((here, there, bound, possible))
            state = mine.state()
    return Score(
        actor=_mean([here.reward for here, *_ in rows]),
        actor_places=_mean([possible for *_, possible in rows]),
        programme=_mean([there.reward for _, there, *_ in rows]),
        bound=_mean([bound for *_, bound, _ in rows]),
        actor_violated=_mean([here.violated for here, *_ in rows]),
        programme_violated=_mean([there.violated for _, there, *_ in rows]),
        actor_rps=_mean([here.throughput_rps for here, *_ in rows]),
        programme_rps=_mean([there.throughput_rps for _, there, *_ in rows]),
        seconds=len(rows),
    )


def _settled(world: Environment, penalty: float) -> tuple[tuple[int, ...], list[int]]:
    """Of the programme's placements under several cautions the one that earns most at these rates, neighbours and all;
    spare units given away.
    """
    found: list[tuple[float, tuple[int, ...], list[int]]] = []
    for caution in CAUTIONS:
        placed = optimum(world.truth, world.rates_rps, caution)
        asked = [max(0, units - 1) for units in placed.units]
        units = world.shape.granted(placed.places, asked)
        trial = Environment(world.truth, penalty, world.shape, world.highest_rps, world.random)
        trial.rates_rps, trial.queues = list(world.rates_rps), [0.0] * len(world.queues)
        trial.second = 1 - world.truth.setting.hold_s
        earned = trial.live(Deployment.of(world.truth, placed.places, units, world.rates_rps)).reward
        found.append((earned, placed.places, units))
    _, places, units = max(found, key=lambda each: each[0])
    return places, units


def _mean(numbers: list[float]) -> float:
    return float(np.mean(numbers))
