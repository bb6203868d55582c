"""How far from the best what stands can be is told as the newest cycle saw it, not as the plan's own one did."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

import pytest
from sqlalchemy import text

from app.services.explaining.standing import PlanLine
from app.services.planning.planning import Leader, Planning
from app.services.planning.plans import Plans
from app.services.planning.reviewing import left_standing
from app.services.planning.snapshots import StoreObserver
from app.services.seen.meters import MeterReader
from app.services.seen.status import StatusReader
from solvers.cycle.record import CycleRecord, Decision, HoldReason
from solvers.domain.policy import CostBasis
from tests.integration.planner.test_planning import lead
from tests.integration.planner.world import CLUSTER, World
from tests.unit.app.services.whatif.small_fleet import POLICY, service

pytestmark = pytest.mark.integration
HASTE = 0.5
"""Of what it costs: all that is proven of a plan that was made in haste."""


def _told(world: World) -> PlanLine:
    """What stands, in status, metrics and explanation alike."""
    plan = StatusReader(world.database, CLUSTER).fleet(None).plan
    assert plan is not None
    counts = MeterReader(world.database, CLUSTER).look().counts
    assert (counts.plan_cost_usd_per_h, counts.plan_bound_usd_per_h) == (plan.cost_usd_per_h, plan.bound_usd_per_h)
    explained = Plans(world.database, CLUSTER, StoreObserver(world.database, CLUSTER)).explain(plan.id, None, None)
    assert explained.gap_told == plan.gap_told
    return plan


def _cycle(planning: Planning, leader: Leader) -> CycleRecord:
    (record,) = planning.run_lanes(leader)
    assert record.decision is not None
    return record


@pytest.fixture
def hasty(world: World, planning: Planning) -> Leader:
    """A fleet on which a plan stands of which little was proven when it was made."""
    world.build(service("labels", rate_rps=500.0))
    world.declare(replace(POLICY, planners=("joint", "greedy"), gain_usd_per_h_min=1_000.0))
    leader = lead(world)
    assert _cycle(planning, leader).generation == 1
    with world.database.transaction() as session:
        session.execute(text("UPDATE plans SET bound_usd_per_h = cost_usd_per_h * :haste"), {"haste": HASTE})
    line = _told(world)
    assert line.seen_at is None
    assert line.gap_told.startswith("at most 100.0 % above")
    return leader


def test_a_cycle_that_leaves_the_plan_says_how_good_it_is(world: World, planning: Planning, hasty: Leader) -> None:
    record = _cycle(planning, hasty)
    assert record.decision is not None
    assert HoldReason.NOTHING_TO_CHANGE in record.decision.reasons
    line = _told(world)
    assert record.plan is not None
    assert line.seen_at is not None
    assert line.bound_usd_per_h == record.plan.bound_usd_per_h
    assert line.bound_usd_per_h is not None
    assert line.cost_usd_per_h is not None
    assert line.bound_usd_per_h > 0.9 * line.cost_usd_per_h


def test_what_is_held_for_little_proves_something_of_what_stands(
    world: World, planning: Planning, hasty: Leader
) -> None:
    world.declare(replace(POLICY, planners=("greedy",), cost_basis=CostBasis.SHARE, gain_usd_per_h_min=1_000.0))
    world.declare(service("labels", rate_rps=5.0))
    record = _cycle(planning, hasty)
    assert record.decision is not None
    assert record.plan is not None
    assert HoldReason.SMALL_GAIN in record.decision.reasons
    line = _told(world)
    assert line.seen_at is not None
    assert line.bound_usd_per_h == record.plan.bound_usd_per_h
    # What stands costs more than what was found for less.
    assert line.cost_usd_per_h is not None
    assert line.cost_usd_per_h > record.plan.objective.cost_usd_per_h


def test_nothing_is_said_of_what_stands_where_another_would_serve_more(
    world: World, planning: Planning, hasty: Leader
) -> None:
    world.declare(service("labels", rate_rps=1e5))
    record = _cycle(planning, hasty)
    assert record.generation == 2
    held = Decision(promote=False, reasons=(HoldReason.COOLDOWN,))
    stands = left_standing(replace(record, decision=held, generation=None))
    assert stands is not None
    assert stands.unplaced
    assert stands.bound_usd_per_h is None


def test_the_next_plan_begins_with_what_was_proven_of_itself(world: World, planning: Planning, hasty: Leader) -> None:
    _cycle(planning, hasty)
    assert _told(world).seen_at is not None
    world.declare(service("labels", rate_rps=1e5))
    record = _cycle(planning, hasty)
    assert record.generation == 2
    line = _told(world)
    assert line.seen_at is None
    assert record.plan is not None
    assert isclose(line.bound_usd_per_h or 0.0, record.plan.bound_usd_per_h or 0.0)
