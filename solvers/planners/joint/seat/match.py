"""Which device carries which pattern, so that as much as possible of what stands may stay.

Owns the matching of one pool's patterns to its devices by overlap: equal contents first, then an assignment of most
launch seconds saved, exact while that is small and greedy beyond. It refuses to look at power and to change a pattern.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from solvers.planners.joint.seat.floor import Floor, Held
from solvers.problems.layout import Layout
from solvers.problems.patterns import Pattern

EXACT_CELLS_MAX = 250_000
"""Up to so many pairs of pattern and device the assignment is exact."""
TIGHT_PART = 0.9
"""What it is worth that it stands just so, but with less memory."""
NEAR_PART = 0.25
"""What it is worth that a network stands on the device with another share: it may be snapped to what stands."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Patterns with a device, and those that may go anywhere in their pool."""

    seated: dict[int, Pattern]
    loose: tuple[tuple[Pattern, int], ...]


def match(floor: Floor, layout: Layout) -> Matching:
    """Patterns on the devices where most of them stands already."""
    of_pool: dict[int, list[tuple[Pattern, int]]] = defaultdict(list)
    for pattern, count in zip(layout.patterns, layout.counts, strict=True):
        of_pool[int(floor.problem.kind_pool[pattern.kind])].append((pattern, count))
    seated: dict[int, Pattern] = {}
    loose: list[tuple[Pattern, int]] = []
    for pool in sorted(of_pool):
        wanted = sorted(of_pool[pool], key=lambda item: item[0].key)
        standing = [device for device in floor.devices(pool) if device in floor.held]
        rest = _same(floor, wanted, standing, seated)
        rest = _alike(floor, rest, [device for device in standing if device not in seated], seated)
        loose.extend(rest)
    return Matching(seated, tuple(loose))


def _same(
    floor: Floor, wanted: Sequence[tuple[Pattern, int]], standing: Iterable[int], seated: dict[int, Pattern]
) -> list[tuple[Pattern, int]]:
    """Devices whose contents are wanted just so; what is left of the wanted."""
    like: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for device in standing:
        like[tuple((item.variant, item.share_pct) for item in floor.held[device])].append(device)
    rest: list[tuple[Pattern, int]] = []
    for pattern, count in wanted:
        networks = floor.problem.networks(pattern.variants)
        places = like.get(tuple(zip(networks, pattern.shares_pct, strict=True)), [])
        # At the clock that stands first would be nicer still, but a clock is changed in place.
        chosen = places[:count]
        seated.update(dict.fromkeys(chosen, pattern))
        del places[:count]
        if count > len(chosen):
            rest.append((pattern, count - len(chosen)))
    return rest


def _alike(
    floor: Floor, wanted: Sequence[tuple[Pattern, int]], standing: Sequence[int], seated: dict[int, Pattern]
) -> list[tuple[Pattern, int]]:
    if not wanted or not standing:
        return list(wanted)
    gains = _gains(floor, wanted, standing)
    rows = sum(min(count, len(standing)) for _, count in wanted)
    pairs = _exactly(wanted, gains, rows) if rows * len(standing) <= EXACT_CELLS_MAX else _greedily(wanted, gains)
    taken: Counter[int] = Counter()
    for row, device in pairs:
        seated[device] = wanted[row][0]
        taken[row] += 1
    return [(pattern, count - taken[row]) for row, (pattern, count) in enumerate(wanted) if count > taken[row]]


def _gains(floor: Floor, wanted: Sequence[tuple[Pattern, int]], standing: Sequence[int]) -> list[dict[int, float]]:
    """For every wanted pattern the devices where it saves launches, and how many seconds."""
    where: dict[int, list[int]] = defaultdict(list)
    for device in standing:
        for variant in {item.variant for item in floor.held[device]}:
            where[variant].append(device)
    found: list[dict[int, float]] = []
    for pattern, _ in wanted:
        networks = floor.problem.networks(pattern.variants)
        near = {device for network in set(networks) for device in where.get(network, ())}
        found.append({device: saved_s(pattern, networks, floor.held[device]) for device in sorted(near)})
    return found


def saved_s(pattern: Pattern, networks: Sequence[int], held: Sequence[Held]) -> float:
    """Launch seconds saved where this stands, the near misses at a part. `networks`: of the pattern's members."""
    left = list(held)
    saved = 0.0
    missed: list[int] = []
    for variant, share, memory in zip(networks, pattern.shares_pct, pattern.memory_mib, strict=True):
        alike = [at for at in left if (at.variant, at.share_pct) == (variant, share)]
        # A smaller memory limit may do with a smaller batch.
        same = max(alike, key=lambda at: at.memory_mib >= memory, default=None)
        if same is None:
            missed.append(variant)
            continue
        left.remove(same)
        saved += (1e-3 + same.launch_s) * (1.0 if same.memory_mib >= memory else TIGHT_PART)
    for variant in missed:
        near = next((at for at in left if at.variant == variant), None)
        if near is not None:
            left.remove(near)
            saved += NEAR_PART * (1e-3 + near.launch_s)
    return saved


def _exactly(
    wanted: Sequence[tuple[Pattern, int]], gains: Sequence[dict[int, float]], rows: int
) -> list[tuple[int, int]]:
    devices = sorted({device for gain in gains for device in gain})
    if not devices:
        return []
    column = {device: index for index, device in enumerate(devices)}
    owner: list[int] = []
    for row, (_, count) in enumerate(wanted):
        owner.extend([row] * min(count, len(devices), rows))
    matrix = np.zeros((len(owner), len(devices)))
    for line, row in enumerate(owner):
        for device, gain in gains[row].items():
            matrix[line, column[device]] = gain
    lines, columns = linear_sum_assignment(matrix, maximize=True)
    return [
        (owner[line], devices[place])
        for line, place in zip(lines.tolist(), columns.tolist(), strict=True)
        if matrix[line, place] > 0
    ]


def _greedily(wanted: Sequence[tuple[Pattern, int]], gains: Sequence[dict[int, float]]) -> list[tuple[int, int]]:
    order = sorted((-gain, row, device) for row, found in enumerate(gains) for device, gain in found.items())
    left = [count for _, count in wanted]
    used: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for _, row, device in order:
        if left[row] > 0 and device not in used:
            left[row] -= 1
            used.add(device)
            pairs.append((row, device))
    return pairs
