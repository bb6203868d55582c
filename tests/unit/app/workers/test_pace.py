"""When the next cycle is due."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.store.telemetry import Hearing
from app.workers.pace import (
    NOTHING_YET,
    RETRY_S,
    RETRY_S_MAX,
    RETURN_S,
    CycleCause,
    DatabaseSight,
    cause_of,
    deaf,
    incomplete,
    remember,
    remember_failure,
)
from solvers.cycle.record import CycleRecord, Decision, HoldReason, Lane
from solvers.domain.change import Target
from solvers.domain.codec import digest
from solvers.domain.ids import CycleId, Digest, Generation, NodeId, PolicyName, ServiceId, WorkloadId
from solvers.domain.plan import Plan, PlanPart, Proposal, ProposalStatus, Unplaced
from solvers.domain.policy import Objective, Policy, Pool
from solvers.domain.workload import WorkloadKind
from solvers.planners.base import Budget
from tests.builders import demand
from tests.unit.app.services.whatif.small_fleet import POLICY, assignment, service, snapshot

SIGHT = DatabaseSight(
    intent="services 1/7", live_nodes=(("a", "b"),), hearing=Hearing(nodes=2, unheard_s=1.0), works_ended=3
)
LABELS = ServiceId("vision/labels")


def record_of(
    decision: Decision | None, lane: Lane = Lane.ACT, policy: Policy = POLICY, promoted_at_s: float = 0.0
) -> CycleRecord:
    picture = replace(
        snapshot(),
        policy=policy,
        target=Target(promoted_at_s=promoted_at_s),
        demands=(demand(LABELS, 40.0),),
    )
    return CycleRecord(
        id=CycleId("c"),
        lane=lane,
        started_at_s=0.0,
        seed=1,
        budget=Budget(),
        movable=(),
        software_version="1",
        snapshot=picture,
        snapshot_digest=digest(picture),
        decision=decision,
    )


def held(*reasons: HoldReason) -> Decision:
    return Decision(promote=False, reasons=reasons)


@pytest.mark.parametrize(("unheard_s", "found"), [(0.0, False), (10.0, False), (10.1, True), (900.0, True)])
def test_we_are_deaf_once_all_nodes_have_missed_reports(unheard_s: float, found: bool) -> None:
    assert deaf(replace(SIGHT, hearing=Hearing(nodes=2, unheard_s=unheard_s)), 5.0) is found


@pytest.mark.parametrize(
    ("live", "deaf_at_s", "found"),
    [
        (("a",), None, False),  # one is lost while the other is heard
        (("a",), 100.0, True),
        (("a",), 100.0 - RETURN_S, False),  # it did not come back
        (("a", "b"), 100.0, False),
        ((), 100.0, False),  # nobody is heard: the gate's to hold
    ],
)
def test_who_is_not_heard_yet_after_we_were_deaf_is_waited_for(
    live: tuple[str, ...], deaf_at_s: float | None, found: bool
) -> None:
    for live_nodes in ((live,), (live, ("a", "b"))):
        assert incomplete(replace(SIGHT, live_nodes=live_nodes), deaf_at_s, 100.0) is found


def test_the_first_sight_is_news() -> None:
    assert cause_of(SIGHT, NOTHING_YET, 0.0) is CycleCause.INTENT


@pytest.mark.parametrize(
    ("sight", "cause"),
    [
        (SIGHT, None),
        (replace(SIGHT, intent="services 2/9"), CycleCause.INTENT),
        (replace(SIGHT, live_nodes=(("a",),)), CycleCause.FLEET),
        (replace(SIGHT, live_nodes=(("a", "b", "c"),)), CycleCause.FLEET),
        (replace(SIGHT, live_nodes=(("a",), ("a", "b"))), CycleCause.FLEET),
        (replace(SIGHT, works_ended=4), CycleCause.ENDED),
    ],
)
def test_changes_of_intent_and_fleet_and_ends_of_jobs_are_due_at_once(
    sight: DatabaseSight, cause: CycleCause | None
) -> None:
    memory = remember(SIGHT, [record_of(Decision(promote=True))], 100.0)
    assert cause_of(sight, memory, 1_000_000.0) is cause


@pytest.mark.parametrize(
    "reasons",
    [
        (HoldReason.STALE_DATA,),
        (HoldReason.NO_PLAN,),
        (HoldReason.SUPERSEDED,),
        (HoldReason.COOLDOWN, HoldReason.STALE_DATA),
    ],
)
def test_a_hold_that_passes_is_tried_again_soon(reasons: tuple[HoldReason, ...]) -> None:
    memory = remember(SIGHT, [record_of(held(*reasons))], 100.0)
    assert cause_of(SIGHT, memory, 100.0 + RETRY_S - 0.1) is None
    assert cause_of(SIGHT, memory, 100.0 + RETRY_S) is CycleCause.RETRY


def test_a_cooldown_is_waited_for_exactly() -> None:
    policy = replace(POLICY, cooldown_s=15.0)
    # Of the 15 s two were over by the database's clock when the cycle began, at 90 s of this process's.
    record = record_of(held(HoldReason.COOLDOWN), policy=policy, promoted_at_s=snapshot().taken_at_s - 2.0)
    memory = remember(SIGHT, [replace(record, started_at_s=90.0)], 100.0)
    assert cause_of(SIGHT, memory, 102.9) is None
    assert cause_of(SIGHT, memory, 103.2) is CycleCause.RETRY


EDGE = Policy(name=PolicyName("edge"), cooldown_s=15.0, pool=Pool(nodes=(NodeId("b"),)))


def in_parts(decision: Decision, *held: HoldReason) -> CycleRecord:
    """Of a cycle in which the policy `edge` was held for this, and `default`, whose cooldown is another, was not."""
    record = record_of(decision, policy=replace(POLICY, cooldown_s=500.0), promoted_at_s=snapshot().taken_at_s - 2.0)
    parts = (part_of(POLICY), replace(part_of(EDGE), held=tuple(reason.value for reason in held)))
    made = Proposal(status=ProposalStatus.FEASIBLE, planner="pools", plan=plan_of(*parts))
    return replace(record, started_at_s=100.0, snapshot=replace(record.snapshot, policies=(EDGE,)), proposal=made)


def test_each_policy_that_is_held_is_tried_again_after_its_own_time() -> None:
    both = held(HoldReason.NOTHING_TO_CHANGE, HoldReason.COOLDOWN)
    for decision in (held(HoldReason.COOLDOWN), both):
        assert remember(SIGHT, [in_parts(decision, HoldReason.COOLDOWN)], 100.0).retry_at_s == 113.1
    stale = held(HoldReason.STALE_DATA, HoldReason.SMALL_GAIN)
    assert remember(SIGHT, [in_parts(stale, HoldReason.STALE_DATA)], 100.0).retry_at_s == 100.0 + RETRY_S
    assert remember(SIGHT, [in_parts(stale, HoldReason.SMALL_GAIN)], 100.0).retry_at_s is None


def test_a_cooldown_begins_anew_with_the_plan_of_another_policy() -> None:
    record = replace(in_parts(Decision(promote=True), HoldReason.COOLDOWN), generation=Generation(2))
    assert remember(SIGHT, [record], 101.0).retry_at_s == 116.1


def test_a_lost_race_is_tried_again_whatever_parts_were_held_for() -> None:
    record = in_parts(held(HoldReason.SUPERSEDED), HoldReason.SMALL_GAIN)
    assert remember(SIGHT, [record], 100.0).retry_at_s == 100.0 + RETRY_S


@pytest.mark.parametrize(
    "reasons",
    [
        (HoldReason.NOTHING_TO_CHANGE,),
        (HoldReason.SMALL_GAIN,),
        (HoldReason.FATAL_FINDINGS,),
        (HoldReason.CHURN_BUDGET,),
        (HoldReason.COOLDOWN, HoldReason.SMALL_GAIN),
    ],
)
def test_a_lasting_hold_waits_for_news(reasons: tuple[HoldReason, ...]) -> None:
    memory = remember(SIGHT, [record_of(held(*reasons))], 100.0)
    assert cause_of(SIGHT, memory, 1_000_000.0) is None


def test_an_undecided_cycle_is_tried_again() -> None:
    memory = remember(SIGHT, [record_of(None)], 100.0)
    assert cause_of(SIGHT, memory, 200.0) is CycleCause.RETRY


def test_other_lanes_ask_for_no_retry() -> None:
    memory = remember(SIGHT, [record_of(held(HoldReason.STALE_DATA), lane=Lane.SHADOW)], 100.0)
    assert (memory.sight, memory.retry_at_s) == (SIGHT, None)


@pytest.mark.parametrize("lane", Lane)
def test_memory_keeps_the_demand_that_was_planned_for(lane: Lane) -> None:
    """Else a lane that waits for people would be planned at every look, for demand that it knows."""
    memory = remember(SIGHT, [record_of(held(HoldReason.SHADOW_ONLY), lane=lane)], 100.0)
    assert memory.planned_rps == {LABELS: 40.0}


def test_failures_are_retried_ever_more_slowly_and_forgotten_by_success() -> None:
    memory, waits = NOTHING_YET, []
    for _ in range(12):
        memory = remember_failure(SIGHT, memory, 100.0)
        assert memory.retry_at_s is not None
        waits.append(memory.retry_at_s - 100.0)
    assert waits[:3] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert waits[-1] == RETRY_S_MAX
    assert cause_of(SIGHT, memory, 100.0) is None
    assert remember(SIGHT, [record_of(Decision(promote=True))], 100.0).failures == 0


def test_who_waits_for_devices_that_changed_hands_is_planned_again_soon() -> None:
    label = service("labels")
    mine = Policy(name=PolicyName("edge"), pool=Pool(nodes=(NodeId("b"),)))
    picture = replace(snapshot(), services=(replace(label, policy=mine.name),), policies=(mine,))
    standing = Target(assignments=(assignment("vision/labels", "GPU-a0"),))
    short = Unplaced(kind=WorkloadKind.SERVICE, workload=WorkloadId(LABELS), rate_rps_short=1.0, reasons=())
    made = replace(plan_of(part_of(mine)), unplaced=(short,))
    record = replace(
        record_of(Decision(promote=True)),
        snapshot=replace(picture, target=standing),
        proposal=Proposal(status=ProposalStatus.FEASIBLE, planner="pools", plan=made),
        generation=Generation(2),
    )
    assert remember(SIGHT, [record], 100.0).retry_at_s == 100.0 + RETRY_S
    settled = replace(record, snapshot=replace(picture, target=Target()))
    assert remember(SIGHT, [settled], 100.0).retry_at_s is None
    nobody_short = Proposal(status=ProposalStatus.FEASIBLE, planner="pools", plan=replace(made, unplaced=()))
    assert remember(SIGHT, [replace(record, proposal=nobody_short)], 100.0).retry_at_s is None


def part_of(policy: Policy) -> PlanPart:
    return PlanPart(policy=policy.name, planner="greedy", planner_version="1", objective=Objective())


def plan_of(*parts: PlanPart) -> Plan:
    return Plan(
        snapshot=Digest("sha256:0"),
        parent=Generation(1),
        planner="pools",
        planner_version="1",
        seed=1,
        assignments=(),
        settings=(),
        unplaced=(),
        objective=Objective(),
        parts=parts,
    )
