"""Gavel's rounds, and what it remembers for them: how fast networks trained where, and what each job was given.

Progress is read into speeds, as parts of what the job's owner and the GPUs' peaks say. Only a job that stood ready on
one device, in the same company, from one picture to the next tells a speed; what stands is what counts, not what was
proposed. In a round the highest priority comes first while there are devices of the kind: the part a job should have of
its time there over the part it had. Two jobs that share a device are matched by their order in priority, and count as
the one who waits less urgently. Devices that nobody's part asks for go to whoever waits; shared, where packing is
allowed, to who loses least beside the one that is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from solvers.domain.ids import DeviceId, ModelName, WorkloadId
from solvers.domain.snapshot import ReplicaState, Snapshot
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind
from solvers.planners.base import recalled
from solvers.planners.tuning import Tune, TunedRecord
from solvers.problems.needs import iterations_per_s


@value
class GavelParameters(TunedRecord):
    round_s: Annotated[float, Tune("jobs change places no more often than this", 1)] = 360.0
    parts: Annotated[int, Tune("parts that jobs and GPUs are dealt into and solved apart", 1, 1024)] = 1
    pair_part_unknown: Annotated[
        float, Tune("of its speed alone, what a job is taken to do beside one that it never met", 0.01, 1)
    ] = 0.6
    heed: Annotated[float, Tune("weight of the newest speed among those remembered", 0.01, 1)] = 0.5
    forget_s: Annotated[float, Tune("time after which what a job was given counts a third", 1)] = 3600.0


FORM = "gavel-1"
ALONE = ""
"""In place of a neighbour's network."""
DONE_LEAST = 3
"""Iterations are told as whole numbers; fewer tell no speed."""
DUST_S = 1.0


@value
class JobPlace:
    """Where a job stood: a kind of device, and the network beside it."""

    kind: str
    beside: str = ALONE


@value
class SeenJob:
    job: WorkloadId
    device: DeviceId
    place: JobPlace
    ready: bool
    done: int


@value
class Given:
    """Time a job had at a place, what is long ago counting less."""

    job: WorkloadId
    place: JobPlace
    seconds: float


@value
class Speed:
    """A network's speed at a place, as a part of what is believed of it alone on such a device."""

    model: ModelName
    place: JobPlace
    part: float


@value
class GavelMemory:
    form: str = FORM
    at_s: float | None = None
    round_s: float | None = None
    """When jobs last changed places."""
    seen: tuple[SeenJob, ...] = ()
    given: tuple[Given, ...] = ()
    speeds: tuple[Speed, ...] = ()

    @staticmethod
    def of(state: bytes) -> GavelMemory:
        """What was kept; nothing where these bytes are of another kind."""
        return recalled(GavelMemory, state) or GavelMemory()

    def speed(self, model: ModelName, place: JobPlace) -> float | None:
        """The part, where it was seen."""
        return next((item.part for item in self.speeds if (item.model, item.place) == (model, place)), None)

    def heard(self, snapshot: Snapshot, parameters: GavelParameters) -> GavelMemory:
        """With what this picture shows. An earlier or equal moment begins anew but for speeds."""
        now = standing_jobs(snapshot)
        known = self if self.at_s is not None and self.at_s < snapshot.taken_at_s else GavelMemory(speeds=self.speeds)
        past_s = 0.0 if known.at_s is None else snapshot.taken_at_s - known.at_s
        before = {item.job: item for item in known.seen}
        moved = any(job.job in before and before[job.job].device != job.device for job in now)
        stopped = {item.job for item in known.seen} - {item.job for item in now}
        moved = moved or not stopped.isdisjoint(job.id for job in snapshot.jobs)
        return GavelMemory(
            at_s=snapshot.taken_at_s,
            round_s=snapshot.taken_at_s if moved or known.round_s is None else known.round_s,
            seen=tuple(now),
            given=_time_given(known.given, snapshot, now, (past_s, parameters.forget_s)),
            speeds=_speeds_seen(known, snapshot, now, (past_s, parameters.heed)),
        )


def kind_of(gpu_type: str, sm_part: float) -> str:
    """Devices on which jobs train alike: a GPU type, or a part of one."""
    return gpu_type if sm_part >= 1.0 else f"{gpu_type}/{sm_part:.4f}"


