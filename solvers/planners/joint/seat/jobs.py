"""Training jobs where training counts before cost; elsewhere the layout has them.

What stands stays while its room is there; waiting jobs, the one with least left to do first, go where all jobs together
become fastest: an idle device, what services leave over, or half of what another job has. Part of a device is believed
to do more than that part of the work. A standing job moves or grows only if that makes up for its restart several
times. Services are not moved, nothing that they need is taken, and no GPU is opened that would have to be rented first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, most_of
from solvers.domain.device import OFFERED
from solvers.planners.joint.seat.seats import DUST, Move, Seats, Terms, members_of
from solvers.planners.joint.solve.judge import Member
from solvers.problems.patterns import Pattern

JOBS_PER_DEVICE_MAX = 3
"""How several jobs together press on one is not known."""
TRIED_MAX = 24
"""Places that are tried for a job, those that promise most."""
ALIKE_MAX = 3
"""Devices that are looked at of those that carry the same."""
PASSES_MAX = 3
RESTARTS_WORTH = 5.0
"""So many times its launch a standing job must save by more share."""
PART_EXPONENT = 0.74
"""With half of a GPU's SMs a job is taken to do 0.6 of what it does with all: few networks fill a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a job runs or could."""

    device: int
    share_pct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """A place with what it is worth, and who is beside it there: one of them with half of its share, perhaps."""

    place: _Place
    worth: float
    beside: tuple[Member, ...]


def spread_jobs(seats: Seats, terms: Terms) -> None:
    """Seat all jobs anew, starting from where they stand."""
    works = seats.floor.problem.workloads
    order = sorted(terms.job_most_pct, key=lambda job: (-works[job].priority, terms.job_left_s[job], job))
    jobs = _Jobs(seats, terms)
    for device in range(len(seats.patterns)):
        jobs.clear(device)
    for job in order:
        jobs.stay(job)
    for job in order:
        if terms.deadline.over:
            return
        if not seats.replicas[job]:
            jobs.place(job)
    for _ in range(PASSES_MAX):
        moved = [job for job in reversed(order) if not terms.deadline.over and jobs.hasten(job)]
        if not moved:
            return


