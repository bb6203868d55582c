"""Counts of patterns become named devices, so that the fewest replicas start and every single node bears its power.

A layout knows power only as sums over like nodes, and may put a floor of replicas above a budget; both are made exact.
In each pool equal contents come first, then those that save most launch seconds. What
may go anywhere is packed by draw, largest first, where most power is left. What is still missing one replica more, or
one share larger, makes up where a dollar serves most under every rule, promise and cap; no workload loses to another.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId
from solvers.engines.deadline import Deadline, charge
from solvers.planners.joint.seat.jobs import spread_jobs
from solvers.planners.joint.seat.seats import DUST, DUST_W, Delta, Floor, Held, Move, Seats, Terms, members_of, without
from solvers.planners.joint.seat.standing import make_before_break, replaced, shed, widen, within_bounds, within_power
from solvers.planners.joint.solve.improve import improved
from solvers.planners.joint.solve.judge import Judge
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.patterns import Judged, Layout, Pattern, Patterns, Prices


def seat(floor: Floor, layout: Layout, terms: Terms, at: Mapping[int, Pattern] | None = None) -> Seats:
    """`at`: contents that have their devices; then the layout is what may go anywhere."""
    seats = Seats(floor)
    seated, loose = match(floor, layout) if at is None else (at, dict(layout.pairs))
    for device, pattern in sorted(seated.items()):
        seats.put(device, pattern)
    place(seats, loose)
    seated_last = terms.job_most_pct if terms.jobs_first else ()
    make_before_break(seats, seated_last)
    within_bounds(seats)
    seats = _within_each(seats, layout, terms)
    if not terms.capacity:
        shed(seats, terms.job_most_pct)
    seats.kept = replaced(seats, terms.job_most_pct)
    if terms.jobs_first:
        spread_jobs(seats, terms)
    widen(seats, seated_last)
    return seats


NEAR = 1e-3
"""What so small a part more costs is as good."""
CHANCES, HOPEFUL = 12, 2
"""How often the layouts that promise most are seated at most, and how many these are."""
EXCHANGE_UNITS, EXCHANGE_PART = 150, 0.2
"""What an exchange may take; of what is left at most."""


def seatings(floor: Floor, layouts: Sequence[Layout], terms: Terms, spare: Deadline) -> list[Seats]:
    """Each seated; and those that promise most, more than any keeps, by other chance too: nodes bear less than the sum
    that layouts know.
    """
    seated, known_usd, best = list[Seats](), math.inf, sorted(layouts, key=lambda item: item.usd_per_h)[:HOPEFUL]
    for chance in range(CHANCES if floor.parts_few else 1):
        for layout in best if chance else layouts:
            if not chance or layout.usd_per_h < (1 - NEAR) * known_usd:
                asked = replace(terms, spare=spare, known_usd=known_usd, chance=chance)
                seated.append(seat(floor, layout, asked))
                known_usd = min(known_usd, seated[-1].worth(0.0, 0.0))
        if spare.over:
            break
    return seated


def _within_each(seats: Seats, layout: Layout, terms: Terms) -> Seats:
    """Within the power of every domain, and nobody short for it. Where places are not enough devices are exchanged: on
    those that there are, until they serve everybody, if that can be found; else beside whatever else makes up for it.
    """
    used = np.array([pattern is not None for pattern in seats.patterns], dtype=np.bool_)
    aim_usd, short = seats.worth(0.0, 0.0), seats.unserved()
    over = within_power(seats)
    if not over or not seats.floor.parts_few or terms.spare is None or terms.spare.over or aim_usd >= terms.known_usd:
        mend(seats, terms.deadline)
        return seats
    exchanged = partial(_exchanged, prices=layout.prices, spare=terms.spare, seed=1 + terms.chance)
    other = exchanged(seats, seats.floor.parts.of_some(used))
    mend(other, terms.deadline)
    if other.worth(0.0, 0.0) <= aim_usd * (1 + NEAR):
        return other
    mend(seats, terms.deadline)
    found = (other, seats, exchanged(seats, seats.floor.parts.problem))
    return min(found, key=lambda item: (round(max(0.0, item.unserved() - short), 3), item.worth(0.0, 0.0)))


def _exchanged(before: Seats, problem: JointProblem, *, prices: Prices | None, spare: Deadline, seed: int) -> Seats:
    """Exchanged from these seats in the parts' problem, or one of fewer devices, where it ends as soon as everybody is
    served. What is where it was stays there; whatever else goes where fewest start.
    """
    seats, parts, rest = Seats(before.floor), before.floor.parts, list[tuple[int, Pattern]]()
    here = tuple(parts.inside(at, item) for at, item in enumerate(before.patterns) if item is not None)
    within = Deadline(EXCHANGE_PART * spare.time_left_s, EXCHANGE_UNITS)
    begun, serves = Layout(patterns=here, counts=(1,) * len(here)), problem is not parts.problem
    found = improved(Judge(problem), begun, prices, within, seed, serves=serves)
    charge(spare, within)
    free = {part: [*of] for part, of in grouped(range(len(parts.of)), parts.of.__getitem__).items()}
    for made, count in found.pairs:
        part, item = parts.outside(made)
        same = [at for at in free[part] if before.patterns[at] == item][:count]
        for at in same:
            free[part].remove(at)
            seats.put(at, item)
        rest += [(part, item)] * (count - len(same))
    for part, item in rest:
        device = min(free[part], key=lambda at: (len(seats.turnover(at, item).starts), at in seats.floor.held, at))
        free[part].remove(device)
        seats.put(device, item)
    return seats


TIGHT_PART = 0.9
"""What it is worth that it stands just so, but with less memory."""
NEAR_PART = 0.25
"""What it is worth that a network stands on the device with another share."""


def match(
    floor: Floor, layout: Layout, clocks_mhz: Mapping[DeviceId, int] | None = None
) -> tuple[dict[int, Pattern], dict[Pattern, int]]:
    """Patterns on the devices where most of them stands already, and how many may go anywhere in their pool. Of equal
    contents those at a device's own clock first, where it is told.
    """
    wanted, seated = Counter[Pattern](), dict[int, Pattern]()
    for pattern, count in sorted(layout.pairs, key=lambda item: item[0].key):
        wanted[pattern] += count
    _same(floor, wanted, seated, clocks_mhz or {})
    _alike(floor, wanted, seated)
    return seated, +wanted


def _same(
    floor: Floor, wanted: Counter[Pattern], seated: dict[int, Pattern], clocks_mhz: Mapping[DeviceId, int]
) -> None:
    """Devices whose contents are wanted just so; less is wanted then."""
    problem, pool_of = floor.problem, floor.pool_of.tolist()
    like = grouped(floor.held, lambda at: (pool_of[at], *((item.variant, item.share_pct) for item in floor.held[at])))
    for pattern, count in wanted.items():
        members = zip(problem.networks(pattern.variants), pattern.shares_pct, strict=True)
        places = like[int(problem.kind_pool[pattern.kind]), *members]
        # A clock is changed in place, but may be what a node's power bears.
        clock = int(problem.kind_clock_mhz[pattern.kind])
        places.sort(key=lambda device: clocks_mhz.get(floor.names[device]) != clock)
        seated.update(dict.fromkeys(places[:count], pattern))
        wanted[pattern] -= len(places[:count])
        del places[:count]


def _alike(floor: Floor, wanted: Counter[Pattern], seated: dict[int, Pattern]) -> None:
    """Devices where most launch seconds are saved; less is wanted then."""
    where: dict[tuple[int, int], list[int]] = defaultdict(list)
    for device in floor.held.keys() - seated:
        for variant in {item.variant for item in floor.held[device]}:
            where[int(floor.pool_of[device]), variant].append(device)
    patterns, pairs = list(+wanted), list[tuple[float, int, int]]()
    for row, pattern in enumerate(patterns):
        networks, pool = floor.problem.networks(pattern.variants), int(floor.problem.kind_pool[pattern.kind])
        for device in {device for network in set(networks) for device in where[pool, network]}:
            pairs.append((-saved_s(pattern, networks, floor.held[device]), row, device))
    for _, row, device in sorted(pairs):
        if wanted[patterns[row]] and device not in seated:
            wanted[patterns[row]] -= 1
            seated[device] = patterns[row]


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


def place(seats: Seats, loose: Mapping[Pattern, int]) -> None:
    """Seat what may go anywhere where most power is left, first where nothing stands; the rest is left out."""
    floor = seats.floor
    each = [pattern for pattern, count in loose.items() for _ in range(count)]
    each.sort(key=lambda item: (-floor.dynamic_w(item), item.key))
    free: dict[int, list[Whole]] = {}
    for pattern in each:
        pool, needed_w = int(floor.problem.kind_pool[pattern.kind]), floor.dynamic_w(pattern)
        if pool not in free:
            idle = [device for device in floor.devices(pool) if seats.patterns[device] is None]
            both = ([device for device in idle if (device in floor.held) is stands] for stands in (False, True))
            free[pool] = [np.array(some, dtype=np.int64) for some in both]
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
        drafts: _Drafts | None = None
        for _ in range(REPLICAS_ADDED_MAX):
            if deadline.over or not (seats.short_rps(workload) or seats.missing(workload)):
                break
            drafts = drafts or _Drafts(seats, workload)
            if not _add(seats, workload, drafts):
                break


def _add(seats: Seats, workload: int, drafts: _Drafts) -> bool:
    """One replica more, or a larger one, where a dollar serves most."""

    def moves() -> Iterator[Move]:
        """No replica ends before it is replaced where anything else serves too."""
        later = list[Move]()
        for move in drafts.offers(seats):
            before, after = (seats.ended(move.device, item) for item in (seats.patterns[move.device], move.after))
            if len(after) > len(before):
                later.append(move)
            else:
                yield move
        yield from later

    able = (move for move in moves() if seats.loss_usd(move) < -DUST and seats.accepts(move, workload))
    found = next(able, None)
    if found is not None:
        drafts.anew(seats, found.device)
        seats.put(found.device, found.after)
        drafts.draft(seats, found.device)
    return found is not None


class _Drafts:
    """Moves in the making for one workload: device and contents; kept as long as their devices stay as they are. Of
    the devices that carry it already, those with most share left, and a few empty ones of each pool.
    """

    def __init__(self, seats: Seats, workload: int) -> None:
        problem = seats.floor.problem
        self.workload, self.mine = workload, np.flatnonzero(problem.variant_workload == workload)
        # By device: contents, the $/h that they add, and what they serve more.
        self.drafts: dict[int, tuple[Judged, Floats, Floats]] = {}
        # By pool, empty devices that are not looked at: like another that is.
        self.idle: dict[int, list[int]] = {}
        for pool in np.flatnonzero(problem.allowed[:, self.mine].any(axis=1)).tolist():
            used, empty = _few(seats, seats.floor.devices(pool), self.mine.tolist())
            self.idle[pool] = empty[EMPTY_MAX:]
            for device in (*used, *empty[:EMPTY_MAX]):
                self.draft(seats, device)

    def anew(self, seats: Seats, device: int) -> None:
        """A device's contents are about to change."""
        self.drafts.pop(device, None)
        idle = self.idle.get(int(seats.floor.pool_of[device]), [])
        if seats.patterns[device] is None and idle:
            self.draft(seats, idle.pop(0))

    def draft(self, seats: Seats, device: int) -> None:
        """One replica more on this device where there is a place, or one that is there with more share."""
        problem, before, pool = seats.floor.problem, seats.patterns[device], int(seats.floor.pool_of[device])
        members, allowed = members_of(before), self.mine[problem.allowed[pool, self.mine]].tolist()
        fit = problem.shares_pct[problem.shares_pct <= seats.spare_pct(device)]
        if not len(fit):
            return
        steps = fit[np.unique(np.linspace(0, len(fit) - 1, SHARES_MAX).round().astype(np.int64))].tolist()
        of_pool = np.flatnonzero(problem.kind_pool == pool).tolist()
        kinds = of_pool if before is None else problem.like(pool, int(problem.kind_clock_mhz[before.kind]))
        judge, room = seats.floor.judge, len(members) < min(seats.floor.judge.width, problem.pools[pool].clients)
        every = product(steps, kinds, allowed if room else ())
        fresh = [(kind, [*members, (variant, share)]) for share, kind, variant in every]
        for more, kind, place in product(steps, kinds, range(len(members))):
            variant, share = members[place]
            if variant in allowed:
                fresh.append((kind, [*without(members, place), (variant, share + more)]))
        judged = judge.judge(Patterns.listed([kind for kind, _ in fresh], [kept for _, kept in fresh], judge.width))
        rps = (judged.capacity_rps * np.isin(judged.rows.variants, self.mine)).sum(axis=1)
        usd_now = 0.0 if before is None else before.usd_per_h
        emptied = seats.change(Move(device=device, after=None)).get(self.workload, Delta())
        self.drafts[device] = judged, judged.usd_per_h - usd_now, rps + emptied.rps

    def offers(self, seats: Seats) -> Iterator[Move]:
        """Lawful moves; the cheapest per rate served first."""
        if not self.drafts:
            return
        device = np.repeat(list(self.drafts), [len(judged) for judged, _, _ in self.drafts.values()])
        judged = Judged.chained([judged for judged, _, _ in self.drafts.values()])
        usd, rps = (np.concatenate([item[at] for item in self.drafts.values()]) for at in (1, 2))
        short = max(seats.short_rps(self.workload), DUST)
        score = (np.maximum(usd, 0.0) + DUST) / np.maximum(np.minimum(rps, short), DUST * short)
        order = np.lexsort((device, usd, score))
        for row in order[judged.lawful[order]]:
            (pattern,) = seats.floor.judge.patterns(judged.take(np.array([row], dtype=np.int64)))
            yield Move(device=int(device[row]), after=pattern)


def _few(seats: Seats, devices: Iterable[int], variants: list[int]) -> tuple[list[int], list[int]]:
    """Devices that carry the workload already and those with most share left, a few; and the empty ones."""
    used, empty = list[tuple[int, int]](), list[tuple[float, int]]()
    for device in devices:
        now = {variant for variant, _ in members_of(seats.patterns[device])}
        if now:
            used.append((-WHOLE_PCT if now.intersection(variants) else -seats.spare_pct(device), device))
        else:
            empty.append((-seats.left_at(device), device))
    return [device for _, device in sorted(used)[:USED_MAX]], [device for _, device in sorted(empty)]
