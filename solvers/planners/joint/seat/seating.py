"""Counts of patterns become named devices, so that the fewest replicas start and every single node bears its power.

A layout knows power only as sums over like nodes, and may put a floor of replicas above a budget; both are made exact,
in the order of `seat`. In each pool equal contents come first, then an assignment of most launch
seconds saved, exact while that is small and greedy beyond. What may go anywhere is packed by draw, largest first, where
most power is left. What is still missing (replicas, rates that power took) a small local search makes
up: one replica more, or one share larger, on the device where a dollar serves most, with room for it under every rule,
promise and cap. What no move here can serve stays short, and no workload loses anything to another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from scipy.optimize import linear_sum_assignment

from solvers.domain.arrays import Whole
from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.jobs import spread_jobs
from solvers.planners.joint.seat.seats import (
    DUST,
    DUST_W,
    Floor,
    Held,
    Member,
    Move,
    Seats,
    Terms,
    members_of,
)
from solvers.planners.joint.seat.standing import (
    ended,
    make_before_break,
    replaced,
    shed,
    snap,
    take_spare_devices,
    widen,
    within_budgets,
    within_power,
)
from solvers.planners.joint.solve.judge import Patterns
from solvers.problems.patterns import Layout, Pattern


def seat(floor: Floor, layout: Layout, terms: Terms) -> Seats:
    """Every device with what it is to carry."""
    seats = Seats.empty(floor)
    matching = match(floor, layout)
    for device, pattern in sorted(matching.seated.items()):
        seats.put(device, pattern)
    place(seats, matching.loose)
    # What is served is known only now, and with it which workload has more than it needs.
    snap(seats, sorted(matching.seated), terms.launch_usd_per_s)
    seated_last = terms.job_most_pct if terms.jobs_first else ()
    make_before_break(seats, seated_last)
    take_spare_devices(seats)
    within_budgets(seats)
    within_power(seats)
    mend(seats, terms.deadline)
    if not terms.capacity:
        shed(seats, terms.job_most_pct)
    seats.kept = replaced(seats, terms.job_most_pct)
    if terms.jobs_first:
        spread_jobs(seats, terms)
    widen(seats, seated_last)
    return seats


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


def place(seats: Seats, loose: Iterable[Copies]) -> None:
    """Seat what may go anywhere where most power is left, where nothing stands first; what finds no device is left
    out.
    """
    floor = seats.floor
    each = [item.pattern for item in loose for _ in range(item.count)]
    each.sort(key=lambda item: (-floor.dynamic_w(item), item.key))
    free: dict[int, list[Whole]] = {}
    for pattern in each:
        pool, needed_w = int(floor.problem.kind_pool[pattern.kind]), floor.dynamic_w(pattern)
        if pool not in free:
            idle = [device for device in floor.devices(pool) if seats.patterns[device] is None]
            free[pool] = [
                np.array([device for device in idle if (device in floor.held) is stands], dtype=np.int64)
                for stands in (False, True)
            ]
        best = [int(some[np.argmax(seats.lefts_at(some))]) for some in free[pool] if len(some)]
        fit = (device for device in best if seats.left_at(device) + DUST_W >= needed_w)
        device = next(fit, max(best, key=seats.left_at, default=None))
        if device is not None:
            seats.put(device, pattern)
            free[pool] = [some[some != device] for some in free[pool]]


REPLICAS_ADDED_MAX = 64
"""To one workload: layouts are wrong by little."""
USED_MAX = 48
EMPTY_MAX = 4
"""Devices of each pool that are tried for one replica."""
SHARES_MAX = 8
"""Of all that a device has left, both ends among them."""


def mend(seats: Seats, deadline: Deadline) -> None:
    """Add for what is short, the weightiest first, until nothing helps or time is up."""
    works = seats.floor.problem.workloads
    for workload in sorted(range(len(works)), key=lambda number: (-works[number].unserved_usd, number)):
        for _ in range(REPLICAS_ADDED_MAX):
            if deadline.over or not (seats.short_rps(workload) or seats.missing(workload)):
                break
            if not add(seats, workload):
                break


def add(seats: Seats, workload: int) -> bool:
    """One replica more, or a larger one, where a dollar serves most."""

    def able(move: Move) -> bool:
        return seats.loss_usd(move) < -DUST and seats.accepts(move, workload)

    # No replica ends before it is replaced where anything else serves too.
    later = list[Move]()
    for move in _offers(seats, workload):
        if _interrupts(seats, move):
            later.append(move)
        elif able(move):
            seats.make(move)
            return True
    found = next(filter(able, later), None)
    if found is not None:
        seats.make(found)
    return found is not None


def _interrupts(seats: Seats, move: Move) -> bool:
    """Whether a move would interrupt what stands on a device and would go on without it."""
    now = seats.patterns[move.device]
    return len(ended(seats, move.device, move.after)) > len(ended(seats, move.device, now))


@dataclass(slots=True, kw_only=True)
class _Drafts:
    """Moves in the making: device and contents."""

    allowed: list[int]
    """Variants of the workload that the pool allows."""
    replicas_max: int
    """On one device of the pool."""
    device: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    members: list[list[Member]] = field(default_factory=list)

    def draft(self, seats: Seats, device: int) -> None:
        """One replica more on this device where there is a place, or one that is there with more share."""
        problem, before = seats.floor.problem, seats.patterns[device]
        members = members_of(before)
        pool = int(seats.floor.pool_of[device])
        kinds = (
            np.flatnonzero(problem.kind_pool == pool).tolist()
            if before is None
            else problem.like(pool, int(problem.kind_clock_mhz[before.kind]))
        )
        steps = _some(problem.shares_pct[problem.shares_pct <= 100 - sum(share for _, share in members)])
        for share, kind, variant in product(steps, kinds, self.allowed if len(members) < self.replicas_max else ()):
            self._add(device, kind, [*members, (variant, share)])
        grown = [place for place, (variant, _) in enumerate(members) if variant in self.allowed]
        for more, kind, place in product(steps, kinds, grown):
            variant, share = members[place]
            self._add(device, kind, [*members[:place], (variant, share + more), *members[place + 1 :]])

    def _add(self, device: int, kind: int, members: list[Member]) -> None:
        self.device.append(device)
        self.kind.append(kind)
        self.members.append(members)

    def rows(self, width: int) -> Patterns:
        """As rows to judge."""
        made = np.zeros((len(self.kind), width, 2), dtype=np.int64)
        made[:, :, 0] = -1
        for row, members in enumerate(self.members):
            made[row, : len(members)] = members
        return Patterns(kind=np.array(self.kind, dtype=np.int64), variants=made[:, :, 0], shares_pct=made[:, :, 1])


def _offers(seats: Seats, workload: int) -> Iterator[Move]:
    """Lawful moves for a workload; the cheapest per rate served first."""
    judge = seats.floor.judge
    mine = np.flatnonzero(seats.floor.problem.variant_workload == workload)
    drafts = _drafts(seats, mine)
    if not drafts.device:
        return
    verdicts = judge.judge(drafts.rows(judge.width))
    own = np.isin(verdicts.rows.variants, mine)
    device = np.array(drafts.device, dtype=np.int64)
    before = [seats.patterns[number] for number in drafts.device]
    usd = verdicts.usd_per_h - np.array([0.0 if item is None else item.usd_per_h for item in before])
    held = np.array([_served(seats, item, workload) for item in before])
    short = max(seats.short_rps(workload), DUST)
    gain = np.minimum((verdicts.capacity_rps * own).sum(axis=1) - held, short)
    score = (np.maximum(usd, 0.0) + DUST) / np.maximum(gain, DUST * short)
    order = np.lexsort((device, usd, score))
    for row in order[verdicts.lawful[order]]:
        (pattern,) = judge.patterns(verdicts.take(np.array([row], dtype=np.int64)))
        yield Move(device=int(device[row]), after=pattern)


def _served(seats: Seats, pattern: Pattern | None, workload: int) -> float:
    of = seats.floor.problem.variant_workload
    members = () if pattern is None else zip(pattern.variants, pattern.capacity_rps, strict=True)
    return sum((capacity for variant, capacity in members if of[variant] == workload), start=0.0)


def _drafts(seats: Seats, mine: Whole) -> _Drafts:
    problem, drafts = seats.floor.problem, _Drafts(allowed=[], replicas_max=0)
    for pool, item in enumerate(problem.pools):
        drafts.allowed = [int(variant) for variant in mine if problem.allowed[pool, variant]]
        drafts.replicas_max = min(seats.floor.judge.width, item.clients)
        if drafts.allowed:
            for device in _few(seats, seats.floor.devices(pool), drafts.allowed):
                drafts.draft(seats, device)
    return drafts


def _some(steps: Whole) -> list[int]:
    if not len(steps):
        return []
    places = np.unique(np.linspace(0, len(steps) - 1, SHARES_MAX).round().astype(np.int64))
    return [int(steps[place]) for place in places]


def _few(seats: Seats, devices: Iterable[int], variants: list[int]) -> list[int]:
    """Devices that carry the workload already, those with most share left, and a few empty ones."""
    used: list[tuple[int, int]] = []
    empty: list[tuple[float, int]] = []
    for device in devices:
        pattern = seats.patterns[device]
        if pattern is None:
            empty.append((-seats.left_at(device), device))
            continue
        carries = any(variant in variants for variant in pattern.variants)
        used.append((-100 if carries else sum(pattern.shares_pct), device))
    return [*(device for _, device in sorted(used)[:USED_MAX]), *(device for _, device in sorted(empty)[:EMPTY_MAX])]
