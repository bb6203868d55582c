"""How much headroom is worth its price: what is sized for beyond the demand is a margin, and no reason to rent what
costs a multiple of what serves the demand.

A part of every margin is had at any price, so that a plan outlives the moment that it was made in. The rest is had
where a request more costs no more than twice what the dearest costs that the demand itself needs, when it is served
where it is cheapest: on GPUs of any type, and by larger batches where memory is billed. There a replica is billed
whole, whoever needs what is left of it, so one that the last of a margin hardly uses is not had for it. Devices are
counted as if nobody else wanted them: where others have them, margins stay what they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solvers.domain.arrays import Floats
from solvers.problems.joint import WHOLE_PCT, JointProblem, Workload
from solvers.problems.patterns import serve

DEARER_MAX = 2.0
"""Price of a request at which margins are still had, over what the dearest costs that the demand itself needs."""
SURE_PART = 0.25
"""Of every margin, whatever it costs."""
DUST = 1e-9


def with_margins(problem: JointProblem) -> JointProblem:
    """The problem, sized for what is worth its price."""
    if not problem.pools or not problem.variants:
        return problem
    rates, usd = _alone(problem)
    devices = np.array([pool.devices for pool in problem.pools], dtype=np.float64)
    order = np.argsort(problem.variant_workload, kind="stable")
    begins = np.searchsorted(problem.variant_workload[order], np.arange(len(problem.workloads) + 1))
    found = []
    for number, work in enumerate(problem.workloads):
        alone = order[begins[number] : begins[number + 1]]
        mine = np.concatenate((alone, len(order) + alone))
        supply = _Supply(np.minimum(devices, work.replicas_max), rates[:, mine], usd[:, mine])
        left_alone = work.may_wait or (supply.is_plenty(work.rate_rps) and not problem.by_memory)
        found.append(work if left_alone else replace(work, rate_rps=affordable_rps(work, problem, supply)))
    return replace(problem, workloads=tuple(found))


def affordable_rps(work: Workload, problem: JointProblem, supply: _Supply) -> float:
    """What to size for."""
    sure_rps = work.rate_least_rps + SURE_PART * max(0.0, work.rate_rps - work.rate_least_rps)
    most_rps, most_usd, steps = 0.0, np.inf, sorted(supply.steps())
    for place, step in enumerate(steps):
        if step.usd > most_usd:
            return min(work.rate_rps, most_rps)
        if np.isinf(most_usd) and most_rps + step.devices * step.more_rps >= sure_rps * (1 - DUST):
            most_usd = DEARER_MAX * step.usd * (1 + DUST)
        if problem.by_memory and most_rps + step.devices * step.more_rps > work.rate_rps:
            whole_rps = most_rps + step.more_rps * math.floor((work.rate_rps - most_rps) / step.more_rps + DUST)
            sliver_rps = work.rate_rps - whole_rps
            worth = any(each.usd_for(sliver_rps) <= most_usd * sliver_rps for each in steps[place:])
            return work.rate_rps if worth or whole_rps < sure_rps else whole_rps * (1 - DUST)
        most_rps += step.devices * step.more_rps
    return work.rate_rps


class _Step(NamedTuple):
    """So many devices serve so much more each, at this price of a request."""

    usd: float
    devices: float
    more_rps: float

    def usd_for(self, rate_rps: float) -> float:
        """What so much costs where each device takes this step or does not."""
        return math.ceil(rate_rps / self.more_rps - DUST) * self.more_rps * self.usd


class _Supply:
    """Of one workload, by pool: so many devices, and what a replica alone on one serves and costs, by how it is run."""

    def __init__(self, devices: Floats, rates: Floats, usd: Floats) -> None:
        self.devices, self.rates, self.usd = devices, rates, usd

    def is_plenty(self, rate_rps: float) -> bool:
        """Whether so much is to be had at about the lowest price; quick, since it is mostly so."""
        price = np.where(self.rates > 0, self.usd / np.where(self.rates > 0, self.rates, 1.0), np.inf)
        best = price.argmin(axis=1)[:, None]
        lowest = np.take_along_axis(price, best, axis=1)[:, 0]
        most_rps = self.devices * np.take_along_axis(self.rates, best, axis=1)[:, 0]
        return bool(most_rps[lowest <= DEARER_MAX * lowest.min()].sum() >= rate_rps)

    def steps(self) -> Iterator[_Step]:
        """From nothing to the most that each device can serve."""
        for devices, rates, usd in zip(self.devices.tolist(), self.rates, self.usd, strict=True):
            for price, more_rps in _steps(rates, usd):
                yield _Step(price, devices, more_rps)


def _steps(rates: Floats, usd: Floats) -> Iterator[tuple[float, float]]:
    """From nothing to the most that a device can serve: the price of a request more, rising, and how many more."""
    reached_rps = reached_usd = 0.0
    while (more := rates > reached_rps * (1 + DUST)).any():
        price = np.where(more, (usd - reached_usd) / np.where(more, rates - reached_rps, 1.0), np.inf)
        best = int(price.argmin())
        yield max(0.0, float(price[best])), float(rates[best]) - reached_rps
        reached_rps, reached_usd = float(rates[best]), float(usd[best])


def _alone(problem: JointProblem) -> tuple[Floats, Floats]:
    """pool x variant, first of a replica with the largest share that is not all of a device, then with all of it: what
    it serves alone there, and what it costs. Where memory is billed the former is cheaper; elsewhere it is left out.
    """
    table, variants = problem.kind_table, np.arange(len(problem.variants))
    room_mib = np.array([pool.memory_mib for pool in problem.pools])[problem.kind_pool]
    fits = (problem.memory_mib[table] <= room_mib[:, None, None]) & problem.allowed[problem.kind_pool][:, :, None]
    rates = np.zeros((len(problem.pools), 2 * len(variants)))
    usd = np.tile(problem.pool_usd[:, None], rates.shape[1])
    for whole in (0, 1):
        steps = np.flatnonzero((problem.shares_pct >= WHOLE_PCT) == bool(whole))
        if not len(steps) or not (whole or problem.by_memory):
            continue
        mean_ms, tail_ms = problem.mean_ms[:, :, steps[-1]], problem.tail_ms[:, :, steps[-1]]
        served = serve(problem, variants, mean_ms, tail_ms)[1][table]
        columns = whole * len(variants) + variants
        part = rates[:, columns[0] : columns[-1] + 1]
        np.maximum.at(part, problem.kind_pool, np.where(fits, served, 0.0).max(axis=2))
        if problem.by_memory:
            usd[np.ix_(problem.kind_pool, columns)] = problem.kind_usd[whole]
    return rates, usd
