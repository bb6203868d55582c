"""Which waiting tasks share a seat: OLTunes' greedy grouping, which seats are on offer, what spare memory is used for.

The printed rules with their repairs: urgent tasks first, each in the order of its queue; whoever does not fit in
memory, knows no configuration on this type of GPU, or gets on badly with the group is skipped and stays in the queue.
Those who run on a seat already count for the size of the group that joins them. A failed group goes back whole, to the
urgent queue, ahead of everybody, each task's own class kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lab.benches.tasks.contract import Config, InferenceTask, PlacedTask, SliceWish, TaskSeat
from lab.benches.tasks.parameters import SchedulerParameters
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName
from solvers.domain.value import value
from solvers.policies.oltunes.queues import Queues, ahead
from solvers.policies.oltunes.scores import Character, Record, better, patient_first, welcome, worth_a_slice


@value
class Arrival:
    """A task in the main queue. `order` counts arrivals."""

    task: InferenceTask
    at_s: float
    order: int


@value
class TaskChoice:
    """One of the configurations kept for a task (Eq. 6)."""

    gpu_type: GpuTypeName
    config: Config


@value
class WaitingTask:
    """A task with its choices, best first for each GPU type. `failures` counts failed groups; `boost` is how far it was
    put ahead by the last of them.
    """

    task: InferenceTask
    at_s: float
    order: int
    choices: tuple[TaskChoice, ...]
    priority: float
    latency_s: float
    boost: int = 0
    failures: int = 0

    @property
    def name(self) -> str:
        """Of its task."""
        return self.task.id

    @property
    def urgent(self) -> bool:
        """By its lambda."""
        return self.task.latency_critical

    def on(self, gpu_type: GpuTypeName) -> tuple[Config, ...]:
        """Its choices on a type."""
        return tuple(each.config for each in self.choices if each.gpu_type == gpu_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingRules:
    """What grouping goes by: parameters, the size allowed by now, and what is known of models."""

    parameters: SchedulerParameters
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


def offered(seats: Sequence[TaskSeat], parameters: SchedulerParameters) -> tuple[TaskSeat, ...]:
    """Seats that may get a group, least utilised first. Of each type of GPU: the empty ones; while there are none,
    those nearly free or nearly done; while there are none of these, the one that is done soonest. An empty GPU of a
    type that nobody wants would be no reason to wait.
    """
    by_type: dict[GpuTypeName, list[TaskSeat]] = {}
    for seat in seats:
        by_type.setdefault(seat.gpu_type, []).append(seat)
    found = [seat for some in by_type.values() for seat in _of_type(some, parameters)]
    return tuple(sorted(found, key=lambda seat: (seat.utilisation_pct, len(seat.running), seat.id)))


def _of_type(seats: Sequence[TaskSeat], parameters: SchedulerParameters) -> Sequence[TaskSeat]:
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
    alike = not rules.parameters.with_affinity
    for task in candidates:
        if len(members) >= room:
            break
        config = next((each for each in task.on(seat.gpu_type) if _fits(each, seat, room_mib)), None)
        who = rules.characters[task.task.model]
        if config is None or not (alike or welcome(who, sitting, rules.parameters.threshold_affinity)):
            continue
        members.append(task)
        configs.append(config)
        sitting.append(who)
        room_mib -= config.memory_mib
    return TaskGroup(members=tuple(members), configs=tuple(configs))


def _fits(config: Config, seat: TaskSeat, room_mib: float) -> bool:
    return config.memory_mib < room_mib and config.share_pct <= seat.share_pct_total


def tuned(group: TaskGroup, seat: TaskSeat, parameters: SchedulerParameters) -> TaskGroup:
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


def slice_wish(group: TaskGroup, seat: TaskSeat, parameters: SchedulerParameters) -> SliceWish | None:
    """What the group of an empty GPU keeps, where the rest is worth a slice."""
    if seat.running or seat.sm_part < 1.0:
        return None
    spare_mib = seat.memory_mib_free - parameters.memory_margin_mib - group.memory_mib
    share_pct = sum(config.share_pct for config in group.configs)
    if not worth_a_slice(share_pct, spare_mib, parameters.slice_spare_mib):
        return None
    return SliceWish(share_pct=share_pct, memory_mib=group.memory_mib + parameters.memory_margin_mib)


@value
class Flying:
    """A launched task. `group` numbers launches."""

    waiting: WaitingTask
    config: Config
    seat: DeviceId
    gpu_type: GpuTypeName
    group: int


def put_back(failed: Sequence[Flying], queues: Queues[WaitingTask]) -> None:
    """Ahead of everybody who waits."""
    boost = ahead(queues.boost_max)
    for each in sorted(failed, key=lambda item: item.waiting.order):
        queues.push(replace(each.waiting, boost=boost, failures=each.waiting.failures + 1))
