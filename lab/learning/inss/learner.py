"""Soft actor-critic with discrete actions, in torch.

Owns actor, critics, targets, temperature and one update of them. A placement is one choice for each head; heads are
drawn independently, and a critic's value of a placement is the sum of its heads' values, so that the value of the
policy needs no sum over placements. Both critics learn towards one target.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from lab.learning.inss.replay import Batch
from lab.learning.inss.settings import Entropy, Hyper
from solvers.policies.inss.actor import ActorLayer, InssActor, Vector, Whole

Tensor = Any
"""torch ships no types that hold here."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Of one update, and what followed for the temperature."""

    critics: float
    actor: float
    entropy: float
    temperature: float


class InssLearner:
    """See the module."""

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

    def update(self, batch: Batch) -> Losses:
        """One step of critics, actor, temperature and targets."""
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
        self._follow()
        return Losses(float(wrong.detach()), float(worse.detach()), float(entropy), temperature)

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

    def _follow(self) -> None:
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                torch._foreach_lerp_(list(target.parameters()), list(critic.parameters()), self.hyper.soft_update)

    def trained(self) -> InssActor:
        """The actor as it is, for numpy."""
        linear = [layer for layer in self.actor if isinstance(layer, nn.Linear)]
        return InssActor(
            layers=tuple(
                ActorLayer(weights=layer.weight.detach().numpy().copy(), bias=layer.bias.detach().numpy().copy())
                for layer in linear
            )
        )

    def dump(self) -> bytes:
        """Everything that learning goes on from."""
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
