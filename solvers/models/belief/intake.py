"""Measured values as the belief takes them in: samples sorted by quantity, model and GPU type, in its own units.

Repeated configurations are merged, and where there are too many a spread-out subset is taken. Decided here: what counts
as a measurement of which form, the reference clock of a GPU type and what a missing clock means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats, Parallel
from solvers.models.base import Facts, Queries, Samples
from solvers.models.library import gpu_key

# One usual step of a measuring grid: a doubling of batch, half a doubling of share, a quarter of one of the clock.
_STEPS = np.array([1.0, 0.5, 0.25])
_COUNT_MAX = 25.0
"""Repeating a configuration more often than this tells nothing more: what is left is not independent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points(Parallel):
    """`share` is a fraction, `slowness` highest clock over clock, `count` how many measurements a point stands for and
    `spread` their variance (0 for a single one).
    """

    batch: Floats
    share: Floats
    slowness: Floats
    log_value: Floats
    count: Floats
    spread: Floats

    @staticmethod
    def of(batch: Floats, share: Floats, slowness: Floats, value: Floats) -> Points:
        """Points from measured values; rows that cannot be measurements are left out."""
        numbers = np.stack([batch, share, slowness, value])
        kept = np.all(np.isfinite(numbers) & (numbers > 0), axis=0)
        return Points(
            batch=batch[kept],
            share=np.minimum(share[kept], 1.0),
            slowness=slowness[kept],
            log_value=np.log(value[kept]),
            count=np.ones(int(kept.sum())),
            spread=np.zeros(int(kept.sum())),
        )

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def at(self) -> tuple[Floats, Floats, Floats]:
        """Batch, share and slowness."""
        return self.batch, self.share, self.slowness

    def merged(self) -> Points:
        """One point per configuration, the median of its measurements, in rising order of batch, share, slowness."""
        if not len(self):
            return self
        rows: Floats = np.asarray(np.stack(self.at, axis=1)).round(9)
        keys, which = np.unique(rows, axis=0, return_inverse=True)
        which = which.ravel()
        order = np.lexsort((self.log_value, which))
        middle = self.log_value[order]
        if len(keys) < len(order):
            groups = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
            middle = np.array([_weighted_median(self.log_value[group], self.count[group]) for group in groups])
        count = np.bincount(which, weights=self.count)
        within = (self.count - 1.0) * self.spread + self.count * (self.log_value - middle[which]) ** 2
        return Points(
            batch=np.asarray(keys[:, 0], dtype=np.float64),
            share=np.asarray(keys[:, 1], dtype=np.float64),
            slowness=np.asarray(keys[:, 2], dtype=np.float64),
            log_value=middle,
            count=np.minimum(count, _COUNT_MAX),
            spread=np.bincount(which, weights=within) / np.maximum(count - 1.0, 1.0),
        )

    def spread_out(self, limit: int) -> Points:
        """At most `limit` points, each the farthest from those already chosen."""
        if len(self) <= limit:
            return self
        places = coordinates(*self.at)
        chosen = [int(np.argmin(places.sum(axis=1)))]
        nearest = np.full(len(self), np.inf)
        while len(chosen) < limit:
            nearest = np.minimum(nearest, ((places - places[chosen[-1]]) ** 2).sum(axis=1))
            chosen.append(int(np.argmax(nearest)))
        return self.take(np.sort(np.array(chosen, dtype=np.intp)))


def _weighted_median(values: Floats, weights: Floats) -> float:
    """Of rising values; between two when the weights meet there."""
    reached = np.cumsum(weights)
    half = reached[-1] / 2
    low, high = np.searchsorted(reached, half - 1e-9), np.searchsorted(reached, half + 1e-9)
    return float((values[low] + values[min(high, len(values) - 1)]) / 2)


def coordinates(batch: Floats, share: Floats, slowness: Floats) -> Floats:
    """Configurations in usual grid steps, one row each."""
    return np.asarray(np.stack([np.log2(batch), np.log2(share), np.log2(slowness)], axis=1) / _STEPS)


def distance(at: tuple[Floats, Floats, Floats], points: Points) -> Floats:
    """Grid steps from each configuration to the nearest point; infinite without points."""
    if not len(points):
        return np.full(len(at[0]), np.inf)
    here, there = coordinates(*at), coordinates(*points.at)
    squared = (here**2).sum(axis=1)[:, None] + (there**2).sum(axis=1) - 2 * here @ there.T
    return np.asarray(np.sqrt(np.maximum(squared.min(axis=1), 0.0)))


def distance_between(one: tuple[Floats, Floats, Floats], two: tuple[Floats, Floats, Floats]) -> Floats:
    """Grid steps between configurations, row by row."""
    return np.asarray(np.sqrt(np.square(coordinates(*one) - coordinates(*two)).sum(axis=1)))


