"""Demands that are covered by counted replicas under few limited resources; and the plan that there is at once: one
demand after the other, each by its cheapest option that still fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole, least_of

DUST = 1e-9


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
        return len(self.option_rate)

    @cached_property
    def replicas_alone(self) -> Whole:
        """Replicas of each option that would serve its demand without others."""
        return np.ceil(self.demand[self.option_demand] / self.option_rate - DUST).astype(np.int64)

    def served(self, counts: Whole) -> Flags:
        rate = np.bincount(self.option_demand, weights=self.option_rate * counts, minlength=len(self.demand))
        return np.asarray(rate >= self.demand * (1 - 1e-7), dtype=np.bool_)

    def usd(self, counts: Whole) -> float:
        return float(self.option_usd @ counts)

    def objective(self, counts: Whole) -> float:
        """Cost, and what is left unserved."""
        return self.usd(counts) + float(self.unserved_usd[~self.served(counts)].sum())

    def feasible(self, counts: Whole) -> bool:
        used = np.bincount(self.option_resource, weights=self.option_units * counts, minlength=len(self.units))
        return bool((counts >= 0).all() and (used <= self.units + DUST).all())


def one_by_one(problem: Covers) -> Whole:
    """Each demand by its cheapest option that still fits, those first that count most for a $/h."""
    counts, left = np.zeros(problem.options, dtype=np.int64), problem.units.astype(np.int64)
    usd, units = problem.option_usd * problem.replicas_alone, problem.option_units * problem.replicas_alone
    least = least_of(usd, problem.option_demand, np.full(len(problem.demand), np.inf))
    first = np.searchsorted(problem.option_demand, np.arange(len(problem.demand) + 1))
    for demand in np.argsort(-problem.unserved_usd / np.maximum(least, DUST), kind="stable").tolist():
        options = np.arange(first[demand], first[demand + 1])
        able = options[units[options] <= left[problem.option_resource[options]]]
        if len(able) and usd[best := int(able[np.argmin(usd[able])])] < problem.unserved_usd[demand]:
            counts[best] = problem.replicas_alone[best]
            left[problem.option_resource[best]] -= units[best]
    return counts
