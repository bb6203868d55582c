"""The books of a cycle before anybody new gets a place: what stands and keeps its promise stays.

Owns which standing replicas are kept, and how busy devices are. It refuses to move what runs, and to place anybody.
"""

from __future__ import annotations

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.workload import WorkloadKind
from solvers.planners.base import PlanRequest
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed
from solvers.policies.oltunes.planning.groups import GroupBooks
from solvers.policies.oltunes.planning.memory import OltunesMemory
from solvers.policies.oltunes.planning.parameters import OltunesPlanningParameters
from solvers.problems.needs import Need


def opened(
    request: PlanRequest, case: Case, parameters: OltunesPlanningParameters, memory: OltunesMemory
) -> GroupBooks:
    """Books in which what stands has its place, but replicas of services that are not needed any more."""
    assert memory.pace is not None
    draft = Draft.of(request, case)
    groups = GroupBooks(
        draft=draft,
        parameters=parameters,
        shared=parameters.scheduler,
        group_max=memory.pace.group_max,
        models=dict(case.snapshot.models_by_name()),
        utilisation=_utilisation(draft),
        first_group=memory.groups,
        tasks=np.zeros(len(draft.fleet.devices), dtype=np.int64),
    )
    _stay(groups)
    return groups


def _stay(groups: GroupBooks) -> None:
    draft = groups.draft
    for need, settled in ((item.need, item) for item in list(draft.settled.values())):
        for placed in settled.placed:
            groups.seat(placed.seat.device, need.model, need.kind)
    for pinned in draft.case.pinned:
        groups.seat(draft.fleet.index[pinned.device], pinned.model, pinned.kind)
    standing = draft.stand()
    for need in draft.needs:
        items = standing[need.workload]
        wanted = _needed(need, items)
        for item in items:
            if item not in wanted and item.standing is not None:
                draft.let_go.add(item.standing.replica)
        for item in draft.keep(need, items, wanted).placed:
            groups.seat(item.seat.device, need.model, need.kind)


def _needed(need: Need, items: list[Placed]) -> list[Placed]:
    """All of a task; of a service, the largest while the others do not serve its rate."""
    if need.kind is WorkloadKind.TASK:
        return items
    wanted = list(items)
    for item in sorted(items, key=lambda each: each.capacity_rps):
        rest = [each for each in wanted if each is not item]
        if len(rest) >= need.replicas_floor and sum(each.capacity_rps for each in rest) >= need.rate_rps:
            wanted = rest
    return wanted


def _utilisation(draft: Draft) -> Floats:
    """Of the SMs, as last measured; where nobody measured, the share that is taken."""
    measured = {item.device: item.utilisation_pct for item in draft.case.snapshot.device_telemetry}
    taken = 100.0 - np.asarray(draft.fleet.share_free, dtype=np.float64)
    return np.array([measured.get(device.id, taken[number]) for number, device in enumerate(draft.fleet.devices)])
