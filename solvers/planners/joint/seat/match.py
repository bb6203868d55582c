"""Which device carries which pattern: as much as possible of what stands may stay, the rest goes where power is left.

In each pool equal contents come first, then an assignment of most launch seconds saved, exact while that is small and
greedy beyond. What may go anywhere is then packed by draw, largest first, where most power is left.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from solvers.planners.joint.seat.floor import Floor, Held
from solvers.planners.joint.seat.seats import DUST_W, Seats
from solvers.problems.patterns import Layout, Pattern

EXACT_CELLS_MAX = 250_000
"""Up to so many pairs of pattern and device the assignment is exact."""
TIGHT_PART = 0.9
"""What it is worth that it stands just so, but with less memory."""
NEAR_PART = 0.25
"""What it is worth that a network stands on the device with another share: it may be snapped to what stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """A pattern that so many devices are to carry."""

    pattern: Pattern
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Patterns with a device, and those that may go anywhere in their pool."""

    seated: dict[int, Pattern]
    loose: tuple[Copies, ...]


def match(floor: Floor, layout: Layout) -> Matching:
    """Patterns on the devices where most of them stands already."""
    of_pool: dict[int, list[Copies]] = defaultdict(list)
    for pattern, count in zip(layout.patterns, layout.counts, strict=True):
        of_pool[int(floor.problem.kind_pool[pattern.kind])].append(Copies(pattern=pattern, count=count))
    seated: dict[int, Pattern] = {}
    loose: list[Copies] = []
    for pool in sorted(of_pool):
        wanted = sorted(of_pool[pool], key=lambda item: item.pattern.key)
        standing = [device for device in floor.devices(pool) if device in floor.held]
        rest = _same(floor, wanted, standing, seated)
        rest = _alike(floor, rest, [device for device in standing if device not in seated], seated)
        loose.extend(rest)
    return Matching(seated=seated, loose=tuple(loose))


def _same(floor: Floor, wanted: Sequence[Copies], standing: Iterable[int], seated: dict[int, Pattern]) -> list[Copies]:
    """Devices whose contents are wanted just so; what is left of the wanted."""
    like: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for device in standing:
        like[tuple((item.variant, item.share_pct) for item in floor.held[device])].append(device)
    rest: list[Copies] = []
    for item in wanted:
        networks = floor.problem.networks(item.pattern.variants)
        places = like.get(tuple(zip(networks, item.pattern.shares_pct, strict=True)), [])
        # At the clock that stands first would be nicer still, but a clock is changed in place.
        chosen = places[: item.count]
        seated.update(dict.fromkeys(chosen, item.pattern))
        del places[: item.count]
        if item.count > len(chosen):
            rest.append(replace(item, count=item.count - len(chosen)))
    return rest


def _alike(floor: Floor, wanted: Sequence[Copies], standing: Sequence[int], seated: dict[int, Pattern]) -> list[Copies]:
    if not wanted or not standing:
        return list(wanted)
    gains = _gains(floor, wanted, standing)
    rows = sum(min(item.count, len(standing)) for item in wanted)
    pairs = _exactly(wanted, gains, rows) if rows * len(standing) <= EXACT_CELLS_MAX else _greedily(wanted, gains)
    taken: Counter[int] = Counter()
    for row, device in pairs:
        seated[device] = wanted[row].pattern
        taken[row] += 1
    return [replace(item, count=item.count - taken[row]) for row, item in enumerate(wanted) if item.count > taken[row]]


def _gains(floor: Floor, wanted: Sequence[Copies], standing: Sequence[int]) -> list[dict[int, float]]:
    """For every wanted pattern the devices where it saves launches, and how many seconds."""
    where: dict[int, list[int]] = defaultdict(list)
    for device in standing:
        for variant in {item.variant for item in floor.held[device]}:
            where[variant].append(device)
    found: list[dict[int, float]] = []
    for item in wanted:
        networks = floor.problem.networks(item.pattern.variants)
        near = {device for network in set(networks) for device in where.get(network, ())}
        found.append({device: saved_s(item.pattern, networks, floor.held[device]) for device in sorted(near)})
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


def _exactly(wanted: Sequence[Copies], gains: Sequence[dict[int, float]], rows: int) -> list[tuple[int, int]]:
    devices = sorted({device for gain in gains for device in gain})
    if not devices:
        return []
    column = {device: index for index, device in enumerate(devices)}
    owner: list[int] = []
    for row, item in enumerate(wanted):
        owner.extend([row] * min(item.count, len(devices), rows))
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


def _greedily(wanted: Sequence[Copies], gains: Sequence[dict[int, float]]) -> list[tuple[int, int]]:
    order = sorted((-gain, row, device) for row, found in enumerate(gains) for device, gain in found.items())
    left = [item.count for item in wanted]
    used: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for _, row, device in order:
        if left[row] > 0 and device not in used:
            left[row] -= 1
            used.add(device)
            pairs.append((row, device))
    return pairs


class _Queue:
    """Free devices of a pool, most power left first. What is left only falls while patterns are placed, so an entry is
    looked at again when it comes up.
    """

    def __init__(self, seats: Seats, devices: Iterable[int]) -> None:
        self._seats = seats
        self._heap = [(-seats.left_at(device), device) for device in devices]
        heapq.heapify(self._heap)

    def best(self) -> tuple[float, int] | None:
        """The device with most power left, and how much."""
        while self._heap:
            known, device = self._heap[0]
            left = self._seats.left_at(device)
            if -known <= left + DUST_W:
                return left, device
            heapq.heapreplace(self._heap, (-left, device))
        return None

    def pop(self) -> int:
        """Take the one that `best` named."""
        return heapq.heappop(self._heap)[1]


def place(seats: Seats, loose: Iterable[Copies]) -> None:
    """Seat what may go anywhere, where nothing stands first; what finds no device is left out."""
    floor = seats.floor
    each = [item.pattern for item in loose for _ in range(item.count)]
    each.sort(key=lambda item: (-floor.dynamic_w(item), item.key))
    queues: dict[int, tuple[_Queue, _Queue]] = {}
    for pattern in each:
        pool = int(floor.problem.kind_pool[pattern.kind])
        if pool not in queues:
            free = [device for device in floor.devices(pool) if seats.patterns[device] is None]
            queues[pool] = (
                _Queue(seats, (device for device in free if device not in floor.held)),
                _Queue(seats, (device for device in free if device in floor.held)),
            )
        device = _choose(queues[pool], floor.dynamic_w(pattern))
        if device is not None:
            seats.put(device, pattern)


def _choose(queues: tuple[_Queue, _Queue], needed_w: float) -> int | None:
    found = [(queue, best) for queue in queues if (best := queue.best()) is not None]
    for queue, (left, _) in found:
        if left + DUST_W >= needed_w:
            return queue.pop()
    if not found:
        return None
    return max(found, key=lambda item: item[1][0])[0].pop()
