"""Which waiting tasks share a seat: OLTunes' greedy grouping, and which seats are on offer.

Owns the printed rules with their repairs: urgent tasks first, each in the order of its queue; whoever does not fit in
memory, knows no configuration on this type of GPU, or gets on badly with the group is skipped and stays in the queue.
Those who run on a seat already count for the size of the group that joins them. It refuses to launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.queues import WaitingTask
from solvers.policies.oltunes.scores import Character, affinity
from solvers.policies.oltunes.tasking import Config, PlacedTask, TaskSeat


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingRules:
    """What grouping goes by: parameters, the size allowed by now, and what is known of models."""

    parameters: OltunesParameters
    group_max: int
    characters: Mapping[ModelName, Character]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """Tasks for a seat in the order of joining."""

    members: tuple[WaitingTask, ...]
    configs: tuple[Config, ...]

    @property
    def memory_mib(self) -> float:
        """Of all members."""
        return sum(config.memory_mib for config in self.configs)

    def placed(self) -> tuple[PlacedTask, ...]:
        """As a launch takes it."""
        return tuple(
            PlacedTask(task=each.task, config=config) for each, config in zip(self.members, self.configs, strict=True)
        )


def offered(seats: Sequence[TaskSeat], parameters: OltunesParameters) -> tuple[TaskSeat, ...]:
    """Seats that may get a group, least utilised first. Of each type of GPU: the empty ones; while there are none,
    those nearly free or nearly done; while there are none of these, the one that is done soonest. An empty GPU of a
    type that nobody wants would be no reason to wait.
    """
    by_type: dict[GpuTypeName, list[TaskSeat]] = {}
    for seat in seats:
        by_type.setdefault(seat.gpu_type, []).append(seat)
    found = [seat for some in by_type.values() for seat in _of_type(some, parameters)]
    return tuple(sorted(found, key=lambda seat: (seat.utilisation_pct, len(seat.running), seat.id)))


def _of_type(seats: Sequence[TaskSeat], parameters: OltunesParameters) -> Sequence[TaskSeat]:
    empty = [seat for seat in seats if not seat.running]
    if empty:
        return empty
    roomy = [seat for seat in seats if len(seat.running) < parameters.group_max]
    nearly = [seat for seat in roomy if _nearly_free(seat, parameters.nearly_free)]
    if nearly or not roomy:
        return nearly
    return [min(roomy, key=lambda seat: (max(each.left_s for each in seat.running), seat.id))]


def _nearly_free(seat: TaskSeat, part: float) -> bool:
    """Room is the scarcer of memory and SMs."""
    room = min(seat.memory_mib_free / seat.memory_mib_total, 1.0 - seat.utilisation_pct / 100.0)
    longest = max(seat.running, key=lambda each: (each.config.run_s(each.task.inputs), each.task.id))
    return room > part or longest.progress > part


def form(seat: TaskSeat, candidates: Iterable[WaitingTask], rules: GroupingRules) -> TaskGroup:
    """The group for a seat out of waiting tasks in their order; it may be empty. Its size, memory, or want of tasks
    that match close it.
    """
    members: list[WaitingTask] = []
    configs: list[Config] = []
    sitting: list[Character] = []
    room_mib = seat.memory_mib_free - rules.parameters.memory_margin_mib
    room = rules.group_max - len(seat.running)
    for task in candidates:
        if len(members) >= room:
            break
        config = next((each for each in task.on(seat.gpu_type) if _fits(each, seat, room_mib)), None)
        who = rules.characters[task.task.model]
        if config is None or not welcome(who, sitting, rules.parameters):
            continue
        members.append(task)
        configs.append(config)
        sitting.append(who)
        room_mib -= config.memory_mib
    return TaskGroup(members=tuple(members), configs=tuple(configs))


def _fits(config: Config, seat: TaskSeat, room_mib: float) -> bool:
    return config.memory_mib < room_mib and config.share_pct <= seat.share_pct_total


def welcome(who: Character, sitting: Sequence[Character], parameters: OltunesParameters) -> bool:
    """Whether affinity to those who sit there lets somebody join."""
    if not sitting or not parameters.with_affinity:
        return True
    return affinity(who, sitting).admits(parameters.affinity_min)
