"""What is strange about measurements that may be read: told, and taken all the same, for machines do strange things.

Told are equal configurations that are far apart, throughput that the row's latency does not allow, latency that falls
far as batches grow or shares shrink, and pairs much faster than the same replica alone; where the factor is about a
thousand, that seconds may stand among milliseconds. Told, too, are more memory and power than the GPU type has, and
less memory than the network's weights can take, which other units give.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.models.base import Facts, GroupSamples, Queries, Samples
from solvers.models.library import gpu_key, name_key

APART_MAX = 2.0
"""Of equal configurations, the slowest over the fastest; with noise of 10 % it is 1.7 of a hundred."""
THROUGHPUT_MAX = 4.0
"""Batches overlap while one is read and one written, but no more of them."""
FALL_MAX = 30.0
OVER_MAX = 1.2
"""Of what the GPU type has; instruments and data sheets differ by less."""
MEMORY_MIB_MAX, POWER_W_MAX = 2.0**20, 3000.0
"""Of GPU types that are not known: no GPU has more."""
WEIGHTS_PARTS = 8.0
"""Weights of four bits take an eighth of those of 32."""
_UNITS = (300.0, 3000.0)


@dataclass(frozen=True, slots=True)
class Doubt:
    place: str
    detail: str


def doubts(
    alone: Samples, pairs: GroupSamples, places: tuple[Sequence[str], Sequence[str]], facts: Facts
) -> list[Doubt]:
    """The first of every row alone and of every pair; `places` says where each stands."""
    members, sides = pairs.groups.members, [place for place in places[1] for _ in "ab"]
    cells, beside = list(_cells(alone.queries)), list(_cells(members))
    both = [(cell, beside[row ^ 1]) for row, cell in enumerate(beside)]
    found = [*_apart(cells, alone.latency_ms, places[0]), *_apart(both, pairs.latency_ms, sides)]
    rates = alone.throughput_rps * alone.latency_ms / (1000.0 * alone.queries.batch)
    for row in np.flatnonzero((rates > THROUGHPUT_MAX) | (rates < 1.0 / THROUGHPUT_MAX)).tolist():
        numbers = f"{alone.throughput_rps[row]:g} inputs/s contradict {alone.latency_ms[row]:g} ms"
        found.append(Doubt(places[0][row], f"{numbers} for a batch of {alone.queries.batch[row]:g}"))
    # Along batches, and against shares; what else there is stays as it is.
    for rest, along in (((0, 1, 3, 4), 2), ((0, 1, 2, 4), 3)):
        order = sorted(range(len(cells)), key=lambda row: cells[row][along], reverse=along == 3)
        groups = [tuple(cells[row][part] for part in rest) for row in order]
        found += _falling(groups, order, alone.latency_ms, places[0])
    fastest: dict[Hashable, float] = {}
    for cell, latency in zip(cells, alone.latency_ms.tolist(), strict=True):
        fastest[cell[:4]] = min(fastest.get(cell[:4], np.inf), latency)
    for cell, latency, place in zip(beside, pairs.latency_ms.tolist(), sides, strict=True):
        if latency * APART_MAX < fastest.get(cell[:4], 0.0):
            found.append(Doubt(place, f"{latency:g} ms beside a neighbour, {fastest[cell[:4]]:g} ms alone"))
    found += _beyond(alone, facts, places[0])
    return list({doubt.place: doubt for doubt in reversed(found)}.values())[::-1]


def _cells(queries: Queries) -> Iterable[tuple[str, str, float, float, float]]:
    """Model, GPU type, batch, share and clock (0: the highest)."""
    columns = (queries.batch, queries.share_pct, np.nan_to_num(queries.clock_mhz))
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    for model, gpu_type, rest in zip(queries.model, queries.gpu_type, numbers, strict=True):
        yield queries.models[model], queries.gpu_types[gpu_type], *rest


def _apart(cells: Sequence[Hashable], latency_ms: Floats, places: Sequence[str]) -> Iterator[Doubt]:
    first: dict[Hashable, int] = {}
    for row, cell in enumerate(cells):
        if np.isnan(latency_ms[row]):
            continue
        other = first.setdefault(cell, row)
        ratio = float(max(latency_ms[row] / latency_ms[other], latency_ms[other] / latency_ms[row]))
        if ratio > APART_MAX:
            numbers = f"{latency_ms[row]:g} ms here and {latency_ms[other]:g} ms at {places[other]}"
            yield Doubt(places[row], f"{numbers} are of one configuration{_units(ratio)}")


def _falling(
    groups: Sequence[Hashable], order: Sequence[int], latency_ms: Floats, places: Sequence[str]
) -> Iterator[Doubt]:
    slowest: dict[Hashable, int] = {}
    for group, row in zip(groups, order, strict=True):
        other = row if np.isnan(latency_ms[row]) else slowest.setdefault(group, row)
        ratio = float(latency_ms[other] / latency_ms[row])
        if ratio <= 1.0:
            slowest[group] = row
        elif ratio > FALL_MAX:
            numbers = f"{latency_ms[row]:g} ms here and {latency_ms[other]:g} ms at {places[other]}"
            yield Doubt(places[row], f"{numbers}, where no less is to be done{_units(ratio)}")


def _beyond(samples: Samples, facts: Facts, places: Sequence[str]) -> Iterator[Doubt]:
    """Memory and power that no such GPU has, and memory that does not hold the network."""
    queries, memory_mib, power_w = samples.queries, samples.memory_mib, samples.power_w
    types: dict[str, GpuType] = {gpu_key(name): item for name, item in facts.gpu_types.items()}
    known = [facts.gpu_types.get(name) or types.get(gpu_key(name)) for name in queries.gpu_types]
    has_mib = np.array([item.memory_mib if item else MEMORY_MIB_MAX for item in known])[queries.gpu_type]
    has_w = np.array([item.power_limit_w_max if item else POWER_W_MAX for item in known])[queries.gpu_type]
    weights = {name_key(name): item.memory_mib_weights for name, item in facts.models.items()}
    least_mib = np.array([weights.get(name_key(name), 0.0) for name in queries.models])[queries.model]
    for row in np.flatnonzero(memory_mib > OVER_MAX * has_mib).tolist():
        numbers = f"memory_mib {memory_mib[row]:.12g} where a GPU has {has_mib[row]:.7g} MiB"
        yield Doubt(places[row], f"{numbers}; are these bytes or KiB?")
    for row in np.flatnonzero(power_w > OVER_MAX * has_w).tolist():
        numbers = f"power_w {power_w[row]:.12g} where a GPU takes {has_w[row]:g} W"
        yield Doubt(places[row], f"{numbers}; are these milliwatts?")
    for row in np.flatnonzero(memory_mib * WEIGHTS_PARTS < least_mib).tolist():
        numbers = f"memory_mib {memory_mib[row]:g} where the weights take {least_mib[row]:g} MiB"
        yield Doubt(places[row], f"{numbers}; are these GiB?")


def _units(ratio: float) -> str:
    return "; are these seconds among milliseconds?" if _UNITS[0] < ratio < _UNITS[1] else ""
