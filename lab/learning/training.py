"""One training of InSS' actor: soft actor-critic with discrete actions in torch, rounds of episodes side by side, a
checkpoint after each.

A placement is one choice for each head; heads are drawn independently, and a critic's value of a placement is the sum
of its heads' values, so that the value of the policy needs no sum over placements. Both critics learn towards one
target. A training that goes on from a checkpoint gives the very curve that running through would have given, because
every round draws from streams of its own. The caller stops it between two rounds whenever it likes.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import nn

from lab.learning.settings import Entropy, Gpu, Hyper, ServedNetwork, TrainingSetting
from lab.learning.world import Array, Batch, Environment, ReplayBuffer, StepOutcome, Truth
from solvers.domain.arrays import Streams
from solvers.errors import InputError
from solvers.policies.inss.actor import ActorLayer, InssActor, Vector, Whole, write

Tensor = Any
"""torch ships no types that hold here."""


class InssLearner:
    def __init__(self, hyper: Hyper, state_size: int, heads: Sequence[int], seed: int) -> None:
        self.hyper, self.heads, self.outputs = hyper, tuple(heads), sum(heads)
        # Weights follow from the seed alone, and whoever drew before or draws after is not disturbed.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = _network(hyper, state_size, self.outputs)
            self.critics = [_network(hyper, state_size, self.outputs) for _ in range(2)]
        self.targets = [_network(hyper, state_size, self.outputs) for _ in range(2)]
        for target, critic in zip(self.targets, self.critics, strict=True):
            target.load_state_dict(critic.state_dict())
        self.log_temperature: Tensor = torch.tensor(math.log(hyper.temperature), requires_grad=True)
        of_critics = [weight for critic in self.critics for weight in critic.parameters()]
        self.optimisers = [
            torch.optim.Adam(weights, lr=hyper.learning_rate, fused=True)
            for weights in (of_critics, list(self.actor.parameters()), [self.log_temperature])
        ]
        starts = np.concatenate([[0], np.cumsum(self.heads)])
        self.starts: Tensor = torch.as_tensor(starts[:-1])
        self.bounds = [(int(low), int(high)) for low, high in pairwise(starts)]

    @property
    def aim(self) -> float:
        """The entropy that the temperature aims at. As printed it is below 0: reached by no policy, so the temperature
        only falls.
        """
        if self.hyper.entropy is Entropy.PAPER:
            return -math.log(1.0 + self.outputs)
        return self.hyper.entropy_part * sum(math.log(size) for size in self.heads)

    def draw(self, states: Vector, random: np.random.Generator) -> Whole:
        """A choice for every head of every state, as likely as the actor says: the largest logit with Gumbel noise."""
        with torch.inference_mode():
            logits = self.actor(torch.from_numpy(states)).numpy()
        noisy = logits + random.gumbel(size=logits.shape)
        return np.stack([np.argmax(noisy[:, low:high], axis=1) for low, high in self.bounds], axis=1)

    def update(self, batch: Batch) -> tuple[float, float]:
        """The policy's entropy and the temperature after one step."""
        states, actions = torch.from_numpy(batch.states), torch.from_numpy(batch.actions)
        temperature = float(self.log_temperature.detach().exp())
        aims = self._aims(batch, temperature)
        values = [critic(states) for critic in self.critics]
        taken = [value.gather(1, actions + self.starts).sum(1) for value in values]
        wrong = sum(0.5 * (aims - value).square().mean() for value in taken)
        self._descend(0, wrong)
        logs = self._logs(self.actor(states))
        least = torch.minimum(values[0], values[1]).detach()
        chances = logs.exp()
        worse = (chances * (temperature * logs - least)).sum(1).mean()
        self._descend(1, worse)
        entropy = -(chances * logs).sum(1).mean().detach()
        self._descend(2, self.log_temperature.exp() * (entropy - self.aim))
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                torch._foreach_lerp_(list(target.parameters()), list(critic.parameters()), self.hyper.soft_update)
        return float(entropy), temperature

    def _aims(self, batch: Batch, temperature: float) -> Tensor:
        """Eq. 7, with the expectation over the actions."""
        with torch.no_grad():
            following = torch.from_numpy(batch.following)
            logs = self._logs(self.actor(following))
            least = torch.minimum(self.targets[0](following), self.targets[1](following))
            worth = (logs.exp() * (least - temperature * logs)).sum(1)
            return torch.from_numpy(batch.rewards) + self.hyper.discount * worth

    def _logs(self, logits: Tensor) -> Tensor:
        return torch.cat([logits[:, low:high].log_softmax(1) for low, high in self.bounds], dim=1)

    def _descend(self, which: int, loss: Tensor) -> None:
        self.optimisers[which].zero_grad()
        loss.backward()
        self.optimisers[which].step()

    def trained(self) -> InssActor:
        linear = [layer for layer in self.actor if isinstance(layer, nn.Linear)]
        return InssActor(
            layers=tuple(
                ActorLayer(weights=layer.weight.detach().numpy().copy(), bias=layer.bias.detach().numpy().copy())
                for layer in linear
            )
        )

    def dump(self) -> bytes:
        parts = {
            "actor": self.actor.state_dict(),
            "critics": [critic.state_dict() for critic in self.critics],
            "targets": [target.state_dict() for target in self.targets],
            "log_temperature": self.log_temperature.detach(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        out = io.BytesIO()
        torch.save(parts, out)
        return out.getvalue()

    def load(self, content: bytes) -> None:
        """Go on from what another one of the same sizes dumped."""
        parts = torch.load(io.BytesIO(content), weights_only=True)
        self.actor.load_state_dict(parts["actor"])
        for network, held in zip((*self.critics, *self.targets), (*parts["critics"], *parts["targets"]), strict=True):
            network.load_state_dict(held)
        with torch.no_grad():
            self.log_temperature.copy_(parts["log_temperature"])
        for optimiser, held in zip(self.optimisers, parts["optimisers"], strict=True):
            optimiser.load_state_dict(held)


def use_threads(count: int) -> None:
    """Of torch, for the whole process. With another number the last digits may differ."""
    torch.set_num_threads(count)


def _network(hyper: Hyper, inputs: int, outputs: int) -> Any:
    return nn.Sequential(
        nn.Linear(inputs, hyper.hidden_first),
        nn.ReLU(),
        nn.Linear(hyper.hidden_first, hyper.hidden_second),
        nn.ReLU(),
        nn.Linear(hyper.hidden_second, outputs),
    )


FORM = 2


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
                entropy, temperature = self.learner.update(self.replay.draw(self.hyper.minibatch, drawn))
                self.updates += 1
        return tuple(_episode(each, entropy, temperature) for each in seen)

    def actor(self) -> InssActor:
        return self.learner.trained()

    def checkpoint(self) -> bytes:
        curve = [asdict(episode) for episode in self.curve]
        head = {"form": FORM, **self._told(), "remembered": self.replay.count, "curve": curve}
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
            told = head["world"]
            gpus = tuple(Gpu(**each) for each in told["gpus"])
            served = tuple(ServedNetwork(**each) for each in told["served"])
            made = Training.begin(TrainingSetting(**{**told, "gpus": gpus, "served": served}), hyper, head["seed"])
            made.curve, made.updates = [Episode(**each) for each in head["curve"]], head["updates"]
            made.replay.restore(arrays, head["remembered"])
            made.learner.load(arrays["learner"].tobytes())
        except (ValueError, KeyError, TypeError, OSError, EOFError, RuntimeError, BadZipFile) as error:
            raise InputError("this is no checkpoint of `headroom train inss`, or it is damaged") from error
        return made

    def record(self, software: Mapping[str, str]) -> dict[str, object]:
        """What an artefact tells of its training; a curve's columns side by side."""
        names = tuple(each.name for each in fields(Episode))
        curve = {name: [getattr(episode, name) for episode in self.curve] for name in names}
        return {**self._told(), "episodes": len(self.curve), "software": dict(software), "curve": curve}

    def _told(self) -> dict[str, object]:
        """Of what it came, and how far."""
        made = {"setting": self.setting.name, "world": asdict(self.setting), "hyper": asdict(self.hyper)}
        return {**made, "seed": self.seed, "updates": self.updates}

    def artefact(self, software: Mapping[str, str]) -> str:
        """The actor as it is, as a file that needs no torch."""
        return write(self.lanes[0].shape, self.actor(), self.record(software))


def _episode(seen: list[StepOutcome], entropy: float, temperature: float) -> Episode:
    names = ("reward", "normalised", "throughput_rps", "violated")
    means = {name: round(float(np.mean([getattr(each, name) for each in seen])), 6) for name in names}
    return Episode(**means, entropy=round(entropy, 6), temperature=round(temperature, 6))
