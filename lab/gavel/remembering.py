"""What Gavel remembers: how fast networks trained where, alone and beside each other, and what each job was given.

Owns the reading of progress into speeds, as parts of what the job's owner and the GPUs' peaks say, and the account of
time by place. Only a job that stood ready on one device, in the same company, from one picture to the next tells a
speed. What stands is what counts, not what was proposed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from lab.gavel.parameters import GavelParameters
from solvers.domain.ids import DeviceId, ModelName, WorkloadId
from solvers.domain.snapshot import ReplicaState, Snapshot
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind
from solvers.planners.base import recalled
from solvers.problems.needs import iterations_per_s

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
    """A job as the last picture had it."""

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
    """All of it, each table in a fixed order."""

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
        found = recalled(GavelMemory, state)
        return found if found is not None and found.form == FORM else GavelMemory()

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
            given=_given(known.given, snapshot, now, (past_s, parameters.forget_s)),
            speeds=_speeds(known, snapshot, now, (past_s, parameters.heed)),
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


def _given(
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


def _speeds(
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
