"""Training jobs as Gavel's table: classes of jobs, kinds of devices, what either makes of the other.

Owns the grouping of jobs that are alike to the programme, the believed speeds (the owner's reference and the GPUs'
peaks, corrected by what was seen; beside a network never met, a careful part), and the way back from classes to jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.gavel.parameters import GavelParameters
from lab.gavel.problem import Allocation, ThroughputTable
from lab.gavel.remembering import GavelMemory, JobPlace, kind_of
from lab.gavel.rounds import Entrant
from solvers.domain.arrays import Floats, Whole
from solvers.domain.evidence import ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.domain.workload import TrainingJob
from solvers.planners.draft import Draft
from solvers.problems.fleet import RoomSearch
from solvers.problems.needs import Need, iterations_per_s, job_memory_mib


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
    """Need and job by id."""
    return {need.workload: (need, job) for need, job in zip(jobs.needs, jobs.jobs, strict=True)}
