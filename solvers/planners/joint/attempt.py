"""One request on its way through the joint planner: what was read, the first plan, and how the time is divided.

Time goes by the size of the fleet: what seating, writing and explaining will take is kept back from the solve, and each
asks what is left before it begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.policy import CostBasis
from solvers.engines.deadline import Deadline
from solvers.planners.base import Knob, PlannerSpec, PlanRequest
from solvers.planners.joint.certificate import Certificate
from solvers.planners.joint.explain.explaining import SHORT_MAX
from solvers.planners.joint.memory import named, prices_of
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.reading.loosened import loosened
from solvers.planners.joint.seat.seats import Floor, Seats, Terms, floor_of
from solvers.planners.joint.write import Seated, write
from solvers.problems.jobs import must_run, trains_first
from solvers.problems.joint import WHOLE_PCT
from solvers.problems.patterns import Prices

SPEC = PlannerSpec(
    name="joint",
    about="all knobs in one problem, with a proven bound",
    version="1",
    knobs=tuple(Knob),
    leaves_clock_open=True,
)
SEATING_PART_MIN = 0.1
"""Of the deadline: so much is left to seating, whatever came before."""
FIRST_PART_MAX, FIRST_PART_STANDING = 0.25, 0.05
"""Of the deadline: the first planner is not asked where it would take longer."""
FIRST_S_PER_WORKLOAD = 0.004
FIRST_S_PER_PAIR = 2e-7
"""Of workload and device."""
COUNTING_PART = 0.3
"""Of the deadline, where every replica takes a whole device."""
RESERVE_S = 0.25
RESERVE_S_PER_DEVICE = 0.0004
RESERVE_S_PER_WORKLOAD = 0.0004
"""What seating, writing and bounding take."""
SOLVE_UNITS_LEAST = 500
SOLVE_UNITS_PER_SIZE, SIZE_POWER = 15, 1.5
"""Of workloads: longer searches of problems so large hardly find anything better."""
SOLVE_S_PER_UNIT = 0.002
"""At most, roughly."""
PROOF_UNITS_LEAST, PROOF_UNITS_PER_WORKLOAD = 100, 5
"""What a bound may take beside the work that is counted, where it is of earlier prices."""
EXPLAIN_S = 0.05
EXPLAIN_S_PER_WORKLOAD = 0.0006
EXPLAIN_S_PER_SHORT = 0.25
EXPLAIN_SHORT_PART = 0.05
"""Of the deadline, for those that are short."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """See the module."""

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

    def _explain_s(self) -> float:
        """What it takes to explain a plan in which no workload is short."""
        return self.clock.crowding * (EXPLAIN_S + EXPLAIN_S_PER_WORKLOAD * len(self.reading.problem.workloads))

    def _write_s(self) -> float:
        """What it takes to seat and write a plan."""
        devices, workloads = sum(len(pool) for pool in self.reading.pool_devices), len(self.reading.problem.workloads)
        return self.clock.crowding * (RESERVE_S + RESERVE_S_PER_DEVICE * devices + RESERVE_S_PER_WORKLOAD * workloads)

    def solve_deadline(self) -> Deadline:
        """What is left to the solve, with enough kept back for seating, writing and explaining. Where nobody counts
        work, a small problem gets as much of it as it is worth, on a busy machine as on any other.
        """
        budget = self.request.budget
        reserve_s = self._write_s() + self._explain_s()
        reserve_s += min(SHORT_MAX * EXPLAIN_S_PER_SHORT, EXPLAIN_SHORT_PART * budget.deadline_s)
        left_s, units = self.clock.left_s - reserve_s, budget.work_units
        if units is None:
            worth = SOLVE_UNITS_LEAST + SOLVE_UNITS_PER_SIZE * len(self.reading.problem.workloads) ** SIZE_POWER
            units = round(worth) if worth * SOLVE_S_PER_UNIT * self.clock.crowding < left_s else None
        return Deadline(left_s, units)

    def spare_deadline(self) -> Deadline:
        """What giving spare capacity away may take, with enough kept back for writing and explaining."""
        return Deadline(self.clock.left_s - self._write_s() - self._explain_s())

    def certificate(self, prices: Prices | None) -> Certificate:
        """What prices of this solve, or of an earlier one, prove of whatever plan."""
        units = PROOF_UNITS_LEAST + PROOF_UNITS_PER_WORKLOAD * len(self.reading.problem.workloads)
        deadline = Deadline(self.clock.left_s - self._write_s() - self._explain_s(), units)
        loose = loosened(self.request.snapshot, self.request.movable, self.reading)
        if prices is not None and loose.problem is not self.reading.problem:
            prices = prices_of(loose.problem, named(self.reading.problem, prices))
        return Certificate.of(loose, prices, deadline)

    def explained_most(self) -> int | None:
        """Of how many short workloads there is time to tell what would have to give; None: no time for anything."""
        spare_s = self.clock.left_s - self._explain_s()
        return None if spare_s < 0 else min(SHORT_MAX, int(spare_s / self.clock.crowding / EXPLAIN_S_PER_SHORT))

    def counting_deadline(self) -> Deadline:
        """What counting may take, where the problem is a matter of counting."""
        budget = self.request.budget
        return Deadline(COUNTING_PART * min(self.clock.left_s, budget.deadline_s), budget.work_units)

    @cached_property
    def terms(self) -> Terms:
        """What seating is bound to. A job may grow to its owner's bound; where cost counts before how fast jobs run, no
        farther than in the first plan if shares are paid, and not to the whole device if memory is.
        """
        snapshot = self.reading.snapshot
        policy, jobs_first = snapshot.policy, trains_first(snapshot.policy)
        given = {item.workload: item.share_pct_sm for item in (() if self.first is None else self.first.assignments)}
        done = {item.workload: item.done for item in snapshot.job_statuses}
        jobs = {WorkloadId(job.id): job for job in snapshot.jobs}
        most_pct, left_s = dict[int, int](), dict[int, float]()
        for number, work in enumerate(self.reading.problem.workloads):
            if work.id not in jobs:
                continue
            job = jobs[work.id]
            left_s[number] = (job.iterations_total - done.get(work.id, 0)) * job.iteration_ms_reference / 1000
            most_pct[number] = job.share_pct_sm_max
            if policy.cost_basis is CostBasis.SHARE and not jobs_first:
                most_pct[number] = given.get(work.id, job.share_pct_sm_min)
            elif policy.cost_basis is CostBasis.MEMORY and not jobs_first:
                most_pct[number] = max(job.share_pct_sm_min, min(job.share_pct_sm_max, WHOLE_PCT - 1))
        return Terms(
            deadline=Deadline(max(self.clock.left_s, SEATING_PART_MIN * self.request.budget.deadline_s)),
            launch_usd_per_s=policy.launch_usd_per_s,
            job_most_pct=most_pct,
            job_left_s=left_s,
            jobs_first=jobs_first,
            jobs_wait=not must_run(policy),
        )

    def written(self, seats: Seats, *, eager: bool = False) -> Plan:
        """Of these seats; `eager`: what stands goes on with the largest batches that it bears."""
        seated = Seated(request=self.request, reading=self.reading, seats=seats, first=self.first, eager=eager)
        return write(SPEC, seated)


def affords_first(request: PlanRequest) -> bool:
    """Whether the first planner is done in a small part of the time, by the size of the fleet alone."""
    snapshot = request.snapshot
    devices = len(snapshot.devices) + sum(offer.count_max for offer in snapshot.offers)
    seconds = FIRST_S_PER_WORKLOAD * len(request.movable) + FIRST_S_PER_PAIR * len(request.movable) * devices
    part = FIRST_PART_STANDING if snapshot.target.assignments else FIRST_PART_MAX
    return seconds <= part * request.budget.deadline_s
