"""When demand calls for a cycle before the next one is due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from solvers.domain.change import Target
from solvers.domain.ids import ServiceId
from solvers.domain.policy import Policy
from solvers.domain.telemetry import Demand
from solvers.domain.workload import WorkloadKind
from solvers.problems.needs import sized_for_rps

DEMAND_SHIFT_MIN = 0.1
"""Demand that moved by less than this fraction since the last cycle raises no alarm: that cycle had its say."""


def demand_alarms(
    demands: Iterable[Demand],
    target: Target,
    policy_for: Callable[[ServiceId], Policy],
    planned_rps: Mapping[ServiceId, float],
) -> tuple[ServiceId, ...]:
    """Services whose demand outgrew what stands, or fell below half of it, and moved notably since the last cycle; by
    the margins of the policy that decides on each.
    """
    usable_rps: dict[str, float] = defaultdict(float)
    for assignment in target.assignments:
        if assignment.kind is WorkloadKind.SERVICE:
            usable_rps[assignment.workload] += assignment.capacity_rps
    alarmed = []
    for demand in demands:
        standing_rps = usable_rps[demand.service]
        too_little = demand.rate_rps_upper > standing_rps
        misfit = too_little or sized_for_rps(demand.rate_rps_upper, policy_for(demand.service)) < standing_rps / 2
        before_rps = planned_rps.get(demand.service, 0.0)
        moved = abs(demand.rate_rps_upper - before_rps) > DEMAND_SHIFT_MIN * max(before_rps, 1.0)
        if misfit and moved:
            alarmed.append(demand.service)
    return tuple(alarmed)
