"""Room for services that are short, from jobs that stand on more share than they need to run.

Owns that loan, where devices are paid whole: who is short is served on devices in use first; where that is not enough,
jobs are reckoned with the least share that they may have, and only those stay smaller in whose room somebody was
seated. What is left of it they get back as what is spare beside them. It refuses to open a device, to move a job and to
make one wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from solvers.engines.deadline import Deadline
from solvers.planners.joint.seating_mend import affordable, mend, within_quotas
from solvers.planners.joint.seating_power import DUST_W
from solvers.planners.joint.seating_seats import Seats
from solvers.problems.patterns import Pattern, judge


def make_room(seats: Seats, jobs: Collection[int], deadline: Deadline, quotas: Mapping[str, float]) -> None:
    """`jobs`: workloads that yield."""
    problem = seats.floor.problem
    services = [number for number in range(len(problem.workloads)) if number not in jobs]
    if problem.by_replica or not jobs or not _short(seats, services):
        return
    mend(seats, deadline, quotas, opening=False)
    if not _short(seats, services):
        return
    lent: dict[int, tuple[Pattern, Pattern]] = {}
    for device, before in enumerate(seats.patterns):
        after = None if before is None else _least(seats, before, jobs)
        if before is not None and after is not None and not seats.hurts(before, after, -1):
            lent[device] = before, after
            seats.put(device, after)
    mend(seats, deadline, quotas, opening=False)
    for device, (before, after) in lent.items():
        if seats.patterns[device] is after and _bearable(seats, device, (after, before), (jobs, quotas)):
            seats.put(device, before)


def _bearable(
    seats: Seats, device: int, change: tuple[Pattern, Pattern], of: tuple[Collection[int], Mapping[str, float]]
) -> bool:
    """Whether power, quotas and budgets, of which others may have taken something, bear what stood. `of`: jobs and what
    is left to projects.
    """
    (jobs, quotas), problem = of, seats.floor.problem
    works = {problem.variants[variant].workload for variant in change[1].variants}
    watts = seats.floor.dynamic_w(change[1]) - seats.dynamic_w(device)
    return (
        watts <= seats.left_at(device) + DUST_W
        and within_quotas(seats, change, quotas)
        and all(affordable(seats, work, change, quotas) for work in works.intersection(jobs))
    )


def _short(seats: Seats, services: Collection[int]) -> bool:
    return any(seats.short_rps(number) or seats.missing(number) for number in services)


def _least(seats: Seats, before: Pattern, jobs: Collection[int]) -> Pattern | None:
    """With the least share for every job; None where none has more."""
    problem = seats.floor.problem
    table = int(problem.kind_table[before.kind])
    shares = list(before.shares_pct)
    for place, variant in enumerate(before.variants):
        if problem.variants[variant].workload in jobs:
            runs = np.isfinite(problem.mean_ms[table, variant]).any(axis=1)
            shares[place] = min(shares[place], int(problem.shares_pct[runs].min(initial=shares[place])))
    if tuple(shares) == before.shares_pct:
        return None
    return judge(problem, before.kind, before.variants, shares)
