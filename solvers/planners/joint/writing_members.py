"""What is written of one device's replicas: batch, the batches a governor may move between, memory limit, rates.

Owns the last small choices on a device, which change no process: a replica that stands keeps its batch as long as
nobody is served less than he is sized for, and its memory limit as long as that is enough. It refuses to change shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from solvers.domain.plan import Assignment
from solvers.planners.joint.seating_seats import DUST, Seats
from solvers.problems.joint import Flags, Floats, JointProblem
from solvers.problems.patterns import Pattern, at_share, serve, slowdown


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
    kept = _kept(problem, pattern, standing)
    table = int(problem.kind_table[pattern.kind])
    factor = slowdown(problem, table, pattern.variants, pattern.shares_pct)
    for place, (variant, share) in enumerate(zip(pattern.variants, pattern.shares_pct, strict=True)):
        before = kept[place]
        limit_mib = float(before.memory_mib_limit) if before is not None else pattern.memory_mib[place]
        mean, tail = (
            at_share(problem, cells[table, variant], share) * factor[place]
            for cells in (problem.mean_ms, problem.tail_ms)
        )
        latency, rate = serve(problem, variant, mean, tail)
        fine = (rate > 0) & (problem.memory_mib[table, variant] <= limit_mib + DUST)
        chosen = int(np.searchsorted(problem.batches, pattern.batches[place]))
        chosen = _as_it_stands(seats, variant, (chosen, rate), fine, before)
        low, high = _window(fine, chosen)
        watts = at_share(problem, problem.power_w[table, variant], share)
        yield Member(
            variant=variant,
            device=device,
            share_pct=share,
            memory_mib=int(limit_mib),
            batch=int(problem.batches[chosen]),
            batch_min=int(problem.batches[low]),
            batch_max=int(problem.batches[high]),
            latency_ms=float(latency[chosen]),
            capacity_rps=float(rate[chosen]),
            power_w=float(watts[chosen]),
            standing=before,
        )


def _kept(problem: JointProblem, pattern: Pattern, standing: list[tuple[int, Assignment]]) -> list[Assignment | None]:
    """For every member the replica that it is already: same share, and memory enough, as long as all limits fit."""
    left = sorted(standing, key=lambda item: (item[1].memory_mib_limit, item[1].replica))
    kept: list[Assignment | None] = []
    for variant, share, memory in zip(pattern.variants, pattern.shares_pct, pattern.memory_mib, strict=True):
        same = next(
            (
                item
                for item in left
                if item[0] == variant and item[1].share_pct_sm == share and item[1].memory_mib_limit >= memory - DUST
            ),
            None,
        )
        if same is not None:
            left.remove(same)
        kept.append(None if same is None else same[1])
    room = problem.pools[int(problem.kind_pool[pattern.kind])].memory_mib
    while True:
        spare = [
            (item.memory_mib_limit - need if item is not None else 0.0)
            for item, need in zip(kept, pattern.memory_mib, strict=True)
        ]
        if sum(pattern.memory_mib) + sum(spare) <= room + DUST:
            return kept
        kept[int(np.argmax(spare))] = None


def _as_it_stands(
    seats: Seats, variant: int, chosen: tuple[int, Floats], fine: Flags, before: Assignment | None
) -> int:
    """The column of the batch that stands, where nothing is lost by it."""
    column, rate = chosen
    problem = seats.floor.problem
    if before is None or before.batch not in problem.batches:
        return column
    stood = int(np.searchsorted(problem.batches, before.batch))
    workload = problem.variants[variant].workload
    change = float(rate[stood] - rate[column])
    enough = seats.served_rps[workload] + change >= problem.workloads[workload].rate_rps * (1 - DUST)
    if not fine[stood] or not enough:
        return column
    seats.served_rps[workload] += change
    return stood


def _window(fine: Flags, chosen: int) -> tuple[int, int]:
    """First and last column around the chosen one between which every batch keeps the promise within the memory."""
    broken = np.flatnonzero(~fine)
    below, above = broken[broken < chosen], broken[broken > chosen]
    return (int(below[-1]) + 1 if len(below) else 0), (int(above[0]) - 1 if len(above) else len(fine) - 1)