def within(at: tuple[Floats, Floats, Floats], points: Points) -> Flags:
    """Whether each configuration lies inside the box that the points span."""
    inside = np.full(len(at[0]), len(points) > 0)
    if not len(points):
        return inside
    for asked, seen in zip(at, points.at, strict=True):
        inside &= (asked >= seen.min() * (1 - 1e-9)) & (asked <= seen.max() * (1 + 1e-9))
    return inside


# --- From samples to points


Key = tuple[str, str]
"""(model, GPU type)."""

LATENCY, CYCLE, POWER, MEMORY = "latency", "cycle", "power", "memory"
"""What curves are learned of; a cycle is the time per batch while batches run back to back."""

_PIPELINED = 0.003
"""Cycles that differ from latencies by less than this (of the logarithm, in the middle) are the same thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Points by form and key, and measured ratios (logarithms) of the 99th percentile to the mean by key."""

    points: Mapping[str, Mapping[Key, Points]]
    tails: Mapping[Key, Floats]


def listed_clocks(facts: Facts) -> dict[str, float]:
    """Highest clock of every GPU type that the facts list, by the name's key."""
    return {gpu_key(name): float(gpu_type.clock_mhz_sm_max) for name, gpu_type in facts.gpu_types.items()}


def references(listed: Mapping[str, float], samples: Samples, known: Mapping[str, float]) -> dict[str, float]:
    """The clock that slowness 1 means, by GPU type: known before, listed, or the highest seen (NaN: none ever)."""
    found = dict(known)
    for index, gpu_type in enumerate(samples.queries.gpu_types):
        if np.isfinite(found.get(gpu_type, np.nan)):
            continue
        clocks = samples.queries.clock_mhz[samples.queries.gpu_type == index]
        clocks = clocks[np.isfinite(clocks) & (clocks > 0)]
        highest = float(clocks.max()) if len(clocks) else np.nan
        found[gpu_type] = listed.get(gpu_key(gpu_type), highest)
    return found


def slowness(clock_mhz: Floats, reference: float) -> Floats:
    """Reference clock over clock; a missing clock is the reference."""
    given = np.isfinite(clock_mhz) & np.isfinite(reference)
    return np.where(given, reference / np.where(given, clock_mhz, 1.0), 1.0)


def places(queries: Queries, rows: np.ndarray[tuple[int], np.dtype[np.intp]], reference: float) -> tuple[Floats, ...]:
    """Batch, share as a fraction and slowness of some rows; NaN where the configuration is none."""
    batch, share = queries.batch[rows], np.minimum(queries.share_pct[rows] / 100.0, 1.0)
    clock = queries.clock_mhz[rows]
    possible = (batch > 0) & (share > 0) & ~(clock <= 0)
    slow = slowness(np.where(clock > 0, clock, np.nan), reference)
    return np.where(possible, batch, np.nan), np.where(possible, share, np.nan), slow


def gathered(samples: Samples, clocks: Mapping[str, float]) -> Gathered:
    """Sort samples. Rows that cannot be measurements of a form are left out of it."""
    points: dict[str, dict[Key, Points]] = {LATENCY: {}, CYCLE: {}, POWER: {}, MEMORY: {}}
    tails: dict[Key, Floats] = {}
    for key, rows in samples.queries.keys().items():
        batch, share, slow = places(samples.queries, rows, clocks.get(key[1], np.nan))
        latency = samples.latency_ms[rows]
        columns = {
            LATENCY: latency,
            CYCLE: _cycles(samples, rows),
            POWER: samples.power_w[rows],
            MEMORY: samples.memory_mib[rows],
        }
        for form, values in columns.items():
            if not np.isfinite(values).any():
                continue
            # Memory depends on batch alone.
            one = form == MEMORY
            found = Points.of(batch, share * 0 + 1 if one else share, slow * 0 + 1 if one else slow, values)
            if len(found):
                points[form][key] = found
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.log(samples.latency_ms_p99[rows] / latency)
        if np.isfinite(ratio).any():
            tails[key] = ratio[np.isfinite(ratio)]
    return Gathered(points=points, tails=tails)


def _cycles(samples: Samples, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Floats:
    """Time per batch from measured throughput, where it tells something that latency does not."""
    measured, batch = samples.throughput_rps[rows], samples.queries.batch[rows]
    with np.errstate(invalid="ignore", divide="ignore"):
        cycle = np.where(measured > 0, 1000.0 * batch / measured, np.nan)
        apart = np.abs(np.log(cycle / samples.latency_ms[rows]))
    known = np.isfinite(apart)
    if known.any() and np.median(apart[known]) < _PIPELINED:
        return np.full(len(rows), np.nan)
    return np.asarray(cycle)
