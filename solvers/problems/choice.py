"""One configuration out of many: the options a workload has, as vectors, and which of them serves a rate most cheaply.

An option is a GPU class with batch, share and memory limit; its price is price x share for the bill, and price x
max(share, memory part) for the choice, because memory held is room that nobody else can use. With n replicas needed for
the rate (at least the floor, at most what owner, budget, quota and room allow), the cheapest n x price wins among those
that leave least of the rate unserved.

How replicas bear each other: one of known interference presses with so much and bears so much of the others'; beside
one that presses nobody knows how, the policy's margin takes its part of what it bears. A replica of unknown
interference was planned with the margin and bears anybody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.ids import GpuTypeName
from solvers.domain.profile import Interference

DUST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """One replica: its pressure (None: nobody knows) and the most it bears of the others' together."""

    pressure: float | None = None
    bears: float = math.inf
    bears_beside_unknown: float = math.inf

    @staticmethod
    def of(known: Interference, share_of_gpu_pct: float, factor: float, margin: float) -> Press:
        """A replica planned with so many times its latency alone, where the margin stands for unknown neighbours."""
        return Press(
            pressure=known.pressure_at(share_of_gpu_pct),
            bears=_bears(known.sensitivity, factor),
            bears_beside_unknown=_bears(known.sensitivity, factor / margin),
        )


UNKNOWN = Press()


def _bears(sensitivity: float, factor: float) -> float:
    if factor < 1 - DUST:
        return -math.inf
    return math.inf if sensitivity <= 0 else max(0.0, factor - 1) / sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One configuration of one replica on devices of one class."""

    device_class: int
    gpu_type: GpuTypeName
    batch: int
    share_pct: int
    memory_mib: int
    latency_ms: float
    capacity_rps: float
    power_w: float
    usd_per_h: float
    """Price x share: what the bill says."""
    weight_usd_per_h: float
    """Price x the larger of share and memory part: what the choice is made by."""
    batch_min: int
    batch_max: int
    clock_mhz_sm: int
    press: Press = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of one workload, one element per option in every vector."""

    device_class: Whole
    batch: Whole
    share_pct: Whole
    memory_mib: Whole
    latency_ms: Floats
    capacity_rps: Floats
    power_w: Floats
    usd_per_h: Floats
    weight_usd_per_h: Floats
    gpus: Floats
    """Part of a whole GPU by share, for quotas."""
    room_gpus: Floats
    """Part of a whole GPU by share or memory, whichever is more."""
    batch_min: Whole
    batch_max: Whole

    def __len__(self) -> int:
        return len(self.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAsk:
    """What is still to be served, and within what. `room` bounds the replicas of each option; `fewest` prefers few
    large replicas to cheap ones.
    """

    rate_rps: float
    floor: int
    ceiling: int
    room: Floats
    budget_usd_per_h: float = float("inf")
    quota_gpus: float = float("inf")
    fewest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChoice:
    """The best option, how many replicas of it, and what they leave short or cost."""

    option: int
    replicas: int
    short_rps: float
    weight_usd_per_h: float


def replicas_for(rate_rps: Floats | float, capacity_rps: Floats) -> Floats:
    """Whole replicas for a rate; a hair above a whole number does not cost another replica."""
    return np.ceil(rate_rps / capacity_rps - 1e-9)


def _times(limit: float, each: Floats) -> Floats:
    """How often each fits under a limit; what costs nothing always fits."""
    priced = each > 0
    return np.where(priced, np.floor(limit / np.where(priced, each, 1.0) + 1e-9), np.inf)


def choose(options: Options, ask: ChoiceAsk) -> OptionChoice | None:
    """The best option for this ask; None when no option can stand even once."""
    ceiling = np.minimum(ask.room, ask.ceiling)
    ceiling = np.minimum(ceiling, _times(ask.budget_usd_per_h, options.usd_per_h))
    ceiling = np.minimum(ceiling, _times(ask.quota_gpus, options.gpus))
    wanted = np.maximum(replicas_for(ask.rate_rps, options.capacity_rps), ask.floor)
    replicas = np.minimum(wanted, ceiling)
    possible = np.flatnonzero(replicas >= 1)
    if not len(possible):
        return None
    replicas = replicas[possible]
    short = np.maximum(0.0, ask.rate_rps - replicas * options.capacity_rps[possible])
    missing = np.maximum(0.0, ask.floor - replicas)
    weight = replicas * options.weight_usd_per_h[possible]
    # Where GPUs cost nothing (owned, no price row) room is still scarce, so it comes right after the price.
    room = replicas * options.room_gpus[possible]
    middle = (room, weight, replicas) if ask.fewest else (replicas, room, weight)
    keys = (
        options.latency_ms[possible],
        # At the same price, more capacity is more room for a burst.
        -options.capacity_rps[possible],
        *(np.round(key, 9) for key in middle),
        missing,
        np.round(short, 6),
    )
    best = int(np.lexsort(keys)[0])
    return OptionChoice(
        option=int(possible[best]),
        replicas=int(replicas[best]),
        short_rps=float(short[best]),
        weight_usd_per_h=float(weight[best]),
    )
