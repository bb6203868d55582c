"""Where a device must be taken, it is taken from who can spare it."""

from __future__ import annotations

from dataclasses import replace

from solvers.planners.joint.seat.seats import Floor, Seats
from solvers.planners.joint.seat.standing import breaks_usd, take_spare_devices
from solvers.problems.patterns import Pattern
from tests.unit.solvers.planners.joint.seat.floors import floor, held, pattern, problem, workload


def crowded(rate_rps: float = 90.0) -> Floor:
    """All devices are taken: one by a service that needs it, two by one that needs `rate_rps`."""
    works = (workload(0, 90.0), workload(1, rate_rps), workload(2, 90.0))
    made = problem(3, (3,), workloads=works)
    stands = {0: [held(0, 100)], 1: [held(1, 100)], 2: [held(1, 100)]}
    return floor(made, stands)


def seated(of: Floor, **where: Pattern) -> Seats:
    seats = Seats.empty(of)
    for name, item in where.items():
        seats.put(int(name.removeprefix("at")), item)
    return seats


def test_who_has_plenty_gives() -> None:
    of = crowded(rate_rps=90.0)
    new, stays = pattern(of.problem, (2, 100)), pattern(of.problem, (1, 100))
    seats = seated(of, at0=new, at2=stays)
    assert breaks_usd(seats, 60.0) > 0.0
    take_spare_devices(seats)
    assert seats.patterns == [None, new, stays]
    assert breaks_usd(seats, 60.0) == 0.0


def test_nobody_is_taken_from_who_misses_it_as_much() -> None:
    of = crowded(rate_rps=190.0)
    new, stays = pattern(of.problem, (2, 100)), pattern(of.problem, (1, 100))
    works = of.problem.workloads
    dearer = (works[0], replace(works[1], unserved_usd=1000.0), works[2])
    dear = replace(of, problem=replace(of.problem, workloads=dearer))
    seats = seated(dear, at0=new, at2=stays)
    take_spare_devices(seats)
    assert seats.patterns == [new, None, stays]


def test_what_is_planned_stays_planned() -> None:
    of = crowded(rate_rps=90.0)
    new, stays = pattern(of.problem, (2, 100)), pattern(of.problem, (1, 100))
    seats = seated(of, at0=new, at1=stays, at2=stays)
    take_spare_devices(seats)
    assert seats.patterns == [new, stays, stays]


def test_a_power_domain_must_bear_it() -> None:
    of = crowded(rate_rps=90.0)
    weak = floor(of.problem, of.held, nodes=(1, 200.0))
    weak.room_w[1] = 50.0
    new = pattern(of.problem, (2, 100))
    seats = seated(weak, at0=new, at2=pattern(of.problem, (1, 100)))
    take_spare_devices(seats)
    assert seats.patterns[0] == new


def test_what_keeps_a_part_of_what_stands_is_left_alone() -> None:
    works = (workload(0, 90.0), workload(1, 50.0))
    made = problem(2, (2,), workloads=works)
    of = floor(made, {0: [held(0, 100)], 1: [held(1, 100)]})
    mixed = pattern(made, (0, 80), (1, 20))
    seats = seated(of, at0=mixed)
    take_spare_devices(seats)
    assert seats.patterns == [mixed, None]
