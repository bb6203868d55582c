"""Where training counts before cost, jobs go where they run fastest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.device import OFFERED
from solvers.domain.ids import DeviceId
from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.seating import seat
from solvers.planners.joint.seat.seats import Floor, Seats, Terms
from solvers.problems.joint import JointProblem, Workload
from solvers.problems.patterns import Layout
from tests.unit.solvers.planners.joint.seat.floors import floor, held, pattern, problem, workload

LONG_S, SHORT_S = 5000.0, 20.0


def contents(seats: Seats, device: int) -> tuple[tuple[int, int], ...]:
    item = seats.patterns[device]
    return () if item is None else tuple(zip(item.variants, item.shares_pct, strict=True))


def job(number: int) -> Workload:
    return workload(number, 100.0, rate_least_rps=0.0, unserved_usd=0.001, per_device_max=1)


def made(service_rps: float, jobs: int, devices: tuple[int, ...]) -> JointProblem:
    """A service and jobs."""
    asked = (workload(0, service_rps), *(job(number + 1) for number in range(jobs)))
    return problem(jobs + 1, devices=devices, workloads=asked)


def seated(on: Floor, left_s: float = LONG_S) -> Seats:
    """The service has a device of the first pool; all jobs may have anything."""
    service_pct = int(on.problem.workloads[0].rate_rps)
    jobs = range(1, len(on.problem.workloads))
    terms = Terms(
        deadline=Deadline(60.0),
        job_most_pct=dict.fromkeys(jobs, 100),
        job_left_s={number: left_s + number for number in jobs},
        jobs_first=True,
    )
    return seat(on, Layout(patterns=(pattern(on.problem, (0, service_pct)),), counts=(1,)), terms)


def all_contents(seats: Seats) -> list[tuple[tuple[int, int], ...]]:
    return sorted(contents(seats, device) for device in range(len(seats.patterns)))


def test_an_idle_device_is_opened_rather_than_what_a_service_leaves() -> None:
    assert all_contents(seated(floor(made(40.0, 1, (3,))))) == [(), ((0, 40),), ((1, 100),)]


def test_nobody_opens_a_device_that_would_have_to_be_rented() -> None:
    on = floor(made(40.0, 1, (2,)))
    offered = tuple(DeviceId(f"{OFFERED}{name}") if at else name for at, name in enumerate(on.names))
    assert all_contents(seated(replace(on, names=offered))) == [(), ((0, 40), (1, 60))]


def test_what_a_service_leaves_comes_before_half_of_another_job_where_it_is_more() -> None:
    assert all_contents(seated(floor(made(20.0, 2, (2,))))) == [((0, 20), (2, 80)), ((1, 100),)]


def test_half_of_another_job_comes_before_nothing() -> None:
    seats = seated(floor(made(100.0, 2, (2,))))
    assert all_contents(seats) == [((0, 100),), ((1, 40), (2, 60))]
    assert not seats.short_rps(0)


@pytest.mark.parametrize(("left_s", "moves"), [(LONG_S, True), (SHORT_S, False)])
def test_who_stands_on_a_slow_device_moves_on_if_that_is_worth_a_restart(left_s: float, moves: bool) -> None:
    slow_first = replace(made(100.0, 1, (2, 1)), kind_table=np.array([0, 0, 1, 1], dtype=np.int64))
    slow_first = replace(slow_first, workloads=(workload(0, 60.0), job(1)))
    seats = seated(floor(slow_first, {1: [held(1, 100)]}), left_s)
    assert contents(seats, 2 if moves else 1) == ((1, 100),)


@pytest.mark.parametrize(("left_s", "parted"), [(LONG_S, True), (SHORT_S, False)])
def test_a_couple_parts_when_a_device_is_idle_if_that_is_worth_two_restarts(left_s: float, parted: bool) -> None:
    on = floor(made(100.0, 2, (3,)), {1: [held(1, 40), held(2, 60)]})
    together = [((0, 100),), ((1, 40), (2, 60))]
    assert all_contents(seated(on, left_s)) == ([((0, 100),), ((1, 100),), ((2, 100),)] if parted else [(), *together])


def test_who_has_least_left_comes_first() -> None:
    on = floor(made(60.0, 2, (2,)))
    terms = Terms(
        deadline=Deadline(60.0),
        job_most_pct={1: 100, 2: 100},
        job_left_s={1: LONG_S, 2: SHORT_S},
        jobs_first=True,
    )
    seats = seat(on, Layout(patterns=(pattern(on.problem, (0, 60)),), counts=(1,)), terms)
    assert all_contents(seats) == [((0, 60), (1, 40)), ((2, 100),)]


def test_a_device_that_falls_free_parts_one_couple_and_no_other_restarts() -> None:
    couples = {device: [held(device, 60), held(9 - device, 40)] for device in range(1, 5)}
    on = floor(made(100.0, 8, (6,)), couples)
    seats = seated(on)
    stood = [tuple((item.variant, item.share_pct) for item in items) for items in couples.values()]
    assert len(set(stood) & set(all_contents(seats))) == 3
    assert sorted(len(item) for item in all_contents(seats)) == [1, 1, 1, 2, 2, 2]


def test_where_a_layout_has_jobs_they_are_seated_anew() -> None:
    """One beside a service, one alone: the service stays, and both have a device of their own."""
    on = floor(made(60.0, 2, (3,)))
    terms = Terms(
        deadline=Deadline(60.0), job_most_pct={1: 100, 2: 100}, job_left_s={1: LONG_S, 2: LONG_S}, jobs_first=True
    )
    beside, alone = pattern(on.problem, (0, 60), (1, 40)), pattern(on.problem, (2, 40))
    seats = seat(on, Layout(patterns=(beside, alone), counts=(1, 1)), terms)
    assert all_contents(seats) == [((0, 60),), ((1, 100),), ((2, 100),)]
