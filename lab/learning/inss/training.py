"""One training from its first episode to its last: rounds of episodes side by side, with a checkpoint after each.

Owns the loop of Algorithm 2, the curve it leaves, and the checkpoint: a training that goes on from one gives the very
curve that running through would have given, because every round draws from streams of its own. It refuses clocks and
files; the caller stops it between two rounds whenever it likes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any
from zipfile import BadZipFile

import numpy as np

from lab.learning.inss.environment import Environment, StepOutcome
from lab.learning.inss.learner import InssLearner
from lab.learning.inss.replay import Array, Batch, ReplayBuffer
from lab.learning.inss.settings import Entropy, Hyper, TrainingSetting
from lab.learning.inss.settings import setting as find_setting
from lab.learning.inss.truth import Truth
from solvers.domain.arrays import Streams
from solvers.errors import InputError
from solvers.policies.inss.actor import InssActor
from solvers.policies.inss.artefact import write

FORM = 1


@dataclass(frozen=True, slots=True)
class Episode:
    """Means over an episode's seconds, under the policy that explores; entropy and temperature at its end."""

    reward: float
    normalised: float
    throughput_rps: float
    violated: float
    entropy: float
    temperature: float


@dataclass(slots=True)
class Training:
    """`rounds` yields until all episodes are done."""

    setting: TrainingSetting
    hyper: Hyper
    seed: int
    learner: InssLearner
    replay: ReplayBuffer
    lanes: list[Environment]
    curve: list[Episode] = field(default_factory=list)
    updates: int = 0

    @staticmethod
    def begin(setting: TrainingSetting, hyper: Hyper, seed: int) -> Training:
        """Nothing learned yet."""
        truth, streams = Truth.of(setting), Streams(seed)
        shape = truth.shape
        weights_seed = int(streams.stream("inss-weights").integers(0, 2**31))
        return Training(
            setting=setting,
            hyper=hyper,
            seed=seed,
            learner=InssLearner(hyper, shape.state_size, shape.heads, weights_seed),
            replay=ReplayBuffer.empty(hyper.replay, shape.state_size, len(shape.heads)),
            lanes=[
                Environment.of(truth, hyper.penalty, streams.stream(f"inss-lane-{lane}")) for lane in range(hyper.lanes)
            ],
        )

    def rounds(self) -> Iterator[tuple[Episode, ...]]:
        """Episodes side by side, one round after the other."""
        while len(self.curve) < self.hyper.episodes:
            made = self._round(min(self.hyper.lanes, self.hyper.episodes - len(self.curve)))
            self.curve.extend(made)
            yield made

    def extend(self, episodes: int) -> None:
        """Aim at another number of episodes than at the start."""
        self.hyper = replace(self.hyper, episodes=episodes)

    def _round(self, lanes: int) -> tuple[Episode, ...]:
        streams, first = Streams(self.seed), len(self.curve)
        drawn = streams.stream(f"inss-round-{first}")
        worlds = self.lanes[:lanes]
        states = np.stack(
            [world.begin(streams.stream(f"inss-episode-{first + lane}")) for lane, world in enumerate(worlds)]
        )
        seen: list[list[StepOutcome]] = [[] for _ in worlds]
        entropy, temperature = float("nan"), float("nan")
        models = len(self.setting.served)
        for _ in range(self.hyper.steps):
            actions = self.learner.draw(states, drawn)
            for lane, world in enumerate(worlds):
                chosen = actions[lane].tolist()
                seen[lane].append(world.step(chosen[:models], chosen[models:]))
            following = np.stack([world.state() for world in worlds])
            rewards = np.array([each[-1].reward for each in seen], dtype=np.float32) * self.hyper.reward_scale
            self.replay.put(Batch(states, actions, rewards.astype(np.float32), following))
            states = following
            if len(self.replay) >= self.hyper.minibatch:
                losses = self.learner.update(self.replay.draw(self.hyper.minibatch, drawn))
                self.updates += 1
                entropy, temperature = losses.entropy, losses.temperature
        return tuple(_episode(each, entropy, temperature) for each in seen)

    def actor(self) -> InssActor:
        """What was learned so far."""
        return self.learner.trained()

    def checkpoint(self) -> bytes:
        """Everything to go on from, between two rounds."""
        head = {
            "form": FORM,
            "setting": self.setting.name,
            "hyper": asdict(self.hyper),
            "seed": self.seed,
            "updates": self.updates,
            "remembered": self.replay.count,
            "curve": [asdict(episode) for episode in self.curve],
        }
        out = io.BytesIO()
        arrays: dict[str, Any] = {
            "head": np.frombuffer(json.dumps(head).encode(), dtype=np.uint8),
            "learner": np.frombuffer(self.learner.dump(), dtype=np.uint8),
            **self.replay.arrays(),
        }
        np.savez(out, **arrays)
        return out.getvalue()

    @staticmethod
    def resume(content: bytes) -> Training:
        """Go on from a checkpoint. Raises InputError where it is none."""
        try:
            arrays: dict[str, Array] = dict(np.load(io.BytesIO(content), allow_pickle=False))
            head = json.loads(arrays["head"].tobytes())
            if head["form"] != FORM:
                raise InputError(f"this checkpoint has form {head['form']}; known is {FORM}")
            hyper = Hyper(**{**head["hyper"], "entropy": Entropy(head["hyper"]["entropy"])})
            made = Training.begin(find_setting(head["setting"]), hyper, head["seed"])
            made.curve, made.updates = [Episode(**each) for each in head["curve"]], head["updates"]
            made.replay.restore(arrays, head["remembered"])
            made.learner.load(arrays["learner"].tobytes())
        except (ValueError, KeyError, TypeError, OSError, EOFError, RuntimeError, BadZipFile) as error:
            raise InputError("this is no checkpoint of `headroom train inss`, or it is damaged") from error
        return made

    def record(self, software: Mapping[str, str]) -> dict[str, object]:
        """What an artefact tells of its training; a curve's columns side by side."""
        names = tuple(each.name for each in fields(Episode))
        return {
            "setting": self.setting.name,
            "hyper": asdict(self.hyper),
            "seed": self.seed,
            "episodes": len(self.curve),
            "updates": self.updates,
            "software": dict(software),
            "curve": {name: [getattr(episode, name) for episode in self.curve] for name in names},
        }

    def artefact(self, software: Mapping[str, str]) -> str:
        """The actor as it is, as a file that needs no torch."""
        return write(self.lanes[0].shape, self.actor(), self.record(software))


def _episode(seen: list[StepOutcome], entropy: float, temperature: float) -> Episode:
    def mean(name: str) -> float:
        return round(float(np.mean([getattr(each, name) for each in seen])), 6)

    return Episode(
        reward=mean("reward"),
        normalised=mean("normalised"),
        throughput_rps=mean("throughput_rps"),
        violated=mean("violated"),
        entropy=round(entropy, 6),
        temperature=round(temperature, 6),
    )
