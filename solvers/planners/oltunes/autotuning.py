"""What spare memory of a group is used for: a better configuration for one of its tasks, or a slice of its own.

Owns the rule: patient tasks first and by throughput with a larger batch, then urgent ones by latency; only what is
strictly better, one task of a group at most, out of the configurations kept for it. It refuses to predict.
"""

from __future__ import annotations

from dataclasses import replace

from solvers.planners.oltunes.grouping import Group
from solvers.planners.oltunes.parameters import Parameters
from solvers.planners.oltunes.queues import Waiting
from solvers.planners.oltunes.tasking import Config, Seat, SliceWish

RECORDS_MIN = 2
SLICED_SHARE_MAX_PCT = 50.0
"""A group that wants more than half of the SMs is not squeezed into a part of the GPU."""


def tuned(group: Group, seat: Seat, parameters: Parameters) -> Group:
    """The group with at most one task enlarged into the memory that is left."""
    spare_mib = seat.memory_mib_free - parameters.memory_margin_mib - group.memory_mib
    places = range(len(group.members))
    patient_first = sorted(places, key=lambda place: group.members[place].task.latency_critical)
    for place in patient_first:
        current = group.configs[place]
        better = _better(group.members[place], current, seat, current.memory_mib + spare_mib)
        if better is not None:
            configs = (*group.configs[:place], better, *group.configs[place + 1 :])
            return replace(group, configs=configs)
    return group


def _better(task: Waiting, current: Config, seat: Seat, room_mib: float) -> Config | None:
    records = task.on(seat.gpu_type)
    if len(records) < RECORDS_MIN:
        return None
    fitting = [each for each in records if each.memory_mib <= room_mib and each.share_pct <= seat.share_pct_total]
    if task.task.latency_critical:
        inputs = task.task.inputs
        best = min(fitting, key=lambda each: each.run_s(inputs), default=current)
        return best if best.run_s(inputs) < current.run_s(inputs) else None
    larger = [each for each in fitting if each.batch > current.batch]
    best = max(larger, key=lambda each: each.throughput_rps, default=current)
    return best if best.throughput_rps > current.throughput_rps else None


def slice_wish(group: Group, seat: Seat, parameters: Parameters) -> SliceWish | None:
    """What the group of an empty GPU keeps, where the rest is worth a slice."""
    if parameters.slice_spare_mib <= 0.0 or seat.running or seat.sm_part < 1.0:
        return None
    spare_mib = seat.memory_mib_free - parameters.memory_margin_mib - group.memory_mib
    share_pct = sum(config.share_pct for config in group.configs)
    if spare_mib < parameters.slice_spare_mib or share_pct > SLICED_SHARE_MAX_PCT:
        return None
    return SliceWish(share_pct=share_pct, memory_mib=group.memory_mib + parameters.memory_margin_mib)
