"""What stands goes on as the process that it is, as long as nobody is served less than he is sized for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.evidence import ReasonCode
from solvers.domain.ids import DeviceId, ModelName, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment, Envelope
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint import write
from solvers.planners.joint.reading.formulation import Stands
from solvers.planners.joint.seat.seats import Seats
from solvers.planners.joint.write import Batches, Member
from solvers.problems.joint import JointProblem
from tests.unit.solvers.planners.joint.seat.floors import floor, pattern, problem, workload


def stands(share_pct: int = 40, memory_mib: int = 1400, batch: int = 4) -> Assignment:
    return Assignment(
        replica=ReplicaId("demo/w0#0"),
        kind=WorkloadKind.SERVICE,
        workload=WorkloadId("demo/w0"),
        model=ModelName("net-0"),
        device=DeviceId("GPU-0"),
        share_pct_sm=share_pct,
        memory_mib_limit=memory_mib,
        batch=batch,
        envelope=Envelope(batch_min=1, batch_max=batch, clock_mhz_sm_min=1000, clock_mhz_sm_max=1000),
        latency_ms_planned=None,
        capacity_rps=1.0,
        power_w_planned=1.0,
    )


def member(of: JointProblem, standing: Assignment | None) -> Member:
    seats = Seats(floor(of))
    seats.put(0, pattern(of, (0, 40)))
    before, batches = seats.served_rps.copy(), Batches(seats)
    (found,) = batches.members(0, [] if standing is None else [Stands(assignment=standing, variant=0)])
    assert batches.served_rps[0] == pytest.approx(found.read.rate_rps[found.column])
    assert (seats.served_rps == before).all()
    return found


def batch(found: Member) -> int:
    """Of the two that there are."""
    return (1, 4)[found.column]


def one(rate_rps: float, **changes: object) -> JointProblem:
    return problem(1, workloads=(workload(0, rate_rps, **changes),))


def test_what_starts_anew_has_the_best_batch_and_the_least_memory() -> None:
    found = member(one(20.0), None)
    assert (batch(found), found.envelope.batch_min, found.envelope.batch_max, found.limit_mib) == (4, 1, 4, 1400)
    assert found.standing is None


def test_a_batch_that_stands_and_serves_enough_stays() -> None:
    assert batch(member(one(20.0), stands(batch=1))) == 1
    assert batch(member(one(30.0), stands(batch=1))) == 4


def test_less_memory_is_kept_with_a_batch_that_fits_and_serves_enough() -> None:
    found = member(one(20.0), stands(memory_mib=1100))
    assert (batch(found), found.envelope.batch_max, found.limit_mib) == (1, 1, 1100)
    assert found.standing is not None
    anew = member(one(30.0), stands(memory_mib=1100))
    assert (anew.standing, batch(anew), anew.limit_mib) == (None, 4, 1400)


def test_more_memory_is_kept_as_long_as_all_limits_fit() -> None:
    assert member(one(20.0), stands(memory_mib=5000)).limit_mib == 5000
    made = one(20.0)
    small = replace(made, pools=(replace(made.pools[0], memory_mib=4000.0),))
    found = member(small, stands(memory_mib=5000))
    assert (found.standing, found.limit_mib) == (None, 1400)


def test_another_share_is_another_process() -> None:
    assert member(one(20.0), stands(share_pct=60)).standing is None


def test_the_envelope_ends_where_the_promise_does() -> None:
    found = member(one(20.0, limit_ms=60.0), None)
    assert (batch(found), found.envelope.batch_min, found.envelope.batch_max) == (1, 1, 1)


def test_a_power_cap_is_blamed_for_idle_devices_that_it_covers_alone() -> None:
    """With the most that it leaves to one of them."""
    of = problem(devices=(2,))
    for nodes, code, more in (
        ((1, 7.0), ReasonCode.POWER_CAP, {"power_w_left": 7.0}),
        (None, ReasonCode.ROOM_UNUSED, {}),
    ):
        seats = Seats(floor(of, nodes=nodes))
        (why,) = write._of_room(seats, 0)
        assert (why.code, {fact.name: fact.value for fact in why.facts}) == (code, {"devices_idle": 2.0, **more})


@pytest.mark.parametrize(("value_usd", "code"), [(0.01, ReasonCode.COSTLIER), (1000.0, ReasonCode.ROOM_UNUSED)])
def test_a_type_that_lies_in_several_domains_is_looked_at_whole(value_usd: float, code: ReasonCode) -> None:
    """In the first of them all is full, in the second a device is idle."""
    of = problem(2, devices=(1, 1))
    alike = replace(of.pools[1], gpu_type=of.pools[0].gpu_type)
    works = [replace(work, may_wait=True, unserved_usd=value_usd) for work in of.workloads]
    seats = Seats(floor(replace(of, pools=(of.pools[0], alike), workloads=tuple(works))))
    seats.put(0, pattern(of, (0, 100)))
    (why,) = write._of_room(seats, 1)
    assert why.code is code
    if code is ReasonCode.ROOM_UNUSED:
        assert {fact.name: fact.value for fact in why.facts} == {"devices_idle": 1.0}


def test_who_wants_several_domains_may_have_what_is_idle() -> None:
    of = problem(devices=(2,))
    seats = Seats(floor(replace(of, workloads=tuple(replace(item, domains_min=2) for item in of.workloads))))
    (why,) = write._of_room(seats, 0)
    assert why.code is ReasonCode.NO_SHARE_LEFT


@pytest.mark.parametrize(
    ("clients", "share_pct", "code"),
    [
        (1, 40, ReasonCode.CLIENTS_MAX),
        (2, 40, ReasonCode.NO_SHARE_LEFT),
        (1, 100, ReasonCode.NO_SHARE_LEFT),
    ],
)
def test_share_is_blamed_only_where_another_process_may_come(clients: int, share_pct: int, code: ReasonCode) -> None:
    of = problem(2, devices=(1,))
    of = replace(of, pools=(replace(of.pools[0], clients=clients),))
    seats = Seats(floor(of))
    seats.put(0, pattern(of, (0, share_pct)))
    (why,) = write._of_room(seats, 1)
    assert why.code is code


@pytest.mark.parametrize("watts", [None, 1000.0])
@pytest.mark.parametrize("value_usd", [0.01, 1000.0])
def test_a_job_that_is_worth_less_than_an_idle_device_costs_hears_of_money(
    value_usd: float, watts: float | None
) -> None:
    """No cap is blamed that it would fit under, and no lack of room."""
    of = problem(devices=(2,))
    work, *others = of.workloads
    waits = replace(of, workloads=(replace(work, may_wait=True, unserved_usd=value_usd), *others))
    seats = Seats(floor(waits, nodes=None if watts is None else (1, watts)))
    (why,) = write._of_room(seats, 0)
    numbers = {fact.name: float(fact.value) for fact in why.facts}
    if value_usd < 1:
        assert why.code is ReasonCode.COSTLIER
        assert numbers["usd_per_h"] > numbers["usd_per_h_worth"] > 0
    else:
        assert why.code is ReasonCode.ROOM_UNUSED
