"""No workload beyond its owner's budget, whatever a layout or a floor of replicas asks for.

Owns the way back: replicas of who spends too much become smaller, or go, where that leaves least unserved for what it
saves. Nobody else is touched; what is lost by it is for others to make up within the budget. It refuses to add anything
and to weigh one workload against another: a budget is its owner's alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solvers.planners.joint.seat.seats import Seats
from solvers.problems.patterns import Pattern, judge

DUST_USD = 1e-9


def within_budgets(seats: Seats) -> None:
    """Take from everybody who spends more than he may."""
    problem = seats.floor.problem
    bounded = [number for number, work in enumerate(problem.workloads) if np.isfinite(work.budget_usd_per_h)]
    if not bounded:
        return
    spent = spent_usd(seats)
    for workload in bounded:
        budget = problem.workloads[workload].budget_usd_per_h
        while spent[workload] > budget + DUST_USD:
            change = _cheaper(seats, workload, spent[workload] - budget)
            if change is None:
                break
            device, after, saved_usd = change
            seats.put(device, after)
            spent[workload] -= saved_usd


def spent_usd(seats: Seats) -> dict[int, float]:
    """What the replicas of each workload cost by share, as budgets count."""
    problem = seats.floor.problem
    total = dict.fromkeys(range(len(problem.workloads)), 0.0)
    for pattern in seats.patterns:
        if pattern is not None:
            for workload in set(problem.variant_workload[list(pattern.variants)].tolist()):
                total[workload] += usd_of(seats, pattern, workload)
    return total


def usd_of(seats: Seats, pattern: Pattern, workload: int) -> float:
    """What one workload's replicas on a device cost by share."""
    problem = seats.floor.problem
    share = sum(
        part
        for variant, part in zip(pattern.variants, pattern.shares_pct, strict=True)
        if problem.variants[variant].workload == workload
    )
    return problem.pools[int(problem.kind_pool[pattern.kind])].usd_per_h * share / 100


def _cheaper(seats: Seats, workload: int, over_usd: float) -> tuple[int, Pattern | None, float] | None:
    """The change that leaves least unserved for what it saves of what is too much."""
    best: tuple[tuple[float, float, int], int, Pattern | None, float] | None = None
    for device, before in enumerate(seats.patterns):
        if before is None:
            continue
        for after in _less(seats, before, workload):
            saved = usd_of(seats, before, workload) - (0.0 if after is None else usd_of(seats, after, workload))
            if saved <= DUST_USD:
                continue
            useful = min(saved, over_usd)
            key = (seats.loss_usd(before, after) / useful, -useful, device)
            if best is None or key < best[0]:
                best = key, device, after, saved
    return None if best is None else best[1:]


def _less(seats: Seats, before: Pattern, workload: int) -> Iterator[Pattern | None]:
    """A device with one replica of the workload smaller, or without it."""
    problem = seats.floor.problem
    members = list(zip(before.variants, before.shares_pct, strict=True))
    for place, (variant, share) in enumerate(members):
        if problem.variants[variant].workload != workload:
            continue
        rest = [*members[:place], *members[place + 1 :]]
        if not rest:
            yield None
        for smaller in (0, *(int(step) for step in problem.shares_pct if step < share)):
            kept = [*rest, (variant, smaller)] if smaller else rest
            after = (
                judge(problem, before.kind, [item for item, _ in kept], [part for _, part in kept]) if kept else None
            )
            if after is not None:
                yield after
