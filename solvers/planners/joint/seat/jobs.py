"""Training jobs in what services leave over.

Owns the last step of seating: a job that waits gets a place where it takes nothing from anybody, on a device in use
before an idle one; where there is none, half of what the largest job has, because to wait counts more than to be slow
and two that share get more done than one. A job that is seated gets more of what is spare beside it, up to a bound; one
that stands only if that makes up for its restart several times. It refuses to move services.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.mend import affordable
from solvers.planners.joint.seat.power import DUST_W
from solvers.planners.joint.seat.seats import Seats
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Pattern, judge

JOBS_PER_DEVICE_MAX = 3
HALVED_MAX = 24
"""Devices that are tried for a job that waits."""
RESTARTS_WORTH = 5.0
"""So many times its launch a standing job must save by more share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """What jobs may have, by workload."""

    most_pct: Mapping[int, int]
    """The share that each may grow to."""
    left_s: Mapping[int, float] = field(default_factory=dict)
    """What each has still to do, in seconds of a whole GPU of its reference type; left out: unknown."""
    quotas: Mapping[str, float] = field(default_factory=dict)
    """GPUs left to projects that have a quota."""
    kept_free: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    """By device, share and memory (MiB) of those who go on there until they are replaced elsewhere."""


def seat_jobs(seats: Seats, terms: JobTerms, deadline: Deadline) -> None:
    """Seat what waits and widen what is seated."""
    most_pct = terms.most_pct
    order = sorted(most_pct, key=lambda job: (-seats.floor.problem.workloads[job].priority, job))
    for job in order:
        if deadline.over:
            return
        if not seats.replicas[job] and not _seat(seats, job, terms):
            _halve(seats, job, terms)
    for job in order:
        _widen(seats, job, terms)


def _seat(seats: Seats, job: int, terms: JobTerms) -> bool:
    """A place in what is spare; whether there is one."""
    floor, most_pct = seats.floor, terms.most_pct[job]
    familiar = {
        device
        for device, items in floor.held.items()
        if any(floor.problem.variants[item.variant].workload == job for item in items)
    }
    spare = {device: spare_pct(seats, device, terms) for device in range(len(floor.names))}
    order = sorted(
        spare,
        key=lambda device: (
            device not in familiar,
            seats.patterns[device] is None,
            -min(spare[device], most_pct),
            floor.problem.pools[int(floor.pool_of[device])].usd_per_h,
            device,
        ),
    )
    for device in order:
        for after in _with_job(seats, device, job, min(spare[device], most_pct)):
            if harmless(seats, device, (job, after), terms):
                seats.put(device, after)
                return True
    return False


def _halve(seats: Seats, job: int, terms: JobTerms) -> None:
    """A place in the share of the job that has most, on a device with few of them and no service: nobody knows how
    several jobs together press on one.
    """
    problem = seats.floor.problem
    found: list[tuple[int, int, int]] = []
    for device, pattern in enumerate(seats.patterns):
        if pattern is None or not problem.allowed[int(seats.floor.pool_of[device]), variant_of(problem, job)]:
            continue
        members = zip(pattern.variants, pattern.shares_pct, strict=True)
        jobs = [
            (share, place)
            for place, (variant, share) in enumerate(members)
            if problem.variants[variant].workload in terms.most_pct
        ]
        if len(pattern.variants) == len(jobs) < JOBS_PER_DEVICE_MAX:
            share, place = max(jobs)
            found.append((-share, device, place))
    for _, device, place in sorted(found)[:HALVED_MAX]:
        after = halved(seats, device, place, (job, terms.most_pct[job]))
        if after is not None and harmless(seats, device, (job, after), terms):
            seats.put(device, after)
            return


def halved(seats: Seats, device: int, place: int, other: tuple[int, int]) -> Pattern | None:
    """A device with half of one member's share given to another job, which may have so much at most."""
    problem, before = seats.floor.problem, seats.patterns[device]
    job, most_pct = other
    if before is None:
        return None
    whole = before.shares_pct[place]
    steps = [int(step) for step in problem.shares_pct if 2 * step <= whole]
    rest = [int(step) for step in problem.shares_pct if step <= min(most_pct, whole - steps[-1])] if steps else []
    if not rest:
        return None
    shares = (*before.shares_pct[:place], steps[-1], *before.shares_pct[place + 1 :], rest[-1])
    return judge(problem, careful_kind(seats, device), (*before.variants, variant_of(problem, job)), shares)


