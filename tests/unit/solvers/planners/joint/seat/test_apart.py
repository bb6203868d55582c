"""What no changing of places brings under every node's own cap is exchanged, before a device more makes up for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.apart import Apart
from solvers.planners.joint.seat.seating import seat
from solvers.planners.joint.seat.seats import Floor, Held, Seats, Terms
from solvers.planners.joint.seat.standing import lawful
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.patterns import Layout
from tests.unit.solvers.planners.joint.seat.floors import floor, held, pattern, problem, workload

TERMS = Terms(deadline=Deadline(3600.0), job_most_pct={})
NODES = (2, 100.0)
"""Two devices in each, which may draw so much above idle: two contents of 80 W and one of 40 are no three boards of
two nodes, though both nodes together bear them.
"""
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


def seated(of: JointProblem, stands: Mapping[int, Sequence[Held]] | None = None, terms: Terms = TERMS) -> Seats:
    return seat(floor(of, stands, nodes=NODES), drawn(of), terms)


def devices(seats: Seats) -> int:
    return sum(item is not None for item in seats.patterns)


def test_everybody_is_served_on_the_devices_that_there_are() -> None:
    seats = seated(asked())
    assert lawful(seats)
    assert seats.unserved() == 0.0
    assert devices(seats) == 3


def test_what_is_no_better_than_something_known_is_not_sought() -> None:
    seats = seated(asked(), terms=replace(TERMS, known_usd=3.0))
    assert lawful(seats)
    assert seats.unserved() == 0.0
    assert devices(seats) == 4


def test_nor_among_very_many_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solvers.planners.joint.seat.seating.POOLS_MAX", 1)
    assert devices(seated(asked())) == 4


def test_what_need_not_change_stays_where_it_is() -> None:
    of = asked()
    seats = Seats.empty(floor(of, {2: [held(4, 40)]}, nodes=(2, 120.0)))
    for device, item in zip((3, 0, 1), drawn(of).patterns, strict=True):
        seats.put(device, item)
    after = Apart(floor=seats.floor).exchanged(seats, None, TERMS.deadline, 1, (0, 1, 3))
    assert after.patterns == seats.patterns


def test_where_places_suffice_nothing_is_exchanged() -> None:
    of = asked()
    seats = seat(floor(of, nodes=(2, 120.0)), drawn(of), TERMS)
    assert sorted(item.variants for item in seats.patterns if item) == [(0, 1), (2, 3), (4,)]


def test_pools_end_at_power_domains_and_nothing_else_changes() -> None:
    whole: Floor = floor(asked(), nodes=NODES)
    apart = Apart(floor=whole)
    assert apart.pool_of.tolist() == [0, 0, 1, 1]
    assert [pool.devices for pool in apart.problem.pools] == [2, 2]
    assert apart.problem.kind_pool.tolist() == [0, 0, 1, 1]
    assert apart.problem.kind_clock_mhz.tolist() == [600, 1000] * 2
    assert [cap.devices for cap in apart.problem.caps] == [(2, 0), (0, 2)]
    # Idle power is part of a problem's cap, and none of a floor's room.
    assert [cap.limit_w for cap in apart.problem.caps] == [120.0, 120.0]
    assert np.array_equal(apart.problem.rate_rps, whole.problem.rate_rps)
    assert all(share <= WHOLE_PCT for share in apart.problem.shares_pct.tolist())
