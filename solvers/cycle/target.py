"""Which replicas of services may go on for a while where a plan no longer has them.

That is make before break between nodes: a replica that ends for good serves until the routes have forgotten it, one
that moves to another node or is replaced by other replicas of its service serves until those had time to start.
Whether there is room beside the plan is for whoever carries it out to see.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from solvers.domain.ids import ReplicaId, WorkloadId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind

FORGOTTEN_S = 10.0
"""By then whoever routes has asked again and sends no more to a replica that is not planned."""
REPLACED_S_MIN, REPLACED_S_MAX = 30.0, 120.0
LAUNCHES = 5.0
"""A replacement that is not ready after so many times its launch time is not waited for."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A replica where it stood, and for how long it may go on there."""

    assignment: Assignment
    retire_after_s: float


def leaving(plan: Plan, snapshot: Snapshot) -> tuple[Leaving, ...]:
    """Standing replicas of services that are not on their node any more under the plan, by replica."""
    planned = {item.replica: item for item in plan.assignments}
    standing = {item.replica: item for item in snapshot.target.assignments}
    homes = {device.id: device.node for device in snapshot.devices}
    launches_s = _launches_s(plan, snapshot, standing)
    found = []
    for replica, item in sorted(standing.items()):
        after = planned.get(replica)
        stays = after is not None and homes.get(after.device) == homes.get(item.device)
        if item.kind is WorkloadKind.SERVICE and item.device in homes and not stays:
            launch_s = launches_s.get(item.workload)
            replaced_s = min(REPLACED_S_MAX, max(REPLACED_S_MIN, LAUNCHES * (launch_s or 0.0)))
            found.append(Leaving(item, FORGOTTEN_S if launch_s is None else replaced_s))
    return tuple(found)


def _launches_s(plan: Plan, snapshot: Snapshot, standing: dict[ReplicaId, Assignment]) -> dict[WorkloadId, float]:
    """Longest launch among the replicas of each workload that start anew."""
    models = snapshot.models_by_name()
    launches_s: dict[WorkloadId, float] = defaultdict(float)
    for item in plan.assignments:
        before = standing.get(item.replica)
        if before is None or _process(before) != _process(item):
            launch_s = models[item.model].launch_s if item.model in models else 0.0
            launches_s[item.workload] = max(launches_s[item.workload], launch_s)
    return dict(launches_s)


def _process(item: Assignment) -> tuple[object, ...]:
    return item.device, item.model, item.share_pct_sm, item.memory_mib_limit
