"""Who joins whom on which device: OLTunes' grouping on the books of a plan, with its affinity and its tuning.

Devices are walked over least utilised first, those without tasks before the others, with urgent work before patient
work on each; affinity says who may join those who are there; one task of a new group takes spare room. Who found no
group of enough affinity joins, at the end, the best there is, unless that is not wanted: services never end, so that a
fleet with one on every device would have no group for anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.ids import ModelName, WorkloadId
from solvers.domain.workload import ModelVariant, WorkloadKind
from solvers.planners.base import PlanRequest
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed
from solvers.policies.oltunes.memory import OltunesMemory
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.queues import MS_PER_S, Grouping, Queues
from solvers.policies.oltunes.rating import Rated
from solvers.policies.oltunes.scores import Character, Record, affinity, character_of
from solvers.problems.choice import Options
from solvers.problems.fleet import Places
from solvers.problems.needs import Need

Undone = tuple[float, float]
NOTHING_UNDONE: Undone = (0.0, 0.0)


@dataclass(slots=True, kw_only=True)
class WaitingWork:
    """Work that wants a place, as the queues order it. `boost` above 0: it lost its place and goes ahead of everybody;
    `order`: tasks by the cycle that saw them first.
    """

    need: Need
    rated: Rated
    urgent: bool
    priority: float
    order: int
    boost: int = 0
    position: int = 0
    """Its place in line after the cycle, 1 for the next; 0: it has what it wants."""

    @property
    def name(self) -> str:
        return self.need.workload

    @property
    def latency_s(self) -> float:
        return self.rated.latency_ms_mean / MS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedReplica:
    """One replica that got a place, and why there. `affinity` None: it came first."""

    workload: WorkloadId
    device: int
    row: int
    group: int
    affinity: float | None
    members: int
    tuned: bool = False
    below_threshold: bool = False


@dataclass(slots=True, kw_only=True)
class Newcomer:
    waiting: WaitingWork
    joined: JoinedReplica
    placed: Placed


@dataclass(slots=True, kw_only=True)
class GroupBooks(Grouping[WaitingWork, int, Newcomer]):
    """The books and who sits where, by model; `group_max` holds for tasks, because services never end."""

    draft: Draft
    parameters: OltunesParameters
    """The same for what the scheduler has as well."""
    models: dict[ModelName, ModelVariant]
    utilisation: Floats
    """Of every device, 0…100."""
    first_group: int
    tasks: Whole
    """How many run on each device."""
    seated: dict[int, list[Character]] = field(default_factory=dict)
    begun: list[list[Newcomer]] = field(default_factory=list)
    """Groups of this cycle."""
    last: bool = False
    """Whether any kept option on any type will do, and affinity orders instead of refusing."""

    @property
    def groups(self) -> int:
        return len(self.begun)

    @property
    def joined(self) -> list[JoinedReplica]:
        return [each.joined for group in self.begun for each in group]

    def seat(self, device: int, model: ModelName, kind: WorkloadKind) -> None:
        self.seated.setdefault(device, []).append(character_of(self.models.get(model)))
        self.tasks[device] += kind is WorkloadKind.TASK

    def character(self, task: WaitingWork) -> Character:
        return character_of(self.models.get(task.need.model))

    def sitting(self, place: int) -> Sequence[Character]:
        return self.seated.get(place, ())

    def configurations(self, task: WaitingWork, place: int) -> list[int]:
        return task.rated.rows(int(self.draft.fleet.class_of[place]), last=self.last)

    def size(self, task: WaitingWork, place: int) -> int:
        return int(self.tasks[place]) if task.need.kind is WorkloadKind.TASK else 0

    def served(self, task: WaitingWork) -> bool:
        return not self.wants(task.need)

    def form(self, waiting: Sequence[WaitingWork]) -> None:
        """Give places by the paper's rules; then whoever is left joins the best there is."""
        queues: Queues[WaitingWork] = Queues()
        for item in waiting:
            if self.wants(item.need):
                queues.push(item)
        fleet = self.draft.fleet
        for self.last in (False, True):
            least_pct = np.array([self._least_pct(queues, number) for number in range(len(fleet.classes))])
            roomy = fleet.usable & (fleet.share_free >= least_pct[fleet.class_of])
            anybody = self.last and not self.parameters.affinity_strict
            for device in self._order():
                begun = self.group(queues, device, anybody=anybody) if len(queues) and roomy[device] else []
                if begun:
                    self.begun.append(begun)

    def _least_pct(self, waiting: Iterable[WaitingWork], device_class: int) -> float:
        """Below this free share nobody finds room on a device of this class."""
        rows = ((item, item.rated.rows(device_class, last=self.last)) for item in waiting)
        least = (self.draft.options(item.need).share_pct[found].min() for item, found in rows if found)
        return float(min(least, default=np.inf))

    def fill(self, waiting: Sequence[WaitingWork]) -> None:
        """Give whoever is short what is left, the cheapest way that fits: a task one place that keeps its deadline, if
        there is any. Eq. 6 keeps three options of a type, and whether they fit is no matter in the paper, where shares
        may overlap.
        """
        for item in waiting:
            settled, options = self.draft.open(item.need), self.draft.options(item.need)
            known = len(settled.placed)
            among = partial(self._open_to, item, self._welcoming(item), known)
            fits = self._fits_somewhere(options, among())
            if item.need.kind is WorkloadKind.TASK:
                self.draft.fill(settled, item.rated.in_time & fits, self.draft.best_fit, among)
            self.draft.fill(settled, fits, self.draft.best_fit, among)
            for placed in settled.placed[known:]:
                self.begun.append([self._newcomer(item, placed, _row_of(placed, options))])

    def wants(self, need: Need) -> bool:
        """Whether it is short, or lacks a failure domain that can be had, and may have more."""
        settled = self.draft.open(need)
        short = settled.rate_rps_wanting > 0 or len(settled.placed) < need.replicas_floor
        return (short or self.draft.apart(settled) is not None) and len(settled.placed) < need.replicas_max

    def undone(self, waiting: Sequence[WaitingWork]) -> Undone:
        """What these are short of: services by how much of their rates, weighted, then how many tasks."""
        services = tasks = 0.0
        for item in waiting:
            settled, is_task = self.draft.open(item.need), item.need.kind is WorkloadKind.TASK
            if is_task:
                tasks += self.wants(item.need)
            else:
                services += item.need.weight * (settled.rate_rps_wanting + settled.replicas_missing)
        return services, tasks

    def _order(self) -> list[int]:
        """Devices, those without tasks first, then the least utilised."""
        fleet = self.draft.fleet
        keys = (fleet.occupants, self.utilisation, fleet.unrented, self.tasks > 0)
        return [int(device) for device in np.lexsort(keys)]

    def _newcomer(self, item: WaitingWork, placed: Placed, row: int) -> Newcomer:
        """A replica that was just put on a device takes its seat among the others."""
        device = placed.seat.device
        there, welcomed = self.sitting(device), self.welcomes(item, device)
        near = affinity(self.character(item), there).total if there else None
        self.seat(device, item.need.model, item.need.kind)
        joined = JoinedReplica(
            workload=item.need.workload,
            device=device,
            row=row,
            group=self.first_group + self.groups,
            affinity=near,
            members=len(self.seated[device]),
            below_threshold=not welcomed,
        )
        return Newcomer(waiting=item, joined=joined, placed=placed)

    def _welcoming(self, item: WaitingWork) -> Flags:
        devices = range(len(self.draft.fleet.devices))
        if not self.parameters.affinity_strict:
            return np.ones(len(devices), dtype=np.bool_)
        return np.array([self.welcomes(item, device) for device in devices], dtype=np.bool_)

    def _fits_somewhere(self, options: Options, places: Places) -> Flags:
        """Options for which one of these devices has share and memory left: the others need not be tried."""
        fleet, found = self.draft.fleet, np.zeros(len(options), dtype=np.bool_)
        for number in np.unique(options.device_class):
            mine, devices = np.flatnonzero(options.device_class == number), places[fleet.class_of[places] == number]
            share = fleet.share_free[devices][:, None] >= options.share_pct[mine]
            found[mine] = (share & (fleet.memory_free[devices][:, None] >= options.memory_mib[mine])).any(axis=0)
        return found

    def _open_to(self, item: WaitingWork, welcoming: Flags, known: int) -> Places:
        """Those of them where groups are small enough, with those of its replicas that came after so many."""
        if item.need.kind is not WorkloadKind.TASK:
            return np.flatnonzero(welcoming)
        tasks = self.tasks.copy()
        for placed in self.draft.open(item.need).placed[known:]:
            tasks[placed.seat.device] += 1
        return np.flatnonzero(welcoming & (tasks < self.group_max))

    def fitting(self, task: WaitingWork, place: int) -> list[int]:
        """Options that the share and the memory left there allow; the other rules are looked at later."""
        fleet, options = self.draft.fleet, self.draft.options(task.need)
        share_pct, memory_mib = float(fleet.share_free[place]), float(fleet.memory_free[place])
        rows = self.configurations(task, place)
        return [row for row in rows if options.share_pct[row] <= share_pct and options.memory_mib[row] <= memory_mib]

    def join(self, task: WaitingWork, place: int, configurations: Sequence[int]) -> Newcomer | None:
        settled = self.draft.open(task.need)
        apart = self.draft.apart(settled, self._configured(task))
        if apart is not None and place not in apart.places:
            return None
        for row in configurations:
            option = self.draft.option(task.need, row)
            fits = self.draft.fleet.fits(self.draft.search(task.need, option), place)
            if fits and self.draft.put(settled, option, _level, among=np.array([place], dtype=np.intp)) is None:
                return self._newcomer(task, settled.placed[-1], row)
        return None

    def _configured(self, task: WaitingWork) -> Flags:
        """All options that it may have now, whatever the type."""
        found = np.zeros(len(self.draft.options(task.need)), dtype=np.bool_)
        for number in range(len(self.draft.fleet.classes)):
            found[task.rated.rows(number, last=self.last)] = True
        return found

    def tune_all(self) -> None:
        """When everybody has had the chance of a place: tasks alone, as services would never give room back."""
        self.last = True
        for group in self.begun:
            tasks = [each for each in group if each.waiting.need.kind is WorkloadKind.TASK]
            self.tune(tasks, urgent=[each.waiting.urgent for each in tasks])

    def choices(self, member: Newcomer) -> tuple[Record, list[Record]]:
        rated, options = member.waiting.rated, self.draft.options(member.waiting.need)
        rows = (member.joined.row, *self.configurations(member.waiting, member.joined.device))
        own, *others = (
            Record(
                batch=int(options.batch[row]),
                run=float(rated.run_ms[row]),
                throughput_rps=float(rated.throughput_rps[row]),
            )
            for row in rows
        )
        return own, others

    def exchange(self, member: Newcomer, choice: int) -> bool:
        need, before = member.waiting.need, member.placed
        settled = self.draft.open(need)
        index = next(number for number, item in enumerate(settled.placed) if item is before)
        settled.placed.pop(index)
        self.draft.fleet.lift(before.seat)
        row = self.configurations(member.waiting, member.joined.device)[choice]
        option = self.draft.option(need, row)
        among = np.array([member.joined.device], dtype=np.intp)
        if self.draft.put(settled, option, _level, among=among) is None:
            member.placed, member.joined = settled.placed[-1], replace(member.joined, row=row, tuned=True)
            return True
        self.draft.fleet.put(before.seat)
        settled.placed.insert(index, before)
        return False


