"""Give a training job the spare share of one device.

Owns the rule for jobs: stay where it stands with the same share, else with less; else go where most share is spare on a
device in use, the cheapest first among equals; else open an idle device. Between its owner's bounds it takes all that
is spare there. It refuses to move anything else.
"""

from __future__ import annotations

import math

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.plan import Assignment
from solvers.domain.workload import TrainingJob
from solvers.planners.seating import Placed, Settled
from solvers.problems.fleet import Fleet, RoomSearch, Seat
from solvers.problems.needs import Need, job_memory_mib


def place_job(fleet: Fleet, need: Need, job: TrainingJob, standing: list[Assignment]) -> Settled:
    """Settle one job; without room it waits in line and says for what."""
    settled = Settled(need=need, fleet=fleet)
    if need.refusal is not None:
        settled.blockers.append(need.refusal)
        return settled
    stayed = stay(fleet, need, job, standing)
    found = stayed or _best_device(fleet, need, job)
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
    if seat is None:
        return None
    same = (seat.share_pct, seat.memory_mib, job.model) == (
        assignment.share_pct_sm,
        assignment.memory_mib_limit,
        assignment.model,
    )
    return Placed(seat=seat, standing=assignment if same else None)


def _best_device(fleet: Fleet, need: Need, job: TrainingJob) -> Placed | ReasonCode:
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
        if not lowest <= share_pct <= most:
            continue
        seat = Seat(
            workload=need.workload,
            project=need.project,
            device=device,
            share_pct=share_pct,
            memory_mib=job_memory_mib(job),
            power_w=(kind.limit_w - kind.idle_w) * share_pct / 100,
        )
        search = RoomSearch(need=need, share_pct=share_pct, memory_mib=seat.memory_mib, power_w=seat.power_w)
        if fleet.fits(search, device):
            return seat
    return None


def _waits(code: ReasonCode, job: TrainingJob) -> Reason:
    facts = (
        Fact(name="share_pct_sm_min", value=float(job.share_pct_sm_min)),
        Fact(name="memory_mib", value=float(job_memory_mib(job))),
    )
    return Reason(code=code, subject=job.id, facts=facts)
