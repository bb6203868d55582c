"""The sample problem of the Inferno optimiser (llm-d workload variant autoscaler), as counts.

Owns the meaning of its five files and the scaling to more services. The
27 services of the sample are taken as they are; larger cases repeat them with rates drawn from a seed (how the
published larger cases were drawn is not on record). A snapshot knows replicas on one GPU only, so there the options
that gang several GPUs are left out and it is another problem; comparisons use the counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers.domain.arrays import Floats
from solvers.planners.counting.covers import Covers

# --- The rate one LLM replica may be given: a queue whose service rate depends on how many requests are in it
#
# A batch of n requests with L tokens in and K tokens out takes alpha + n*delta per iteration, where delta is a
# request's own work (beta per token computed, gamma per token read) spread over its K + 1 iterations; prefill in
# chunks is not needed at the lengths used here and is refused. No request waits outside the batch: who finds it full
# is lost, so the rate that counts is what gets through. A replica whose batch holds one request cannot be sized this
# way. Times in ms.


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


FOLDER = "inferno-sample"
FILES = ("accelerator", "capacity", "model", "serviceclass", "server")
UNSERVED_USD = 1e5
PRIORITY_LOWEST = 4
Row = dict[str, Any]
"""JSON objects of the sample, as they are."""
RATE_PARTS = (0.1, 1.0)
"""Repeated services get the sample's rate times a part drawn log-uniformly from this range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferno:
    """A case: its counts, and the names they belong to."""

    covers: Covers
    services: tuple[str, ...]
    accelerators: tuple[str, ...]
    """By option."""
    types: tuple[str, ...]
    priorities: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _InfernoOption:
    accelerator: str
    rate_rps: float
    usd: float
    gpu_type: str
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InfernoCase:
    """`copies` of the sample's services, `capacity` times its GPUs, rates times `load`."""

    size: str = "large"
    copies: int = 1
    capacity: float = 1.0
    load: float = 1.0
    seed: int = 1


def inferno(files: Mapping[str, Row], case: InfernoCase) -> Inferno:
    """Scale what the files say."""
    copies = case.copies
    counts = {row["type"]: row["count"] for row in files["capacity"]["count"]}
    types = tuple(sorted(counts))
    accelerators = {row["name"]: row for row in files["accelerator"]["accelerators"]}
    classes = {row["name"]: row for row in files["serviceclass"]["serviceClasses"]}
    servers = files["server"]["servers"]
    each = [_options(row, files["model"]["models"], accelerators, classes[row["class"]]) for row in servers]
    total = len(servers) * copies
    low, high = np.log(RATE_PARTS)
    parts = np.ones(total) if copies == 1 else np.exp(np.random.default_rng(case.seed).uniform(low, high, total))
    owner = np.repeat(np.arange(total), [len(each[number % len(each)]) for number in range(total)])
    options = [option for number in range(total) for option in each[number % len(each)]]
    rates = np.array([row["currentAlloc"]["load"]["arrivalRate"] / 60 for row in servers])
    priorities = [classes[row["class"]]["priority"] for row in servers] * copies
    return Inferno(
        covers=Covers(
            demand=np.tile(rates, copies) * parts * case.load,
            unserved_usd=UNSERVED_USD * (PRIORITY_LOWEST - np.array(priorities, dtype=np.float64)),
            option_demand=owner,
            option_rate=np.array([option.rate_rps for option in options]),
            option_usd=np.array([option.usd for option in options]),
            option_resource=np.array([types.index(option.gpu_type) for option in options]),
            option_units=np.array([option.units for option in options]),
            units=np.array([math.floor(counts[name] * copies * case.capacity + 1e-9) for name in types]),
        ),
        services=tuple(f"{servers[number % len(servers)]['name']}-{number // len(servers)}" for number in range(total)),
        accelerators=tuple(option.accelerator for option in options),
        types=types,
        priorities=tuple(priorities),
    )


def _options(server: Row, models: list[Row], accelerators: Row, service_class: Row) -> list[_InfernoOption]:
    """What one service could run on."""
    load = server["currentAlloc"]["load"]
    target = next(row for row in service_class["modelTargets"] if row["model"] == server["model"])
    found = []
    for row in models:
        if row["name"] != server["model"]:
            continue
        rate = rate_rps(
            QueueReplica(
                alpha=row["perfParms"]["alpha"],
                beta=row["perfParms"]["beta"],
                gamma=row["perfParms"]["gamma"],
                batch_max=max(1, row["maxBatchSize"] * row["atTokens"] // load["AvgOutTokens"]),
                tokens_in=load["AvgInTokens"],
                tokens_out=load["AvgOutTokens"],
            ),
            Targets(first_token_ms=target["slo-ttft"], inter_token_ms=target["slo-itl"]),
        )
        if rate is not None:
            gang = accelerators[row["acc"]]
            found.append(
                _InfernoOption(
                    accelerator=row["acc"],
                    rate_rps=rate,
                    usd=row["accCount"] * gang["cost"],
                    gpu_type=gang["type"],
                    units=row["accCount"] * gang["multiplicity"],
                )
            )
    return found
