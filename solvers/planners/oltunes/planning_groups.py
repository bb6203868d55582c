"""Who joins whom on which device: OLTunes' grouping on the books of a plan, with its affinity and its tuning.

Owns the walk over devices, least utilised first and those without tasks before the others; urgent work before patient
work on each; the affinity by which somebody may join those who are there; and the one task of a new group that takes
spare room. Who found no group of enough affinity joins, at the end, the best there is, unless that is not wanted:
services never end, so that a fleet with one on every device would have no group for anybody. It refuses to break any
rule of the books.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.ids import ModelName, WorkloadId
from solvers.domain.workload import ModelVariant, QualityClass, WorkloadKind
from solvers.models.papers.oltunes import Character, affinity
from solvers.planners.draft import Draft
from solvers.planners.oltunes.planning_candidates import Rated
from solvers.planners.oltunes.planning_parameters import Parameters
from solvers.problems.choice import Floats
from solvers.problems.fleet import Places
from solvers.problems.needs import Need

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
    joined: list[Joined] = field(default_factory=list)
    groups: int = 0

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

    def form(self, waiting: Sequence[Waiting], *, last: bool) -> None:
        """Give places. `last`: any option on any type, and affinity orders instead of refusing."""
        for device in self._order():
            queue = [item for item in waiting if self._wants(item)]
            if not queue:
                return
            if self.draft.fleet.usable[device]:
                self._on_device(device, list(_looked_at(queue)), last=last)

    def _order(self) -> list[int]:
        fleet = self.draft.fleet
        return sorted(
            range(len(fleet.devices)),
            key=lambda device: (
                self.tasks[device] > 0,
                bool(fleet.unrented[device]),
                float(self.utilisation[device]),
                int(fleet.occupants[device]),
                device,
            ),
        )

    def _wants(self, item: Waiting) -> bool:
        settled = self.draft.open(item.need)
        floor = len(settled.placed) < item.need.replicas_floor
        return len(settled.placed) < item.need.replicas_max and (floor or settled.rate_rps_wanting > 0)

    def _on_device(self, device: int, queue: list[Waiting], *, last: bool) -> None:
        """One group: whoever of the queue fits there, by order."""
        begun: list[tuple[Waiting, Joined]] = []
        for item in queue:
            if item.need.kind is WorkloadKind.TASK and self.tasks[device] >= self.group_max:
                continue
            rows = self._roomy(item, device, last=last)
            if not rows:
                continue
            near = self.affinity(device, item.need.model)
            welcome = near is None or near >= self.parameters.threshold_affinity
            if not welcome and not (last and not self.parameters.affinity_strict):
                continue
            row = self._put(item, device, rows)
            if row is None:
                continue
            self.seat(device, item.need.model, item.need.kind)
            joined = Joined(
                workload=item.need.workload,
                device=device,
                row=row,
                group=self.first_group + self.groups,
                affinity=near,
                members=len(self.sitting[device]),
                below_threshold=not welcome,
            )
            begun.append((item, joined))
        if begun:
            self.groups += 1
            self.joined.extend(self._tuned(begun))

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

    def _tuned(self, begun: list[tuple[Waiting, Joined]]) -> Iterator[Joined]:
        """At most one of the group's tasks takes spare room: a patient one with a larger batch that serves more, else
        an urgent one that is done sooner. Services would never give it back.
        """
        done = False
        order = sorted(begun, key=lambda pair: pair[0].urgent)
        for item, joined in order:
            row = None if done or item.need.kind is not WorkloadKind.TASK else self._better(item, joined)
            done = done or row is not None
            yield joined if row is None else replace(joined, row=row, tuned=True)

    def _better(self, item: Waiting, joined: Joined) -> int | None:
        rated, current = item.rated, joined.row
        options = self.draft.options(item.need)
        device_class = int(self.draft.fleet.class_of[joined.device])
        known = np.array(rated.rows(device_class, last=True), dtype=np.intp)
        if item.urgent:
            better = known[rated.run_ms[known] < rated.run_ms[current]]
            order = better[np.argsort(rated.run_ms[better], kind="stable")]
        else:
            more = rated.throughput_rps[known] > rated.throughput_rps[current]
            better = known[more & (options.batch[known] > options.batch[current])]
            order = better[np.argsort(-rated.throughput_rps[better], kind="stable")]
        return next((int(row) for row in order if self._exchange(item.need, joined.device, int(row))), None)

    def _exchange(self, need: Need, device: int, row: int) -> bool:
        """The need's newest replica in another configuration, where that fits."""
        settled = self.draft.open(need)
        before = settled.placed.pop()
        self.draft.fleet.lift(before.seat)
        option = self.draft.option(need, row)
        if self.draft.put(settled, option, _level, among=np.array([device], dtype=np.intp)) is None:
            return True
        settled.add(before)
        return False


def _looked_at(queue: Sequence[Waiting]) -> Iterator[Waiting]:
    """The first of each queue, in order."""
    counts = {True: 0, False: 0}
    for item in sorted(queue, key=lambda each: each.rank):
        counts[item.urgent] += 1
        if counts[item.urgent] <= LOOKED_AT_MAX:
            yield item


def _level(places: Places) -> Floats:
    return np.zeros(len(places))
