"""Samples as points: sorted by quantity, model and GPU type, in the belief's own units.

Decided here: what counts as a measurement of which form, the reference clock of a GPU type and what a missing clock
means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.base import Facts, Queries, Samples
from solvers.models.belief.points import Points
from solvers.models.library import gpu_key

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