def _row_of(placed: Placed, options: Options) -> int:
    option = placed.option
    assert option is not None
    same = (options.device_class == option.device_class) & (options.batch == option.batch)
    same &= (options.share_pct == option.share_pct) & (options.memory_mib == option.memory_mib)
    return int(np.flatnonzero(same)[0])


def _level(places: Places) -> Floats:
    return np.zeros(len(places))


def opened(request: PlanRequest, case: Case, parameters: OltunesParameters, memory: OltunesMemory) -> GroupBooks:
    """Books in which what stands has its place, but replicas of services that are not needed any more."""
    assert memory.pace is not None
    draft = Draft.of(request, case)
    groups = GroupBooks(
        draft=draft,
        parameters=parameters,
        group_max=memory.pace.group_max,
        affinity_min=parameters.threshold_affinity,
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
        wanted = _needed(draft, need, items)
        for item in items:
            if item not in wanted and item.standing is not None:
                draft.let_go.add(item.standing.replica)
        for item in draft.keep(need, items, wanted).placed:
            groups.seat(item.seat.device, need.model, need.kind)


def _needed(draft: Draft, need: Need, items: list[Placed]) -> list[Placed]:
    """All of a task; of a service, the largest while the others do not serve its rate, and one in each failure domain
    that its owner asks for.
    """
    if need.kind is WorkloadKind.TASK:
        return items
    wanted = list(items)
    for item in sorted(items, key=lambda each: each.capacity_rps):
        rest = [each for each in wanted if each is not item]
        enough = len(rest) >= need.replicas_floor and sum(each.capacity_rps for each in rest) >= need.rate_rps
        if enough and not draft.narrows(need, wanted, rest):
            wanted = rest
    return wanted


def _utilisation(draft: Draft) -> Floats:
    """Of the SMs, as last measured; where nobody measured, the share that is taken."""
    measured = {item.device: item.utilisation_pct for item in draft.case.snapshot.device_telemetry}
    taken = 100.0 - np.asarray(draft.fleet.share_free, dtype=np.float64)
    return np.array([measured.get(device.id, taken[number]) for number, device in enumerate(draft.fleet.devices)])
