"""MuxFlow: inference first on GPUs of its own, and beside each service at most one training job in what it left unused.

Inference is sized to as few replicas as whole GPUs serve the rate, with the share that was busy at the busiest moment,
and at least the smallest that keeps the promise. There is no model of how training slows inference: what was late and
how busy a GPU is decides evictions, and training stays away for a while, twice as long each time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from solvers.domain.arrays import Flags, Floats
from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Recalling, Thought, kept, recalled
from solvers.planners.case import Case, put_pinned, with_last_resort
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed, job_seat, placed_job
from solvers.planners.tuning import Tune, TunedRecord
from solvers.problems.choice import Option
from solvers.problems.fleet import Places, RoomSearch, Seat, open_fleet
from solvers.problems.needs import Need, iterations_per_s, job_memory_mib

# --- MuxFlow's pairing of training jobs and GPUs: at most one to a GPU, by a matching of the greatest weight
#
# Standing jobs stay where they may; those whose GPU is shut are evicted and matched anew.


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
                facts = (
                    Fact(name="device", value=fleet.devices[device].id),
                    Fact(name="weight", value=round(float(weight[row, device]), 6)),
                )
                reasons.append(Reason(code=ReasonCode.FILLS_SPARE_SHARE, subject=job.id, facts=facts))
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
        return min(job.share_pct_sm_max, int(self.draft.fleet.share_free[device] + 1e-9))

    def _seat(self, need: Need, job: TrainingJob, device: int, share_pct: int) -> Seat | None:
        """The job on a device, where rules and the cap on its memory let it."""
        fleet, memory_mib = self.draft.fleet, job_memory_mib(job)
        refused = (
            share_pct < job.share_pct_sm_min
            or memory_mib > self.memory_part * fleet.class_at(device).memory_mib
            or fleet.gpus(device, share_pct) > fleet.quota_left.get(need.project, math.inf) + 1e-9
        )
        return None if refused else job_seat(fleet, need, job, device, share_pct)

    def _put(self, need: Need, job: TrainingJob, seat: Seat, standing: Assignment | None) -> None:
        self.draft.open(need).add(placed_job(seat, job, standing))
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


SPEC = PlannerSpec(
    name="muxflow",
    about="inference on GPUs of its own, beside each at most one training job by a matching of the greatest weight",
    version="1",
    knobs=(Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)
FORM = "muxflow-1"


@value
class MuxflowParameters(TunedRecord):
    """Ours: the published description names the rules and no numbers."""

    late_most: Annotated[float, Tune("part of a replica's requests that may be late before its job goes", 0, 1)] = 0.01
    busy_most: Annotated[float, Tune("part of a replica's capacity in use at which its job goes", 0, 1)] = 0.95
    backoff_s: Annotated[float, Tune("how long no job comes after the first eviction", 0, 86400)] = 60.0
    backoff_s_most: Annotated[float, Tune("how long at most, doubling with each eviction", 0, 86400)] = 960.0
    memory_part: Annotated[float, Tune("part of a device's memory that training may have", 0.01, 1)] = 0.6
    keep_pct: Annotated[float, Tune("a standing share that is larger by less than this stays", 0, 100)] = 10.0


@value
class Backoff:
    device: DeviceId
    until_s: float
    evictions: int


@value
class MuxflowMemory:
    form: str = FORM
    backoffs: tuple[Backoff, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MuxFlow(Recalling):
    parameters: MuxflowParameters = field(default_factory=MuxflowParameters)
    spec: ClassVar[PlannerSpec] = SPEC

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """The plan, and where training must not go for now."""
        case = Case.of(request)
        fleet = open_fleet(case.snapshot, case.held)
        put_pinned(case, fleet)
        draft = Draft(request=request, case=case, fleet=fleet)
        Inference(draft=draft, parameters=self.parameters).settle()
        backoffs = self._backoffs(case, recalled(MuxflowMemory, state) or MuxflowMemory())
        shut = {item.device for item in backoffs if item.until_s > case.snapshot.taken_at_s}
        pairing = JobPairing(draft=draft, shut=frozenset(shut), memory_part=self.parameters.memory_part)
        reasons = pairing.settle()
        reporter.event("muxflow.paired", jobs=float(len(reasons)), shut=float(len(shut)))
        return Thought(proposal=draft.proposal(SPEC, reasons), state=kept(MuxflowMemory(backoffs=backoffs)))

    def _backoffs(self, case: Case, memory: MuxflowMemory) -> tuple[Backoff, ...]:
        """Those that still count, and those of devices whose inference suffers beside training now."""
        snapshot, parameters = case.snapshot, self.parameters
        now_s = snapshot.taken_at_s
        # Who was left alone for as long as the longest back-off begins anew.
        known = {item.device: item for item in memory.backoffs if item.until_s + parameters.backoff_s_most > now_s}
        for device in _suffering(snapshot, parameters):
            before = known.get(device)
            if before is not None and before.until_s > now_s:
                continue
            count = 1 if before is None else before.evictions + 1
            wait_s = min(parameters.backoff_s_most, parameters.backoff_s * 2.0 ** (count - 1))
            known[device] = Backoff(device=device, until_s=now_s + wait_s, evictions=count)
        return tuple(known[device] for device in sorted(known))


def _suffering(snapshot: Snapshot, parameters: MuxflowParameters) -> list[DeviceId]:
    """Devices with a training job where inference is late or nearly full."""
    jobs = {WorkloadId(item.id) for item in snapshot.jobs}
    training = {item.device for item in snapshot.target.assignments if item.workload in jobs}
    standing = {item.replica: item for item in snapshot.target.assignments if item.workload not in jobs}
    found = set()
    for seen in snapshot.replica_telemetry:
        item = standing.get(seen.replica)
        if item is None or item.device not in training:
            continue
        full = item.capacity_rps > 0 and seen.rate_rps > parameters.busy_most * item.capacity_rps
        if full or seen.violation_fraction > parameters.late_most:
            found.add(item.device)
    return sorted(found)


@dataclass(slots=True, kw_only=True)
class Inference:
    draft: Draft
    parameters: MuxflowParameters
    hosting: Floats = field(init=False)
    """Replicas by device."""

    def __post_init__(self) -> None:
        self.hosting = np.zeros(len(self.draft.fleet.devices))

    def settle(self) -> None:
        """Everybody, each on GPUs without other inference while there are any."""
        draft = self.draft
        standing = draft.stand()
        for items in standing.values():
            for item in items:
                self.hosting[item.seat.device] += 1
        for need in draft.needs:
            self._serve(need, standing[need.workload])
        for need in draft.needs:
            with_last_resort(draft.case, draft.open(need), draft.let_go)

    def _serve(self, need: Need, running: list[Placed]) -> None:
        draft = self.draft
        for item in running:
            self.hosting[item.seat.device] -= 1
        options = draft.options(need)
        if not len(options):
            draft.keep(need, running, [])
            draft.refuse(need)
            return
        wanted = need.rate_rps > 0 or need.replicas_floor > 0
        sizes = self._sizes(need) if wanted else []
        stays = bool(running) and bool(sizes) and self._stays(need, running, sizes[0][0] * sizes[0][1].share_pct)
        settled = draft.keep(need, running, running if stays else [])
        if not stays and wanted:
            score = draft.at_home(need, self._busy)
            for count, option in sizes:
                while len(settled.placed) < count and draft.put(settled, option, score) is None:
                    self.hosting[settled.placed[-1].seat.device] += 1
                if not settled.rate_rps_wanting:
                    break
            if settled.rate_rps_wanting or len(settled.placed) < need.replicas_floor:
                draft.fill(settled, np.ones(len(options), dtype=np.bool_), self._busy)
        self.hosting = np.zeros(len(self.hosting))
        for other in draft.settled.values():
            for item in other.placed:
                self.hosting[item.seat.device] += 1

    def _sizes(self, need: Need) -> list[tuple[int, Option]]:
        """Count and option on each class of devices, the fewest replicas first."""
        options, found = self.draft.options(need), []
        for number in np.unique(options.device_class):
            mine = np.flatnonzero(options.device_class == number)
            whole = mine[options.share_pct[mine] == options.share_pct[mine].max()]
            reach = float(options.capacity_rps[whole].max())
            count = max(1, need.replicas_floor, math.ceil(need.rate_rps / reach - 1e-9))
            if count > need.replicas_max:
                continue
            each = need.rate_rps / count
            busy_pct = 100.0 * each / reach
            able = mine[
                (options.capacity_rps[mine] >= each * (1 - 1e-9)) & (options.share_pct[mine] >= busy_pct - 1e-9)
            ]
            if len(able):
                # The least share that was busy; of its batches the one that serves most.
                keys = (-options.capacity_rps[able], options.share_pct[able])
                found.append((count, self.draft.option(need, int(able[np.lexsort(keys)[0]]))))
        return sorted(found, key=lambda item: (item[0] * item[1].usd_per_h, item[0], item[1].device_class))

    def _stays(self, need: Need, running: list[Placed], share_pct_busy: int) -> bool:
        """Whether what runs serves with shares near those that are busy."""
        if len(running) < need.replicas_floor or sum(item.capacity_rps for item in running) < need.rate_rps_least:
            return False
        share_pct = sum(item.seat.share_pct for item in running)
        return share_pct <= share_pct_busy + self.parameters.keep_pct * len(running)

    def _busy(self, places: Places) -> Floats:
        """Least inference first; nothing is rented while something stands idle."""
        return np.asarray(1e3 * self.hosting[places] + self.draft.fleet.unrented[places])