class _Jobs:
    """Where jobs are seated and stood; by job and pool their speeds on a whole device, as parts of the job's best."""

    def __init__(self, seats: Seats, terms: Terms) -> None:
        self.seats, self.terms, self._problem = seats, terms, seats.floor.problem
        self.at, self.speeds = dict[int, _Place](), dict[int, Floats]()
        self.stood = {
            job: _Place(device=device, share_pct=item.share_pct)
            for device, items in seats.floor.held.items()
            for item in items
            if (job := self._problem.variants[item.variant].workload) in terms.job_most_pct
        }

    def clear(self, device: int) -> None:
        """Take a device's jobs off; what stays presses least where only known neighbours may come."""
        seats, problem, before = self.seats, self._problem, self.seats.patterns[device]
        if before is None or not self._jobs(before):
            return
        jobs = {job for job, _ in self._jobs(before)}
        members = [item for item in members_of(before) if problem.variants[item[0]].workload not in jobs]
        kinds = problem.like(int(seats.floor.pool_of[device]), int(problem.kind_clock_mhz[before.kind]))
        moves = (Move(device=device, after=seats.floor.judge.one(kind, members)) for kind in kinds)
        able = (item for item in moves if item.after is not None and not seats.lowers(item, problem.least_rps))
        move = next(able, None) if members else Move(device=device, after=None)
        if move is not None:
            seats.put(move.device, move.after)
            return
        for job, share_pct in self._jobs(before):
            self.at[job] = _Place(device=device, share_pct=share_pct)

    def stay(self, job: int) -> None:
        place = None if job in self.at else self.stood.get(job)
        if place is not None and place.share_pct <= self._most(job, place.device):
            self._put(job, place, members_of(self.seats.patterns[place.device]))

    def place(self, job: int) -> None:
        """Where all jobs together become fastest."""
        options = sorted((*self._rooms(job), *self._parts(job)), key=self._order)
        for option in options[:TRIED_MAX]:
            if self._put(job, option.place, option.beside):
                return

    def hasten(self, job: int) -> bool:
        """Move a job on, or give it more, where jobs end earlier by it by several restarts; whether it was."""
        if job not in self.at:
            return False
        at, seats = self.at[job], self.seats
        most = min(self.terms.job_most_pct[job], at.share_pct + seats.spare_pct(at.device))
        wider = _Place(device=at.device, share_pct=self._largest(job, at.device, most))
        moves = [(self._saved_s(job, wider), wider)] if wider.share_pct > at.share_pct else []
        heir = self._heir(job, at.device)
        inherited_s = 0.0 if heir is None else max(0.0, self._saved_s(*heir))
        others = (room.place for room in self._rooms(job) if room.place.device != at.device)
        moves += [(self._saved_s(job, place) + inherited_s, place) for place in others]
        moves.sort(key=lambda item: (-round(item[0], 6), item[1].device != at.device, item[1].device))
        place = next((place for worth_s, place in moves[:ALIKE_MAX] if worth_s > DUST and self._move(job, place)), None)
        if place is not None and place.device != at.device and heir is not None and inherited_s > 0.0:
            self._move(*heir)  # at once, or the next would come for what is left, for the sake of its own heir
        return place is not None

    def _saved_s(self, job: int, place: _Place) -> float:
        """By how much sooner a job ends there, less what its restart must be worth."""
        now, then = self._speed(job, self.at[job]), self._speed(job, place)
        left_s = self.terms.job_left_s[job]
        launch_s = self._problem.variants[self._variant(job)].launch_s
        worth_s = RESTARTS_WORTH * launch_s if self.stood.get(job) == self.at[job] else 0.0
        return left_s / now - left_s / then - worth_s

    def _heir(self, job: int, home: int) -> tuple[int, _Place] | None:
        """The job that would have a job's share if it left: the one with most left to do; and its place then."""
        others = [item for item in self._jobs(self.seats.patterns[home]) if item[0] != job]
        if not others:
            return None
        heir, share_pct = max(others, key=lambda item: (self.terms.job_left_s[item[0]], item))
        most = share_pct + self.seats.spare_pct(home) + self.at[job].share_pct
        wider = _Place(device=home, share_pct=self._largest(heir, home, min(self.terms.job_most_pct[heir], most)))
        return (heir, wider) if wider.share_pct > share_pct else None

    def _order(self, option: _Option) -> tuple[object, ...]:
        device, now = option.place.device, self.seats.patterns[option.place.device]
        pool = self._problem.pools[int(self.seats.floor.pool_of[device])]
        return -round(option.worth, 9), option.beside != (*members_of(now),), now is None, pool.usd_per_h, device

    def _rooms(self, job: int) -> Iterator[_Option]:
        """Places wherever something is spare, by the job's speed there."""
        seen: Counter[object] = Counter()
        for device, pattern in enumerate(self.seats.patterns):
            key = int(self.seats.floor.pool_of[device]), None if pattern is None else pattern.key
            seen[key] += 1
            rent = pattern is None and self.seats.floor.names[device].startswith(OFFERED)
            if seen[key] > ALIKE_MAX or rent or len(self._jobs(pattern)) >= JOBS_PER_DEVICE_MAX:
                continue
            place = _Place(device=device, share_pct=self._largest(job, device, self._most(job, device)))
            if place.share_pct:
                yield _Option(place=place, worth=self._speed(job, place), beside=(*members_of(pattern),))

    def _parts(self, job: int) -> Iterator[_Option]:
        """The same, less what others lose, where a job with only jobs beside it could give half."""
        for device, pattern in enumerate(self.seats.patterns):
            others, beside = self._jobs(pattern), members_of(pattern)
            if not 0 < len(others) == len(beside) < JOBS_PER_DEVICE_MAX:
                continue
            at = max(range(len(others)), key=lambda number: (others[number][1], others[number][0]))
            other, share_pct = others[at]
            half = _Place(device=device, share_pct=self._largest(other, device, share_pct // 2))
            most = min(self.terms.job_most_pct[job], share_pct - half.share_pct)
            place = _Place(device=device, share_pct=self._largest(job, device, most))
            if half.share_pct and place.share_pct:
                lost = self._speed(other, _Place(device=device, share_pct=share_pct)) - self._speed(other, half)
                beside[at] = beside[at][0], half.share_pct
                yield _Option(place=place, worth=self._speed(job, place) - lost, beside=tuple(beside))

    def _move(self, job: int, place: _Place) -> bool:
        """From where it is to another device, or to more on its own; whether it could be."""
        home = self.at[job].device
        before = self.seats.patterns[home]
        assert before is not None
        members = [item for item in members_of(before) if item[0] != self._variant(job)]
        rest = self.seats.floor.judge.one(before.kind, members)
        if members and rest is None:
            return False
        self.seats.put(home, rest)
        if self._put(job, place, members_of(self.seats.patterns[place.device])):
            return True
        self.seats.put(home, before)
        return False

    def _put(self, job: int, place: _Place, beside: Sequence[Member]) -> bool:
        """The job on a device beside these, if everything bears it."""
        members = [*beside, (self._variant(job), place.share_pct)]
        after = self.seats.floor.judge.one(self._careful_kind(place.device), members)
        move = Move(device=place.device, after=after)
        if after is None or not self.seats.accepts(move, job):
            return False
        self.seats.put(move.device, move.after)
        for other, share_pct in self._jobs(after):
            self.at[other] = _Place(device=place.device, share_pct=share_pct)
        return True

    def _careful_kind(self, device: int) -> int:
        """How a job presses is not known, so it stands where any neighbour may."""
        before, pool = self.seats.patterns[device], int(self.seats.floor.pool_of[device])
        last = int(np.flatnonzero(self._problem.kind_pool == pool)[-1] if before is None else before.kind)
        return self._problem.like(pool, int(self._problem.kind_clock_mhz[last]))[-1]

    def _most(self, job: int, device: int) -> int:
        """The share that a job may have of what is spare."""
        return min(self.terms.job_most_pct[job], self.seats.spare_pct(device))

    def _jobs(self, pattern: Pattern | None) -> list[tuple[int, int]]:
        found = ((int(self._problem.variant_workload[item]), share) for item, share in members_of(pattern))
        return [item for item in found if item[0] in self.terms.job_most_pct]

    def _variant(self, job: int) -> int:
        return int(np.argmax(self._problem.variant_workload == job))

    def _largest(self, job: int, device: int, most_pct: int) -> int:
        """Share that a job could run with there; 0: none."""
        problem, variant = self._problem, self._variant(job)
        if not problem.allowed[int(self.seats.floor.pool_of[device]), variant]:
            return 0
        runs = np.isfinite(problem.mean_ms[int(problem.kind_table[self._careful_kind(device)]), variant]).any(axis=1)
        return int(problem.shares_pct[runs & (problem.shares_pct <= most_pct)].max(initial=0))

    def _speed(self, job: int, place: _Place) -> float:
        """As a part of what the job does on the best whole device; 0 where it cannot run."""
        if job not in self.speeds:
            problem, variant, pool = self._problem, self._variant(job), self._problem.kind_pool
            whole_ms = (problem.mean_ms[:, variant] * problem.shares_pct[:, None] / 100).min(axis=(1, 2))
            speeds = np.where(problem.allowed[pool, variant], 1000 / whole_ms[problem.kind_table], 0)
            best = most_of(speeds, pool, np.zeros(len(problem.pools)))
            self.speeds[job] = best / (best.max() or 1.0)
        whole = self.speeds[job][int(self.seats.floor.pool_of[place.device])]
        return float(whole * (place.share_pct / 100) ** PART_EXPONENT)
