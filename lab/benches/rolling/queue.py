"""The rate one LLM replica may be given: a queue whose service rate depends on how many requests are in it.

Owns the model that the Inferno optimiser sizes replicas by, written down from its description. A batch of n requests
with L tokens in and K tokens out takes alpha + n*delta per iteration, where delta is a request's own work (beta per
token computed, gamma per token read) spread over its K + 1 iterations; prefill in chunks is not needed at the lengths
used here and is refused. No request waits outside the batch: who finds it full is lost, so the rate that counts is what
gets through. A replica whose batch holds one request cannot be sized this way. Times in ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats

EDGE = 1e-3
"""Rates are looked for between this part of the slowest service rate and just below the fastest."""
STEPS = 60
TOKENS_MAX = 8192
"""Tokens of one iteration: what a batch may prefill at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReplica:
    """Parameters of one model on one accelerator."""

    alpha: float
    beta: float
    gamma: float
    batch_max: int
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Mean time to first token, mean time between tokens."""

    first_token_ms: float
    inter_token_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    through_per_ms: float
    first_token_ms: float
    inter_token_ms: float


class _RollingQueue:
    def __init__(self, replica: QueueReplica) -> None:
        self.replica = replica
        tokens_in, tokens_out = replica.tokens_in, replica.tokens_out
        self.own_prefill_ms = (replica.beta + replica.gamma) * tokens_in
        decode_ms = replica.beta * tokens_out + replica.gamma * tokens_out * (tokens_in + (tokens_out + 1) / 2)
        self.delta_ms = (self.own_prefill_ms + decode_ms) / (1 + tokens_out)
        sizes = np.arange(1, replica.batch_max + 1)
        self.sizes = np.arange(replica.batch_max + 1)
        self.rates = sizes / ((1 + tokens_out) * (replica.alpha + sizes * self.delta_ms))

    def at(self, rate: float) -> _Seen:
        """Means in steady state."""
        weight = np.concatenate([[0.0], np.cumsum(np.log(rate / self.rates))])
        part: Floats = np.exp(weight - weight.max())
        part /= part.sum()
        through = rate * (1 - part[-1])
        inside = float(self.sizes @ part)
        beside_ms = max(0.0, self.replica.alpha + (inside - 1) * self.delta_ms)
        prefill_ms = beside_ms + self.own_prefill_ms
        token_ms = (inside / through - prefill_ms) / self.replica.tokens_out
        return _Seen(through_per_ms=through, first_token_ms=prefill_ms + token_ms, inter_token_ms=token_ms)


def rate_rps(replica: QueueReplica, targets: Targets) -> float | None:
    """The highest rate that keeps both targets; None where none does."""
    if replica.batch_max < 2 or replica.batch_max * replica.tokens_in > TOKENS_MAX * (replica.tokens_out + 1):
        return None
    queue = _RollingQueue(replica)
    low, high = float(queue.rates[0]) * EDGE, float(queue.rates[-1]) * (1 - EDGE)

    def keeps(rate: float) -> bool:
        seen = queue.at(rate)
        return seen.first_token_ms <= targets.first_token_ms and seen.inter_token_ms <= targets.inter_token_ms

    if not keeps(low):
        return None
    if not keeps(high):
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if keeps(middle) else (low, middle)
        high = low
    return 1000 * queue.at(high).through_per_ms
