"""What is written of a device's replicas: batch, the batches and clocks a governor may move between, memory limit,
rates.

These are the last small choices on a device, which change no process: a replica that stands keeps its batch as long as
its workload is still served what it is sized for, and its memory limit as long as that is enough. Where a device's
controller is to seek the best clock under a cap, replicas begin with the smallest batch that serves nearly as much as
the best, go no higher, and the clock may fall as far as these batches keep every promise. Shares stay as seated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.plan import Assignment
from solvers.planners.joint.reading.formulation import Stands
from solvers.planners.joint.seat.seats import DUST, Seats
from solvers.problems.joint import JointProblem
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
    clock_mhz_min: int
    """The lowest and the highest clock that a governor may choose, equal where the clock is fixed."""
    clock_mhz_max: int


class Batches:
    """Chooses device by device. What is served changes with every choice and decides the next ones, so it is counted
    here, beginning with what the seats say; they stay as they are.
    """

    def __init__(self, seats: Seats) -> None:
        self.served_rps: Floats = seats.served_rps.copy()
        self._seats, self._problem = seats, seats.floor.problem

    def members(self, device: int, standing: Sequence[Stands], *, governed: bool = False) -> list[Member]:
        """The replicas of one device. `standing`: what stands on it; `governed`: whether its clock is open."""
        pattern = self._seats.patterns[device]
        if pattern is None:
            return []
        chosen = self._chosen(pattern, standing)
        self._fit_limits(pattern, chosen)
        ceilings = _ceilings(self._problem, pattern, chosen) if governed else [0] * len(chosen)
        if governed:
            self._lower(chosen, ceilings)
        windows = [item.window() for item in chosen]
        highest = [
            min(high, max(item.column, ceiling)) if governed else high
            for (_, high), item, ceiling in zip(windows, chosen, ceilings, strict=True)
        ]
        planned = int(self._problem.kind_clock_mhz[pattern.kind])
        clocks = _clocks(self._problem, pattern, highest) if governed else [planned]
        batches = self._problem.batches
        return [
            Member(
                variant=item.read.variant,
                device=device,
                share_pct=item.read.share_pct,
                memory_mib=int(item.limit_mib),
                batch=int(batches[item.column]),
                batch_min=int(batches[low]),
                batch_max=int(batches[high]),
                latency_ms=float(item.read.latency_ms[item.column]),
                capacity_rps=float(item.read.rate_rps[item.column]),
                power_w=float(item.read.power_w[item.column]),
                standing=item.standing,
                clock_mhz_min=clocks[0],
                clock_mhz_max=clocks[-1],
            )
            for item, (low, _), high in zip(chosen, windows, highest, strict=True)
        ]

    def _chosen(self, pattern: Pattern, standing: Sequence[Stands]) -> list[_Chosen]:
        """For every member the replica that it is already, if any, and its batch: same share, and a memory limit with a
        batch in it that serves enough.
        """
        problem, network = self._problem, self._problem.network
        capped = problem.pools[int(problem.kind_pool[pattern.kind])].capped
        left = sorted(standing, key=lambda item: (-item.assignment.memory_mib_limit, item.assignment.replica))
        chosen: list[_Chosen] = []
        for read, batch, memory_mib in zip(
            _reads(problem, pattern, pattern.kind), pattern.batches, pattern.memory_mib, strict=True
        ):
            item = _Chosen(read=read, column=int(np.searchsorted(problem.batches, batch)), limit_mib=memory_mib)
            chosen.append(item)
            same = next(
                (
                    each
                    for each in left
                    if each.variant is not None
                    and network[each.variant] == network[read.variant]
                    and each.assignment.share_pct_sm == read.share_pct
                ),
                None,
            )
            column = None if same is None else self._column_beside(item, same.assignment, capped=capped)
            if same is not None and column is not None:
                left.remove(same)
                item.standing, item.limit_mib = same.assignment, float(same.assignment.memory_mib_limit)
                self._serve(item, column)
        return chosen

    def _column_beside(self, item: _Chosen, before: Assignment, *, capped: bool) -> int | None:
        """The batch that a standing replica goes on with: its own (or, where full batches count, the largest that keeps
        the promise) where its workload can spare what that loses, else the chosen one, else the best that its memory
        limit allows; None where none serves enough. Under a power cap none may draw more than the chosen one.
        """
        seats, read, column = self._seats, item.read, item.column
        if capped:
            read = replace(read, rate_rps=np.where(read.power_w <= read.power_w[column] + DUST, read.rate_rps, 0.0))
        work = self._problem.workloads[read.workload]
        spare = self._spare_rps(read.workload, work.rate_least_rps if seats.eager else work.rate_rps)
        fine = read.fits(before.memory_mib_limit)
        first = np.flatnonzero(fine)[::-1] if seats.eager else np.flatnonzero(self._problem.batches == before.batch)
        best = int(np.argmax(np.where(fine, read.rate_rps, -1.0)))
        for choice in (*first.tolist(), column, best):
            lost = float(read.rate_rps[column] - read.rate_rps[choice])
            if fine[choice] and (choice == column or lost <= spare):
                return int(choice)
        return None

    def _fit_limits(self, pattern: Pattern, chosen: Sequence[_Chosen]) -> None:
        """Start those anew whose limits have most above their need, until all limits fit on the device."""
        room = self._problem.pools[int(self._problem.kind_pool[pattern.kind])].memory_mib
        while True:
            more = [item.limit_mib - need for item, need in zip(chosen, pattern.memory_mib, strict=True)]
            if sum(pattern.memory_mib) + sum(more) <= room + DUST:
                return
            place = int(np.argmax(more))
            worst = chosen[place]
            self._serve(worst, int(np.searchsorted(self._problem.batches, pattern.batches[place])))
            worst.standing, worst.limit_mib = None, pattern.memory_mib[place]

    def _lower(self, chosen: Sequence[_Chosen], ceilings: Sequence[int]) -> None:
        """What starts anew begins with its ceiling, where its workload can spare what that loses."""
        for item, ceiling in zip(chosen, ceilings, strict=True):
            workload = item.read.workload
            spare = self._spare_rps(workload, self._problem.workloads[workload].rate_least_rps)
            lost = float(item.read.rate_rps[item.column] - item.read.rate_rps[ceiling])
            if item.standing is None and ceiling < item.column and lost <= spare:
                self._serve(item, ceiling)

    def _spare_rps(self, workload: int, rate_rps: float) -> float:
        return max(0.0, float(self.served_rps[workload]) - rate_rps * (1 - DUST))

    def _serve(self, item: _Chosen, column: int) -> None:
        self.served_rps[item.read.workload] += float(item.read.rate_rps[column] - item.read.rate_rps[item.column])
        item.column = column


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One member by batch: latency at the granted rate, the rate (0 where no promise keeps), power and memory limit."""

    variant: int
    workload: int
    share_pct: int
    latency_ms: Floats
    rate_rps: Floats
    power_w: Floats
    memory_mib: Floats

    def fits(self, limit_mib: float) -> Flags:
        """Batches that keep the promise within a memory limit."""
        return np.asarray((self.rate_rps > 0) & (self.memory_mib <= limit_mib + DUST))


