"""Patterns to nodes so that every power domain bears them.

Owns the packing by draw: what may go anywhere goes, largest first, where most power is left; where a domain is exceeded
all the same, patterns change places with lighter ones elsewhere; where that does not help, a device runs at a lower
clock, and at last without the replica that is missed least. What is lost by it is for others to make up. It refuses to
start anything.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from solvers.planners.joint.seat.floor import Floor
from solvers.planners.joint.seat.seats import Seats
from solvers.problems.joint import Floats, Whole
from solvers.problems.patterns import Pattern, judge

DUST_W = 1e-6


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


def place(seats: Seats, loose: Iterable[tuple[Pattern, int]]) -> list[Pattern]:
    """Seat what may go anywhere, where nothing stands first; what finds no device at all comes back."""
    floor = seats.floor
    each = [pattern for pattern, count in loose for _ in range(count)]
    each.sort(key=lambda item: (-floor.dynamic_w(item), item.key))
    queues: dict[int, tuple[_Queue, _Queue]] = {}
    homeless: list[Pattern] = []
    for pattern in each:
        pool = int(floor.problem.kind_pool[pattern.kind])
        if pool not in queues:
            free = [device for device in floor.devices(pool) if seats.patterns[device] is None]
            queues[pool] = (
                _Queue(seats, (device for device in free if device not in floor.held)),
                _Queue(seats, (device for device in free if device in floor.held)),
            )
        device = _choose(queues[pool], floor.dynamic_w(pattern))
        if device is None:
            homeless.append(pattern)
        else:
            seats.put(device, pattern)
    return homeless


def _choose(queues: tuple[_Queue, _Queue], needed_w: float) -> int | None:
    found = [(queue, best) for queue in queues if (best := queue.best()) is not None]
    for queue, (left, _) in found:
        if left + DUST_W >= needed_w:
            return queue.pop()
    if not found:
        return None
    return max(found, key=lambda item: item[1][0])[0].pop()


def within_power(seats: Seats) -> None:
    """Change places, clocks and at last contents until no domain is exceeded."""
    for domain in np.flatnonzero(seats.left_w < -DUST_W).tolist():
        inside = np.flatnonzero((seats.floor.domain_of == domain).any(axis=1)).tolist()
        while seats.left_w[domain] < -DUST_W and _swap(seats, domain, inside):
            pass
        while seats.left_w[domain] < -DUST_W and _lighten(seats, inside):
            pass


def _swap(seats: Seats, domain: int, inside: list[int]) -> bool:
    """Change one device of the domain with a lighter one outside; just enough if that is possible, else the most."""
    floor, over_w = seats.floor, -float(seats.left_w[domain])
    best: tuple[tuple[float, ...], int, int] | None = None
    by_pool: dict[int, list[int]] = defaultdict(list)
    for device in inside:
        if seats.patterns[device] is not None:
            by_pool[int(floor.pool_of[device])].append(device)
    for pool, mine in sorted(by_pool.items()):
        others = np.array([item for item in floor.devices(pool) if domain not in floor.domain_of[item]], dtype=np.int64)
        if not len(others):
            continue
        draws = np.array([seats.dynamic_w(item) for item in others])
        for device in mine:
            relief = seats.dynamic_w(device) - draws
            spare = _spare_w(seats, device, others)
            able = np.flatnonzero((relief > DUST_W) & (relief <= spare + DUST_W))
            if not len(able):
                continue
            enough = able[relief[able] >= over_w]
            pick = enough[np.argmin(relief[enough])] if len(enough) else able[np.argmax(relief[able])]
            other = int(others[pick])
            moved = float(device in floor.held) + float(other in floor.held)
            key = (-min(over_w, float(relief[pick])), moved, float(relief[pick]), float(device))
            if best is None or key < best[0]:
                best = key, device, other
    if best is None:
        return False
    _, device, other = best
    here, there = seats.patterns[device], seats.patterns[other]
    seats.put(device, there)
    seats.put(other, here)
    return True


def _spare_w(seats: Seats, device: int, others: Whole) -> Floats:
    """What the others' domains leave, those aside that the device shares with them."""
    left = np.append(seats.left_w, np.inf)
    domains = seats.floor.domain_of
    shared = domains[others] == domains[device][None, :]
    return np.asarray(np.where(shared, np.inf, left[domains[others]]).min(axis=1))


def _lighten(seats: Seats, inside: list[int]) -> bool:
    """The change of one device that loses least per watt: a lower clock, or one replica less."""
    best = min((item for device in inside for item in _reliefs(seats, device)), key=lambda item: item[0], default=None)
    if best is None:
        return False
    (_, _, device, _), after = best
    seats.put(device, after)
    return True


def _reliefs(seats: Seats, device: int) -> Iterator[tuple[tuple[float, float, int, int], Pattern | None]]:
    """Every lighter contents of a device, with what it loses per watt, what it saves, and its number."""
    before = seats.patterns[device]
    for number, after in enumerate(() if before is None else _lighter(seats.floor, before)):
        saved_w = seats.dynamic_w(device) - (seats.floor.dynamic_w(after) if after is not None else 0.0)
        if before is not None and saved_w > DUST_W:
            lost = seats.loss_usd(before, after) + 0.01 * (before.usd_per_h + sum(before.capacity_rps) * DUST_W)
            yield (max(lost, DUST_W) / saved_w, -saved_w, device, number), after


def _lighter(floor: Floor, before: Pattern) -> Iterator[Pattern | None]:
    problem = floor.problem
    pool, clock = problem.kind_pool[before.kind], problem.kind_clock_mhz[before.kind]
    for kind in np.flatnonzero((problem.kind_pool == pool) & (problem.kind_clock_mhz < clock)).tolist():
        slower = judge(problem, kind, before.variants, before.shares_pct)
        if slower is not None:
            yield slower
    if len(before.variants) == 1:
        yield None
    for place in range(len(before.variants) if len(before.variants) > 1 else 0):
        rest = [number for number in range(len(before.variants)) if number != place]
        fewer = judge(
            problem,
            before.kind,
            [before.variants[number] for number in rest],
            [before.shares_pct[number] for number in rest],
        )
        if fewer is not None:
            yield fewer
