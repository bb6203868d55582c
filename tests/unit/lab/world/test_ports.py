"""Pictures as production builds them: demand by window and busiest bin, silent nodes as they were, ages, promotion."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lab.world.ports import CountingReporter, InProcessRunner, WorldActuator, asked_until
from lab.world.run import Run
from lab.world.scenario import Rhythm, Saturating, WorldScenario
from lab.world.state import Priority
from lab.world.world import World
from solvers.cycle.record import CycleRecord
from solvers.cycle.record import Lane as CycleLane
from solvers.domain.codec import digest
from solvers.domain.evidence import Reporter
from solvers.domain.ids import CycleId, Generation, NodeId, ServiceId
from solvers.domain.plan import Plan, Proposal
from solvers.domain.policy import Objective
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import DemandOrigin
from solvers.errors import EngineError, SupersededError
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.chain import KeepTarget
from tests.simulation.small_world import contender, planners, scenario

SERVICE = ServiceId("demo/resnet50-trt")


def begun(made: WorldScenario) -> Run:
    return World(made).begin(contender(), 1, planners)


def seen(run: Run) -> Snapshot:
    run.observer.report()
    return run.observer.observe()


def at(run: Run, now_s: float, *asked: tuple[float, float]) -> Run:
    """The same at a later moment, with so much asked of a service until moments."""
    run.state.kernel.now_s = now_s
    run.state.lanes[SERVICE].asked_until = [(0.0, 0.0), *asked]
    return run


def test_before_anything_was_asked_the_declared_rate_counts() -> None:
    demand = seen(begun(scenario())).demands_by_service()[SERVICE]
    assert (demand.rate_rps_mean, demand.rate_rps_upper, demand.origin) == (300.0, 300.0, DemandOrigin.DECLARED)


def test_demand_is_the_mean_of_a_window_and_the_busiest_bin_of_a_longer_one() -> None:
    made = scenario()
    made = replace(made, policy=replace(made.policy, demand_lookback_s=180.0))
    run = at(begun(made), 200.0, (30.0, 300.0), (40.0, 1300.0), (140.0, 1400.0), (200.0, 2000.0))
    demand = seen(run).demands_by_service()[SERVICE]
    assert demand.origin is DemandOrigin.OBSERVED
    assert demand.rate_rps_mean == pytest.approx(10.0)
    assert demand.rate_rps_upper == pytest.approx(100.0)
    assert demand.window_s == 180.0
    later = at(begun(made), 260.0, (30.0, 300.0), (40.0, 1300.0), (140.0, 1400.0), (260.0, 2600.0))
    assert seen(later).demands_by_service()[SERVICE].rate_rps_upper == pytest.approx(10.0)


def test_a_burst_counts_the_same_at_every_look_until_it_is_forgotten() -> None:
    made = scenario()
    made = replace(made, policy=replace(made.policy, demand_lookback_s=180.0))
    for now_s in (40.0, 45.0, 50.0, 55.0, 150.0, 205.0):
        run = at(begun(made), now_s, (25.0, 250.0), (35.0, 1250.0), (now_s, 1250.0 + 10.0 * (now_s - 35.0)))
        assert seen(run).demands_by_service()[SERVICE].rate_rps_upper == pytest.approx(100.0), now_s
    gone = at(begun(made), 215.0, (25.0, 250.0), (35.0, 1250.0), (215.0, 3050.0))
    assert seen(gone).demands_by_service()[SERVICE].rate_rps_upper < 60.0


def test_a_jump_is_seen_at_the_next_look_and_remembered_and_chance_is_none() -> None:
    made = scenario()
    made = replace(made, policy=replace(made.policy, demand_lookback_s=180.0))
    # A thousand requests in five seconds, and so much less as chance may have added.
    sure_rps = (1000.0 - 3.0 * math.sqrt(1000.0)) / 5.0
    for now_s in (30.0, 35.0, 100.0, 200.0):
        run = at(begun(made), now_s, (25.0, 250.0), (30.0, 1250.0), (now_s, 1250.0 + 10.0 * (now_s - 30.0)))
        assert seen(run).demands_by_service()[SERVICE].rate_rps_upper == pytest.approx(sure_rps), now_s
    # Twelve of them where ten were to come.
    run = at(begun(made), 30.0, (25.0, 50.0), (30.0, 62.0))
    assert seen(run).demands_by_service()[SERVICE].rate_rps_upper == pytest.approx(2.2)


def test_a_short_history_is_not_thinned_by_what_was_before_it() -> None:
    demand = seen(at(begun(scenario()), 5.0, (5.0, 200.0))).demands_by_service()[SERVICE]
    assert (demand.rate_rps_mean, demand.rate_rps_upper) == pytest.approx((40.0, 40.0))


def test_a_queue_that_is_always_full_has_its_declared_rate() -> None:
    made = scenario()
    full = replace(made, traffic=(replace(made.traffic[0], load=Saturating()),))
    demand = seen(at(begun(full), 100.0, (100.0, 1e6))).demands_by_service()[SERVICE]
    assert (demand.rate_rps_mean, demand.origin) == (300.0, DemandOrigin.DECLARED)


def test_amounts_are_spread_evenly_within_stretches() -> None:
    lane = at(begun(scenario()), 20.0, (10.0, 100.0), (20.0, 400.0)).state.lanes[SERVICE]
    assert [asked_until(lane, moment) for moment in (0.0, 5.0, 10.0, 15.0, 20.0, 30.0)] == [0, 50, 100, 250, 400, 400]


def test_a_silent_node_is_seen_as_it_was_and_then_not_at_all() -> None:
    run = begun(scenario())
    run.state.kernel.happen()
    host = run.state.hosts[NodeId("n1")]
    run.observer.freeze(host)
    host.silent = 1
    run.state.kernel.now_s = 20.0
    soon = seen(run)
    ages = {status.node: status.age_s for status in soon.node_statuses}
    assert ages == {"n1": 20.0, "n2": 0.0}
    assert {reading.age_s for reading in soon.device_telemetry} == {20.0, 0.0}
    run.state.kernel.now_s = 31.0
    late = seen(run)
    assert {reading.device[:6] for reading in late.device_telemetry} == {"GPU-n2"}
    assert {replica.device[:6] for replica in late.replicas} <= {"GPU-n2"}


def test_everything_is_as_old_as_the_rhythm_says() -> None:
    run = begun(scenario(rhythm=Rhythm(report_delay_s=7.0)))
    run.observer.report()
    run.state.kernel.now_s = 7.0
    found = run.observer.observe()
    assert found.taken_at_s == 7.0
    assert {status.age_s for status in found.node_statuses} == {7.0}
    assert {reading.age_s for reading in found.device_telemetry} == {7.0}


def test_equal_worlds_have_equal_digests() -> None:
    first, second = (seen(begun(scenario())) for _ in range(2))
    assert digest(first) == digest(second)
    mixed = scenario()
    mixed = replace(mixed, fleet=replace(mixed.fleet, devices=mixed.fleet.devices[::-1]))
    assert digest(seen(begun(mixed))) == digest(first)


def test_promotion_compares_the_generation_and_raises_it() -> None:
    run = begun(scenario())
    snapshot, told = seen(run), list[Generation]()
    plan = Plan(
        snapshot=digest(snapshot),
        parent=Generation(0),
        planner="test",
        planner_version="1",
        seed=1,
        assignments=(),
        settings=(),
        unplaced=(),
        objective=Objective(),
    )
    record = CycleRecord(
        id=CycleId("c"),
        lane=CycleLane.ACT,
        started_at_s=0.0,
        seed=1,
        budget=Budget(),
        movable=(),
        software_version="test",
        snapshot=snapshot,
        snapshot_digest=digest(snapshot),
    )
    actuator = WorldActuator(run.state, lambda wish, _: told.append(wish.target.generation))
    with pytest.raises(SupersededError):
        actuator.promote(record, replace(plan, parent=Generation(3)))
    assert actuator.promote(record, plan) == 1
    assert told == [1]


class Failing(KeepTarget):
    """Breaks."""

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        raise ZeroDivisionError("division by zero")


def test_a_planner_that_breaks_fails_alone() -> None:
    runner = InProcessRunner(lambda name, settings: Failing(), "failing", (), CountingReporter())
    request = PlanRequest(snapshot=seen(begun(scenario())), movable=(), budget=Budget(), seed=1)
    with pytest.raises(EngineError, match="division by zero"):
        runner.think("failing", request, None)


def test_events_are_planned_for_the_whole_span() -> None:
    run = begun(scenario(span_s=50.0))
    assert run.cycles_due == 4
    assert run.state.kernel.next_s() == 0.0
    assert Priority.REPORT < Priority.CYCLE
