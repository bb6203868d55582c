"""Where training jobs go and what they get: Mudi's device selector, its guard of memory, the even split of the rest.

Owns the placing of jobs after inference has its shares. Standing ones stay while there is room and the service beside
them can be made fast enough; new ones go where the service's latency curve beside them is flattest where it runs, at
most so many to a device and never beyond a device's memory (the coldest memory of jobs that can do without stands on
the host; a job that does not fit even so is moved, else it waits). Whoever's company changed is tuned again, and what
inference leaves is split evenly. A job's arrival touches one device: `place` is all that it takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.planners.draft import Draft
from solvers.planners.seating import Placed, placed_job, search_of, seat_of, training_seat
from solvers.policies.mudi.curves import Company, MudiParameters, Selector
from solvers.policies.mudi.scoring import Scores, best_spread, even, warmest_first
from solvers.policies.mudi.sizing import CoordinatedReplica, Coordinator
from solvers.problems.fleet import Places, RoomSearch, Seat
from solvers.problems.needs import Need, job_memory_mib, job_memory_mib_least

AT_ONCE = 6
"""So many waiting jobs the exact selector spreads together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A job on a device, as yet with its least share and memory."""

    need: Need
    job: TrainingJob
    seat: Seat
    standing: Assignment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDecision:
    """Where a job goes, how the services there are then tuned, and share and memory of all jobs there, it last."""

    device: int
    hosts: tuple[CoordinatedReplica, ...]
    sizes: tuple[tuple[int, int], ...]


@dataclass(slots=True, kw_only=True)
class Slack:
    """The jobs of one draft."""

    draft: Draft
    coordinator: Coordinator
    parameters: MudiParameters
    random: np.random.Generator
    hosts: dict[int, list[CoordinatedReplica]]
    """Replicas of services by device."""
    guests: dict[int, list[Guest]] = field(default_factory=dict)
    pinned: dict[int, list[Assignment]] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    untuned: int = 0
    """How often a replica stays as it is since nothing is enough beside its jobs, or does not fit."""
    jobs_on: Places = field(init=False)
    """Jobs by device."""
    scores: Scores = field(init=False)

    def __post_init__(self) -> None:
        fleet, count = self.draft.fleet, len(self.draft.fleet.devices)
        self.jobs_on = np.zeros(count, dtype=np.intp)
        for item in self.draft.case.pinned:
            if item.kind is WorkloadKind.JOB:
                device = fleet.index[item.device]
                self.pinned.setdefault(device, []).append(item)
                self.jobs_on[device] += 1
        self.scores = Scores(
            curves=self.coordinator.sizer.curves,
            parameters=self.parameters,
            class_of=fleet.class_of,
            hosts=self.hosts,
            company_of=self.company,
            company=np.full(count, -1, dtype=np.intp),
        )

    def fill(self) -> None:
        """Place all jobs and divide what is left."""
        waiting = self.seat_standing([need for need in self.draft.case.needs if need.kind is WorkloadKind.JOB])
        if self.parameters.selector is Selector.OPTIMAL:
            for begin in range(0, len(waiting), AT_ONCE):
                self._spread(waiting[begin : begin + AT_ONCE])
        else:
            for need, job in waiting:
                self._select(need, job)
        for device in sorted(self.guests):
            self._tune(device)
            self._divide(device)

    def seat_standing(self, needs: Sequence[Need]) -> list[tuple[Need, TrainingJob]]:
        """Those of these that stand take their places again where they may; the others."""
        jobs = {WorkloadId(job.id): job for job in self.draft.case.snapshot.jobs}
        return [(need, jobs[need.workload]) for need in needs if not self._stays(need, jobs[need.workload])]

    def place(self, need: Need, job: TrainingJob) -> JobDecision | None:
        """One more job, with all that follows on its device; None: it waits. Jobs stay booked with their least, so that
        the next one can come.
        """
        device = self._select(need, job)
        if device is None:
            return None
        self._tune(device)
        return JobDecision(device=device, hosts=tuple(self.hosts.get(device, ())), sizes=tuple(self._sizes(device)))

    # -- taking -------------------------------------------------------------------------------------------------------

    def _stays(self, need: Need, job: TrainingJob) -> bool:
        standing = next(iter(self.draft.case.standing.get(need.workload, [])), None)
        device = None if standing is None else self.draft.fleet.index.get(standing.device)
        if need.refusal is not None or standing is None or device is None or self._full(device):
            return False
        return self._take(need, job, device, standing)

    def _take(self, need: Need, job: TrainingJob, device: int, standing: Assignment | None) -> bool:
        """The job on this device, where rules, memory and the service there let it."""
        fleet = self.draft.fleet
        least_pct, least_mib = job.share_pct_sm_min, self._least_mib(job)
        seat = training_seat(fleet, need, device, share_pct=least_pct, memory_mib=least_mib)
        quota = fleet.quota_left.get(need.project, math.inf)
        if fleet.gpus(device, seat.share_pct) > quota + 1e-9 or not fleet.fits(search_of(need, seat), device):
            return False
        if self._short_mib(device, job) > self.parameters.host_mib_per_device:
            return False
        fleet.put(seat)
        if not self._bear(device, self.company(device, job)):
            fleet.lift(seat)
            return False
        guest = Guest(need=need, job=job, seat=seat, standing=standing)
        self.guests.setdefault(device, []).append(guest)
        self._count(device, 1)
        return True

    def _untake(self, device: int) -> None:
        guest = self.guests[device].pop()
        self.draft.fleet.lift(guest.seat)
        if not self.guests[device]:
            del self.guests[device]
        self._count(device, -1)

    def _count(self, device: int, more: int) -> None:
        self.jobs_on[device] += more
        self.scores.changed(device)

    def _full(self, device: int) -> bool:
        return bool(self.jobs_on[device] >= self.parameters.jobs_per_device)

    def _bear(self, device: int, company: Company) -> bool:
        """Whether the services here can all be fast enough beside these jobs, out of the one room that is left."""
        free_pct, grown_pct = float(self.draft.fleet.share_free[device]), 0.0
        for host in self.hosts.get(device, []):
            if host.placed.option is None:
                continue
            held_pct = host.placed.seat.share_pct
            option = self.coordinator.needed(host, company, free_pct + held_pct)
            if option is None:
                return False
            grown_pct += max(0, option.share_pct - held_pct)
        return grown_pct <= free_pct + 1e-9

    def _least_mib(self, job: TrainingJob) -> int:
        """Memory on the device at least; by default the owner's word, at most all that may stand on the host."""
        return job_memory_mib_least(job) if self.parameters.host_mib_per_device > 0 else job_memory_mib(job)

    def _short_mib(self, device: int, job: TrainingJob) -> float:
        """What of the memory of all jobs here would have to stand on the host."""
        here = self.guests.get(device, [])
        wanted = job_memory_mib(job) + sum(job_memory_mib(guest.job) for guest in here)
        held = sum(guest.seat.memory_mib for guest in here)
        return wanted - float(self.draft.fleet.memory_free[device]) - held

    # -- selecting ----------------------------------------------------------------------------------------------------

    def _select(self, need: Need, job: TrainingJob) -> int | None:
        """The job on the device of the smallest slope; without room it waits."""
        settled = self.draft.open(need)
        if need.refusal is not None:
            settled.blockers.append(need.refusal)
            return None
        places, code = self.room(need, job)
        order, slopes = self._ranked(places, job)
        for at in order:
            device = int(places[at])
            if self._take(need, job, device, None):
                self.reasons.append(self._chosen(job, device, float(slopes[at])))
                return device
        self._wait(need, job, code if not len(places) else ReasonCode.NEIGHBOURS_PRESSURE)
        return None

    def _wait(self, need: Need, job: TrainingJob, code: ReasonCode) -> None:
        facts = (
            Fact(name="share_pct_sm_min", value=float(job.share_pct_sm_min)),
            Fact(name="memory_mib", value=float(self._least_mib(job))),
        )
        self.draft.open(need).blockers.append(Reason(code=code, subject=job.id, facts=facts))

    def room(self, need: Need, job: TrainingJob) -> tuple[Places, ReasonCode]:
        """Devices that could take the job; and what to say where there are none. Nothing is rented for training."""
        fleet = self.draft.fleet
        search = RoomSearch(need=need, share_pct=job.share_pct_sm_min, memory_mib=self._least_mib(job), power_w=0.0)
        room = fleet.room(search)
        if isinstance(room, ReasonCode):
            return np.empty(0, dtype=np.intp), room
        full = self.jobs_on[room] >= self.parameters.jobs_per_device
        return room[~full & ~(fleet.unrented[room] & (fleet.occupants[room] == 0))], ReasonCode.CLIENTS_MAX

    def _ranked(self, places: Places, job: TrainingJob) -> tuple[Places, Floats]:
        """Positions of these devices, the best first, and their slopes in ms per whole device."""
        slopes = self.scores.slopes(places, job.model) if len(places) else np.empty(0)
        if self.parameters.selector is Selector.RANDOM:
            return np.asarray(self.random.permutation(len(places)), dtype=np.intp), slopes
        free = self.draft.fleet.memory_free[places]
        keys: tuple[Floats, ...] = (places.astype(np.float64), -free, slopes)
        if self.parameters.selector is Selector.SPREAD:
            keys = (*keys, self.jobs_on[places].astype(np.float64))
        if self.parameters.selector is not Selector.SLOPE:
            keys = (*keys, (free < job_memory_mib(job)).astype(np.float64))
        return np.lexsort(keys), slopes

    def _spread(self, waiting: list[tuple[Need, TrainingJob]]) -> None:
        """These jobs where all training together takes least, by everything that is believed."""
        able = [(need, job) for need, job in waiting if need.refusal is None]
        for need, _ in waiting:
            if need.refusal is not None:
                self.draft.open(need).blockers.append(need.refusal)
        rooms = [self.room(need, job) for need, job in able]
        devices = sorted({int(device) for places, _ in rooms for device in places})
        found = best_spread(
            len(able),
            devices,
            self.parameters.jobs_per_device,
            lambda at, some: self._tried(at, [able[n] for n in some]),
        )
        for (need, job), device, (places, code) in zip(able, found, rooms, strict=True):
            if device is None or not self._take(need, job, device, None):
                self._wait(need, job, code if not len(places) else ReasonCode.NEIGHBOURS_PRESSURE)
            else:
                slope = self.scores.slopes(np.array([device], dtype=np.intp), job.model)[0]
                self.reasons.append(self._chosen(job, device, float(slope)))

    def _tried(self, device: int, some: list[tuple[Need, TrainingJob]]) -> float | None:
        """Iteration times of all jobs on a device with these added, summed; None where they cannot all be there."""
        taken = 0
        for need, job in some:
            if self._full(device) or not self._take(need, job, device, None):
                break
            taken += 1
        cost = self._iterations_ms(device) if taken == len(some) else None
        for _ in range(taken):
            self._untake(device)
        return cost

    def _iterations_ms(self, device: int) -> float:
        """As planners believe it: in inverse proportion to the share."""
        guests, fleet = self.guests.get(device, []), self.draft.fleet
        if not guests:
            return 0.0
        company, left_pct = self.company(device), float(fleet.share_free[device])
        left_pct += sum(guest.seat.share_pct for guest in guests)
        for host in self.hosts.get(device, []):
            room_pct = float(fleet.share_free[device]) + host.placed.seat.share_pct
            option = self.coordinator.needed(host, company, room_pct)
            left_pct -= 0 if option is None else option.share_pct - host.placed.seat.share_pct
        each_pct = max(1.0, left_pct / len(guests))
        return sum(guest.job.iteration_ms_reference * 100.0 / each_pct for guest in guests)

    def company(self, device: int, job: TrainingJob | None = None) -> Company:
        present = [guest.job.model for guest in self.guests.get(device, [])]
        present += [item.model for item in self.pinned.get(device, [])]
        return tuple(sorted(present if job is None else (*present, job.model)))

    # -- settling -----------------------------------------------------------------------------------------------------

    def _tune(self, device: int) -> None:
        """The services here as they should be beside the jobs that came."""
        fleet, company = self.draft.fleet, self.company(device)
        for index, host in enumerate(self.hosts.get(device, [])):
            room_pct = float(fleet.share_free[device]) + host.placed.seat.share_pct
            option = self.coordinator.needed(host, company, room_pct)
            if option is None:
                self.untuned += 1
            if option is None or option == host.placed.option:
                continue
            settled = self.draft.open(host.need)
            seat = seat_of(host.need, option, device)
            fleet.lift(host.placed.seat)
            placed = Placed(seat=seat, option=option)
            if not fleet.fits(search_of(host.need, seat), device):
                fleet.put(host.placed.seat)
                self.untuned += 1
                continue
            fleet.put(seat)
            settled.placed[settled.placed.index(host.placed)] = placed
            self.hosts[device][index] = replace(host, placed=placed)

    def _divide(self, device: int) -> None:
        """Even shares of what inference leaves, within the owners' bounds; small gains are not worth a restart."""
        fleet, guests = self.draft.fleet, self.guests[device]
        for guest, (share, memory_mib) in zip(guests, self._sizes(device), strict=True):
            before = None if guest.standing is None else guest.standing.share_pct_sm
            same = before is not None and 0 <= share - before < self.parameters.job_step_pct
            wanted = before if same and before is not None and before >= guest.job.share_pct_sm_min else share
            fleet.lift(guest.seat)
            seat = self._granted(
                guest, training_seat(fleet, guest.need, device, share_pct=wanted, memory_mib=memory_mib)
            )
            self.draft.open(guest.need).add(placed_job(seat, guest.job, guest.standing))

    def _sizes(self, device: int) -> list[tuple[int, int]]:
        """Share and memory of each guest."""
        fleet, guests = self.draft.fleet, self.guests[device]
        least = [guest.job.share_pct_sm_min for guest in guests]
        most = [guest.job.share_pct_sm_max for guest in guests]
        shares = even(int(fleet.share_free[device] + 1e-9) + sum(least), least, most)
        bounds = [(guest.seat.memory_mib, job_memory_mib(guest.job)) for guest in guests]
        room_mib = int(fleet.memory_free[device]) + sum(held for held, _ in bounds)
        memories = warmest_first(room_mib, bounds, [guest.job.iteration_ms_reference for guest in guests])
        return list(zip(shares, memories, strict=True))

    def _granted(self, guest: Guest, seat: Seat) -> Seat:
        """This one, or the owner's least where power or quota refuse it."""
        fleet, need, device = self.draft.fleet, guest.need, seat.device
        quota = fleet.quota_left.get(need.project, math.inf)
        allowed = fleet.gpus(device, seat.share_pct) <= quota + 1e-9 and fleet.fits(search_of(need, seat), device)
        return seat if allowed else guest.seat

    def _chosen(self, job: TrainingJob, device: int, slope: float) -> Reason:
        facts = (
            Fact(name="device", value=self.draft.fleet.devices[device].id),
            Fact(name="slope_ms", value=round(slope, 4)),
            Fact(name="jobs_beside", value=float(self.jobs_on[device] - 1)),
            Fact(name="selector", value=self.parameters.selector.value),
        )
        return Reason(code=ReasonCode.FILLS_SPARE_SHARE, subject=job.id, facts=facts)
