"""What-if: the same fleet planned twice, as it is and as it would be, and the difference.

Owns how a plan is asked for outside a cycle (the same chain, lane, seed and budget as within one) and what is compared.
Where nothing stands yet, the plan of the fleet as it is counts as standing for the second one: otherwise every replica
would count as moved. It refuses to store and to promote anything.
"""

from __future__ import annotations

from dataclasses import replace

from app.services.whatif.outcome import Outcome, TypeUse, WorkloadChange, outcome_of, workload_changes
from solvers.cycle.attempts import Asking, ChosenPlan
from solvers.cycle.parts import Course, try_policies
from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.change import Target
from solvers.domain.codec import digest
from solvers.domain.ids import Generation, GpuTypeName
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import check_range, late, value
from solvers.errors import EngineError
from solvers.planners.base import Budget, PlanRequest

DEADLINE_S_MAX = 3600.0
WORK_UNITS_MAX = 10**12
SEED_MAX = 2**63 - 1


@value
class Wish:
    """How to plan. None is what the snapshot's policy says; `work_units` makes a plan repeatable on any machine."""

    lane: Lane = Lane.ACT
    planner: str | None = None
    deadline_s: float | None = None
    work_units: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_range("deadline_s", self.deadline_s, 0.05, DEADLINE_S_MAX)
        check_range("work_units", self.work_units, 1, WORK_UNITS_MAX)
        check_range("seed", self.seed, 0, SEED_MAX)


@value
class TypeDifference:
    """How many GPUs of a type more (or fewer) are in use, and there."""

    gpu_type: GpuTypeName
    in_use: int
    total: int


@value
class Difference:
    """After less before. What has to move is in the outcomes: it is counted from what stands."""

    cost_usd_per_h: float
    unserved: float
    workloads_short: int
    rate_rps_short: float
    slo_risk: float
    power_w: float
    energy_kwh_per_day: float
    replicas: int
    gpus_in_use: int
    gpus: tuple[TypeDifference, ...]
    """Only types that differ."""
    capacity_rps: float = late(0.0)
    training_rate: float = late(0.0)


@value
class Simulation:
    """Two plans and what is between them. With `work_units`, equal inputs give equal answers."""

    seed: int
    lane: Lane
    deadline_s: float
    work_units: int | None
    before: Outcome
    after: Outcome
    difference: Difference
    workloads: tuple[WorkloadChange, ...]
    """Those that are served otherwise, or for another price."""
    workloads_same: int
    moves_from_plan_before: bool
    """Nothing stood, so the moves of `after` are counted from the plan of `before`."""


def request_of(snapshot: Snapshot, wish: Wish) -> PlanRequest:
    """What planners are asked, as a cycle of the same lane would ask."""
    return PlanRequest(
        snapshot=snapshot,
        movable=movable_workloads(snapshot, wish.lane),
        budget=Budget(
            deadline_s=wish.deadline_s or snapshot.policy.planner_deadline_s,
            work_units=wish.work_units or snapshot.policy.work_units,
        ),
        seed=snapshot.policy.seed if wish.seed is None else wish.seed,
    )


def solved(snapshot: Snapshot, wish: Wish, asking: Asking) -> ChosenPlan:
    """What the chain of planners makes of a snapshot. Raises EngineError when it ends without any plan."""
    asked = request_of(snapshot, wish)
    own = wish.deadline_s is None and wish.work_units is None
    course = Course(planners=None if wish.planner is None else (wish.planner,), budget=None if own else asked.budget)
    chosen = try_policies(asking, asked, course)
    if chosen.plan is None:
        failures = "; ".join(f"{each.planner}: {each.error or each.status}" for each in chosen.attempts)
        raise EngineError(f"no planner gave a plan ({failures})")
    return chosen


def standing_on(snapshot: Snapshot, before: ChosenPlan) -> Snapshot:
    """The picture with this plan standing, where nothing stands yet."""
    plan = before.plan
    if plan is None or snapshot.target.assignments:
        return snapshot
    target = Target(
        generation=Generation(snapshot.target.generation + 1),
        plan=digest(plan),
        assignments=plan.assignments,
        settings=plan.settings,
    )
    return replace(snapshot, target=target)


def compare(
    snapshot: Snapshot, chosen: ChosenPlan, after: Snapshot, wish: Wish, asking: Asking
) -> tuple[Snapshot, ChosenPlan, Simulation]:
    """Plan the changed picture and compare with the plan of the picture as it is: that picture, what the chain made of
    it, and the comparison.
    """
    changed = standing_on(after, chosen)
    again = solved(changed, wish, asking)
    outcomes = outcome_of(snapshot, chosen), outcome_of(changed, again)
    rows = workload_changes(snapshot, chosen.plan, changed, again.plan)
    differing = tuple(row for row in rows if row.differs)
    asked = request_of(snapshot, wish)
    simulation = Simulation(
        seed=asked.seed,
        lane=wish.lane,
        deadline_s=asked.budget.deadline_s,
        work_units=wish.work_units,
        before=outcomes[0],
        after=outcomes[1],
        difference=difference_of(*outcomes),
        workloads=differing,
        workloads_same=len(rows) - len(differing),
        moves_from_plan_before=changed is not after,
    )
    return changed, again, simulation


def difference_of(before: Outcome, after: Outcome) -> Difference:
    """After less before."""
    return Difference(
        cost_usd_per_h=after.cost_usd_per_h - before.cost_usd_per_h,
        unserved=after.unserved - before.unserved,
        workloads_short=after.workloads_short - before.workloads_short,
        rate_rps_short=after.rate_rps_short - before.rate_rps_short,
        slo_risk=after.slo_risk - before.slo_risk,
        power_w=after.power_w - before.power_w,
        energy_kwh_per_day=after.energy_kwh_per_day - before.energy_kwh_per_day,
        replicas=after.replicas - before.replicas,
        gpus_in_use=after.gpus_in_use - before.gpus_in_use,
        gpus=_type_differences(before.gpus, after.gpus),
        capacity_rps=after.capacity_rps - before.capacity_rps,
        training_rate=after.training_rate - before.training_rate,
    )


def _type_differences(before: tuple[TypeUse, ...], after: tuple[TypeUse, ...]) -> tuple[TypeDifference, ...]:
    old, new = ({use.gpu_type: use for use in uses} for uses in (before, after))
    found = []
    for name in sorted({*old, *new}):
        empty = TypeUse(gpu_type=name, in_use=0, total=0)
        was, now = old.get(name, empty), new.get(name, empty)
        if was != now:
            in_use, total = now.in_use - was.in_use, now.total - was.total
            found.append(TypeDifference(gpu_type=name, in_use=in_use, total=total))
    return tuple(found)
