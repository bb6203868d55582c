"""Problems that are answered by counts: how many of each, never which one.

Two aggregated forms, engine-neutral, each with the judgement of an answer, so that no engine's word is needed for it.
`CountScaling`: by how many instances of each type one service grows or shrinks (HetSev's programme). `Covers`: how many
replicas of each kind serve each demand when units are limited. Interchangeable things share one whole number, because a
binary for each of them makes the same search many times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole

DUST = 1e-9


class Direction(StrEnum):
    """Which changes one decision may mix."""

    FREE = "free"
    """Running instances may be traded for others."""
    OUT = "out"
    IN = "in"


@dataclass(frozen=True, kw_only=True)
class CountScaling:
    """One service on several instance types. Symbols of the paper: C usd, O launch_s, T rate_rps, L latency_ms, R
    needs, N running, W wanted_rps, S limit_ms, lambda risk_per_s; X is the change of counts.
    """

    usd: Floats
    launch_s: Floats
    rate_rps: Floats
    latency_ms: Floats
    needs: Floats
    """Resource x type: of one instance."""
    limits: Floats
    """By resource, for everything that stands then."""
    running: Whole
    wanted_rps: float
    limit_ms: float = float("inf")
    risk_per_s: float = 0.0
    """What a second of launching counts, as a part of the instance's cost."""
    direction: Direction = Direction.FREE

    @cached_property
    def may_grow(self) -> Flags:
        """Types that may be started: fast enough, and growing is allowed."""
        return (self.latency_ms <= self.limit_ms) & (self.direction is not Direction.IN)

    @property
    def may_shrink(self) -> bool:
        """Whether running instances may be stopped."""
        return self.direction is not Direction.OUT

    def objective(self, change: Whole) -> float:
        """Cost of a change: what it adds, and what its launches risk."""
        return float(self.usd @ (change + self.risk_per_s * self.launch_s * np.maximum(change, 0)))

    def feasible(self, change: Whole) -> bool:
        """Whether a change keeps every rule."""
        standing = self.running + change
        return bool(
            (standing >= 0).all()
            and (change[~self.may_grow] <= 0).all()
            and (self.may_shrink or (change >= 0).all())
            and self.rate_rps @ standing >= self.wanted_rps * (1 - DUST)
            and (self.needs @ standing <= self.limits * (1 + DUST)).all()
        )


@dataclass(frozen=True, kw_only=True)
class Covers:
    """Demands, and options that cover parts of one demand each and take units of one limited resource."""

    demand: Floats
    unserved_usd: Floats
    """What leaving a demand unserved counts, all or nothing."""
    option_demand: Whole
    """Which demand an option serves; rising."""
    option_rate: Floats
    """What one replica covers of it."""
    option_usd: Floats
    option_resource: Whole
    option_units: Whole
    """Units of its resource that one replica takes."""
    units: Whole
    """By resource."""

    @property
    def options(self) -> int:
        """How many."""
        return len(self.option_rate)

    @cached_property
    def replicas_alone(self) -> Whole:
        """Replicas of each option that would serve its demand without others."""
        return np.ceil(self.demand[self.option_demand] / self.option_rate - DUST).astype(np.int64)

    def served(self, counts: Whole) -> Flags:
        """Which demands are covered whole."""
        rate = np.bincount(self.option_demand, weights=self.option_rate * counts, minlength=len(self.demand))
        return np.asarray(rate >= self.demand * (1 - 1e-7), dtype=np.bool_)

    def usd(self, counts: Whole) -> float:
        """Cost of all replicas."""
        return float(self.option_usd @ counts)

    def objective(self, counts: Whole) -> float:
        """Cost, and what is left unserved."""
        return self.usd(counts) + float(self.unserved_usd[~self.served(counts)].sum())

    def feasible(self, counts: Whole) -> bool:
        """Whether the units suffice."""
        used = np.bincount(self.option_resource, weights=self.option_units * counts, minlength=len(self.units))
        return bool((counts >= 0).all() and (used <= self.units + DUST).all())
