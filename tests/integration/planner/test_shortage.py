"""What stands unchanged is told short of what is asked now, not of what was asked when it was planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.api.console.overview import at_risk
from app.records import plain
from app.services.planning.planning import Leader, Planning
from app.services.planning.plans import Plans
from app.services.planning.rollout import outdated
from app.services.planning.snapshots import StoreObserver
from app.services.seen.meters import MeterReader
from app.services.seen.status import StatusReader
from app.store import targets
from solvers.cycle.record import HoldReason
from solvers.domain.ids import GpuTypeName
from solvers.domain.policy import CostBasis
from solvers.domain.workload import ServiceMode, Slo
from tests.integration.planner.test_planning import lead
from tests.integration.planner.world import CLUSTER, World
from tests.unit.app.services.whatif.small_fleet import POLICY, gpu_type, service

pytestmark = pytest.mark.integration
TOO_MUCH_RPS = 1e5


def _told(world: World) -> dict[str, float]:
    """Who is short by how much, in status, metrics and explanation alike."""
    fleet = StatusReader(world.database, CLUSTER).fleet(None)
    shown = {line.id: line.rate_rps_short for line in fleet.short}
    metered = MeterReader(world.database, CLUSTER).look().unplaced
    assert {row.workload: row.rate_rps_short for row in metered} == shown
    assert fleet.plan is not None
    assert fleet.plan.unplaced_count == len(shown)
    explained = Plans(world.database, CLUSTER, StoreObserver(world.database, CLUSTER)).explain(
        fleet.plan.id, None, None
    )
    assert {gap.workload: gap.rate_rps_short for gap in explained.unplaced} == shown
    assert all(gap.why for gap in explained.unplaced)
    return shown


def _stands_rps(world: World) -> float:
    with world.database.reading() as session:
        return sum(item.capacity_rps for item in targets.current(session, CLUSTER).assignments)


def _held(planning: Planning, leader: Leader, reason: HoldReason) -> None:
    (record,) = planning.run_lanes(leader)
    assert record.decision is not None
    assert reason in record.decision.reasons


def test_who_asks_for_less_is_short_no_more_and_who_asks_for_more_is(world: World, planning: Planning) -> None:
    world.build(service("labels", rate_rps=TOO_MUCH_RPS))
    leader = lead(world)
    planning.run_lanes(leader)
    before = _told(world)
    assert before["vision/labels"] > 0.5 * TOO_MUCH_RPS
    stands_rps = _stands_rps(world)
    for asked_rps in (2 * TOO_MUCH_RPS, 3 * TOO_MUCH_RPS):
        world.declare(service("labels", rate_rps=asked_rps))
        _held(planning, leader, HoldReason.NOTHING_TO_CHANGE)
        assert _told(world) == {"vision/labels": pytest.approx(asked_rps - stands_rps, rel=1e-3)}
    # Whatever would save by changing back is held, and nobody is short.
    world.declare(replace(POLICY, planners=("greedy",), cost_basis=CostBasis.SHARE, gain_usd_per_h_min=1_000.0))
    world.declare(service("labels", rate_rps=5.0))
    _held(planning, leader, HoldReason.SMALL_GAIN)
    assert _told(world) == {}


def test_whoever_waits_for_people_is_not_forgotten_for_what_moves_by_itself(world: World, planning: Planning) -> None:
    world.build(service("labels", rate_rps=TOO_MUCH_RPS), service("search", rate_rps=TOO_MUCH_RPS))
    leader = lead(world)
    planning.run_lanes(leader)
    before = _told(world)
    assert set(before) == {"vision/labels", "vision/search"}
    world.declare(replace(service("labels", rate_rps=TOO_MUCH_RPS), mode=ServiceMode.APPROVE))
    world.declare(service("search", rate_rps=2 * TOO_MUCH_RPS))
    planning.run_lanes(leader)
    after = _told(world)
    assert after["vision/labels"] == before["vision/labels"]
    assert after["vision/search"] == pytest.approx(before["vision/search"] + TOO_MUCH_RPS)


def test_whoever_waits_for_people_and_has_no_place_is_told_short(world: World, planning: Planning) -> None:
    """Nobody is asked to approve a plan that gives it nothing, so only this tells of it."""
    impossible = replace(service("labels", rate_rps=5.0), gpu_types_allowed=(GpuTypeName("spare"),))
    world.build(service("search", rate_rps=5.0))
    world.declare(gpu_type("spare"), replace(impossible, mode=ServiceMode.APPROVE))
    leader = lead(world)
    for _ in range(2):
        planning.run_lanes(leader)
        assert set(_told(world)) == {"vision/labels"}
    why = {item["id"]: item["why"] for item in at_risk(plain(StatusReader(world.database, CLUSTER).fleet(None)))}
    assert why["vision/labels"][0].endswith("; it is on approve")


def test_who_lacks_nothing_but_approval_is_told_apart(world: World, planning: Planning) -> None:
    """A plan that waits has an alert of its own."""
    world.build(service("search", rate_rps=5.0))
    impossible = replace(service("tags", rate_rps=5.0), gpu_types_allowed=(GpuTypeName("spare"),))
    world.declare(
        gpu_type("spare"), *(replace(item, mode=ServiceMode.APPROVE) for item in (service("labels"), impossible))
    )
    leader = lead(world)
    for _ in range(2):
        planning.run_lanes(leader)
    metered = MeterReader(world.database, CLUSTER).look().unplaced
    assert {row.workload: row.approval_places for row in metered} == {"vision/labels": True, "vision/tags": False}


def test_who_promises_what_nothing_keeps_is_served_and_told_so(world: World, planning: Planning) -> None:
    hard = replace(service("labels", rate_rps=20.0), slo=Slo(latency_ms=0.5))
    world.build(hard)
    leader = lead(world)
    (record,) = planning.run_lanes(leader)
    assert [item.asked for item in record.snapshot.eased] == [hard.slo]
    fleet = StatusReader(world.database, CLUSTER).fleet(None)
    assert fleet.plan is not None
    assert (fleet.plan.unplaced_count, fleet.services[0].slo) == (0, hard.slo)
    (line,) = fleet.short
    assert (line.id, line.rate_rps_short) == ("vision/labels", 0.0)
    assert line.told.startswith("served, but nothing known keeps its SLO (latency best ")
    assert line.told.endswith(" ms, latency limit 0.5 ms)")
    # What it does is judged by its owner's promise, so nobody finds it outdated.
    with world.database.reading() as session:
        (told,) = targets.workloads_told(session)
        assert (told.workload, told.latency_ms_limit, outdated(session)) == ("vision/labels", 0.5, ())
    assert _stands_rps(world) < 500.0
    # More is asked of it, so it gets more; and an easier promise is kept as any.
    world.declare(replace(hard, rate_rps_declared=500.0))
    planning.run_lanes(leader)
    assert _stands_rps(world) > 500.0
    world.declare(service("labels", rate_rps=20.0))
    planning.run_lanes(leader)
    assert not StatusReader(world.database, CLUSTER).fleet(None).short
