"""What stands, with room elsewhere, so that a better seating can follow without a break.

Where every device of a kind is taken, to rearrange them ends replicas before what replaces them is ready. So first what
is to come starts on devices that are idle, and on idle devices that are needed by neither for a while what would be
missing; when all that is ready the rest follows at once. What costs more meanwhile is the gate's to weigh.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import DeviceId
from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.seats import DUST, DUST_USD, DUST_W, Floor, Seats
from solvers.planners.joint.seat.standing import interruptions
from solvers.planners.joint.solve.reach import ReachTerms, reached
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Pattern


def seated_as(floor: Floor, contents: Iterable[tuple[DeviceId, Pattern]]) -> Seats:
    """With these contents, on devices that are still there."""
    seats, number = Seats.empty(floor), {name: at for at, name in enumerate(floor.names)}
    for name, pattern in contents:
        if number.get(name) in floor.devices(int(floor.problem.kind_pool[pattern.kind])):
            seats.put(number[name], pattern)
    return seats


def stopover(stands: Seats, toward: Seats, terms: ReachTerms, deadline: Deadline) -> Seats | None:
    """None where nothing is interrupted, or there is no such room. `stands` becomes it."""
    broken = interruptions(toward)
    if not broken:
        return None
    missing = np.zeros(len(stands.served_rps))
    missing[list(broken)] = [rate_rps for rate_rps, _ in broken.values()]
    before, fresh = stands.served_rps.copy(), list[Pattern]()
    for device, pattern in enumerate(toward.patterns):
        if pattern is not None:
            fresh.append(pattern)
            if stands.patterns[device] is None:
                stands.put(device, pattern)
    missing = np.maximum(0.0, missing - (stands.served_rps - before))
    if (missing > DUST).any():
        layout = _meanwhile(stands, toward, missing, fresh, terms, deadline)
        if (missing > layout.served_rps(stands.floor.problem) + DUST * (1 + missing)).any():
            return None
        for pattern, count in zip(layout.patterns, layout.counts, strict=True):
            free = _free(stands, toward, int(stands.floor.problem.kind_pool[pattern.kind]))
            for device in sorted(free, key=lambda at: -stands.left_at(at))[:count]:
                stands.put(device, pattern)
    return stands if _lawful(stands) else None


def _free(stands: Seats, toward: Seats, pool: int) -> list[int]:
    """Devices that carry nothing before, meanwhile and after."""
    taken = stands.floor.held
    both = ((device, stands.patterns[device], toward.patterns[device]) for device in stands.floor.devices(pool))
    return [device for device, now, then in both if now is None and then is None and device not in taken]


def _meanwhile(
    stands: Seats, toward: Seats, missing: Floats, fresh: list[Pattern], terms: ReachTerms, deadline: Deadline
) -> Layout:
    """What serves as much on devices that are idle, at least cost."""
    problem: JointProblem = stands.floor.problem
    works = (
        replace(work, rate_rps=rate, rate_least_rps=rate, replicas_min=0, domains_min=1)
        for work, rate in zip(problem.workloads, missing.tolist(), strict=True)
    )
    pools = (replace(pool, devices=len(_free(stands, toward, at))) for at, pool in enumerate(problem.pools))
    idle = replace(problem, workloads=tuple(works), pools=tuple(pools), caps=(), quotas=())
    return reached(idle, (), fresh, terms, deadline).layout


def _lawful(seats: Seats) -> bool:
    """Whether power, bounds on replicas, budgets and quotas bear it."""
    works, spent = seats.floor.problem.workloads, seats.spent_usd()
    return (
        not (seats.left_w < -DUST_W).any()
        and all(seats.replicas[number] <= work.replicas_max for number, work in enumerate(works))
        and all(spent[number] <= work.budget_usd_per_h + DUST_USD for number, work in enumerate(works))
        and all(seats.gpus_of(project) <= quota + DUST for project, quota in seats.floor.problem.quotas)
    )
