"""Where one replica more could stand: many devices and shares judged at once, the best first.

Owns the candidates for a workload that is short: devices that carry it already, those with most share left, and a few
empty ones; one replica more, or a larger one. They come by what a dollar serves. It refuses to seat anybody, and to
promise that the rules beyond one device bear a candidate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from solvers.planners.joint.seat.seats import DUST, Seats
from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.problems.joint import Whole
from solvers.problems.patterns import Pattern

USED_LOOKED_AT = 48
EMPTY_LOOKED_AT = 4
"""Devices of each pool that are tried for one replica."""
SHARES_LOOKED_AT = 8
"""Of all that a device has left, both ends among them."""


@dataclass(frozen=True, slots=True)
class _Drafts:
    """Candidates in the making: device and contents."""

    device: list[int]
    kind: list[int]
    variants: list[list[int]]
    shares_pct: list[list[int]]

    def add(self, device: int, kind: int, variants: list[int], shares_pct: list[int]) -> None:
        """One more."""
        self.device.append(device)
        self.kind.append(kind)
        self.variants.append(variants)
        self.shares_pct.append(shares_pct)

    def rows(self, width: int) -> Patterns:
        """As rows to judge."""
        variants = np.full((len(self.kind), width), -1, dtype=np.int64)
        shares = np.zeros((len(self.kind), width), dtype=np.int64)
        for row, (members, parts) in enumerate(zip(self.variants, self.shares_pct, strict=True)):
            variants[row, : len(members)], shares[row, : len(parts)] = members, parts
        return Patterns(kind=np.array(self.kind, dtype=np.int64), variants=variants, shares_pct=shares)


def offers(seats: Seats, judge: Judge, workload: int, shunned: Collection[int] = ()) -> Iterator[tuple[int, Pattern]]:
    """Devices with what they would then carry, outside the shunned failure domains; cheapest per rate served first."""
    drafts = _drafts(seats, judge.width, workload, shunned)
    if not drafts.device:
        return
    judged = judge.judge(drafts.rows(judge.width))
    mine = np.isin(judged.rows.variants, _variants(seats, workload))
    device = np.array(drafts.device, dtype=np.int64)
    before = [seats.patterns[number] for number in drafts.device]
    usd = judged.usd_per_h - np.array([0.0 if item is None else item.usd_per_h for item in before])
    held = np.array([_served(seats, item, workload) for item in before])
    short = max(seats.short_rps(workload), DUST)
    gain = np.minimum((judged.capacity_rps * mine).sum(axis=1) - held, short)
    score = (np.maximum(usd, 0.0) + DUST) / np.maximum(gain, DUST * short)
    order = np.lexsort((device, usd, score))
    for row in order[judged.lawful[order]]:
        (pattern,) = judge.patterns(judged.take(np.array([row], dtype=np.int64)))
        yield int(device[row]), pattern


def _variants(seats: Seats, workload: int) -> Whole:
    return np.flatnonzero(seats.floor.problem.variant_workload == workload)


def _served(seats: Seats, pattern: Pattern | None, workload: int) -> float:
    if pattern is None:
        return 0.0
    of = seats.floor.problem.variant_workload
    return sum(
        capacity
        for variant, capacity in zip(pattern.variants, pattern.capacity_rps, strict=True)
        if of[variant] == workload
    )


def _drafts(seats: Seats, width: int, workload: int, shunned: Collection[int]) -> _Drafts:
    problem, drafts = seats.floor.problem, _Drafts([], [], [], [])
    for pool, item in enumerate(problem.pools):
        allowed = [int(variant) for variant in _variants(seats, workload) if problem.allowed[pool, variant]]
        if not allowed or item.failure_domain in shunned:
            continue
        for device in _few(seats, seats.floor.devices(pool), allowed):
            _draft(seats, device, (allowed, min(width, item.clients)), drafts)
    return drafts


def _draft(seats: Seats, device: int, what: tuple[list[int], int], drafts: _Drafts) -> None:
    """One replica more on this device where there is a place, or one that is there with more share."""
    allowed, places = what
    problem, before = seats.floor.problem, seats.patterns[device]
    members = [] if before is None else list(before.variants)
    parts = [] if before is None else list(before.shares_pct)
    pool = int(seats.floor.pool_of[device])
    kinds = (
        np.flatnonzero(problem.kind_pool == pool).tolist()
        if before is None
        else problem.like(pool, int(problem.kind_clock_mhz[before.kind]))
    )
    steps = _some(problem.shares_pct[problem.shares_pct <= 100 - sum(parts)])
    for share, kind, variant in product(steps, kinds, allowed if len(members) < places else ()):
        drafts.add(device, kind, [*members, variant], [*parts, share])
    grown = [place for place, variant in enumerate(members) if variant in allowed]
    for share, kind, place in product(steps, kinds, grown):
        drafts.add(device, kind, members, [*parts[:place], parts[place] + share, *parts[place + 1 :]])


def _some(steps: Whole) -> list[int]:
    if not len(steps):
        return []
    places = np.unique(np.linspace(0, len(steps) - 1, SHARES_LOOKED_AT).round().astype(np.int64))
    return [int(steps[place]) for place in places]


def _few(seats: Seats, devices: Iterable[int], variants: list[int]) -> list[int]:
    used: list[tuple[int, int]] = []
    empty: list[tuple[float, int]] = []
    for device in devices:
        pattern = seats.patterns[device]
        if pattern is None:
            empty.append((-seats.left_at(device), device))
            continue
        carries = any(variant in variants for variant in pattern.variants)
        used.append((-100 if carries else sum(pattern.shares_pct), device))
    return [
        *(device for _, device in sorted(used)[:USED_LOOKED_AT]),
        *(device for _, device in sorted(empty)[:EMPTY_LOOKED_AT]),
    ]
