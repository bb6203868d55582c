"""When demand calls for a cycle before the next one is due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from solvers.domain.change import Target
from solvers.domain.ids import ServiceId
from solvers.domain.policy import Policy
from solvers.domain.telemetry import Demand, surely_rps
from solvers.domain.workload import WorkloadKind
from solvers.problems.needs import sized_for_rps

DEMAND_SHIFT_MIN = 0.1
"""Demand that moved by less than this fraction since the last cycle raises no alarm: that cycle had its say."""
KNOWN_S = 300.0
"""Whoever counts remembers at least for so long, and for twice as long at most, how much was asked."""


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


def risen(counted_rps: Mapping[str, float], known_rps: Mapping[ServiceId, float]) -> dict[ServiceId, float]:
    """Of rates that are sure, those notably above what is known of their services."""
    return {
        ServiceId(service): rate_rps
        for service, rate_rps in counted_rps.items()
        if rate_rps > (1.0 + DEMAND_SHIFT_MIN) * max(known_rps.get(ServiceId(service), 0.0), 1.0)
    }


@dataclass(slots=True)
class JumpWatch:
    """Whether a service's requests jumped, told by what was counted of them second by second: it takes two seconds in a
    row that are surely above all before, and the second of them shows how far. The first may have begun calm, and one
    alone is what queues are for.
    """

    _highest_rps: float = 0.0
    _highest_before_rps: float = 0.0
    _since_s: float = 0.0
    _rose: bool = False

    def take(self, count: float, seconds: float, now_s: float) -> bool:
        if now_s - self._since_s >= KNOWN_S:
            self._since_s, self._highest_before_rps, self._highest_rps = now_s, self._highest_rps, 0.0
        surely = surely_rps(count, seconds)
        known_rps = max(self._highest_rps, self._highest_before_rps, 1.0)
        before, self._rose = self._rose, surely > (1.0 + DEMAND_SHIFT_MIN) * known_rps
        jumped = before and self._rose
        if jumped or not self._rose:
            self._highest_rps, self._rose = max(self._highest_rps, surely), False
        return jumped
