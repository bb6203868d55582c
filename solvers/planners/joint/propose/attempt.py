"""One request while it is answered: what was read, the first planner's plan, and how the time is shared out.

Time goes by the size of the fleet, so that an answer is written before the deadline; with counted work everything is
repeatable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from solvers.domain.plan import Plan
from solvers.engines.deadline import Deadline
from solvers.planners.base import PlannerSpec, PlanRequest
from solvers.planners.joint.explain.explaining import seconds_of
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.seat.floor import Floor, floor_of

SOLVE_PART_MIN = 0.2
"""Of the deadline: so much is left to the solve whatever the rest takes."""
FIRST_PART_MAX = 0.25
"""Of the deadline: the first planner is not asked where it would take longer."""
FIRST_S_PER_WORKLOAD = 0.004
FIRST_S_PER_PAIR = 2e-7
"""Of workload and device."""
COUNTING_PART = 0.3
"""Of the deadline, where every replica takes a whole device."""
RESERVE_S = 0.05
RESERVE_S_PER_DEVICE = 0.0004
RESERVE_S_PER_WORKLOAD = 0.0004
"""What seating and writing take."""
UNLIMITED = 2**62


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """See the module."""

    spec: PlannerSpec
    """In whose name it is answered."""
    request: PlanRequest
    reading: Reading
    clock: Deadline
    """Runs since the request came."""
    first: Plan | None
    """As ours, where there was time for one."""

    @cached_property
    def floor(self) -> Floor:
        """The devices behind the reading's pools."""
        return floor_of(self.reading)

    @property
    def left_s(self) -> float | None:
        """Seconds left; None where work is counted instead."""
        return self.clock.left_s if self.request.budget.work_units is None else None

    def solve_deadline(self) -> Deadline:
        """What is left to the solve, with enough kept back for seating, writing and explaining."""
        budget, problem = self.request.budget, self.reading.problem
        devices = sum(len(pool) for pool in self.reading.pool_devices)
        reserve = RESERVE_S + RESERVE_S_PER_DEVICE * devices + RESERVE_S_PER_WORKLOAD * len(problem.workloads)
        reserve += seconds_of(problem, budget.deadline_s)
        return Deadline(max(SOLVE_PART_MIN * budget.deadline_s, self.clock.left_s - reserve), budget.work_units)

    def counting_deadline(self) -> Deadline:
        """What counting may take, where the problem is a matter of counting."""
        budget = self.request.budget
        return Deadline(COUNTING_PART * min(self.clock.left_s, budget.deadline_s), budget.work_units)

    def seating_deadline(self) -> Deadline:
        """Seating counts no work, so where work is counted no clock may end it."""
        budget = self.request.budget
        return Deadline(budget.deadline_s, None if budget.work_units is None else UNLIMITED)


def affords_first(request: PlanRequest) -> bool:
    """Whether the first planner is done in a small part of the time, by the size of the fleet alone."""
    snapshot = request.snapshot
    devices = len(snapshot.devices) + sum(offer.count_max for offer in snapshot.offers)
    seconds = FIRST_S_PER_WORKLOAD * len(request.movable) + FIRST_S_PER_PAIR * len(request.movable) * devices
    return seconds <= FIRST_PART_MAX * request.budget.deadline_s
