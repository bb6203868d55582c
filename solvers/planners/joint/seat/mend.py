"""What is still missing once patterns have devices: rates that power took, replicas, failure domains.

Owns a small local search: one replica more, or one share larger, on the device where it costs least, with room for it
under every rule, promise and cap. Layouts leave little to mend; what nothing here can serve stays short. It refuses to
take anything from anybody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.breaks import ended
from solvers.planners.joint.seat.budget import DUST_USD, spent_usd, usd_of
from solvers.planners.joint.seat.offers import offers
from solvers.planners.joint.seat.power import DUST_W
from solvers.planners.joint.seat.seats import DUST, Seats
from solvers.problems.patterns import Pattern, judge

LOOKED_AT = 24
"""Devices of each pool that are tried for an exchange."""
REPLICAS_ADDED_MAX = 64
"""To one workload: layouts are wrong by little."""


def mend(seats: Seats, deadline: Deadline, quotas: Mapping[str, float]) -> None:
    """Add for what is short, the weightiest first, until nothing helps or time is up."""
    problem = seats.floor.problem
    order = sorted(range(len(problem.workloads)), key=lambda number: (-problem.workloads[number].unserved_usd, number))
    for workload in order:
        for _ in range(REPLICAS_ADDED_MAX):
            if deadline.over or not (seats.short_rps(workload) or seats.missing(workload)):
                break
            if not add(seats, workload, quotas):
                break


def spread(seats: Seats, deadline: Deadline, quotas: Mapping[str, float]) -> None:
    """Bring workloads that ask for several failure domains into as many: patterns change places with equals elsewhere,
    else one replica is added.
    """
    for workload, item in enumerate(seats.floor.problem.workloads):
        if item.domains_min < 2:
            continue
        for _ in range(item.domains_min):
            homes = _homes(seats, workload)
            used = {_domain(seats, device) for device in homes}
            if deadline.over or not homes or len(used) >= item.domains_min:
                break
            if not _move_one(seats, homes, used, quotas) and not add(seats, workload, quotas, shunned=used):
                break


def _homes(seats: Seats, workload: int) -> list[int]:
    variants = {number for number, item in enumerate(seats.floor.problem.variants) if item.workload == workload}
    return [
        device
        for device, pattern in enumerate(seats.patterns)
        if pattern is not None and not variants.isdisjoint(pattern.variants)
    ]


def _domain(seats: Seats, device: int) -> int:
    return seats.floor.problem.pools[int(seats.floor.pool_of[device])].failure_domain


def _move_one(seats: Seats, homes: list[int], used: set[int], quotas: Mapping[str, float]) -> bool:
    """Exchange one of several replicas in a domain against what stands on a device elsewhere, or nothing."""
    counts: dict[int, int] = {}
    for device in homes:
        counts[_domain(seats, device)] = counts.get(_domain(seats, device), 0) + 1
    picky = {number for number, item in enumerate(seats.floor.problem.workloads) if item.domains_min > 1}
    for device in homes:
        if counts[_domain(seats, device)] < 2:
            continue
        for other in _elsewhere(seats, device, used):
            there = seats.patterns[other]
            if there is not None and picky & _workloads(seats, there):
                continue
            here = seats.patterns[device]
            new_there, new_here = _at(seats, here, other), _at(seats, there, device)
            if new_there is None or (there is not None and new_here is None):
                continue
            seats.put(device, new_here)
            seats.put(other, new_there)
            bears = min(seats.left_at(device), seats.left_at(other)) >= -DUST_W
            if bears and _still_affordable(seats, (device, other), quotas):
                return True
            seats.put(other, there)
            seats.put(device, here)
    return False


def _still_affordable(seats: Seats, devices: tuple[int, int], quotas: Mapping[str, float]) -> bool:
    """Whether those who stand on two devices, which were exchanged, are within their bounds there."""
    problem = seats.floor.problem
    one, other = (problem.pools[int(seats.floor.pool_of[device])] for device in devices)
    if (one.usd_per_h, one.gpu_part) == (other.usd_per_h, other.gpu_part):
        return True
    there = [pattern for device in devices if (pattern := seats.patterns[device]) is not None]
    moved = {workload for pattern in there for workload in _workloads(seats, pattern)}
    spent = spent_usd(seats)
    if any(spent[number] > problem.workloads[number].budget_usd_per_h + DUST_USD for number in moved):
        return False
    projects = {problem.workloads[number].project for number in moved}
    return all(_gpus_of(seats, name) <= quotas[name] + DUST for name in projects if name in quotas)


def _workloads(seats: Seats, pattern: Pattern) -> set[int]:
    return {seats.floor.problem.variants[variant].workload for variant in pattern.variants}


def _elsewhere(seats: Seats, device: int, used: set[int]) -> Iterator[int]:
    """Devices in domains not used yet, of the same type: empty ones first, a few of each pool."""
    problem, floor = seats.floor.problem, seats.floor
    mine = problem.pools[int(floor.pool_of[device])]
    for wanted_empty in (True, False):
        for number, pool in enumerate(problem.pools):
            if pool.failure_domain in used or pool.gpu_type != mine.gpu_type:
                continue
            found = (item for item in floor.devices(number) if (seats.patterns[item] is None) is wanted_empty)
            yield from (item for item, _ in zip(found, range(LOOKED_AT), strict=False))


def _at(seats: Seats, pattern: Pattern | None, device: int) -> Pattern | None:
    """The same members on another device, at the clock they have."""
    problem = seats.floor.problem
    if pattern is None:
        return None
    kinds = problem.like(int(seats.floor.pool_of[device]), int(problem.kind_clock_mhz[pattern.kind]))
    judged = (judge(problem, kind, pattern.variants, pattern.shares_pct) for kind in kinds)
    return next((item for item in judged if item is not None), None)


def add(seats: Seats, workload: int, quotas: Mapping[str, float], shunned: Collection[int] = ()) -> bool:
    """One replica more, or a larger one, where a dollar serves most; outside the shunned failure domains."""
    found = tuple(offers(seats, seats.floor.judge, workload, shunned))
    # Nobody ends before he is replaced where anything else serves too.
    for device, after in sorted(found, key=lambda item: _breaks(seats, *item)):
        before = seats.patterns[device]
        grown = len(after.variants) > (0 if before is None else len(before.variants))
        gains = seats.loss_usd(before, after) < -DUST
        if (
            (gains or (shunned and grown))
            and not seats.hurts(before, after, workload)
            and seats.floor.dynamic_w(after) - seats.dynamic_w(device) <= seats.left_at(device) + DUST_W
            and affordable(seats, workload, (before, after), quotas)
        ):
            seats.put(device, after)
            return True
    return False


def _breaks(seats: Seats, device: int, after: Pattern) -> bool:
    """Whether a change would interrupt what stands on a device and would go on without it."""
    return len(ended(seats, device, after)) > len(ended(seats, device, seats.patterns[device]))


def affordable(
    seats: Seats, workload: int, change: tuple[Pattern | None, Pattern], quotas: Mapping[str, float]
) -> bool:
    """Whether owner's bounds and project's quota bear it."""
    problem = seats.floor.problem
    work = problem.workloads[workload]
    mine = {number for number, item in enumerate(problem.variants) if item.workload == workload}
    replicas, usd, gpus = float(seats.replicas[workload]), 0.0, 0.0
    for pattern, sign in zip(change, (-1, 1), strict=True):
        if pattern is None:
            continue
        pool = problem.pools[int(problem.kind_pool[pattern.kind])]
        share = sum(part for variant, part in zip(pattern.variants, pattern.shares_pct, strict=True) if variant in mine)
        replicas += sign * sum(variant in mine for variant in pattern.variants)
        usd += sign * usd_of(seats, pattern, workload)
        gpus += sign * pool.gpu_part * share / 100
    if replicas > work.replicas_max:
        return False
    if np.isfinite(work.budget_usd_per_h) and spent_usd(seats)[workload] + usd > work.budget_usd_per_h + DUST_USD:
        return False
    quota = quotas.get(work.project)
    return quota is None or gpus <= 0 or _gpus_of(seats, work.project) + gpus <= quota + DUST


def within_quotas(seats: Seats, change: tuple[Pattern, Pattern], quotas: Mapping[str, float]) -> bool:
    """Whether the quotas of all projects on a device bear its change, or are no worse off for it."""
    problem = seats.floor.problem
    grown: dict[str, float] = {}
    for pattern, sign in zip(change, (-1, 1), strict=True):
        part = problem.pools[int(problem.kind_pool[pattern.kind])].gpu_part
        for variant, share in zip(pattern.variants, pattern.shares_pct, strict=True):
            name = problem.workloads[problem.variants[variant].workload].project
            grown[name] = grown.get(name, 0.0) + sign * part * share / 100
    return all(
        gpus <= 0 or name not in quotas or _gpus_of(seats, name) + gpus <= quotas[name] + DUST
        for name, gpus in grown.items()
    )


def _gpus_of(seats: Seats, project: str) -> float:
    problem = seats.floor.problem
    mine = {
        number for number, item in enumerate(problem.variants) if problem.workloads[item.workload].project == project
    }
    return sum(
        problem.pools[int(problem.kind_pool[pattern.kind])].gpu_part * share / 100
        for pattern in seats.patterns
        if pattern is not None
        for variant, share in zip(pattern.variants, pattern.shares_pct, strict=True)
        if variant in mine
    )
