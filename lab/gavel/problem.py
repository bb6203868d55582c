"""Gavel's fair sharing of a mixed cluster: which part of its time each kind of training job spends on which GPU type,
alone or beside another job on the same GPUs; and the way from jobs and devices of a snapshot to that table and back.

Speeds are believed (the owner's reference and the GPUs' peaks, corrected by what was seen; beside a network never met,
a careful part). Jobs of equal speeds, GPUs and weight are one class with a count, so that 512 jobs of 26 kinds cost as
much as 26. Nothing is lost by that:

* Every allocation of classes is one of jobs: give each job of a class the same part of the class's time, and each
  couple of jobs the same part of the time of its pair of classes. No job then has more than its whole time, because its
  class has not, and all jobs of a class go equally fast.
* Every allocation of jobs is one of classes: sum it over the jobs of each class. Capacity and time hold for sums. The
  least normalised progress of a class's jobs is at most their mean, and the mean is what the class has.

So both forms have the same best least progress. As in Gavel, what two jobs do beside each other bounds time, not the
timetable: that couples can take turns as they should is left to the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.gavel.rounds import Entrant, GavelMemory, GavelParameters, JobPlace, kind_of
from solvers.domain.arrays import Floats, Whole
from solvers.domain.evidence import ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.domain.workload import TrainingJob
from solvers.planners.draft import Draft
from solvers.problems.fleet import RoomSearch
from solvers.problems.needs import Need, iterations_per_s, job_memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputTable:
    """Classes of jobs (rows), GPU types (columns), and pairs of classes that may share GPUs."""

    speed: Floats
    """Class x type: progress of one job that has its GPUs to itself, in any unit of the class; 0: it cannot run."""
    gpus: Whole
    """Of one job."""
    count: Whole
    """Jobs of the class."""
    weight: Floats
    """Progress counts divided by it: twice the weight is promised twice the progress."""
    devices: Floats
    """By type."""
    pairs: Whole
    """Pair x 2: two classes, or one of at least two jobs twice."""
    pair_speed: Floats
    """Pair x type x 2: progress of either while both are on the same GPUs; 0 where they cannot be."""

    @property
    def fair(self) -> Floats:
        """By class: the progress of a job that has its GPUs all the time, on every type for as much of it as the
        cluster has of that type. Types count for everybody, whoever can use them.
        """
        return np.asarray(self.speed @ (self.devices / self.devices.sum()), dtype=np.float64)

    @property
    def scale(self) -> Floats:
        """By class: what a unit of a job's progress counts. Jobs of many GPUs hold so many fair parts."""
        return np.asarray(self.gpus / (self.fair * self.weight), dtype=np.float64)

    def alone(self) -> ThroughputTable:
        return replace(self, pairs=np.zeros((0, 2), dtype=np.int64), pair_speed=np.zeros((0, len(self.devices), 2)))

    def useful(self) -> ThroughputTable:
        """The same without pairs that on every type do no better than taking turns: time in turns takes the same GPUs
        and less of either job's time, so no optimum needs them.
        """
        both = self.speed[self.pairs].transpose(0, 2, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(both > 0, self.pair_speed / both, 0.0)
        better = part.sum(axis=2) > 1.0 + 1e-9
        kept = np.where(better[:, :, None], self.pair_speed, 0.0)
        rows = better.any(axis=1)
        return replace(self, pairs=self.pairs[rows], pair_speed=kept[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Sets of GPUs held, on average over time: by class and type alone, by pair and type together."""

    single: Floats
    paired: Floats


def nobodys(table: ThroughputTable) -> Allocation:
    return Allocation(single=np.zeros_like(table.speed), paired=np.zeros((len(table.pairs), len(table.devices))))


def progress(table: ThroughputTable, allocation: Allocation) -> Floats:
    """By class: normalised progress of each of its jobs."""
    gained = (allocation.single * table.speed).sum(axis=1)
    both = (allocation.paired[:, :, None] * table.pair_speed).sum(axis=1)
    np.add.at(gained, table.pairs.ravel(), both.ravel())
    return np.asarray(gained / table.count * table.scale, dtype=np.float64)


def deal(jobs: int, number: int, random: np.random.Generator) -> list[Whole]:
    """POP: jobs by number, at random in so many parts, as even as can be; parts of no job are left out."""
    order = random.permutation(jobs)
    return [np.sort(order[start::number]) for start in range(min(number, jobs))]


def part_of(table: ThroughputTable, classes: Whole, number: int) -> tuple[ThroughputTable, Whole]:
    """One of so many parts of the cluster, with a job of each of these classes; and the whole's number of each class
    that it has.
    """
    counts = np.bincount(classes, minlength=len(table.count)).astype(np.int64)
    mine, ends = np.flatnonzero(counts), table.pairs
    place = np.full(len(counts), -1, dtype=np.int64)
    place[mine] = np.arange(len(mine))
    able = (place[ends] >= 0).all(axis=1) & ((ends[:, 0] != ends[:, 1]) | (counts[ends[:, 0]] >= 2))
    part = replace(
        table,
        speed=table.speed[mine],
        gpus=table.gpus[mine],
        count=counts[mine],
        weight=table.weight[mine],
        devices=table.devices / number,
        pairs=place[ends[able]],
        pair_speed=table.pair_speed[able],
    )
    return part, mine


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Jobs that take part, in their classes, on the kinds of devices that are free for training."""

    kinds: tuple[str, ...]
    devices: dict[str, list[int]]
    """Free ones by kind."""
    needs: tuple[Need, ...]
    jobs: tuple[TrainingJob, ...]
    class_of: Whole
    table: ThroughputTable
    models: tuple[str, ...]
    """By class."""

    def entrants(self, members: Whole, allocation: Allocation) -> list[Entrant]:
        """These jobs, by number, each with its part of what its class has together."""
        count = np.bincount(self.class_of[members], minlength=len(self.models))
        single, paired = allocation.single, allocation.paired
        parts: list[dict[JobPlace, float]] = [{} for _ in self.models]
        speeds: list[dict[JobPlace, float]] = [{} for _ in self.models]
        for number in np.flatnonzero(count):
            for at, kind in enumerate(self.kinds):
                if self.table.speed[number, at] > 0:
                    parts[number][JobPlace(kind=kind)] = float(single[number, at] / count[number])
                    speeds[number][JobPlace(kind=kind)] = float(self.table.speed[number, at] * self.table.scale[number])
        for row, ends in enumerate(self.table.pairs):
            for side, number in enumerate(ends):
                for at, kind in enumerate(self.kinds):
                    place = JobPlace(kind=kind, beside=self.models[ends[1 - side]])
                    held = float(paired[row, at] / max(1, count[number]))
                    parts[number][place] = parts[number].get(place, 0.0) + held
                    speed = float(self.table.pair_speed[row, at, side] * self.table.scale[number])
                    speeds[number][place] = max(speed, speeds[number].get(place, 0.0))
        return [
            Entrant(
                job=self.needs[at].workload,
                model=self.needs[at].model,
                part=parts[self.class_of[at]],
                speed=speeds[self.class_of[at]],
            )
            for at in members
        ]


def read_jobs(
    draft: Draft, each: Sequence[tuple[Need, TrainingJob]], memory: GavelMemory, parameters: GavelParameters
) -> Jobs:
    """The jobs that could run on what is free; `each` are those that may take part."""
    devices = _free(draft)
    kinds = tuple(sorted(devices))
    rows = [(need, job, speeds) for need, job in each if (speeds := _speeds(draft, need, job, devices, memory)).any()]
    keys: dict[tuple[object, ...], int] = {}
    class_of = [
        keys.setdefault((job.model, need.weight, job_memory_mib(job), *speeds.tolist()), len(keys))
        for need, job, speeds in rows
    ]
    first = [class_of.index(number) for number in range(len(keys))]
    speed = np.array([rows[at][2] for at in first]).reshape(len(keys), len(kinds))
    pairs = np.array([(a, b) for a in range(len(keys)) for b in range(a, len(keys))], dtype=np.int64).reshape(-1, 2)
    count = np.bincount(np.array(class_of, dtype=np.int64), minlength=len(keys)).astype(np.int64)
    pairs = pairs[(pairs[:, 0] != pairs[:, 1]) | (count[pairs[:, 0]] >= 2)]
    models = tuple(str(rows[at][1].model) for at in first)
    memory_mib = np.array([job_memory_mib(rows[at][1]) for at in first], dtype=np.float64)
    least = np.array([rows[at][1].share_pct_sm_min for at in first], dtype=np.float64)
    room = np.array([max(float(draft.fleet.memory_free[at]) for at in devices[kind]) for kind in kinds])
    fits = (memory_mib[pairs].sum(axis=1)[:, None] <= room) & (least[pairs].sum(axis=1) <= 100)[:, None]
    table = ThroughputTable(
        speed=speed,
        gpus=np.ones(len(keys), dtype=np.int64),
        count=count,
        weight=np.array([rows[at][0].weight for at in first]),
        devices=np.array([float(len(devices[kind])) for kind in kinds]),
        pairs=pairs,
        pair_speed=_together(speed, models, kinds, pairs, memory, parameters) * fits[:, :, None],
    )
    return Jobs(
        kinds=kinds,
        devices=devices,
        needs=tuple(need for need, _, _ in rows),
        jobs=tuple(job for _, job, _ in rows),
        class_of=np.array(class_of, dtype=np.int64),
        table=table,
        models=models,
    )


def _free(draft: Draft) -> dict[str, list[int]]:
    """Devices with nobody on them that nobody would have to rent, by kind."""
    fleet, found = draft.fleet, dict[str, list[int]]()
    for device in range(len(fleet.devices)):
        if fleet.usable[device] and not fleet.occupants[device] and not fleet.unrented[device]:
            kind = fleet.class_at(device)
            found.setdefault(kind_of(kind.gpu_type, kind.sm_part), []).append(device)
    return found


def _speeds(draft: Draft, need: Need, job: TrainingJob, devices: dict[str, list[int]], memory: GavelMemory) -> Floats:
    """Iterations per second on every kind, alone; 0 where the job may not or cannot be."""
    fleet, types = draft.fleet, draft.case.snapshot.gpu_types_by_name()
    found = np.zeros(len(devices))
    room = fleet.room(
        RoomSearch(need=need, share_pct=job.share_pct_sm_min, memory_mib=job_memory_mib(job), power_w=0.0)
    )
    if isinstance(room, ReasonCode):
        return found
    able = {int(device) for device in room}
    for at, kind in enumerate(sorted(devices)):
        device = next((device for device in devices[kind] if device in able), None)
        if device is not None:
            whole = fleet.class_at(device)
            believed = iterations_per_s(job, types, whole.gpu_type) * whole.sm_part
            seen = memory.speed(job.model, JobPlace(kind=kind))
            found[at] = believed * (1.0 if seen is None else seen)
    return found


def _together(
    speed: Floats,
    models: tuple[str, ...],
    kinds: tuple[str, ...],
    pairs: Whole,
    memory: GavelMemory,
    parameters: GavelParameters,
) -> Floats:
    """Speeds of both in every pair on every kind: as seen of these networks, else a careful part of those alone."""
    parts = {(str(item.model), item.place): item.part for item in memory.speeds}
    found = np.zeros((len(pairs), len(kinds), 2))
    for row, ends in enumerate(pairs):
        for at, kind in enumerate(kinds):
            for side, number in enumerate(ends):
                seen = parts.get((models[number], JobPlace(kind=kind, beside=models[ends[1 - side]])))
                solo = parts.get((models[number], JobPlace(kind=kind)), 1.0)
                part = parameters.pair_part_unknown if seen is None else seen / max(solo, 1e-9)
                found[row, at, side] = speed[number, at] * min(1.0, part)
    possible = (found > 0).all(axis=2, keepdims=True)
    return np.asarray(np.where(possible, found, 0.0), dtype=np.float64)


def job_of(jobs: Jobs) -> dict[WorkloadId, tuple[Need, TrainingJob]]:
    return {need.workload: (need, job) for need, job in zip(jobs.needs, jobs.jobs, strict=True)}
