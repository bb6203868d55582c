"""What was filled once stays: contents that stand on a device are given back to it where only spare was taken away.

Owns that one step. A solve sees declared rates alone, so it would take away what fills a device, for the energy it
draws, cycle after cycle. Contents come back where nobody then falls below what is declared and no cap is exceeded, on
devices that stay in use. It refuses to keep a device in use for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from solvers.domain.ids import DeviceId
from solvers.planners.joint.seat.seats import DUST, Seats
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Pattern, judge

DUST_W = 1e-6


def keep_standing(seats: Seats, mine: Collection[int], clocks_mhz: Mapping[DeviceId, int]) -> bool:
    """Give devices their standing contents back, as far as these are of such workloads alone; whether anything changed.
    `clocks_mhz`: the clocks that stand.
    """
    changed = False
    for device in sorted(seats.floor.held):
        now, stood = seats.patterns[device], _standing(seats, device, mine, clocks_mhz)
        if now is None or stood is None or stood.key == now.key or not _of(seats.floor.problem, now, mine):
            continue
        if _bearable(seats, device, now, stood):
            seats.put(device, stood)
            changed = True
    return changed


def _of(problem: JointProblem, pattern: Pattern, mine: Collection[int]) -> bool:
    return all(problem.variants[item].workload in mine for item in pattern.variants)


def _standing(seats: Seats, device: int, mine: Collection[int], clocks_mhz: Mapping[DeviceId, int]) -> Pattern | None:
    """What stands on a device at its clock, or at the highest that bears it; None where it may not go on so."""
    floor, problem = seats.floor, seats.floor.problem
    held, pool = floor.held[device], int(floor.pool_of[device])
    if not all(problem.variants[item.variant].workload in mine for item in held):
        return None
    listed = sorted({int(clock) for clock in problem.kind_clock_mhz[problem.kind_pool == pool]}, reverse=True)
    stands = clocks_mhz.get(floor.names[device], listed[0])
    clocks = [stands] * (stands in listed) + [clock for clock in listed if clock != stands]
    variants, shares = [item.variant for item in held], [item.share_pct for item in held]
    judged = (judge(problem, kind, variants, shares) for clock in clocks for kind in problem.like(pool, clock))
    return next((pattern for pattern in judged if pattern is not None), None)


def _bearable(seats: Seats, device: int, now: Pattern, then: Pattern) -> bool:
    """Whether nobody falls short by it, or has too many replicas, and its power domains bear it."""
    problem = seats.floor.problem
    rates, replicas = np.array(seats.served_rps), np.array(seats.replicas)
    for pattern, sign in ((now, -1), (then, 1)):
        for variant, capacity in zip(pattern.variants, pattern.capacity_rps, strict=True):
            rates[problem.variants[variant].workload] += sign * capacity
            replicas[problem.variants[variant].workload] += sign
    floors = np.array([item.rate_least_rps for item in problem.workloads])
    enough = rates >= np.minimum(floors, seats.served_rps) * (1 - DUST)
    most = np.maximum([item.replicas_max for item in problem.workloads], seats.replicas)
    least = np.minimum([item.replicas_min for item in problem.workloads], seats.replicas)
    more_w = seats.floor.dynamic_w(then) - seats.dynamic_w(device)
    return bool(
        enough.all()
        and (replicas <= most).all()
        and (replicas >= least).all()
        and more_w <= seats.left_at(device) + DUST_W
    )
