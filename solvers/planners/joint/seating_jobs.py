"""Training jobs in what services leave over.

Owns the last step of seating: a job that waits gets a place where it takes nothing from anybody, on a device in use
before an idle one, and a job that is seated gets more of what is spare beside it, up to a bound. It refuses to move
services.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from solvers.engines.deadline import Deadline
from solvers.planners.joint.seating_mend import affordable
from solvers.planners.joint.seating_power import DUST_W
from solvers.planners.joint.seating_seats import Seats
from solvers.problems.patterns import Pattern, judge


def seat_jobs(seats: Seats, most_pct: Mapping[int, int], deadline: Deadline, quotas: Mapping[str, float]) -> None:
    """Seat what waits and widen what is seated. `most_pct`: for every job, by workload, the share it may grow to."""
    order = sorted(most_pct, key=lambda job: (-seats.floor.problem.workloads[job].priority, job))
    for job in order:
        if deadline.over:
            return
        if not seats.replicas[job]:
            _seat(seats, job, most_pct[job], quotas)
    for job in order:
        _widen(seats, job, most_pct[job], quotas)


def _seat(seats: Seats, job: int, most_pct: int, quotas: Mapping[str, float]) -> None:
    floor = seats.floor
    familiar = {
        device
        for device, items in floor.held.items()
        if any(floor.problem.variants[item.variant].workload == job for item in items)
    }
    spare = {device: _spare_pct(seats, device) for device in range(len(floor.names))}
    order = sorted(
        spare,
        key=lambda device: (
            device not in familiar,
            seats.patterns[device] is None,
            -min(spare[device], most_pct),
            floor.problem.pools[int(floor.pool_of[device])].usd_per_h,
            device,
        ),
    )
    for device in order:
        for after in _with_job(seats, device, job, min(spare[device], most_pct)):
            if _harmless(seats, device, job, after, quotas):
                seats.put(device, after)
                return


def _spare_pct(seats: Seats, device: int) -> int:
    pattern = seats.patterns[device]
    return 100 - (0 if pattern is None else sum(pattern.shares_pct))


def _with_job(seats: Seats, device: int, job: int, most_pct: int) -> Iterator[Pattern]:
    """The device with the job beside what it carries: the largest share first, then the smallest."""
    problem, before = seats.floor.problem, seats.patterns[device]
    variant = next(number for number, item in enumerate(problem.variants) if item.workload == job)
    pool = int(seats.floor.pool_of[device])
    if not problem.allowed[pool, variant]:
        return
    last = int(np.flatnonzero(problem.kind_pool == pool)[-1] if before is None else before.kind)
    # Nobody knows how a job presses, so it stands where everybody may.
    kind = problem.like(pool, int(problem.kind_clock_mhz[last]))[-1]
    runs = np.isfinite(problem.mean_ms[int(problem.kind_table[kind]), variant]).any(axis=1)
    steps = [int(share) for share, able in zip(problem.shares_pct, runs, strict=True) if able and share <= most_pct]
    for share in dict.fromkeys((steps[-1], steps[0])) if steps else ():
        members = () if before is None else before.variants
        shares = () if before is None else before.shares_pct
        after = judge(problem, kind, (*members, variant), (*shares, share))
        if after is not None:
            yield after


def _harmless(seats: Seats, device: int, job: int, after: Pattern, quotas: Mapping[str, float]) -> bool:
    before = seats.patterns[device]
    watts = seats.floor.dynamic_w(after) - seats.dynamic_w(device)
    return (
        watts <= seats.left_at(device) + DUST_W
        and not seats.hurts(before, after, job)
        and affordable(seats, job, (before, after), quotas)
    )


def _widen(seats: Seats, job: int, most_pct: int, quotas: Mapping[str, float]) -> None:
    """More share for a seated job, as far as that starts no standing one anew."""
    problem = seats.floor.problem
    variants = {number for number, item in enumerate(problem.variants) if item.workload == job}
    for device, pattern in enumerate(seats.patterns):
        if pattern is None or variants.isdisjoint(pattern.variants):
            continue
        place = next(number for number, variant in enumerate(pattern.variants) if variant in variants)
        share = pattern.shares_pct[place]
        stands = any(item.variant in variants and item.share_pct == share for item in seats.floor.held.get(device, ()))
        steps = [
            int(step) for step in problem.shares_pct if share < step <= min(most_pct, share + _spare_pct(seats, device))
        ]
        if stands or not steps:
            continue
        shares = (*pattern.shares_pct[:place], steps[-1], *pattern.shares_pct[place + 1 :])
        after = judge(problem, pattern.kind, pattern.variants, shares)
        if after is not None and _harmless(seats, device, job, after, quotas):
            seats.put(device, after)
