"""A tune cycle as the service has it: the planner in this process, with what it kept of the cycle before.

The command knows nothing of earlier plans and searches until its deadline; the service's planner is handed its own
memory with the next picture. Processor time is that of reading, planning, writing and telling; the picture's digest is
known, as in a cycle.
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace

from benchmarks.door.cases import Case, after_change
from benchmarks.door.command import Ran
from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.change import ChangeKind
from solvers.domain.codec import picture_digest
from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import Step, worth_of
from solvers.planners.base import Budget, PlanRequest, Thought
from solvers.planners.registry import create, think
from solvers.verify.checks import verify
from solvers.verify.picture import is_fatal

CYCLE_S = 30.0
"""From one picture to the next."""


def cycle(case: Case) -> tuple[Ran, Plan | None]:
    """The first plan is made the target, some rates change, and the second plan is measured."""
    first = _thought(case, case.picture(), None)
    assert first.proposal.plan is not None
    later = after_change(case.picture(), first.proposal.plan)
    later = replace(later, taken_at_s=later.taken_at_s + CYCLE_S)
    picture_digest(later)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    plan = _thought(case, later, first.state).proposal.plan
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if plan is None:
        return Ran(wall_s=wall_s, cpu_s=cpu_s, peak_mib=peak_mib, ended="no plan"), None
    movable = movable_workloads(later, Lane.ACT)
    now = worth_of(later, movable, later.target.assignments, later.target.settings).objective
    moves = Step.of(later, now, plan).transition
    return Ran(
        wall_s=wall_s,
        cpu_s=cpu_s,
        peak_mib=peak_mib,
        ended="finished",
        planner=case.planner,
        won=case.planner,
        usd_per_h=plan.objective.cost_usd_per_h,
        bound_usd_per_h=plan.bound_usd_per_h,
        gap_pct=plan.gap_pct,
        workloads_short=len(plan.unplaced),
        verified=not is_fatal(verify(later, plan, movable)),
        starts=sum(change.kind is ChangeKind.START for change in moves.changes),
        stops=sum(change.kind is ChangeKind.STOP for change in moves.changes),
        gpus=len({item.device for item in plan.assignments}),
    ), plan


def _thought(case: Case, picture: Snapshot, state: bytes | None) -> Thought:
    budget = Budget(deadline_s=case.deadline_s, work_units=case.units)
    request = PlanRequest(snapshot=picture, movable=movable_workloads(picture, Lane.ACT), budget=budget, seed=case.seed)
    return think(create(case.planner or "joint"), request, state, SilentReporter())
