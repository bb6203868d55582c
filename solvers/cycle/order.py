"""What a cycle is asked to do, and which workloads it may move.

Owns the meaning of lanes: `act` moves what is on auto, `approve` also what is on approve, `shadow` everything that is
not off.
"""

from __future__ import annotations

from solvers.cycle.record import Lane
from solvers.domain.ids import CycleId, WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.domain.workload import ServiceMode

_MODES = {
    Lane.ACT: frozenset({ServiceMode.AUTO}),
    Lane.APPROVE: frozenset({ServiceMode.AUTO, ServiceMode.APPROVE}),
    Lane.SHADOW: frozenset({ServiceMode.AUTO, ServiceMode.APPROVE, ServiceMode.SHADOW}),
}


@value
class CycleOrder:
    """One cycle to run. `forced`: a person wants the change now, so hysteresis (cooldown, churn budget, small gain) is
    set aside. `promote` False: plan, verify and record, but change nothing; whoever asked may apply the plan later.
    `outdated`: workloads whose processes were told something else than their documents now say. A plan that moves them
    is promoted even where it changes nothing, because nodes learn of documents by promotions alone.
    """

    id: CycleId
    lane: Lane
    seed: int
    software_version: str
    forced: bool = False
    promote: bool = True
    outdated: tuple[WorkloadId, ...] = ()


def movable_workloads(snapshot: Snapshot, lane: Lane) -> tuple[WorkloadId, ...]:
    """Workloads that a lane may move, by id."""
    modes = _MODES[lane]
    services = (WorkloadId(item.id) for item in snapshot.services if item.mode in modes)
    jobs = (WorkloadId(item.id) for item in snapshot.jobs if item.mode in modes)
    tasks = (WorkloadId(item.id) for item in snapshot.tasks if item.mode in modes)
    return tuple(sorted((*services, *jobs, *tasks)))
