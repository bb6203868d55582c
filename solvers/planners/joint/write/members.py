"""What is written of one device's replicas: batch, the batches and clocks a governor may move between, memory limit,
rates.

Owns the last small choices on a device, which change no process: a replica that stands keeps its batch as long as
nobody is served less than he is sized for, and its memory limit as long as that is enough. Where a device's controller
is to seek the best clock under a cap, replicas begin with the smallest batch that serves nearly as much as the best,
go no higher, and the clock may fall as far as these batches keep every promise. It refuses to change shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.plan import Assignment
from solvers.planners.joint.seat.seats import DUST, Seats
from solvers.problems.joint import Flags, Floats, JointProblem
from solvers.problems.patterns import Pattern, at_share, serve, slowdown, watts_at_share

CEILING_PART = 0.99
"""Of the best rate."""
CLOCK_ROOM_PART = 0.75
"""Of the planned clock: so far a controller shall be able to go down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One replica with all its numbers. `standing` is the replica that it is, unless it starts anew."""

    variant: int
    device: int
    share_pct: int
    memory_mib: int
    batch: int
    batch_min: int
    batch_max: int
    latency_ms: float
    capacity_rps: float
    power_w: float
    standing: Assignment | None
    clocks_mhz: tuple[int, int]
    """Between which a governor may move; equal where the clock is fixed."""


def members(
    seats: Seats, device: int, standing: list[tuple[int, Assignment]], *, governed: bool = False
) -> Iterator[Member]:
    """The replicas of one device. `standing`: what stands on it, with the number of its variant; `governed`: whether
    its clock is open.
    """
    pattern, problem = seats.patterns[device], seats.floor.problem
    if pattern is None:
        return
    table = int(problem.kind_table[pattern.kind])
    factor = slowdown(problem, table, pattern.variants, pattern.shares_pct)
    reads = [
        _Read.of(problem, table, (variant, share), float(slow))
        for variant, share, slow in zip(pattern.variants, pattern.shares_pct, factor, strict=True)
    ]
    kept = _kept(seats, pattern, reads, standing)
    ceilings = _ceilings(problem, pattern, reads) if governed else []
    if governed:
        kept = _lowered(seats, pattern, reads, (kept, ceilings))
    windows = []
    for place, read in enumerate(reads):
        before, column = kept[place]
        limit_mib = float(before.memory_mib_limit) if before is not None else pattern.memory_mib[place]
        low, high = _window(read.fits(limit_mib), column)
        windows.append((limit_mib, low, min(high, max(column, ceilings[place])) if governed else high))
    clocks = _clocks(problem, pattern, [high for _, _, high in windows]) if governed else _clock(problem, pattern)
    for place, (variant, share, read) in enumerate(zip(pattern.variants, pattern.shares_pct, reads, strict=True)):
        (before, column), (limit_mib, low, high) = kept[place], windows[place]
        yield Member(
            variant=variant,
            device=device,
            share_pct=share,
            memory_mib=int(limit_mib),
            batch=int(problem.batches[column]),
            batch_min=int(problem.batches[low]),
            batch_max=int(problem.batches[high]),
            latency_ms=float(read.latency_ms[column]),
            capacity_rps=float(read.rate_rps[column]),
            power_w=float(read.power_w[column]),
            standing=before,
            clocks_mhz=clocks,
        )


def _clock(problem: JointProblem, pattern: Pattern) -> tuple[int, int]:
    clock = int(problem.kind_clock_mhz[pattern.kind])
    return clock, clock


def _clocks(problem: JointProblem, pattern: Pattern, highest: list[int]) -> tuple[int, int]:
    """From the lowest clock at which the largest batches of all keep every promise to the highest there is."""
    planned, _ = _clock(problem, pattern)
    table = _table(problem, pattern)
    for clock in table:
        able = clock >= planned or all(
            read.rate_rps[column] > 0 for read, column in zip(_reads_at(problem, pattern, clock), highest, strict=True)
        )
        if able:
            return min(clock, planned), table[-1]
    return planned, planned


def _table(problem: JointProblem, pattern: Pattern) -> list[int]:
    """The clocks of a device, rising."""
    mine = problem.kind_pool == problem.kind_pool[pattern.kind]
    return sorted({int(clock) for clock in problem.kind_clock_mhz[mine]})


def _reads_at(problem: JointProblem, pattern: Pattern, clock_mhz: int) -> list[_Read]:
    """The members at another clock, in the same company."""
    pool, planned = int(problem.kind_pool[pattern.kind]), int(problem.kind_clock_mhz[pattern.kind])
    kind = problem.like(pool, clock_mhz)[problem.like(pool, planned).index(pattern.kind)]
    table = int(problem.kind_table[kind])
    factor = slowdown(problem, table, pattern.variants, pattern.shares_pct)
    members = zip(pattern.variants, pattern.shares_pct, factor, strict=True)
    return [_Read.of(problem, table, (variant, share), float(slow)) for variant, share, slow in members]


def _ceilings(problem: JointProblem, pattern: Pattern, reads: list[_Read]) -> list[int]:
    """For every member the smallest batch that serves nearly as much as the best of those that leave the clock room to
    fall: beyond, more batch brings only latency and power.
    """
    planned, _ = _clock(problem, pattern)
    slower = next(clock for clock in _table(problem, pattern) if clock >= CLOCK_ROOM_PART * planned)
    found = []
    for read, slow in zip(reads, _reads_at(problem, pattern, slower), strict=True):
        rates = np.where(slow.rate_rps > 0, read.rate_rps, 0.0) if (slow.rate_rps > 0).any() else read.rate_rps
        found.append(int(np.argmax(rates >= CEILING_PART * rates.max())))
    return found


def _lowered(
    seats: Seats,
    pattern: Pattern,
    reads: list[_Read],
    at: tuple[list[tuple[Assignment | None, int]], list[int]],
) -> list[tuple[Assignment | None, int]]:
    """What starts anew begins with its ceiling, where nobody is served less than he is sized for by it."""
    kept, ceilings = at
    lowered: list[tuple[Assignment | None, int]] = []
    for (before, column), ceiling, read, variant in zip(kept, ceilings, reads, pattern.variants, strict=True):
        work = seats.floor.problem.variants[variant].workload
        spare = float(seats.served_rps[work]) - seats.floor.problem.workloads[work].rate_least_rps * (1 - DUST)
        lost = float(read.rate_rps[column] - read.rate_rps[ceiling])
        if before is None and ceiling < column and lost <= max(0.0, spare):
            _serve(seats, variant, read, (column, ceiling))
            lowered.append((before, ceiling))
        else:
            lowered.append((before, column))
    return lowered


@dataclass(frozen=True, slots=True)
class _Read:
    """One member by batch: latency at the granted rate, the rate (0 where no promise keeps), power and memory limit."""

    latency_ms: Floats
    rate_rps: Floats
    power_w: Floats
    memory_mib: Floats

    @staticmethod
    def of(problem: JointProblem, table: int, member: tuple[int, int], slow: float) -> _Read:
        """A (variant, share) beside neighbours that slow it so."""
        variant, share = member
        mean, tail = (
            at_share(problem, cells[table, variant], share) * slow for cells in (problem.mean_ms, problem.tail_ms)
        )
        latency, rate = serve(problem, variant, mean, tail)
        power = watts_at_share(problem, problem.power_w[table, variant], share)
        return _Read(latency, rate, power, problem.memory_mib[table, variant])

    def below(self, column: int) -> Floats:
        """The rates of batches that draw no more than this one; 0 for the others."""
        return np.where(self.power_w <= self.power_w[column] + DUST, self.rate_rps, 0.0)

    def fits(self, limit_mib: float) -> Flags:
        """Batches that keep the promise within a memory limit."""
        return np.asarray((self.rate_rps > 0) & (self.memory_mib <= limit_mib + DUST))


def _kept(
    seats: Seats, pattern: Pattern, reads: list[_Read], standing: list[tuple[int, Assignment]]
) -> list[tuple[Assignment | None, int]]:
    """For every member the replica that it is already, if any, and its batch: same share, a memory limit with a batch
    in it that serves enough, and all limits fit together.
    """
    problem = seats.floor.problem
    capped = problem.pools[int(problem.kind_pool[pattern.kind])].capped
    left = sorted(standing, key=lambda item: (-item[1].memory_mib_limit, item[1].replica))
    network = problem.network
    kept: list[tuple[Assignment | None, int]] = []
    for place, (variant, share) in enumerate(zip(pattern.variants, pattern.shares_pct, strict=True)):
        column = int(np.searchsorted(problem.batches, pattern.batches[place]))
        same = next(
            (item for item in left if network[item[0]] == network[variant] and item[1].share_pct_sm == share), None
        )
        read = replace(reads[place], rate_rps=reads[place].below(column)) if capped else reads[place]
        chosen = None if same is None else _column_beside(seats, variant, read, same[1], column)
        if same is None or chosen is None:
            kept.append((None, column))
            continue
        left.remove(same)
        kept.append((same[1], chosen))
        _serve(seats, variant, reads[place], (column, chosen))
    room = problem.pools[int(problem.kind_pool[pattern.kind])].memory_mib
    while True:
        more = [
            item.memory_mib_limit - need if item is not None else 0.0
            for (item, _), need in zip(kept, pattern.memory_mib, strict=True)
        ]
        if sum(pattern.memory_mib) + sum(more) <= room + DUST:
            return kept
        worst = int(np.argmax(more))
        column = int(np.searchsorted(problem.batches, pattern.batches[worst]))
        _serve(seats, pattern.variants[worst], reads[worst], (kept[worst][1], column))
        kept[worst] = None, column


def _serve(seats: Seats, variant: int, read: _Read, change: tuple[int, int]) -> None:
    before, after = change
    workload = seats.floor.problem.variants[variant].workload
    seats.served_rps[workload] += float(read.rate_rps[after] - read.rate_rps[before])


def _column_beside(seats: Seats, variant: int, read: _Read, before: Assignment, column: int) -> int | None:
    """The batch that a standing replica goes on with: its own (or, where full batches count, the largest that keeps the
    promise) where nobody loses by it, else the chosen one, else the best that its memory limit allows; None where none
    serves enough.
    """
    problem = seats.floor.problem
    workload = problem.variants[variant].workload
    work = problem.workloads[workload]
    spare = float(seats.served_rps[workload]) - (work.rate_least_rps if seats.eager else work.rate_rps) * (1 - DUST)
    fine = read.fits(before.memory_mib_limit)
    first = np.flatnonzero(fine)[::-1] if seats.eager else np.flatnonzero(problem.batches == before.batch)
    best = int(np.argmax(np.where(fine, read.rate_rps, -1.0)))
    for choice in (*first.tolist(), column, best):
        lost = float(read.rate_rps[column] - read.rate_rps[choice])
        if fine[choice] and (choice == column or lost <= max(0.0, spare)):
            return int(choice)
    return None


def _window(fine: Flags, chosen: int) -> tuple[int, int]:
    """First and last column around the chosen one between which every batch keeps the promise within the memory."""
    broken = np.flatnonzero(~fine)
    below, above = broken[broken < chosen], broken[broken > chosen]
    return (int(below[-1]) + 1 if len(below) else 0), (int(above[0]) - 1 if len(above) else len(fine) - 1)
