"""From a layout's bound to a plan's: what serving as much as this plan serves costs at least.

A layout's bound holds for cost plus what is left unserved at its price; so any plan that leaves no
more unserved than this one costs at least the bound less this plan's own price of the unserved. What stays outside the
problem costs what it costs. Where somebody could still be seated outside the problem, beside what is pinned, nothing is
proven, and what the plan itself disproves is not stated.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.plan import Plan
from solvers.models.worth import cost_by_device
from solvers.planners.joint.propose.attempt import Attempt
from solvers.planners.joint.propose.seated import Found
from solvers.planners.joint.reading.formulation import Reading
from solvers.problems.fleet import open_fleet
from solvers.problems.patterns import Layout

DUST = 1e-6


def bounded(attempt: Attempt, found: Found, plan: Plan) -> Plan:
    """The plan with the better of what the solve and what counting proved; counting holds for plans that serve
    everybody.
    """
    reading, layout = attempt.reading, found.solved.found
    bounds = [bound_of(reading, layout, plan)]
    if found.counted is not None and found.counted.bound_usd_per_h is not None:
        served: dict[WorkloadId, float] = defaultdict(float)
        for item in plan.assignments:
            served[item.workload] += item.capacity_rps
        if all(served[item.id] >= item.rate_rps * (1 - DUST) for item in reading.problem.workloads):
            bounds.append(bound_of(reading, replace(layout, bound_usd_per_h=found.counted.bound_usd_per_h), plan))
    return replace(plan, bound_usd_per_h=max((bound for bound in bounds if bound is not None), default=None))


def bound_of(reading: Reading, layout: Layout, plan: Plan) -> float | None:
    """Proven lower bound on the cost of serving what this plan serves, $/h; None when nothing is proven."""
    if layout.bound_usd_per_h is None or _room_outside(reading):
        return None
    bound = layout.bound_usd_per_h - _unserved_usd(reading, plan) + _outside_usd_per_h(reading, plan)
    cost = plan.objective.cost_usd_per_h
    if not 0 < bound <= cost * (1 + DUST):
        return None
    return min(bound, cost)


def _room_outside(reading: Reading) -> bool:
    """Whether devices where something stays have share left that a movable workload might take: pools know of it only
    in part.
    """
    if any(pool.rest for pool in reading.problem.pools):
        return True
    taken: dict[DeviceId, int] = defaultdict(int)
    for item in (*reading.pinned, *reading.kept):
        taken[item.device] += item.share_pct_sm
    least = int(reading.problem.shares_pct[0]) if len(reading.problem.shares_pct) else 100
    return any(share + least <= 100 for share in taken.values())


def _unserved_usd(reading: Reading, plan: Plan) -> float:
    """What the layout's price says of what this plan leaves unserved, headroom included."""
    problem = reading.problem
    inside = {device for pool in reading.pool_devices for device in pool}
    served: dict[WorkloadId, float] = defaultdict(float)
    replicas: dict[WorkloadId, int] = defaultdict(int)
    for item in plan.assignments:
        if item.device in inside:
            served[item.workload] += item.capacity_rps
            replicas[item.workload] += 1
    total = 0.0
    for work in problem.workloads:
        if work.rate_rps > 0:
            total += work.unserved_usd * max(0.0, 1 - served[work.id] / work.rate_rps)
        missing = max(0, work.replicas_min - replicas[work.id])
        total += work.unserved_usd * missing / max(1, work.replicas_min)
    return total


def _outside_usd_per_h(reading: Reading, plan: Plan) -> float:
    inside = {device for pool in reading.pool_devices for device in pool}
    outside = tuple(item for item in plan.assignments if item.device not in inside)
    if not outside:
        return 0.0
    settings = {item.device: item for item in plan.settings}
    fleet = open_fleet(reading.snapshot, settings)
    return sum(cost_by_device(reading.snapshot, fleet, outside, settings).values())
