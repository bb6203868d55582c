"""The trained actor as a placer: it is asked with the columns of problem (1), and answers which to take.

Owns the reading of a picture into the actor's state, who of the picture is whom of its training, and the columns that
come nearest to what it grants: on its GPU, of shares not above the granted one, the one that serves most. What has no
such column is left to those who fill plans. It refuses pictures with other networks or other GPUs than it was trained
for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags
from solvers.planners.draft import Draft
from solvers.policies.inss.actor import NOWHERE
from solvers.policies.inss.artefact import Artefact, shipped_for
from solvers.policies.inss.columns import KnapsackColumns
from solvers.problems.knapsack import DUST, Knapsack
from solvers.problems.needs import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedShares:
    """By the knapsack's model: the device and the share that the actor grants."""

    digest: str
    device: tuple[int, ...]
    share_pct: tuple[float, ...]

    def __call__(self, problem: Knapsack, allowed: Flags) -> Flags:
        """The columns nearest to what is granted, as far as they fit."""
        chosen = np.zeros(len(problem), dtype=np.bool_)
        share, memory = problem.share_room_pct.copy(), problem.memory_room_mib.copy()
        for model in sorted(range(len(self.device)), key=lambda model: self.share_pct[model]):
            device = self.device[model]
            mine = np.flatnonzero(allowed & (problem.model == model) & (problem.gpu == device))
            room = min(self.share_pct[model], float(share[device])) + DUST
            able = mine[(problem.share_pct[mine] <= room) & (problem.memory_mib[mine] <= memory[device] + DUST)]
            if not len(able) or not problem.wanted[model]:
                continue
            best = able[np.lexsort((-problem.throughput_rps[able], -problem.served[able]))[0]]
            chosen[best] = True
            share[device] -= problem.share_pct[best]
            memory[device] -= problem.memory_mib[best]
        return chosen


def learned(draft: Draft, listed: KnapsackColumns) -> GrantedShares | None:
    """The actor that was trained for exactly this picture's networks and GPUs, with what it chooses; None without one.
    Each network must be served once, and no GPU may be cut into slices.
    """
    needs, fleet = draft.needs, draft.fleet
    types = [fleet.class_at(device).gpu_type for device in range(len(fleet.devices))]
    whole = all(fleet.class_at(device).sm_part == 1.0 for device in range(len(fleet.devices)))
    once = max(Counter(need.model for need in needs).values(), default=0) == 1
    artefact = shipped_for([need.model for need in needs], types) if whole and once else None
    if artefact is None:
        return None
    devices = _devices(draft, artefact)
    asked = [next(need for need in needs if need.model == name) for name in artefact.shape.models]
    places, granted = _chosen(draft, artefact, asked, devices)
    units = artefact.shape.units
    found = {
        need.workload: (devices[place], 100.0 * granted[model] / units[place])
        for model, (need, place) in enumerate(zip(asked, places, strict=True))
    }
    answers = [found[need.workload] for need in listed.needs]
    return GrantedShares(
        digest=artefact.digest,
        device=tuple(device for device, _ in answers),
        share_pct=tuple(share for _, share in answers),
    )


def _devices(draft: Draft, artefact: Artefact) -> list[int]:
    """The fleet's device for each GPU of the training: of its type, the first by name that is left."""
    fleet = draft.fleet
    left = sorted(range(len(fleet.devices)), key=lambda device: fleet.devices[device].id)
    found: list[int] = []
    for gpu_type in artefact.shape.gpu_types:
        mine = next(device for device in left if fleet.class_at(device).gpu_type == gpu_type)
        left.remove(mine)
        found.append(mine)
    return found


def _chosen(draft: Draft, artefact: Artefact, asked: list[Need], devices: list[int]) -> tuple[list[int], list[int]]:
    """GPU and units of every model, from what stands and what is asked for."""
    shape, case = artefact.shape, draft.case
    index = {draft.fleet.devices[device].id: gpu for gpu, device in enumerate(devices)}
    queues = {item.replica: item.queue_length for item in case.snapshot.replica_telemetry}
    used, places, waiting = np.zeros(len(devices)), np.full(len(asked), NOWHERE), np.zeros(len(asked))
    for model, need in enumerate(asked):
        for item in case.standing.get(need.workload, []):
            gpu = index.get(item.device, NOWHERE)
            waiting[model] += queues.get(item.replica, 0.0)
            if gpu != NOWHERE:
                used[gpu] += item.memory_mib_limit
                places[model] = gpu if places[model] == NOWHERE else places[model]
    rates = np.array([need.rate_rps_least for need in asked])
    state = shape.state(used, rates, waiting, places.astype(np.int64))
    chosen, levels = artefact.actor.choice(shape, state)
    return chosen, shape.granted(chosen, levels)
