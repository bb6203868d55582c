"""What is written of one device's replicas: batch, the batches a governor may move between, memory limit, rates.

Owns the last small choices on a device, which change no process: a replica that stands keeps its batch as long as
nobody is served less than he is sized for, and its memory limit as long as that is enough. It refuses to change shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.plan import Assignment
from solvers.planners.joint.seating_seats import DUST, Seats
from solvers.problems.joint import Flags, Floats, JointProblem
from solvers.problems.patterns import Pattern, at_share, serve, slowdown, watts_at_share


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


def members(seats: Seats, device: int, standing: list[tuple[int, Assignment]]) -> Iterator[Member]:
    """The replicas of one device. `standing`: what stands on it, with the number of its variant."""
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
    for place, (variant, share, read) in enumerate(zip(pattern.variants, pattern.shares_pct, reads, strict=True)):
        before, column = kept[place]
        limit_mib = float(before.memory_mib_limit) if before is not None else pattern.memory_mib[place]
        low, high = _window(read.fits(limit_mib), column)
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
        )


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
    kept: list[tuple[Assignment | None, int]] = []
    for place, (variant, share) in enumerate(zip(pattern.variants, pattern.shares_pct, strict=True)):
        column = int(np.searchsorted(problem.batches, pattern.batches[place]))
        same = next((item for item in left if item[0] == variant and item[1].share_pct_sm == share), None)
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
    """The batch that a standing replica goes on with: its own where nobody loses by it, else the chosen one, else the
    best that its memory limit allows; None where none serves enough.
    """
    problem = seats.floor.problem
    workload = problem.variants[variant].workload
    spare = float(seats.served_rps[workload]) - problem.workloads[workload].rate_rps * (1 - DUST)
    fine = read.fits(before.memory_mib_limit)
    stood = np.flatnonzero(problem.batches == before.batch)
    best = int(np.argmax(np.where(fine, read.rate_rps, -1.0)))
    for choice in (*stood.tolist(), column, best):
        lost = float(read.rate_rps[column] - read.rate_rps[choice])
        if fine[choice] and (choice == column or lost <= max(0.0, spare)):
            return int(choice)
    return None


def _window(fine: Flags, chosen: int) -> tuple[int, int]:
    """First and last column around the chosen one between which every batch keeps the promise within the memory."""
    broken = np.flatnonzero(~fine)
    below, above = broken[broken < chosen], broken[broken > chosen]
    return (int(below[-1]) + 1 if len(below) else 0), (int(above[0]) - 1 if len(above) else len(fine) - 1)
