"""Training jobs wherever they run fastest, for operators whose policy puts training before cost.

Owns who trains where beside services that are seated already. What stands stays while its room is there; who waits, the
one with least left to do first, goes where all jobs together become fastest: an idle device, what services leave over,
or half of what another job has. Who stands moves on or is given more where that makes up for its restart several times.
Part of a device is believed to do more than that part of the work. It refuses to move services, to take what they need,
and to open a GPU that somebody would have to rent first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.offer import OFFERED
from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.jobs import (
    JOBS_PER_DEVICE_MAX,
    RESTARTS_WORTH,
    JobTerms,
    careful_kind,
    halved,
    harmless,
    spare_pct,
    variant_of,
)
from solvers.planners.joint.seat.seats import DUST, Seats
from solvers.problems.patterns import Pattern, judge

PART_EXPONENT = 0.74
"""With half of a GPU's SMs a job is taken to do 0.6 of what it does with all: few networks fill a GPU."""
TRIED_MAX = 24
"""Places that are tried for a job, those that promise most."""
ALIKE_MAX = 3
"""Devices that are looked at of those that carry the same."""
PASSES_MAX = 3


def spread_jobs(seats: Seats, terms: JobTerms, deadline: Deadline) -> None:
    """Seat all jobs anew, starting from where they stand."""
    problem = seats.floor.problem
    order = sorted(terms.most_pct, key=lambda job: (-problem.workloads[job].priority, terms.left_s.get(job, 0.0), job))
    spreading = _Spreading(seats=seats, terms=terms)
    for device in range(len(seats.patterns)):
        spreading.clear(device)
    for job in order:
        spreading.stay(job)
    for job in order:
        if deadline.over:
            return
        if not seats.replicas[job]:
            spreading.place(job)
    for _ in range(PASSES_MAX):
        moved = [job for job in reversed(order) if not deadline.over and spreading.hasten(job)]
        if not moved:
            return


