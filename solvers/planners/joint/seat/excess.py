"""What power domains and budgets do not bear: patterns change places, then replicas become smaller or go.

Each remedy takes the move that leaves least unserved for what it saves; what is lost by it is for `shortage` to make
up. Nothing starts here, and over a budget only replicas of the workload that spends too much change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.planners.joint.seat.floor import Floor
from solvers.planners.joint.seat.seats import (
    DUST_USD,
    DUST_W,
    Move,
    Seats,
    judged,
    members_of,
    usd_of,
    without,
)
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relief:
    """A move that saves some of what is too much."""

    move: Move
    saved: float
    useful: float
    """So much of it as is too much."""
    loss_usd: float

    @property
    def key(self) -> tuple[float, float, int]:
        """Least lost for what is saved, then most saved."""
        return self.loss_usd / self.useful, -self.useful, self.move.device


def _best(reliefs: Iterable[_Relief]) -> _Relief | None:
    return min(reliefs, key=lambda item: item.key, default=None)


def within_budgets(seats: Seats) -> None:
    """Take from every workload that spends more than its owner's budget."""
    works = seats.floor.problem.workloads
    bounded = [number for number, work in enumerate(works) if np.isfinite(work.budget_usd_per_h)]
    spent = seats.spent_usd() if bounded else {}
    for workload in bounded:
        budget = works[workload].budget_usd_per_h
        while spent[workload] > budget + DUST_USD:
            relief = _best(_cheaper(seats, workload, spent[workload] - budget))
            if relief is None:
                break
            seats.make(relief.move)
            spent[workload] -= relief.saved


def _cheaper(seats: Seats, workload: int, over_usd: float) -> Iterator[_Relief]:
    """A device with one replica of the workload smaller, or without it."""
    problem = seats.floor.problem
    for device, before in enumerate(seats.patterns):
        for after in () if before is None else _less(problem, before, workload):
            saved = usd_of(problem, before, workload) - usd_of(problem, after, workload)
            if saved > DUST_USD:
                move = Move(device=device, after=after)
                useful = min(saved, over_usd)
                yield _Relief(move=move, saved=saved, useful=useful, loss_usd=seats.loss_usd(move))


def _less(problem: JointProblem, before: Pattern, workload: int) -> Iterator[Pattern | None]:
    members = members_of(before)
    for place, (variant, share) in enumerate(members):
        if problem.variants[variant].workload != workload:
            continue
        rest = without(members, place)
        if not rest:
            yield None
        smaller = (int(step) for step in problem.shares_pct if step < share)
        for kept in (rest, *([*rest, (variant, step)] for step in smaller)):
            after = judged(problem, before.kind, kept)
            if after is not None:
                yield after


def within_power(seats: Seats) -> None:
    """Change places, clocks and at last contents until no domain is exceeded."""
    for domain in np.flatnonzero(seats.left_w < -DUST_W).tolist():
        inside = np.flatnonzero((seats.floor.domain_of == domain).any(axis=1)).tolist()
        while seats.left_w[domain] < -DUST_W and _swap(seats, domain, inside):
            pass
        while seats.left_w[domain] < -DUST_W:
            relief = _best(item for device in inside for item in _lighter(seats, device))
            if relief is None:
                break
            seats.make(relief.move)


def _lighter(seats: Seats, device: int) -> Iterator[_Relief]:
    """A device at a lower clock, or with one replica less."""
    before = seats.patterns[device]
    if before is None:
        return
    for after in _slower_or_fewer(seats.floor, before):
        saved_w = seats.dynamic_w(device) - (seats.floor.dynamic_w(after) if after is not None else 0.0)
        if saved_w > DUST_W:
            move = Move(device=device, after=after)
            lost = seats.loss_usd(move) + 0.01 * (before.usd_per_h + sum(before.capacity_rps) * DUST_W)
            yield _Relief(move=move, saved=saved_w, useful=saved_w, loss_usd=max(lost, DUST_W))


def _slower_or_fewer(floor: Floor, before: Pattern) -> Iterator[Pattern | None]:
    problem, members = floor.problem, members_of(before)
    pool, clock = problem.kind_pool[before.kind], problem.kind_clock_mhz[before.kind]
    slower = np.flatnonzero((problem.kind_pool == pool) & (problem.kind_clock_mhz < clock)).tolist()
    yield from (item for kind in slower if (item := judged(problem, kind, members)) is not None)
    if len(members) == 1:
        yield None
    fewer = (judged(problem, before.kind, without(members, place)) for place in range(len(members)))
    yield from (item for item in fewer if item is not None)


def _swap(seats: Seats, domain: int, inside: list[int]) -> bool:
    """Change one device of the domain with a lighter one outside; just enough if that is possible, else the most."""
    floor, over_w = seats.floor, -float(seats.left_w[domain])
    best: tuple[tuple[float, ...], int, int] | None = None
    by_pool: dict[int, list[int]] = defaultdict(list)
    for device in inside:
        if seats.patterns[device] is not None:
            by_pool[int(floor.pool_of[device])].append(device)
    for pool, mine in sorted(by_pool.items()):
        others = np.array([item for item in floor.devices(pool) if domain not in floor.domain_of[item]], dtype=np.int64)
        if not len(others):
            continue
        draws = np.array([seats.dynamic_w(item) for item in others])
        for device in mine:
            relief = seats.dynamic_w(device) - draws
            spare = _spare_w(seats, device, others)
            able = np.flatnonzero((relief > DUST_W) & (relief <= spare + DUST_W))
            if not len(able):
                continue
            enough = able[relief[able] >= over_w]
            pick = enough[np.argmin(relief[enough])] if len(enough) else able[np.argmax(relief[able])]
            other = int(others[pick])
            moved = float(device in floor.held) + float(other in floor.held)
            key = (-min(over_w, float(relief[pick])), moved, float(relief[pick]), float(device))
            if best is None or key < best[0]:
                best = key, device, other
    if best is None:
        return False
    _, device, other = best
    here, there = seats.patterns[device], seats.patterns[other]
    seats.put(device, there)
    seats.put(other, here)
    return True


def _spare_w(seats: Seats, device: int, others: Whole) -> Floats:
    """What the others' domains leave, those aside that the device shares with them."""
    left = np.append(seats.left_w, np.inf)
    domains = seats.floor.domain_of
    shared = domains[others] == domains[device][None, :]
    return np.asarray(np.where(shared, np.inf, left[domains[others]]).min(axis=1))
