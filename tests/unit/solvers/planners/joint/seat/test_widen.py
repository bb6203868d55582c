"""Where share costs nothing, whoever starts anew gets what is spare, and nobody else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.ids import ProjectName
from solvers.planners.joint.seat.seats import Held, Seats
from solvers.planners.joint.seat.standing import widen
from solvers.problems.joint import JointProblem
from tests.unit.solvers.planners.joint.seat.floors import floor, held, pattern, problem, workload


def billed(**changes: object) -> JointProblem:
    made = problem(2, by_memory=True, **changes)
    return replace(made, pools=tuple(replace(item, memory_mib_whole=10_500.0) for item in made.pools))


def seated(of: JointProblem, *members: tuple[int, int], stands: tuple[Held, ...] = (), room_w: float = 1e6) -> Seats:
    seats = Seats(floor(of, {0: stands} if stands else None, nodes=(4, room_w)))
    seats.put(0, pattern(of, *members))
    return seats


def shares(seats: Seats) -> tuple[int, ...]:
    found = seats.patterns[0]
    assert found is not None
    return found.shares_pct


def test_one_alone_gets_all_but_a_step() -> None:
    seats = seated(billed(), (0, 40))
    before = seats.patterns[0]
    widen(seats, ())
    after = seats.patterns[0]
    assert before is not None
    assert after is not None
    assert after.shares_pct == (99,)
    assert after.usd_per_h == before.usd_per_h > 0
    assert seats.served_rps[0] == pytest.approx(99.0)
    coarse = seated(billed(share_step_pct=20), (0, 40))
    widen(coarse, ())
    assert shares(coarse) == (80,)


def test_several_get_equal_parts() -> None:
    seats = seated(billed(share_step_pct=20), (0, 20), (1, 20))
    widen(seats, ())
    assert shares(seats) == (40, 40)


@pytest.mark.parametrize("basis", ["by_share", "device"])
def test_where_share_or_devices_are_paid_nobody_gets_more(basis: str) -> None:
    seats = seated(replace(billed(), by_memory=False, by_share=basis == "by_share"), (0, 40))
    widen(seats, ())
    assert shares(seats) == (40,)


def test_what_stands_jobs_and_whole_devices_are_left_as_they_are() -> None:
    for seats, jobs in (
        (seated(billed(), (0, 40), stands=(held(0, 40),)), ()),
        (seated(billed(), (0, 40)), (0,)),
        (seated(billed(), (0, 100)), ()),
    ):
        before = shares(seats)
        widen(seats, jobs)
        assert shares(seats) == before


def test_power_quotas_and_budgets_hold() -> None:
    poor = billed(workloads=(workload(0, budget_usd_per_h=0.5), workload(1)))
    for seats in (
        seated(billed(), (0, 40), room_w=60.0),
        seated(billed(quotas=((ProjectName("demo"), 0.5),)), (0, 40)),
        seated(poor, (0, 40)),
    ):
        widen(seats, ())
        assert shares(seats) == (40,)
