"""Whose device is taken where one must be: of those who can spare it, if anybody can.

Owns one remedy where no device of the pool is idle: contents whose launch would interrupt a workload change to another
device of the pool on which something stands that ends anyway and is missed less. It refuses to change contents, and to
move what keeps anything that stands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solvers.planners.joint.seat.breaks import ended
from solvers.planners.joint.seat.floor import Held
from solvers.planners.joint.seat.power import DUST_W
from solvers.planners.joint.seat.seats import Seats
from solvers.problems.patterns import Pattern

DUST = 1e-9


@dataclass(slots=True)
class _Spares:
    """What every workload may lose at once before anybody misses it; below 0 what is missing already, rps."""

    seats: Seats
    rps: dict[int, float]

    @staticmethod
    def of(seats: Seats) -> _Spares:
        """As things are seated."""
        problem = seats.floor.problem
        rps: dict[int, float] = defaultdict(float)
        for held in seats.floor.held.values():
            for item in held:
                rps[problem.variants[item.variant].workload] += item.capacity_rps
        made = _Spares(seats, {work: max(0.0, of - problem.workloads[work].rate_least_rps) for work, of in rps.items()})
        for device in seats.floor.held:
            made.book(ended(seats, device, seats.patterns[device]), -1)
        return made

    def book(self, ends: Sequence[Held], sign: int) -> None:
        """These end at once, or no longer do."""
        for item in ends:
            self.rps[self.seats.floor.problem.variants[item.variant].workload] += sign * item.capacity_rps

    def missing_usd(self, *ends: Sequence[Held]) -> float:
        """What the workloads of these miss now, $/h as if never served."""
        problem, total = self.seats.floor.problem, 0.0
        for number in {problem.variants[item.variant].workload for each in ends for item in each}:
            work = problem.workloads[number]
            if work.rate_least_rps > 0:
                total += work.unserved_usd * max(0.0, -self.rps[number]) / work.rate_least_rps
        return total


def claim_from_those_who_can_spare(seats: Seats) -> None:
    """Where contents would interrupt, another device of the pool whose contents end anyway, if that is missed less."""
    spares = _Spares.of(seats)
    for device in sorted(seats.floor.held):
        pattern = seats.patterns[device]
        ends = ended(seats, device, pattern)
        if pattern is None or not ends or spares.missing_usd(ends) <= DUST:
            continue
        if {item.variant for item in seats.floor.held[device]} & set(pattern.variants):
            continue
        _change(seats, spares, device, pattern)


def _change(seats: Seats, spares: _Spares, device: int, pattern: Pattern) -> None:
    ends = ended(seats, device, pattern)
    best: tuple[float, int] | None = None
    for other in _others(seats, device, pattern):
        others = ended(seats, other, pattern)
        before_usd = spares.missing_usd(ends, others)
        spares.book(ends, 1)
        spares.book(others, -1)
        gain_usd = before_usd - spares.missing_usd(ends, others)
        spares.book(others, 1)
        spares.book(ends, -1)
        if gain_usd > DUST and (best is None or gain_usd > best[0]):
            best = gain_usd, other
    if best is not None:
        spares.book(ends, 1)
        spares.book(ended(seats, best[1], pattern), -1)
        seats.put(device, None)
        seats.put(best[1], pattern)


def _others(seats: Seats, device: int, pattern: Pattern) -> Iterator[int]:
    """Devices of the same pool where something else stands and nothing is planned; of like ones the first."""
    floor, seen = seats.floor, set()
    mine = floor.domain_of[device].tolist()
    for other in floor.devices(int(floor.pool_of[device])):
        held = floor.held.get(other)
        if held is None or seats.patterns[other] is not None:
            continue
        domains = floor.domain_of[other].tolist()
        key = (tuple(held), tuple(domains))
        if key in seen or not (domains == mine or floor.dynamic_w(pattern) <= seats.left_at(other) + DUST_W):
            continue
        seen.add(key)
        yield other
