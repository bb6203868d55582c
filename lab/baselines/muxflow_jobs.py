"""MuxFlow's pairing of training jobs and GPUs: at most one to a GPU, by a matching of the greatest weight.

Owns the weight (how fast a job is believed to train in the share that inference leaves: its type's speed, its share,
and the slowdown by the inference there where that was measured), the cap on its memory, and the matching. Standing jobs
stay where they may; those whose GPU is shut are evicted and matched anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linear_sum_assignment

from solvers.domain.arrays import Flags, Floats
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed
from solvers.problems.fleet import RoomSearch, Seat
from solvers.problems.needs import Need, iterations_per_s, job_memory_mib

Work = tuple[Need, TrainingJob]
Neighbour = tuple[ModelName, int]
"""Network and share of a replica."""


@dataclass(slots=True, kw_only=True)
class JobPairing:
    """The jobs of one draft. `shut`: devices that take none for now."""

    draft: Draft
    shut: frozenset[DeviceId]
    memory_part: float
    taken: set[int] = field(default_factory=set)
    """Devices that have their job."""
    beside: dict[int, list[Neighbour]] = field(default_factory=dict)
    """Inference by device."""
    _paces: dict[tuple[object, ...], float] = field(default_factory=dict)

    def settle(self) -> tuple[Reason, ...]:
        """Place every job that has a place; why the new ones are where they are."""
        draft = self.draft
        for item in draft.case.pinned:
            if item.kind is WorkloadKind.JOB:
                self.taken.add(draft.fleet.index[item.device])
        for settled in draft.settled.values():
            for placed in settled.placed:
                self.beside.setdefault(placed.seat.device, []).append((settled.need.model, placed.seat.share_pct))
        jobs = {WorkloadId(job.id): job for job in draft.case.snapshot.jobs}
        works = [(need, jobs[need.workload]) for need in draft.case.needs if need.kind is WorkloadKind.JOB]
        waiting = []
        for need, job in works:
            settled = draft.open(need)
            if need.refusal is not None:
                settled.blockers.append(need.refusal)
            elif not self._stays(need, job):
                waiting.append((need, job))
        return self._matched(waiting)

    def _stays(self, need: Need, job: TrainingJob) -> bool:
        fleet = self.draft.fleet
        standing = next(iter(self.draft.case.standing.get(need.workload, [])), None)
        device = None if standing is None else fleet.index.get(standing.device)
        if standing is None or device is None or device in self.taken or standing.device in self.shut:
            return False
        # Less share is left: it goes on with less. More: it would be started anew for that, so only where it doubles.
        share_pct = self._share_pct(job, device)
        if standing.share_pct_sm <= share_pct < 2 * standing.share_pct_sm:
            share_pct = standing.share_pct_sm
        seat = self._seat(need, job, device, share_pct)
        if seat is None:
            return False
        self._put(need, job, seat, standing)
        return True

    def _matched(self, waiting: list[Work]) -> tuple[Reason, ...]:
        """All that wait at once."""
        fleet = self.draft.fleet
        free = np.array([self._free(at) for at in range(len(fleet.devices))], dtype=np.bool_)
        weight = np.array([self._weights(*work, free) for work in waiting]).reshape(len(waiting), len(free))
        rows, devices = linear_sum_assignment(weight, maximize=True)
        reasons, placed = [], set()
        for row, device in sorted(zip(rows.tolist(), devices.tolist(), strict=True)):
            need, job = waiting[row]
            seat = self._seat(need, job, device, self._share_pct(job, device)) if weight[row, device] > 0 else None
            if seat is not None:
                self._put(need, job, seat, None)
                placed.add(row)
                reasons.append(self._told(job, device, float(weight[row, device])))
        for row, (need, job) in enumerate(waiting):
            if row not in placed:
                facts = (
                    Fact(name="share_pct_sm_min", value=float(job.share_pct_sm_min)),
                    Fact(name="memory_mib", value=float(job_memory_mib(job))),
                )
                blocker = Reason(code=ReasonCode.CLIENTS_MAX, subject=job.id, facts=facts)
                self.draft.open(need).blockers.append(blocker)
        return tuple(reasons)

    def _free(self, device: int) -> bool:
        """Whether a job may come; nothing is rented for training alone."""
        fleet = self.draft.fleet
        rented = not fleet.unrented[device] or fleet.occupants[device] > 0
        return bool(rented) and device not in self.taken and fleet.devices[device].id not in self.shut

    def _weights(self, need: Need, job: TrainingJob, free: Flags) -> Floats:
        """How fast the job would train on each device, 0 where it cannot go."""
        found = np.zeros(len(free))
        search = RoomSearch(need=need, share_pct=job.share_pct_sm_min, memory_mib=job_memory_mib(job), power_w=0.0)
        room = self.draft.fleet.room(search)
        for device in () if isinstance(room, ReasonCode) else room[free[room]].tolist():
            if job_memory_mib(job) <= self.memory_part * self.draft.fleet.class_at(device).memory_mib:
                found[device] = self._weight(job, device)
        return found

    def _share_pct(self, job: TrainingJob, device: int) -> int:
        """All that inference leaves, within the owner's bounds."""
        return min(job.share_pct_sm_max, int(self.draft.fleet.share_free[device] + 1e-9))

    def _seat(self, need: Need, job: TrainingJob, device: int, share_pct: int) -> Seat | None:
        """The job on a device, where rules and the cap on its memory let it."""
        fleet, kind = self.draft.fleet, self.draft.fleet.class_at(device)
        memory_mib = job_memory_mib(job)
        quota = fleet.quota_left.get(need.project, math.inf)
        refused = (
            share_pct < job.share_pct_sm_min
            or memory_mib > self.memory_part * kind.memory_mib
            or fleet.gpus(device, share_pct) > quota + 1e-9
        )
        power_w = (kind.limit_w - kind.idle_w) * share_pct / 100
        search = RoomSearch(need=need, share_pct=share_pct, memory_mib=memory_mib, power_w=power_w)
        if refused or not fleet.fits(search, device):
            return None
        return Seat(
            workload=need.workload,
            project=need.project,
            device=device,
            share_pct=share_pct,
            memory_mib=memory_mib,
            power_w=power_w,
        )

    def _put(self, need: Need, job: TrainingJob, seat: Seat, standing: Assignment | None) -> None:
        same = standing is not None and (seat.share_pct, seat.memory_mib, job.model) == (
            standing.share_pct_sm,
            standing.memory_mib_limit,
            standing.model,
        )
        self.draft.open(need).add(Placed(seat=seat, standing=standing if same else None))
        self.taken.add(seat.device)

    def _weight(self, job: TrainingJob, device: int) -> float:
        """Its pace against that on the whole of its reference GPU."""
        kind = self.draft.fleet.class_at(device)
        share_pct, beside = self._share_pct(job, device), tuple(self.beside.get(device, ()))
        key = (job.id, int(self.draft.fleet.class_of[device]), share_pct, beside)
        if key not in self._paces:
            whole = iterations_per_s(job, self.draft.case.snapshot.gpu_types_by_name(), kind.gpu_type)
            pace = whole * job.iteration_ms_reference / 1000.0 * kind.sm_part * share_pct / 100.0
            self._paces[key] = pace / self._slowdown(job.model, beside, kind.gpu_type)
        return self._paces[key]

    def _slowdown(self, model: ModelName, beside: tuple[Neighbour, ...], gpu_type: GpuTypeName) -> float:
        """By the inference on the device, where both were measured; else the policy's margin for each."""
        case, factor = self.draft.case, 1.0
        mine = case.beliefs.profiles.get((model, gpu_type))
        for name, share_pct in beside:
            other = case.beliefs.profiles.get((name, gpu_type))
            felt = None if mine is None else mine.interference
            made = None if other is None else other.interference
            if felt is None or made is None:
                factor += case.snapshot.policy.interference_margin - 1.0
            else:
                factor += felt.sensitivity * made.pressure * math.sqrt(share_pct / 100.0)
        return factor

    def _told(self, job: TrainingJob, device: int, weight: float) -> Reason:
        facts = (
            Fact(name="device", value=self.draft.fleet.devices[device].id),
            Fact(name="weight", value=round(weight, 6)),
        )
        return Reason(code=ReasonCode.FILLS_SPARE_SHARE, subject=job.id, facts=facts)
