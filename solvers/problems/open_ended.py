"""Services that can always use more: nobody counts what is asked of them, and they promise nothing about waiting.

Owns who they are, and how far a replica of theirs may be planned to be busy. A margin below full use is there for
queues; where no promise speaks of waiting and nobody counts who waits, it would only keep a declared rate from being
what it says. What remains of it is for beliefs that err, and for controllers that end below the planned clock. As long
as the demand of any service that does promise something about waiting is uncounted, nobody may have begun to count, and
nobody is open-ended. It refuses to know devices and prices.
"""

from __future__ import annotations

from solvers.domain.ids import ServiceId
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import DemandOrigin
from solvers.domain.workload import Slo, SloKind, SloScope

UTILISATION_OPEN = 0.9
"""Of the time of a replica whose service is open-ended, where the policy allows no more to everybody."""


def open_ended_services(snapshot: Snapshot) -> frozenset[ServiceId]:
    """Services whose declared rate is a floor and who can use whatever comes on top."""
    counted = {item.service for item in snapshot.demands if item.origin is DemandOrigin.OBSERVED}
    uncounted = [item for item in snapshot.services if item.id not in counted]
    if not all(never_waits(item.slo) for item in uncounted):
        return frozenset()
    return frozenset(item.id for item in uncounted)


def never_waits(slo: Slo) -> bool:
    """Whether a promise says nothing of waiting: of execution alone, or a floor under the rate."""
    return slo.kind is SloKind.THROUGHPUT or (slo.kind is SloKind.LATENCY and slo.scope is SloScope.EXECUTION)


def utilisation_open(policy: Policy) -> float:
    """How busy a replica of an open-ended service may be planned to be."""
    return max(policy.utilisation_max, UTILISATION_OPEN)