def variant_of(problem: JointProblem, job: int) -> int:
    """The one variant of a job."""
    return next(number for number, item in enumerate(problem.variants) if item.workload == job)


def careful_kind(seats: Seats, device: int) -> int:
    """Nobody knows how a job presses, so it stands where everybody may."""
    problem, before, pool = seats.floor.problem, seats.patterns[device], int(seats.floor.pool_of[device])
    last = int(np.flatnonzero(problem.kind_pool == pool)[-1] if before is None else before.kind)
    return problem.like(pool, int(problem.kind_clock_mhz[last]))[-1]


def spare_pct(seats: Seats, device: int, terms: JobTerms) -> int:
    """Share of a device that nobody has, and nobody needs until he is replaced."""
    pattern, (kept_pct, _) = seats.patterns[device], terms.kept_free.get(device, (0, 0.0))
    return 100 - kept_pct - (0 if pattern is None else sum(pattern.shares_pct))


def _with_job(seats: Seats, device: int, job: int, most_pct: int) -> Iterator[Pattern]:
    """The device with the job beside what it carries: the largest share first, then the smallest."""
    problem, before = seats.floor.problem, seats.patterns[device]
    variant = variant_of(problem, job)
    if not problem.allowed[int(seats.floor.pool_of[device]), variant]:
        return
    kind = careful_kind(seats, device)
    runs = np.isfinite(problem.mean_ms[int(problem.kind_table[kind]), variant]).any(axis=1)
    steps = [int(share) for share, able in zip(problem.shares_pct, runs, strict=True) if able and share <= most_pct]
    for share in dict.fromkeys((steps[-1], steps[0])) if steps else ():
        members = () if before is None else before.variants
        shares = () if before is None else before.shares_pct
        after = judge(problem, kind, (*members, variant), (*shares, share))
        if after is not None:
            yield after


def harmless(seats: Seats, device: int, what: tuple[int, Pattern], terms: JobTerms) -> bool:
    """Whether power, memory, quotas and everybody else's needs bear a job with a device's new contents."""
    (job, after), before = what, seats.patterns[device]
    watts = seats.floor.dynamic_w(after) - seats.dynamic_w(device)
    _, kept_mib = terms.kept_free.get(device, (0, 0.0))
    room_mib = seats.floor.problem.pools[int(seats.floor.pool_of[device])].memory_mib
    return (
        watts <= seats.left_at(device) + DUST_W
        and (not kept_mib or kept_mib + sum(after.memory_mib) <= room_mib)
        and not seats.hurts(before, after, job)
        and affordable(seats, job, (before, after), terms.quotas)
    )


def _widen(seats: Seats, job: int, terms: JobTerms) -> None:
    """More share for a seated job."""
    problem, most_pct = seats.floor.problem, terms.most_pct[job]
    variants = {number for number, item in enumerate(problem.variants) if item.workload == job}
    for device, pattern in enumerate(seats.patterns):
        if pattern is None or variants.isdisjoint(pattern.variants):
            continue
        place = next(number for number, variant in enumerate(pattern.variants) if variant in variants)
        share = pattern.shares_pct[place]
        stands = any(item.variant in variants and item.share_pct == share for item in seats.floor.held.get(device, ()))
        steps = [
            int(step)
            for step in problem.shares_pct
            if share < step <= min(most_pct, share + spare_pct(seats, device, terms))
        ]
        saved_s = terms.left_s.get(job, 0.0) * (100 / share - 100 / steps[-1]) if steps else 0.0
        if not steps or (stands and saved_s < RESTARTS_WORTH * problem.variants[pattern.variants[place]].launch_s):
            continue
        shares = (*pattern.shares_pct[:place], steps[-1], *pattern.shares_pct[place + 1 :])
        after = judge(problem, pattern.kind, pattern.variants, shares)
        if after is not None and harmless(seats, device, (job, after), terms):
            seats.put(device, after)
