"""What no changing of places brings under every node's own cap is exchanged, before a device more makes up for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.seating import seat, seatings
from solvers.planners.joint.seat.seats import Seats, Terms
from solvers.planners.joint.seat.standing import lawful
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from tests.unit.solvers.planners.joint.seat.floors import floor, held, pattern, problem, workload

TERMS = Terms(deadline=Deadline(3600.0), job_most_pct={})
NODES = (2, 100.0)
"""Two devices in each, which may draw so much above idle: two contents of 80 W and one of 40 are no three boards of
two nodes, though both nodes together bear them.
"""
UNITS = 1000
RATES = (60.0, 20.0, 60.0, 20.0, 40.0)


def asked() -> JointProblem:
    """Two replicas on a device at most, and one clock."""
    of = problem(5, workloads=tuple(workload(number, rate) for number, rate in enumerate(RATES)))
    slow = np.where(np.arange(2)[:, None, None, None] == 0, np.inf, of.mean_ms)
    pools = tuple(replace(pool, clients=2) for pool in of.pools)
    return replace(of, pools=pools, mean_ms=slow, tail_ms=slow)


def drawn(of: JointProblem) -> Layout:
    contents = [((0, 60), (1, 20)), ((2, 60), (3, 20)), ((4, 40),)]
    return Layout(patterns=tuple(pattern(of, *members) for members in contents), counts=(1, 1, 1))


def seated(of: JointProblem, known_usd: float = math.inf) -> Seats:
    terms = replace(TERMS, spare=Deadline(3600.0, UNITS), known_usd=known_usd)
    return seat(floor(of, nodes=NODES), drawn(of), terms)


def devices(seats: Seats) -> int:
    return sum(item is not None for item in seats.patterns)


def test_everybody_is_served_on_the_devices_that_there_are() -> None:
    seats = seated(asked())
    assert lawful(seats)
    assert seats.unserved() == 0.0
    assert devices(seats) == 3


def test_what_is_no_better_than_something_known_is_not_sought() -> None:
    seats = seated(asked(), known_usd=3.0)
    assert lawful(seats)
    assert seats.unserved() == 0.0
    assert devices(seats) == 4


def test_nor_without_work_to_spare() -> None:
    of = asked()
    assert devices(seat(floor(of, nodes=NODES), drawn(of), TERMS)) == 4


def test_nor_among_very_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solvers.planners.joint.seat.seats.PARTS_MAX", 1)
    assert devices(seated(asked())) == 4


def test_what_need_not_change_stays_where_it_is() -> None:
    of, nodes = asked(), (2, 120.0)
    stands = {3: [held(0, 60), held(1, 20)], 0: [held(2, 60), held(3, 20)]}
    seats = seat(floor(of, stands, nodes=nodes), drawn(of), replace(TERMS, spare=Deadline(3600.0, UNITS)))
    assert seats.turnover(3, seats.patterns[3]).starts == ()
    assert seats.turnover(0, seats.patterns[0]).starts == ()


def test_where_nodes_bear_their_part_nothing_is_exchanged() -> None:
    of, spare = asked(), Deadline(3600.0, UNITS)
    (seats,) = seatings(floor(of, nodes=(2, 120.0)), (drawn(of),), TERMS, spare)
    assert sorted(item.variants for item in seats.patterns if item) == [(0, 1), (2, 3), (4,)]
    assert spare.left_part == 1.0


def test_what_promises_more_than_any_keeps_is_seated_by_other_chance_until_its_work_is_done() -> None:
    of = asked()
    tight = floor(of, nodes=(2, 99.0))  # nobody can
    spare = Deadline(3600.0, UNITS)
    found = seatings(tight, (drawn(of),), TERMS, spare)
    assert len(found) > 1
    assert spare.over
    assert all(lawful(seats) for seats in found)


def test_parts_end_at_power_domains_and_nothing_else_changes() -> None:
    whole = floor(asked(), nodes=NODES)
    parts = whole.parts
    assert parts.of.tolist() == [0, 0, 1, 1]
    assert [pool.devices for pool in parts.problem.pools] == [2, 2]
    assert parts.problem.kind_pool.tolist() == [0, 0, 1, 1]
    assert parts.problem.kind_clock_mhz.tolist() == [600, 1000] * 2
    assert [cap.devices for cap in parts.problem.caps] == [(2, 0), (0, 2)]
    # Idle power is part of a problem's cap, and none of a floor's room.
    assert [cap.limit_w for cap in parts.problem.caps] == [120.0, 120.0]
    assert parts.problem.workloads == whole.problem.workloads
    assert [pool.devices for pool in parts.of_some(np.array([True, False, True, True])).pools] == [1, 2]


def test_a_content_goes_into_its_part_and_back() -> None:
    parts, item = floor(asked(), nodes=NODES).parts, drawn(asked()).patterns[0]
    inside = parts.inside(2, item)
    assert (item.kind, inside.kind) == (1, 3)
    assert parts.outside(inside) == (1, item)


def test_a_floor_without_devices_has_no_parts() -> None:
    empty = floor(problem(1, devices=()))
    assert not empty.parts_few