@dataclass(slots=True, kw_only=True)
class _Spreading:
    """The jobs of one floor in the making."""

    seats: Seats
    terms: JobTerms
    at: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Device and share of each seated job."""
    stood: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The same as it stands."""
    speeds: dict[int, dict[int, float]] = field(default_factory=dict)
    """By job and pool on a whole device, as parts of the job's best."""

    def __post_init__(self) -> None:
        problem = self.seats.floor.problem
        for device, items in self.seats.floor.held.items():
            for item in items:
                job = problem.variants[item.variant].workload
                if job in self.terms.most_pct:
                    self.stood[job] = device, item.share_pct

    def clear(self, device: int) -> None:
        """Take a device's jobs off; those who stay bear each other best where no stranger may come."""
        seats, before = self.seats, self.seats.patterns[device]
        if before is None or not self._jobs(before):
            return
        problem = seats.floor.problem
        members = [
            item
            for item in zip(before.variants, before.shares_pct, strict=True)
            if problem.variants[item[0]].workload not in self.terms.most_pct
        ]
        kinds = problem.like(int(seats.floor.pool_of[device]), int(problem.kind_clock_mhz[before.kind]))
        judged = (judge(problem, kind, *zip(*members, strict=True)) for kind in kinds) if members else ()
        after = next((item for item in judged if item is not None and not seats.hurts(before, item, -1)), None)
        if after is not None or not members:
            seats.put(device, after)
            return
        for job, share_pct in self._jobs(before):
            self.at[job] = device, share_pct

    def stay(self, job: int) -> None:
        """Where and as it stands, if there is room."""
        if job in self.stood and job not in self.at:
            device, share_pct = self.stood[job]
            if share_pct <= min(self.terms.most_pct[job], spare_pct(self.seats, device, self.terms)):
                self._put(job, device, self._with(job, device, share_pct), share_pct)

    def place(self, job: int) -> None:
        """Where all jobs together become fastest."""
        rooms = [(gain, device, share_pct, False) for gain, device, share_pct in self._rooms(job)]
        parts = [(gain, device, share_pct, True) for gain, device, share_pct in self._parts(job)]
        for _, device, share_pct, parted in sorted((*rooms, *parts), key=self._order)[:TRIED_MAX]:
            if not parted and self._put(job, device, self._with(job, device, share_pct), share_pct):
                return
            if parted and self._part(job, device):
                return

    def hasten(self, job: int) -> bool:
        """Move a job on, or give it more, where all who gain by it end earlier by several restarts; whether it was."""
        if job not in self.at:
            return False
        home, share_pct = self.at[job]
        most = min(self.terms.most_pct[job], share_pct + spare_pct(self.seats, home, self.terms))
        wider = self._steps(job, home, most)[-1:]
        moves = [(self._saved_s(job, home, step), home, step) for step in wider if step > share_pct]
        heir = self._heir(job, home)
        for _, device, step in self._rooms(job):
            if device != home:
                gain_s = self._saved_s(job, device, step)
                if heir is not None:
                    gain_s += max(0.0, self._saved_s(heir[0], home, heir[1]))
                moves.append((gain_s, device, step))
        moves.sort(key=lambda item: (-round(item[0], 6), item[1] != home, item[1]))
        return any(self._move(job, device, step) for gain_s, device, step in moves[:ALIKE_MAX] if gain_s > DUST)

    def _saved_s(self, job: int, device: int, share_pct: int) -> float:
        """By how much sooner a job ends there, less what its restart must be worth."""
        now = self._speed(job, *self.at[job])
        then = self._speed(job, device, share_pct)
        left_s = self.terms.left_s.get(job, 0.0)
        launch_s = self.seats.floor.problem.variants[self._variant(job)].launch_s
        worth_s = RESTARTS_WORTH * launch_s if self.stood.get(job) == self.at[job] else 0.0
        return left_s / now - left_s / then - worth_s

    def _heir(self, job: int, home: int) -> tuple[int, int] | None:
        """Who would have a job's share if it left: the one with most left to do, and what that would have then."""
        others = [item for item in self._jobs(self.seats.patterns[home]) if item[0] != job]
        if not others:
            return None
        heir, share_pct = max(others, key=lambda item: (self.terms.left_s.get(item[0], 0.0), item))
        most = share_pct + spare_pct(self.seats, home, self.terms) + self.at[job][1]
        steps = self._steps(heir, home, min(self.terms.most_pct[heir], most))
        return (heir, steps[-1]) if steps and steps[-1] > share_pct else None

    def _order(self, item: tuple[float, int, int, bool]) -> tuple[object, ...]:
        gain, device, _, parted = item
        pool = self.seats.floor.problem.pools[int(self.seats.floor.pool_of[device])]
        return -round(gain, 9), parted, self.seats.patterns[device] is None, pool.usd_per_h, device

    def _rooms(self, job: int) -> Iterator[tuple[float, int, int]]:
        """Speed, device and share wherever something is spare."""
        seen: Counter[object] = Counter()
        for device, pattern in enumerate(self.seats.patterns):
            key = int(self.seats.floor.pool_of[device]), None if pattern is None else pattern.key
            seen[key] += 1
            if seen[key] > ALIKE_MAX or not self._open(device) or len(self._jobs(pattern)) >= JOBS_PER_DEVICE_MAX:
                continue
            steps = self._steps(job, device, min(self.terms.most_pct[job], spare_pct(self.seats, device, self.terms)))
            if steps:
                yield self._speed(job, device, steps[-1]), device, steps[-1]

    def _parts(self, job: int) -> Iterator[tuple[float, int, int]]:
        """The same, less what others lose, where a job with nobody but jobs beside it could give half."""
        for device, pattern in enumerate(self.seats.patterns):
            others = self._jobs(pattern)
            if pattern is None or not others or len(others) >= JOBS_PER_DEVICE_MAX or not self._open(device):
                continue
            if len(others) < len(pattern.variants):
                continue
            other, share_pct = max(others, key=lambda item: (item[1], item[0]))
            kept = [step for step in self._steps(other, device, share_pct) if 2 * step <= share_pct][-1:]
            steps = self._steps(job, device, min(self.terms.most_pct[job], share_pct - kept[0])) if kept else []
            if steps:
                lost = self._speed(other, device, share_pct) - self._speed(other, device, kept[0])
                yield self._speed(job, device, steps[-1]) - lost, device, steps[-1]

    def _part(self, job: int, device: int) -> bool:
        """Half of the largest job's share to this one; whether it could be."""
        before, problem = self.seats.patterns[device], self.seats.floor.problem
        if before is None:
            return False
        place = max(range(len(before.shares_pct)), key=lambda at: (before.shares_pct[at], before.variants[at]))
        after = halved(self.seats, device, place, (job, self.terms.most_pct[job]))
        if after is None or not harmless(self.seats, device, (job, after), self.terms):
            return False
        self.seats.put(device, after)
        for variant, share_pct in zip(after.variants, after.shares_pct, strict=True):
            self.at[problem.variants[variant].workload] = device, share_pct
        return True

    def _move(self, job: int, device: int, share_pct: int) -> bool:
        """From where it is to another device, or to more on its own; whether it could be."""
        home, _ = self.at[job]
        before = self.seats.patterns[home]
        assert before is not None
        members = list(zip(before.variants, before.shares_pct, strict=True))
        members = [item for item in members if item[0] != self._variant(job)]
        problem = self.seats.floor.problem
        rest = judge(problem, before.kind, *zip(*members, strict=True)) if members else None
        if members and rest is None:
            return False
        self.seats.put(home, rest)
        if self._put(job, device, self._with(job, device, share_pct), share_pct):
            return True
        self.seats.put(home, before)
        return False

    def _put(self, job: int, device: int, after: Pattern | None, share_pct: int) -> bool:
        if after is None or not harmless(self.seats, device, (job, after), self.terms):
            return False
        self.seats.put(device, after)
        self.at[job] = device, share_pct
        return True

    def _with(self, job: int, device: int, share_pct: int) -> Pattern | None:
        before, problem = self.seats.patterns[device], self.seats.floor.problem
        members, shares = ((), ()) if before is None else (before.variants, before.shares_pct)
        kind = careful_kind(self.seats, device)
        return judge(problem, kind, (*members, self._variant(job)), (*shares, share_pct))

    def _open(self, device: int) -> bool:
        floor = self.seats.floor
        return self.seats.patterns[device] is not None or not floor.names[device].startswith(OFFERED)

    def _jobs(self, pattern: Pattern | None) -> list[tuple[int, int]]:
        """Jobs of a pattern with their shares."""
        if pattern is None:
            return []
        of = self.seats.floor.problem.variant_workload
        members = zip(pattern.variants, pattern.shares_pct, strict=True)
        return [(int(of[item]), share) for item, share in members if int(of[item]) in self.terms.most_pct]

    def _variant(self, job: int) -> int:
        return variant_of(self.seats.floor.problem, job)

    def _steps(self, job: int, device: int, most_pct: int) -> list[int]:
        """Shares that a job could run with there."""
        problem, pool = self.seats.floor.problem, int(self.seats.floor.pool_of[device])
        variant = self._variant(job)
        if not problem.allowed[pool, variant]:
            return []
        runs = np.isfinite(problem.mean_ms[int(problem.kind_table[careful_kind(self.seats, device)]), variant])
        able = runs.any(axis=1)
        return [int(step) for step, can in zip(problem.shares_pct, able, strict=True) if can and step <= most_pct]

    def _speed(self, job: int, device: int, share_pct: int) -> float:
        """As a part of what the job does on the best whole device; 0 where it cannot run."""
        if job not in self.speeds:
            rates = self._whole(job)
            best = max(rates.values())
            self.speeds[job] = {pool: rate / best if best > 0 else 0.0 for pool, rate in rates.items()}
        whole = self.speeds[job][int(self.seats.floor.pool_of[device])]
        return whole * float((share_pct / 100) ** PART_EXPONENT)

    def _whole(self, job: int) -> dict[int, float]:
        """Iterations per second on a whole device, by pool."""
        problem, variant = self.seats.floor.problem, self._variant(job)
        found = dict.fromkeys(range(len(problem.pools)), 0.0)
        for pool, table in zip(problem.kind_pool.tolist(), problem.kind_table.tolist(), strict=True):
            whole_ms = float((problem.mean_ms[table, variant] * problem.shares_pct[:, None] / 100).min())
            if problem.allowed[pool, variant] and np.isfinite(whole_ms):
                found[pool] = max(found[pool], 1000 / whole_ms)
        return found
