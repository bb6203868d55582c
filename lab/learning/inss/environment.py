"""The world an actor is trained in: second after second, rates that walk, and the reward (3) of a placement.

Owns the walk of the rates, the state, and the reward: throughput over that of the whole GPU, less the penalty of what
is late or lost, both from the simulated world. A new placement is there at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lab.learning.inss.deploying import Deployed, Deployment
from lab.learning.inss.truth import Truth
from solvers.policies.inss.actor import NOWHERE, Doubles, Shape, Vector, Whole


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Of one second."""

    reward: float
    normalised: float
    """Sum of throughputs over H."""
    throughput_rps: float
    violated: float
    """Mean over models of the part late or lost."""
    deployed: Deployed


@dataclass(slots=True)
class Environment:
    """One episode at a time; `begin` starts a new one."""

    truth: Truth
    penalty: float
    shape: Shape
    highest_rps: tuple[float, ...]
    random: np.random.Generator
    second: int = 0
    rates_rps: list[float] = field(default_factory=list)
    queues: list[float] = field(default_factory=list)
    used_mib: Sequence[float] = ()
    places: Sequence[int] = ()

    @staticmethod
    def of(truth: Truth, penalty: float, random: np.random.Generator) -> Environment:
        """At the first second of an episode."""
        made = Environment(truth, penalty, truth.shape, truth.highest_rps(), random)
        made.begin(random)
        return made

    def begin(self, random: np.random.Generator) -> Vector:
        """A new episode on empty GPUs: every rate somewhere on its walk."""
        self.random, self.second, served = random, 0, self.truth.setting.served
        step = self.truth.setting.step_rps
        rungs = [int((one.high_rps - one.low_rps) / step) + 1 for one in served]
        self.rates_rps = [
            min(one.high_rps, one.low_rps + step * int(random.integers(0, count)))
            for one, count in zip(served, rungs, strict=True)
        ]
        self.queues = [0.0] * len(served)
        self.used_mib, self.places = [0.0] * len(self.shape.units), [NOWHERE] * len(served)
        return self.state()

    def state(self) -> Vector:
        """What the actor sees."""
        rates: Doubles = np.array(self.rates_rps)
        places: Whole = np.array(self.places, dtype=np.int64)
        return self.shape.state(np.array(self.used_mib), rates, np.array(self.queues), places)

    def step(self, places: Sequence[int], levels: Sequence[int]) -> StepOutcome:
        """One second under a placement; then rates may move."""
        return self.live(Deployment.of(self.truth, places, self.shape.granted(places, levels), self.rates_rps))

    def live(self, deployed: Deployed) -> StepOutcome:
        """One second of what is deployed."""
        violated, truth = list[float](), self.truth
        for model, runs in enumerate(deployed.runs):
            if runs is None:
                violated.append(1.0)
                self.queues[model] = 0.0
                continue
            extra = runs.neighbours * truth.launching_ms(model, runs.kind) if runs.neighbours else 0.0
            seen = truth.second(runs, extra, self.rates_rps[model], self.queues[model])
            violated.append(seen.violated)
            self.queues[model] = seen.queue
        self.used_mib, self.places = deployed.used_mib, deployed.places
        normalised = sum(rps / high for rps, high in zip(deployed.throughput_rps, self.highest_rps, strict=True))
        self.second += 1
        if self.second % truth.setting.hold_s == 0:
            self._walk()
        return StepOutcome(
            reward=normalised - self.penalty * sum(violated),
            normalised=normalised,
            throughput_rps=sum(deployed.throughput_rps),
            violated=sum(violated) / len(violated),
            deployed=deployed,
        )

    def _walk(self) -> None:
        step = self.truth.setting.step_rps
        for model, one in enumerate(self.truth.setting.served):
            way = step if self.random.random() < 0.5 else -step
            moved = self.rates_rps[model] + way
            if not one.low_rps <= moved <= one.high_rps:
                moved = self.rates_rps[model] - way
            self.rates_rps[model] = min(one.high_rps, max(one.low_rps, moved))