def _reads(problem: JointProblem, pattern: Pattern, kind: int) -> list[_Read]:
    """The members beside each other on a device of a kind, which may run at another clock than the pattern's."""
    table, found = int(problem.kind_table[kind]), []
    factor = slowdown(problem, table, pattern.variants, pattern.shares_pct)
    for variant, share, slow in zip(pattern.variants, pattern.shares_pct, factor, strict=True):
        mean, tail = (
            at_share(problem, cells[table, variant], share) * float(slow)
            for cells in (problem.mean_ms, problem.tail_ms)
        )
        latency_ms, rate_rps = serve(problem, variant, mean, tail)
        found.append(
            _Read(
                variant=variant,
                workload=problem.variants[variant].workload,
                share_pct=share,
                latency_ms=latency_ms,
                rate_rps=rate_rps,
                power_w=watts_at_share(problem, problem.power_w[table, variant], share),
                memory_mib=problem.memory_mib[table, variant],
            )
        )
    return found


@dataclass(slots=True, kw_only=True)
class _Chosen:
    """A member while its batch is chosen."""

    read: _Read
    column: int
    limit_mib: float
    standing: Assignment | None = None

    def window(self) -> tuple[int, int]:
        """First and last column around the chosen one between which every batch keeps the promise within the memory."""
        fine = self.read.fits(self.limit_mib)
        broken = np.flatnonzero(~fine)
        below, above = broken[broken < self.column], broken[broken > self.column]
        return (int(below[-1]) + 1 if len(below) else 0), (int(above[0]) - 1 if len(above) else len(fine) - 1)


def _clocks(problem: JointProblem, pattern: Pattern, highest: Sequence[int]) -> list[int]:
    """From the lowest clock at which the largest batches of all keep every promise to the highest there is."""
    planned, listed = int(problem.kind_clock_mhz[pattern.kind]), _clocks_of(problem, pattern)
    for clock in listed:
        at_clock = zip(_reads(problem, pattern, _kind_at(problem, pattern, clock)), highest, strict=True)
        if clock >= planned or all(read.rate_rps[column] > 0 for read, column in at_clock):
            return [min(clock, planned), listed[-1]]
    return [planned]


def _clocks_of(problem: JointProblem, pattern: Pattern) -> list[int]:
    """The clocks of a device, rising."""
    mine = problem.kind_pool == problem.kind_pool[pattern.kind]
    return sorted({int(clock) for clock in problem.kind_clock_mhz[mine]})


def _kind_at(problem: JointProblem, pattern: Pattern, clock_mhz: int) -> int:
    """The kind at another clock for the same neighbours."""
    pool, planned = int(problem.kind_pool[pattern.kind]), int(problem.kind_clock_mhz[pattern.kind])
    return problem.like(pool, clock_mhz)[problem.like(pool, planned).index(pattern.kind)]


def _ceilings(problem: JointProblem, pattern: Pattern, chosen: Sequence[_Chosen]) -> list[int]:
    """For every member the smallest batch that serves nearly as much as the best of those that leave the clock room to
    fall: beyond, more batch brings only latency and power.
    """
    planned = int(problem.kind_clock_mhz[pattern.kind])
    slower = next(clock for clock in _clocks_of(problem, pattern) if clock >= CLOCK_ROOM_PART * planned)
    found = []
    for item, slow in zip(chosen, _reads(problem, pattern, _kind_at(problem, pattern, slower)), strict=True):
        rate_rps = item.read.rate_rps
        rates = np.where(slow.rate_rps > 0, rate_rps, 0.0) if (slow.rate_rps > 0).any() else rate_rps
        found.append(int(np.argmax(rates >= CEILING_PART * rates.max())))
    return found
