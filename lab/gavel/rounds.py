"""Gavel's rounds: which jobs hold which GPUs now, so that over time each has its part of the allocation.

Owns the priority of a job for a place, the part it should have of its time there over the part it had, and the choice:
highest priority first while there are devices of the kind. Two jobs that share a device are matched by their order in
priority, and count as the one who waits less urgently. Devices that nobody's part asks for go to whoever waits; shared,
where packing is allowed, to who loses least beside the one that is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lab.gavel.remembering import ALONE, Given, JobPlace
from solvers.domain.ids import ModelName, WorkloadId

PART_LEAST = 1e-6
"""Parts below are dust of the engine."""
HAD_LEAST = 1e-9
"""Who had nothing yet comes first, those with more to have before those with less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A job, what part of its time it should have at each place, and its normalised speed there."""

    job: WorkloadId
    model: ModelName
    part: Mapping[JobPlace, float]
    speed: Mapping[JobPlace, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCrew:
    """One or two jobs on a device of a kind."""

    jobs: tuple[WorkloadId, ...]
    kind: str
    priority: float


@dataclass(slots=True, kw_only=True)
class GavelRound:
    """One choice in the making."""

    entrants: Sequence[Entrant]
    room: dict[str, int]
    """Devices left, by kind."""
    given: Mapping[WorkloadId, Mapping[JobPlace, float]]
    """Seconds that each job had."""
    crews: list[JobCrew] = field(default_factory=list)
    busy: set[WorkloadId] = field(default_factory=set)

    def keep(self, jobs: tuple[WorkloadId, ...], kind: str) -> None:
        """Who stands stays."""
        self._take(JobCrew(jobs=jobs, kind=kind, priority=float("inf")))

    def choose(self) -> None:
        """By priority, then whoever waits."""
        for crew in self._wanted():
            if self.room.get(crew.kind, 0) > 0 and self.busy.isdisjoint(crew.jobs):
                self._take(crew)
        self._fill()

    def join(self) -> None:
        """Let who waits share a device with one that has it alone, the best couples first."""
        by_job = {item.job: item for item in self.entrants}
        waiting = [item for item in self.entrants if item.job not in self.busy]
        while waiting:
            best = max(
                (
                    (gain, -number, -at)
                    for number, crew in enumerate(self.crews)
                    if len(crew.jobs) == 1 and crew.jobs[0] in by_job
                    for at, item in enumerate(waiting)
                    if (gain := _gain(by_job[crew.jobs[0]], item, crew.kind)) > 0.0
                ),
                default=None,
            )
            if best is None:
                return
            number, item = -best[1], waiting.pop(-best[2])
            crew = self.crews[number]
            self.crews[number] = JobCrew(jobs=(*crew.jobs, item.job), kind=crew.kind, priority=crew.priority)
            self.busy.add(item.job)

    def _take(self, crew: JobCrew) -> None:
        self.crews.append(crew)
        self.busy.update(crew.jobs)
        self.room[crew.kind] = self.room.get(crew.kind, 0) - 1

    def priority(self, item: Entrant, place: JobPlace) -> float:
        """Part to have over part had."""
        had = self.given.get(item.job, {})
        total = sum(had.values())
        return item.part[place] / max(HAD_LEAST, had.get(place, 0.0) / total if total > 0.0 else 0.0)

    def _wanted(self) -> list[JobCrew]:
        """All crews that anybody's part asks for, the most urgent first."""
        crews = []
        queues: dict[tuple[str, str, str], list[tuple[float, WorkloadId]]] = {}
        for item in self.entrants:
            for place, part in item.part.items():
                if part < PART_LEAST:
                    continue
                priority = self.priority(item, place)
                if place.beside == ALONE:
                    crews.append(JobCrew(jobs=(item.job,), kind=place.kind, priority=priority))
                else:
                    queues.setdefault((place.kind, str(item.model), place.beside), []).append((priority, item.job))
        crews += self._couples(queues)
        return sorted(crews, key=lambda crew: (-crew.priority, crew.jobs, crew.kind))

    def _couples(self, queues: Mapping[tuple[str, str, str], list[tuple[float, WorkloadId]]]) -> list[JobCrew]:
        found = []
        for kind, model, beside in sorted(queues):
            mine = _ordered(queues[kind, model, beside])
            if model == beside:
                couples = zip(mine[::2], mine[1::2], strict=False)
            elif model < beside:
                couples = zip(mine, _ordered(queues.get((kind, beside, model), [])), strict=False)
            else:
                continue
            found += [
                JobCrew(jobs=(left[1], right[1]), kind=kind, priority=min(left[0], right[0])) for left, right in couples
            ]
        return found

    def _fill(self) -> None:
        """Devices left over to those who wait, the fastest match first."""
        waiting = [item for item in self.entrants if item.job not in self.busy]
        matches = sorted(
            (-item.speed.get(JobPlace(kind=kind), 0.0), item.job, kind)
            for item in waiting
            for kind, left in self.room.items()
            if left > 0 and item.speed.get(JobPlace(kind=kind), 0.0) > 0.0
        )
        for _, job, kind in matches:
            if job not in self.busy and self.room[kind] > 0:
                self._take(JobCrew(jobs=(job,), kind=kind, priority=0.0))


def seconds_of(given: Sequence[Given]) -> dict[WorkloadId, dict[JobPlace, float]]:
    """What each job had, by place."""
    found: dict[WorkloadId, dict[JobPlace, float]] = {}
    for item in given:
        found.setdefault(item.job, {})[item.place] = item.seconds
    return found


def _ordered(queue: Sequence[tuple[float, WorkloadId]]) -> list[tuple[float, WorkloadId]]:
    return sorted(queue, key=lambda each: (-each[0], each[1]))


def _gain(one: Entrant, other: Entrant, kind: str) -> float:
    """What two jobs do together beyond one of them at a time; below nothing where either cannot."""
    alone = [item.speed.get(JobPlace(kind=kind), 0.0) for item in (one, other)]
    both = [
        item.speed.get(JobPlace(kind=kind, beside=str(beside)), 0.0)
        for item, beside in ((one, other.model), (other, one.model))
    ]
    if min(*alone, *both) <= 0.0:
        return -1.0
    return both[0] / alone[0] + both[1] / alone[1] - 1.0
