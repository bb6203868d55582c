"""Replicas on devices before they have names: what planners hand to the writer of plans.

The record of one placed replica, the settled state of one workload, and the rule for training jobs: stay where it
stands with the same share, else with less; else go where most share is spare on a device in use, the cheapest first
among equals; else open an idle device, if it must run or is worth that (`problems.jobs`). Between its owner's bounds a
job takes all that is spare there, and nothing else moves for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import ProjectName
from solvers.domain.plan import Assignment
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.problems.choice import Option
from solvers.problems.fleet import Fleet, RoomSearch, Seat
from solvers.problems.jobs import JobWorth
from solvers.problems.needs import Need, job_memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One replica on one device. `standing` is set when it stays exactly as it is; without an option nothing is known
    of its performance.
    """

    seat: Seat
    option: Option | None = None
    standing: Assignment | None = None

    @property
    def capacity_rps(self) -> float:
        """Rate it can be shown to serve."""
        return self.option.capacity_rps if self.option is not None else 0.0


@dataclass(slots=True, kw_only=True)
class Settled:
    """One workload after placement."""

    need: Need
    placed: list[Placed] = field(default_factory=list)
    blockers: list[Reason] = field(default_factory=list)
    fleet: Fleet

    @property
    def rate_rps_short(self) -> float:
        """What is left unserved; dust is nothing."""
        return self._below(self.need.rate_rps_least)

    @property
    def rate_rps_wanting(self) -> float:
        """What is missing to the rate that new capacity is sized for."""
        return self._below(self.need.rate_rps)

    def _below(self, rate_rps: float) -> float:
        short = rate_rps - sum(item.capacity_rps for item in self.placed)
        return short if short > 1e-6 * max(1.0, rate_rps) else 0.0

    @property
    def replicas_missing(self) -> int:
        """Replicas missing below the owner's floor."""
        return max(0, self.need.replicas_min - len(self.placed))

    @property
    def replicas_at_risk(self) -> int:
        """Replicas that are kept although they cannot be shown to keep their promise; jobs promise nothing."""
        if self.need.kind is WorkloadKind.JOB:
            return 0
        return sum(item.option is None for item in self.placed)

    @property
    def weight_usd_per_h(self) -> float:
        """Price of the room taken."""
        return sum(item.option.weight_usd_per_h for item in self.placed if item.option is not None)

    @property
    def usd_per_h(self) -> float:
        return sum(self.fleet.class_at(item.seat.device).usd_per_h * item.seat.share_pct / 100 for item in self.placed)

    @property
    def domains(self) -> frozenset[int]:
        return frozenset(int(self.fleet.failure_domain[item.seat.device]) for item in self.placed)

    def add(self, placed: Placed) -> None:
        """Take the room and remember it."""
        self.fleet.put(placed.seat)
        self.placed.append(placed)

    def clear(self) -> None:
        """Give all room back, keeping the list."""
        for item in self.placed:
            self.fleet.lift(item.seat)

    def restore(self) -> None:
        """Take all room again."""
        for item in self.placed:
            self.fleet.put(item.seat)


def seat_of(need: Need, option: Option, device: int) -> Seat:
    return Seat(
        workload=need.workload,
        project=need.project,
        device=device,
        share_pct=option.share_pct,
        memory_mib=option.memory_mib,
        power_w=option.power_w,
        dedicated=need.affinity.dedicated,
        press=option.press,
    )


def standing_seat(fleet: Fleet, assignment: Assignment, *, dedicated: bool, power_w: float) -> Seat | None:
    """What a standing replica takes; None when its device is gone."""
    device = fleet.index.get(assignment.device)
    if device is None:
        return None
    return Seat(
        workload=assignment.workload,
        project=ProjectName(assignment.workload.partition("/")[0]),
        device=device,
        share_pct=assignment.share_pct_sm,
        memory_mib=assignment.memory_mib_limit,
        power_w=power_w,
        dedicated=dedicated,
    )


def place_job(
    fleet: Fleet, need: Need, job: TrainingJob, standing: list[Assignment], worth: JobWorth | None
) -> Settled:
    """Settle one job; without room it waits in line and says for what. `worth`: None where it must run."""
    settled = Settled(need=need, fleet=fleet)
    if need.refusal is not None:
        settled.blockers.append(need.refusal)
        return settled
    stayed = stay(fleet, need, job, standing)
    found = stayed or _best_device(fleet, need, job, worth)
    if isinstance(found, Placed):
        settled.add(found)
    else:
        settled.blockers.append(_waits(found, job))
    return settled


