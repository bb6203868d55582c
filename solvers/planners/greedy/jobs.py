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
from solvers.problems.fleet import Fleet, Search, Seat
from solvers.problems.needs import Need

MEMORY_STEP_MIB = 64


def place_job(fleet: Fleet, need: Need, job: TrainingJob, standing: list[Assignment]) -> Settled:
    """Settle one job; without room it waits in line and says for what."""
    settled = Settled(need=need, fleet=fleet)
    if need.refusal is not None:
        settled.blockers.append(need.refusal)
        return settled
    memory_mib = math.ceil(job.memory_mib / MEMORY_STEP_MIB) * MEMORY_STEP_MIB
    for assignment in standing[:1]:
        device = fleet.index.get(assignment.device)
        same_size = assignment.memory_mib_limit == memory_mib and assignment.model == job.model
        if device is None:
            continue
        bounds = job.share_pct_sm_min, min(job.share_pct_sm_max, assignment.share_pct_sm)
        seat = _seat_on(fleet, need, device, memory_mib, bounds)
        if seat is not None:
            unchanged = same_size and seat.share_pct == assignment.share_pct_sm
            settled.add(Placed(seat=seat, standing=assignment if unchanged else None))
            return settled
    found = _best_device(fleet, need, job, memory_mib)
    if isinstance(found, Seat):
        settled.add(Placed(seat=found))
    else:
        settled.blockers.append(_waits(found, job, memory_mib))
    return settled


def _best_device(fleet: Fleet, need: Need, job: TrainingJob, memory_mib: int) -> Seat | ReasonCode:
    lowest = job.share_pct_sm_min
    room = fleet.room(Search(need=need, share_pct=lowest, memory_mib=memory_mib, power_w=0.0))
    if isinstance(room, ReasonCode):
        return room
    spare = np.minimum(fleet.share_free, job.share_pct_sm_max)
    candidates = sorted(
        (int(device) for device in np.flatnonzero(room)),
        key=lambda device: (fleet.occupants[device] == 0, -spare[device], fleet.class_at(device).usd_per_h, device),
    )
    blocker = ReasonCode.POWER_CAP
    for device in candidates:
        seat = _seat_on(fleet, need, device, memory_mib, (lowest, job.share_pct_sm_max))
        if seat is not None:
            return seat
        if fleet.gpus(device, lowest) > fleet.quota_left.get(need.project, math.inf) + 1e-9:
            blocker = ReasonCode.QUOTA
    return blocker


def _seat_on(fleet: Fleet, need: Need, device: int, memory_mib: int, bounds: tuple[int, int]) -> Seat | None:
    """The largest share within the bounds that the device, the power caps and the quota allow."""
    lowest, highest = bounds
    kind = fleet.class_at(device)
    quota_share = 100 * fleet.quota_left.get(need.project, math.inf) / kind.gpu_part + 1e-9
    most = math.floor(min(highest, float(fleet.share_free[device]), quota_share))
    for share_pct in dict.fromkeys((most, lowest)):
        if not lowest <= share_pct <= most:
            continue
        power_w = (kind.limit_w - kind.idle_w) * share_pct / 100
        search = Search(need=need, share_pct=share_pct, memory_mib=memory_mib, power_w=power_w)
        if fleet.fits(search, device):
            return Seat(
                workload=need.workload,
                project=need.project,
                device=device,
                share_pct=share_pct,
                memory_mib=memory_mib,
                power_w=power_w,
            )
    return None


def _waits(code: ReasonCode, job: TrainingJob, memory_mib: int) -> Reason:
    facts = (
        Fact(name="share_pct_sm_min", value=float(job.share_pct_sm_min)),
        Fact(name="memory_mib", value=float(memory_mib)),
    )
    return Reason(code=code, subject=job.id, facts=facts)
