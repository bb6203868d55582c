"""What spare memory of a group is used for: a better configuration for one of its tasks, or a slice of its own.

Owns the rule: patient tasks first and by throughput with a larger batch, then urgent ones by latency; only what is
strictly better, one task of a group at most, out of the configurations kept for it. It refuses to predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from solvers.policies.oltunes.grouping import TaskGroup
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.queues import WaitingTask
from solvers.policies.oltunes.tasking import Config, SliceWish, TaskSeat

RECORDS_MIN = 2
SLICED_SHARE_MAX_PCT = 50.0
"""A group that wants more than half of the SMs is not squeezed into a part of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is believed of a configuration: time of the whole task, in any unit, and inputs per second."""

    batch: int
    run: float
    throughput_rps: float


def patient_first(urgent: Sequence[bool]) -> list[int]:
    """In which order the tasks of a group are looked at."""
    return sorted(range(len(urgent)), key=lambda place: urgent[place])


def better(current: Record, records: Sequence[Record], *, urgent: bool) -> list[int]:
    """Records that are strictly better than the current one, best first: for urgent tasks by time, for patient ones by
    throughput, with a larger batch. Of one record nobody can choose.
    """
    if len(records) < RECORDS_MIN:
        return []
    places = range(len(records))
    if urgent:
        sooner = [place for place in places if records[place].run < current.run]
        return sorted(sooner, key=lambda place: records[place].run)
    more = [place for place in places if records[place].batch > current.batch]
    more = [place for place in more if records[place].throughput_rps > current.throughput_rps]
    return sorted(more, key=lambda place: -records[place].throughput_rps)


def worth_a_slice(share_pct: float, spare_mib: float, spare_mib_min: float) -> bool:
    """Whether what a group leaves of a GPU is worth a MIG slice of its own; a minimum of 0: never."""
    return 0.0 < spare_mib_min <= spare_mib and share_pct <= SLICED_SHARE_MAX_PCT


def tuned(group: TaskGroup, seat: TaskSeat, parameters: OltunesParameters) -> TaskGroup:
    """The group with at most one task enlarged into the memory that is left."""
    spare_mib = seat.memory_mib_free - parameters.memory_margin_mib - group.memory_mib
    for place in patient_first([member.urgent for member in group.members]):
        current = group.configs[place]
        found = _better(group.members[place], current, seat, current.memory_mib + spare_mib)
        if found is not None:
            configs = (*group.configs[:place], found, *group.configs[place + 1 :])
            return replace(group, configs=configs)
    return group


def _better(task: WaitingTask, current: Config, seat: TaskSeat, room_mib: float) -> Config | None:
    configs = task.on(seat.gpu_type)
    inputs = task.task.inputs
    order = better(_record(current, inputs), [_record(each, inputs) for each in configs], urgent=task.urgent)
    fitting = (configs[place] for place in order if configs[place].memory_mib <= room_mib)
    return next((each for each in fitting if each.share_pct <= seat.share_pct_total), None)


def _record(config: Config, inputs: float) -> Record:
    return Record(batch=config.batch, run=config.run_s(inputs), throughput_rps=config.throughput_rps)


def slice_wish(group: TaskGroup, seat: TaskSeat, parameters: OltunesParameters) -> SliceWish | None:
    """What the group of an empty GPU keeps, where the rest is worth a slice."""
    if seat.running or seat.sm_part < 1.0:
        return None
    spare_mib = seat.memory_mib_free - parameters.memory_margin_mib - group.memory_mib
    share_pct = sum(config.share_pct for config in group.configs)
    if not worth_a_slice(share_pct, spare_mib, parameters.slice_spare_mib):
        return None
    return SliceWish(share_pct=share_pct, memory_mib=group.memory_mib + parameters.memory_margin_mib)