def stay(fleet: Fleet, need: Need, job: TrainingJob, standing: list[Assignment]) -> Placed | None:
    """The job where it stands, with the same share or as much of it as is left; None when there is too little."""
    assignment = next(iter(standing), None)
    device = None if assignment is None else fleet.index.get(assignment.device)
    if assignment is None or device is None:
        return None
    seat = _seat_on(fleet, need, job, device, min(job.share_pct_sm_max, assignment.share_pct_sm))
    return None if seat is None else placed_job(seat, job, assignment)


def placed_job(seat: Seat, job: TrainingJob, standing: Assignment | None) -> Placed:
    """The job in its seat; what stands on that device goes on where nothing of it changes."""
    same = standing is not None and (seat.share_pct, seat.memory_mib, job.model) == (
        standing.share_pct_sm,
        standing.memory_mib_limit,
        standing.model,
    )
    return Placed(seat=seat, standing=standing if same else None)


def _best_device(fleet: Fleet, need: Need, job: TrainingJob, worth: JobWorth | None) -> Placed | ReasonCode:
    lowest = job.share_pct_sm_min
    room = fleet.room(RoomSearch(need=need, share_pct=lowest, memory_mib=job_memory_mib(job), power_w=0.0))
    if isinstance(room, ReasonCode):
        return room
    spare = np.minimum(fleet.share_free, job.share_pct_sm_max)
    candidates = sorted(
        (int(device) for device in room),
        key=lambda device: (fleet.occupants[device] == 0, -spare[device], fleet.class_at(device).usd_per_h, device),
    )
    blocker = ReasonCode.POWER_CAP
    for device in candidates:
        if (
            worth is not None
            and not fleet.occupants[device]
            and not worth.opens(int(fleet.class_of[device]), spare[device])
        ):
            blocker = ReasonCode.NO_SHARE_LEFT
            continue
        seat = _seat_on(fleet, need, job, device, job.share_pct_sm_max)
        if seat is not None:
            return Placed(seat=seat)
        if fleet.gpus(device, lowest) > fleet.quota_left.get(need.project, math.inf) + 1e-9:
            blocker = ReasonCode.QUOTA
    return blocker


def _seat_on(fleet: Fleet, need: Need, job: TrainingJob, device: int, highest: int) -> Seat | None:
    """The largest share between the job's floor and `highest` that the device, the power caps and the quota allow."""
    kind, lowest = fleet.class_at(device), job.share_pct_sm_min
    quota_share = 100 * fleet.quota_left.get(need.project, math.inf) / kind.gpu_part + 1e-9
    most = math.floor(min(highest, float(fleet.share_free[device]), quota_share))
    for share_pct in dict.fromkeys((most, lowest)):
        seat = job_seat(fleet, need, job, device, share_pct) if lowest <= share_pct <= most else None
        if seat is not None:
            return seat
    return None


def job_seat(fleet: Fleet, need: Need, job: TrainingJob, device: int, share_pct: int) -> Seat | None:
    """The job with this share on a device, where the device's rules and power caps let it; quotas are not asked."""
    seat = training_seat(fleet, need, device, share_pct=share_pct, memory_mib=job_memory_mib(job))
    return seat if fleet.fits(search_of(need, seat), device) else None


def training_seat(fleet: Fleet, need: Need, device: int, *, share_pct: int, memory_mib: int) -> Seat:
    """With its part of what the device may draw."""
    kind = fleet.class_at(device)
    return Seat(
        workload=need.workload,
        project=need.project,
        device=device,
        share_pct=share_pct,
        memory_mib=memory_mib,
        power_w=(kind.limit_w - kind.idle_w) * share_pct / 100,
    )


def search_of(need: Need, seat: Seat) -> RoomSearch:
    """For room of a seat's size."""
    if seat.dedicated and not need.affinity.dedicated:
        need = replace(need, affinity=replace(need.affinity, dedicated=True))
    return RoomSearch(
        need=need, share_pct=seat.share_pct, memory_mib=seat.memory_mib, power_w=seat.power_w, press=seat.press
    )


def _waits(code: ReasonCode, job: TrainingJob) -> Reason:
    facts = (
        Fact(name="share_pct_sm_min", value=float(job.share_pct_sm_min)),
        Fact(name="memory_mib", value=float(job_memory_mib(job))),
    )
    return Reason(code=code, subject=job.id, facts=facts)
