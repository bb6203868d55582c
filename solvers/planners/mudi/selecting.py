"""Where training jobs go and what they get: Mudi's device selector, its guard of memory, the even split of the rest.

Owns the placing of jobs after inference has its shares: standing ones stay while there is room, new ones go where the
service's latency curve beside them is flattest where it runs, at most so many to a device and never beyond a device's
memory (a job that no longer fits is moved, else it waits with its memory on the host). What inference leaves is then
split evenly. It refuses to change inference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.planners.draft import Draft
from solvers.planners.mudi.curves import Company, Curves
from solvers.planners.mudi.parameters import Parameters, Selector
from solvers.planners.mudi.sharing import target_ms
from solvers.planners.seating import Placed
from solvers.problems.fleet import Search, Seat
from solvers.problems.needs import Need, job_memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A job on a device, as yet with its least share."""

    need: Need
    job: TrainingJob
    seat: Seat
    standing: Assignment | None


@dataclass(slots=True, kw_only=True)
class Slack:
    """The jobs of one draft."""

    draft: Draft
    curves: Curves
    parameters: Parameters
    random: np.random.Generator
    hosts: dict[int, list[tuple[Need, float]]]
    """Services by device, with the rate of each replica."""
    guests: dict[int, list[Guest]] = field(default_factory=dict)
    pinned: dict[int, list[Assignment]] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)

    def fill(self) -> None:
        """Place all jobs and divide what is left."""
        for item in self.draft.case.pinned:
            if item.kind is WorkloadKind.JOB:
                self.pinned.setdefault(self.draft.fleet.index[item.device], []).append(item)
        jobs = {WorkloadId(job.id): job for job in self.draft.case.snapshot.jobs}
        needs = [need for need in self.draft.case.needs if need.kind is WorkloadKind.JOB]
        waiting = [need for need in needs if not self._stays(need, jobs[need.workload])]
        for need in waiting:
            self._select(need, jobs[need.workload])
        for device in sorted(self.guests):
            self._divide(device)

    def _stays(self, need: Need, job: TrainingJob) -> bool:
        fleet = self.draft.fleet
        standing = next(iter(self.draft.case.standing.get(need.workload, [])), None)
        device = None if standing is None else fleet.index.get(standing.device)
        if need.refusal is not None or standing is None or device is None or self._full(device):
            return False
        return self._take(need, job, device, standing)

    def _take(self, need: Need, job: TrainingJob, device: int, standing: Assignment | None) -> bool:
        fleet = self.draft.fleet
        seat = self._seat(need, job, device, job.share_pct_sm_min)
        quota = fleet.quota_left.get(need.project, math.inf)
        if fleet.gpus(device, seat.share_pct) > quota + 1e-9 or not fleet.fits(_search(need, seat), device):
            return False
        fleet.put(seat)
        self.guests.setdefault(device, []).append(Guest(need=need, job=job, seat=seat, standing=standing))
        return True

    def _full(self, device: int) -> bool:
        return self._jobs(device) >= self.parameters.jobs_per_device

    def _jobs(self, device: int) -> int:
        return len(self.guests.get(device, [])) + len(self.pinned.get(device, []))

    def _select(self, need: Need, job: TrainingJob) -> None:
        """The job on the device of the smallest slope; without room it waits."""
        fleet, settled = self.draft.fleet, self.draft.open(need)
        if need.refusal is not None:
            settled.blockers.append(need.refusal)
            return
        memory = job_memory_mib(job)
        search = Search(need=need, share_pct=job.share_pct_sm_min, memory_mib=memory, power_w=0.0)
        room = fleet.room(search)
        places = [] if isinstance(room, ReasonCode) else [int(place) for place in room if self._open(int(place))]
        for device, slope in self._ranked(places, job):
            if self._take(need, job, device, None):
                self.reasons.append(self._chosen(job, device, slope))
                return
        code = room if isinstance(room, ReasonCode) else ReasonCode.CLIENTS_MAX if not places else ReasonCode.POWER_CAP
        facts = (
            Fact(name="share_pct_sm_min", value=float(job.share_pct_sm_min)),
            Fact(name="memory_mib", value=float(memory)),
        )
        settled.blockers.append(Reason(code=code, subject=job.id, facts=facts))

    def _open(self, device: int) -> bool:
        """Nothing is rented for training alone."""
        fleet = self.draft.fleet
        return not self._full(device) and not (fleet.unrented[device] and not fleet.occupants[device])

    def _ranked(self, places: list[int], job: TrainingJob) -> Iterable[tuple[int, float]]:
        """Devices, the best first, with their slopes in ms per whole device."""
        scored = {device: self.slope(device, job) for device in places}
        if self.parameters.selector is Selector.RANDOM:
            order = [places[index] for index in self.random.permutation(len(places))]
        else:
            free, spread = self.draft.fleet.memory_free, self.parameters.selector is Selector.SPREAD

            def crowd(device: int) -> int:
                return self._jobs(device) if spread else 0

            order = sorted(places, key=lambda device: (crowd(device), scored[device], -float(free[device]), device))
        return [(device, scored[device]) for device in order]

    def slope(self, device: int, job: TrainingJob) -> float:
        """What a whole device of share would change the latency of its services, beside this job too, in ms."""
        company = self._company(device, job)
        number = int(self.draft.fleet.class_of[device])
        return sum(self._flatness(need, number, company, rate) for need, rate in self.hosts.get(device, []))

    def _flatness(self, need: Need, number: int, company: Company, rate_rps: float) -> float:
        """Mean over batches of the slope of the segment that the target lies on."""
        limit = math.inf if need.limit_ms is None else need.limit_ms
        curves = self.curves.beside(need, number, company)
        steep = []
        for batch, curve in curves.items():
            target = target_ms(limit, rate_rps, batch, self.parameters)
            steep.append(abs(curve.k1 if target >= curve.l0 else curve.k2))
        return sum(steep) / len(steep) if steep else 0.0

    def _company(self, device: int, job: TrainingJob) -> Company:
        present = [guest.job.model for guest in self.guests.get(device, [])]
        present += [item.model for item in self.pinned.get(device, [])]
        return tuple(sorted((*present, job.model)))

    def _divide(self, device: int) -> None:
        """Even shares of what inference leaves, within the owners' bounds; small gains are not worth a restart."""
        fleet, guests = self.draft.fleet, self.guests[device]
        least = [guest.job.share_pct_sm_min for guest in guests]
        most = [guest.job.share_pct_sm_max for guest in guests]
        shares = even(int(fleet.share_free[device] + 1e-9) + sum(least), least, most)
        for guest, share in zip(guests, shares, strict=True):
            before = None if guest.standing is None else guest.standing.share_pct_sm
            same = before is not None and 0 <= share - before < self.parameters.job_step_pct
            wanted = before if same and before is not None and before >= guest.job.share_pct_sm_min else share
            fleet.lift(guest.seat)
            seat = self._granted(guest, device, wanted)
            self.draft.open(guest.need).add(Placed(seat=seat, standing=_unchanged(guest, seat)))

    def _granted(self, guest: Guest, device: int, share_pct: int) -> Seat:
        """The share, or its owner's least where power or quota refuse it."""
        fleet, need = self.draft.fleet, guest.need
        quota = fleet.quota_left.get(need.project, math.inf)
        seat = self._seat(need, guest.job, device, share_pct)
        allowed = fleet.gpus(device, share_pct) <= quota + 1e-9 and fleet.fits(_search(need, seat), device)
        return seat if allowed else guest.seat

    def _seat(self, need: Need, job: TrainingJob, device: int, share_pct: int) -> Seat:
        kind = self.draft.fleet.class_at(device)
        return Seat(
            workload=need.workload,
            project=need.project,
            device=device,
            share_pct=share_pct,
            memory_mib=job_memory_mib(job),
            power_w=(kind.limit_w - kind.idle_w) * share_pct / 100,
        )

    def _chosen(self, job: TrainingJob, device: int, slope: float) -> Reason:
        facts = (
            Fact(name="device", value=self.draft.fleet.devices[device].id),
            Fact(name="slope_ms", value=round(slope, 4)),
            Fact(name="jobs_beside", value=float(len(self._company(device, job)) - 2)),
            Fact(name="selector", value=self.parameters.selector.value),
        )
        return Reason(code=ReasonCode.FILLS_SPARE_SHARE, subject=job.id, facts=facts)


def even(room: int, least: list[int], most: list[int]) -> list[int]:
    """Whole shares, as even as the bounds allow, of at most `room` together."""
    shares = list(least)
    left = room - sum(shares)
    while left > 0:
        low = [index for index, share in enumerate(shares) if share < most[index]]
        if not low:
            break
        index = min(low, key=lambda at: (shares[at], at))
        shares[index] += 1
        left -= 1
    return shares


def _search(need: Need, seat: Seat) -> Search:
    return Search(need=need, share_pct=seat.share_pct, memory_mib=seat.memory_mib, power_w=seat.power_w)


def _unchanged(guest: Guest, seat: Seat) -> Assignment | None:
    """The standing assignment, if this is it."""
    item = guest.standing
    if item is None:
        return None
    same = (seat.share_pct, seat.memory_mib, guest.job.model) == (item.share_pct_sm, item.memory_mib_limit, item.model)
    return item if same else None
