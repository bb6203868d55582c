"""Who joins whom on which device: OLTunes' grouping on the books of a plan, with its affinity and its tuning.

Owns the walk over devices, least utilised first and those without tasks before the others; urgent work before patient
work on each; the affinity by which somebody may join those who are there; and the one task of a new group that takes
spare room. Who found no group of enough affinity joins, at the end, the best there is, unless that is not wanted:
services never end, so that a fleet with one on every device would have no group for anybody. It refuses to break any
rule of the books.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from solvers.domain.ids import ModelName, WorkloadId
from solvers.domain.workload import ModelVariant, QualityClass, WorkloadKind
from solvers.models.papers.oltunes import Character, affinity
from solvers.planners.draft import Draft
from solvers.planners.oltunes.planning_candidates import Rated
from solvers.planners.oltunes.planning_parameters import Parameters
from solvers.planners.seating import Placed
from solvers.problems.choice import Flags, Floats, Options
from solvers.problems.fleet import Places
from solvers.problems.needs import Need

Undone = tuple[float, float]
NOTHING_UNDONE: Undone = (0.0, 0.0)
LOOKED_AT_MAX = 64
"""Of each queue, for one device."""


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Work that wants a place. `boost` above 0: it lost its place and goes ahead of everybody."""

    need: Need
    rated: Rated
    urgent: bool
    priority: float
    boost: int = 0
    position: int = 0
    """Its place in line after the cycle, 1 for the next; 0: it has what it wants."""

    @property
    def rank(self) -> tuple[bool, int, float, float, WorkloadId]:
        """Urgent work first, then the smallest deadline over latency, then the shortest."""
        last = not (self.urgent or self.boost)
        return (last, -self.boost, self.priority, self.rated.latency_ms_mean, self.need.workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
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
    """Who joined, as what."""

    waiting: Waiting
    joined: Joined
    placed: Placed


@dataclass(slots=True, kw_only=True)
class Groups:
    """The books and who sits where, by model."""

    draft: Draft
    parameters: Parameters
    group_max: int
    models: dict[ModelName, ModelVariant]
    utilisation: Floats
    """Of every device, 0…100."""
    first_group: int
    sitting: dict[int, list[Character]] = field(default_factory=dict)
    tasks: Counter[int] = field(default_factory=Counter)
    """How many tasks run on a device: services never end, so they count for affinity and not for a group's size."""
    begun: list[list[Newcomer]] = field(default_factory=list)
    """Groups of this cycle."""

    @property
    def groups(self) -> int:
        """How many were begun."""
        return len(self.begun)

    @property
    def joined(self) -> list[Joined]:
        """Everybody in them."""
        return [each.joined for group in self.begun for each in group]

    def seat(self, device: int, model: ModelName, kind: WorkloadKind) -> None:
        """Somebody is there."""
        self.sitting.setdefault(device, []).append(self.character(model))
        self.tasks[device] += kind is WorkloadKind.TASK

    def character(self, model: ModelName) -> Character:
        """What affinity looks at; a model whose kernels nobody counted counts as balanced, one nobody knows as high."""
        known = self.models.get(model)
        if known is None:
            return Character(ratio=1.0, quality=QualityClass.HIGH)
        return Character(ratio=known.compute_memory_ratio or 1.0, quality=known.quality_class)

    def form(self, waiting: Sequence[Waiting]) -> None:
        """Give places by the paper's rules; then with any kept option on any type, and affinity orders instead of
        refusing.
        """
        queue = list(waiting)
        for last in (False, True):
            for device in self._order():
                queue = [item for item in queue if self.wants(item.need)]
                if queue and self.draft.fleet.usable[device]:
                    self._on_device(device, queue, last=last)

    def fill(self, waiting: Sequence[Waiting]) -> None:
        """Give whoever is short what is left, the cheapest way that fits: a task one place that keeps its deadline, if
        there is any. Eq. 6 keeps three options of a type, and whether they fit is no matter in the paper, where shares
        may overlap.
        """
        for item in waiting:
            settled, options = self.draft.open(item.need), self.draft.options(item.need)
            known = len(settled.placed)
            among = partial(self._open_to, item, self._welcoming(item), known)
            if item.need.kind is WorkloadKind.TASK:
                self.draft.fill(settled, item.rated.in_time, self.draft.best_fit, among)
            self.draft.fill(settled, np.ones(len(options), dtype=np.bool_), self.draft.best_fit, among)
            for placed in settled.placed[known:]:
                self.begun.append([self._newcomer(item, placed, _row_of(placed, options), self.groups)])

    def wants(self, need: Need) -> bool:
        """Whether it is short, and may have more."""
        settled = self.draft.open(need)
        short = settled.rate_rps_wanting > 0 or len(settled.placed) < need.replicas_floor
        return short and len(settled.placed) < need.replicas_max

    def undone(self, waiting: Sequence[Waiting]) -> Undone:
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
        busy = np.array([self.tasks[device] > 0 for device in range(len(fleet.devices))], dtype=np.bool_)
        keys = (fleet.occupants, self.utilisation, fleet.unrented, busy)
        return [int(device) for device in np.lexsort(keys)]

    def _on_device(self, device: int, queue: list[Waiting], *, last: bool) -> None:
        """One group: whoever of the queue fits there, by order."""
        device_class = int(self.draft.fleet.class_of[device])
        begun: list[Newcomer] = []
        for item in _looked_at(item for item in queue if item.rated.rows(device_class, last=last)):
            if not self._admits(item, device, last=last):
                continue
            row = self._put(item, device, self._roomy(item, device, last=last))
            if row is not None:
                placed = self.draft.open(item.need).placed[-1]
                begun.append(self._newcomer(item, placed, row, self.groups))
        if begun:
            self.begun.append(begun)

    def _admits(self, item: Waiting, device: int, *, last: bool) -> bool:
        """Whether size and affinity let it join those who are there."""
        if item.need.kind is WorkloadKind.TASK and self.tasks[device] >= self.group_max:
            return False
        return (last and not self.parameters.affinity_strict) or self._welcome(item, device)

    def _welcome(self, item: Waiting, device: int) -> bool:
        near = self.affinity(device, item.need.model)
        return near is None or near >= self.parameters.threshold_affinity

    def _newcomer(self, item: Waiting, placed: Placed, row: int, group: int) -> Newcomer:
        """A replica that was just put on a device takes its seat among the others."""
        device = placed.seat.device
        near, welcome = self.affinity(device, item.need.model), self._welcome(item, device)
        self.seat(device, item.need.model, item.need.kind)
        joined = Joined(
            workload=item.need.workload,
            device=device,
            row=row,
            group=self.first_group + group,
            affinity=near,
            members=len(self.sitting[device]),
            below_threshold=not welcome,
        )
        return Newcomer(waiting=item, joined=joined, placed=placed)

    def _welcoming(self, item: Waiting) -> Flags:
        """Devices whose affinity lets it in."""
        devices = range(len(self.draft.fleet.devices))
        if not self.parameters.affinity_strict:
            return np.ones(len(devices), dtype=np.bool_)
        return np.array([self._welcome(item, device) for device in devices], dtype=np.bool_)

    def _open_to(self, item: Waiting, welcoming: Flags, known: int) -> Places:
        """Those of them where groups are small enough, with those of its replicas that came after so many."""
        if item.need.kind is not WorkloadKind.TASK:
            return np.flatnonzero(welcoming)
        tasks = np.array([self.tasks[device] for device in range(len(welcoming))])
        for placed in self.draft.open(item.need).placed[known:]:
            tasks[placed.seat.device] += 1
        return np.flatnonzero(welcoming & (tasks < self.group_max))

    def affinity(self, device: int, model: ModelName) -> float | None:
        """To those who are there; None: nobody is."""
        there = self.sitting.get(device)
        return affinity(self.character(model), there).total if there else None

    def _roomy(self, item: Waiting, device: int, *, last: bool) -> list[int]:
        """Options that the share and the memory left there allow, best first; the other rules are looked at later."""
        fleet, options = self.draft.fleet, self.draft.options(item.need)
        share_pct, memory_mib = float(fleet.share_free[device]), float(fleet.memory_free[device])
        rows = item.rated.rows(int(fleet.class_of[device]), last=last)
        return [row for row in rows if options.share_pct[row] <= share_pct and options.memory_mib[row] <= memory_mib]

    def _put(self, item: Waiting, device: int, rows: Sequence[int]) -> int | None:
        """The best of these options that fits, on the books; None when none does."""
        settled = self.draft.open(item.need)
        for row in rows:
            option = self.draft.option(item.need, row)
            fits = self.draft.fleet.fits(self.draft.search(item.need, option), device)
            if fits and self.draft.put(settled, option, _level, among=np.array([device], dtype=np.intp)) is None:
                return row
        return None

    def tune(self) -> None:
        """When everybody has had the chance of a place, at most one task of each new group takes spare room: a patient
        one with a larger batch that serves more, else an urgent one that is done sooner. Services would never give it
        back.
        """
        for group in self.begun:
            tasks = (each for each in group if each.waiting.need.kind is WorkloadKind.TASK)
            for each in sorted(tasks, key=lambda item: item.waiting.urgent):
                row = self._better(each)
                if row is not None:
                    each.joined = replace(each.joined, row=row, tuned=True)
                    break

    def _better(self, newcomer: Newcomer) -> int | None:
        rated, current = newcomer.waiting.rated, newcomer.joined.row
        options = self.draft.options(newcomer.waiting.need)
        device_class = int(self.draft.fleet.class_of[newcomer.joined.device])
        known = np.array(rated.rows(device_class, last=True), dtype=np.intp)
        if newcomer.waiting.urgent:
            better = known[rated.run_ms[known] < rated.run_ms[current]]
            order = better[np.argsort(rated.run_ms[better], kind="stable")]
        else:
            more = rated.throughput_rps[known] > rated.throughput_rps[current]
            better = known[more & (options.batch[known] > options.batch[current])]
            order = better[np.argsort(-rated.throughput_rps[better], kind="stable")]
        return next((int(row) for row in order if self._exchange(newcomer, int(row))), None)

    def _exchange(self, newcomer: Newcomer, row: int) -> bool:
        """Its replica in another configuration, where that fits."""
        need, before = newcomer.waiting.need, newcomer.placed
        settled = self.draft.open(need)
        index = next(number for number, item in enumerate(settled.placed) if item is before)
        settled.placed.pop(index)
        self.draft.fleet.lift(before.seat)
        option = self.draft.option(need, row)
        among = np.array([newcomer.joined.device], dtype=np.intp)
        if self.draft.put(settled, option, _level, among=among) is None:
            newcomer.placed = settled.placed[-1]
            return True
        self.draft.fleet.put(before.seat)
        settled.placed.insert(index, before)
        return False


def _looked_at(queue: Iterable[Waiting]) -> Iterator[Waiting]:
    """The first of each queue, in order."""
    counts = {True: 0, False: 0}
    for item in sorted(queue, key=lambda each: each.rank):
        counts[item.urgent] += 1
        if counts[item.urgent] <= LOOKED_AT_MAX:
            yield item


def _row_of(placed: Placed, options: Options) -> int:
    """Which of the options it was put there as."""
    option = placed.option
    assert option is not None
    same = (options.device_class == option.device_class) & (options.batch == option.batch)
    same &= (options.share_pct == option.share_pct) & (options.memory_mib == option.memory_mib)
    return int(np.flatnonzero(same)[0])


def _level(places: Places) -> Floats:
    return np.zeros(len(places))