def standing_jobs(snapshot: Snapshot) -> list[SeenJob]:
    """Jobs that stand, by id, where nothing but at most one other job is beside them."""
    devices, types = snapshot.devices_by_id(), snapshot.gpu_types_by_name()
    ready = {item.id for item in snapshot.replicas if item.state is ReplicaState.READY}
    done = {item.workload: item.done for item in snapshot.job_statuses}
    hosted: dict[DeviceId, list[tuple[WorkloadId, ModelName, WorkloadKind]]] = {}
    for item in snapshot.target.assignments:
        hosted.setdefault(item.device, []).append((item.workload, item.model, item.kind))
    found = []
    for item in sorted(snapshot.target.assignments, key=lambda each: each.replica):
        device = devices.get(item.device)
        others = [each for each in hosted[item.device] if each[0] != item.workload]
        jobs_only = all(kind is WorkloadKind.JOB for _, _, kind in others) and len(others) <= 1
        if item.kind is not WorkloadKind.JOB or device is None or device.gpu_type not in types or not jobs_only:
            continue
        part = device.sm_count / types[device.gpu_type].sm_count
        place = JobPlace(kind=kind_of(device.gpu_type, part), beside=str(others[0][1]) if others else ALONE)
        found.append(
            SeenJob(
                job=item.workload,
                device=item.device,
                place=place,
                ready=item.replica in ready,
                done=done.get(item.workload, 0),
            )
        )
    return found


def _time_given(
    given: Iterable[Given], snapshot: Snapshot, now: Iterable[SeenJob], times_s: tuple[float, float]
) -> tuple[Given, ...]:
    past_s, forget_s = times_s
    jobs: set[str] = {job.id for job in snapshot.jobs}
    kept = math.exp(-past_s / forget_s)
    sums = {(item.job, item.place.kind, item.place.beside): item.seconds * kept for item in given if item.job in jobs}
    for item in now:
        key = (item.job, item.place.kind, item.place.beside)
        sums[key] = sums.get(key, 0.0) + past_s
    return tuple(
        Given(job=job, place=JobPlace(kind=kind, beside=beside), seconds=round(sums[job, kind, beside], 3))
        for job, kind, beside in sorted(sums)
        if sums[job, kind, beside] >= DUST_S
    )


def _speeds_seen(
    known: GavelMemory, snapshot: Snapshot, now: Iterable[SeenJob], past: tuple[float, float]
) -> tuple[Speed, ...]:
    past_s, heed = past
    before = {item.job: item for item in known.seen}
    jobs = {WorkloadId(job.id): job for job in snapshot.jobs}
    types, devices = snapshot.gpu_types_by_name(), snapshot.devices_by_id()
    told: dict[tuple[ModelName, str, str], list[float]] = {}
    for item in now:
        then, job = before.get(item.job), jobs.get(item.job)
        if then is None or job is None or not (then.ready and item.ready) or past_s <= 0.0:
            continue
        gained = item.done - then.done
        if (then.device, then.place) != (item.device, item.place) or gained < DONE_LEAST:
            continue
        device = devices[item.device]
        whole_per_s = iterations_per_s(job, types, device.gpu_type) * device.sm_count / types[device.gpu_type].sm_count
        told.setdefault((job.model, item.place.kind, item.place.beside), []).append(gained / past_s / whole_per_s)
    return _blended(known.speeds, told, heed)


def _blended(
    speeds: Iterable[Speed], told: Mapping[tuple[ModelName, str, str], list[float]], heed: float
) -> tuple[Speed, ...]:
    parts = {(item.model, item.place.kind, item.place.beside): item.part for item in speeds}
    for key, readings in told.items():
        mean = sum(readings) / len(readings)
        parts[key] = mean if key not in parts else (1.0 - heed) * parts[key] + heed * mean
    return tuple(
        Speed(model=model, place=JobPlace(kind=kind, beside=beside), part=round(parts[model, kind, beside], 6))
        for model, kind, beside in sorted(parts)
    )


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
    entrants: Sequence[Entrant]
    room: dict[str, int]
    """Devices left, by kind."""
    given: Mapping[WorkloadId, Mapping[JobPlace, float]]
    """Seconds that each job had."""
    crews: list[JobCrew] = field(default_factory=list)
    busy: set[WorkloadId] = field(default_factory=set)

    def keep(self, jobs: tuple[WorkloadId, ...], kind: str) -> None:
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
