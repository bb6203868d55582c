"""Cycles, lanes, applying and replaying over a real database and the real planners in their child process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.wire import NodeTarget, decode
from app import kinds
from app.services.planning.planning import Leader, LeaderJournal, Planning
from app.services.planning.rollout import StoreActuator
from app.store import cycles, documents, plans, targets
from app.store.plans import PlanState
from app.workers.solve_pool import SolvePool
from solvers.cycle.record import CycleRecord, HoldReason, Lane
from solvers.domain.codec import digest
from solvers.domain.plan import Plan
from solvers.domain.policy import CostBasis, Policy
from solvers.domain.workload import ServiceMode, Slo
from solvers.errors import EngineError, NotFoundError, StateError, SupersededError, TransientError
from solvers.planners.base import PlanRequest, Thought
from tests.integration.planner.world import CLUSTER, DEVICES, World, check_history, replica_report
from tests.unit.app.services.whatif.small_fleet import POLICY, V100, device, job, node, service

pytestmark = pytest.mark.integration


def lead(world: World, holder: str = "planner-1") -> Leader:
    with world.database.transaction() as session:
        lease = targets.acquire_lease(session, targets.PLANNER, holder, 60.0)
    assert lease is not None
    return Leader(holder=holder, fencing=lease.token)


def plan_states(world: World) -> list[object]:
    return sorted(world.column("SELECT lane || ' ' || state FROM plans"), key=str)


def assigned(world: World) -> set[str]:
    with world.database.reading() as session:
        return {item.workload for item in targets.current(session, CLUSTER).assignments}


# -- the acting lane ---------------------------------------------------------------------------------------------------


def test_documents_become_node_targets(world: World, planning: Planning) -> None:
    world.build()
    world.report("a", replica_report("vision/labels#0", "GPU-a0"))
    leader = lead(world)
    (record,) = planning.run_lanes(leader)
    assert (record.lane, record.generation) == (Lane.ACT, 1)
    assert record.decision is not None
    assert record.decision.promote
    check_history(world, [1])
    held = {
        str(node): decode(NodeTarget, document)
        for node, document in world.rows("SELECT node_id, document FROM node_targets")
    }
    assert {node: tuple(each.uuid for each in target.devices) for node, target in held.items()} == DEVICES
    workloads = {replica.workload for target in held.values() for each in target.devices for replica in each.replicas}
    assert workloads == {"vision/labels", "vision/search"}
    assert {target.plan for target in held.values()} == {record.plan_digest}
    assert world.column("SELECT state || ' ' || step FROM cycles") == ["closed record"]
    assert world.rows("SELECT fencing_token, promoted_by FROM target_history") == [(leader.fencing, leader.holder)]
    assert world.column("SELECT subject FROM events WHERE name = 'plan.promoted'") == [f"plans/{record.plan_digest}"]


def test_a_standing_target_is_kept_and_leaves_no_plans_behind(world: World, planning: Planning) -> None:
    world.build()
    leader = lead(world)
    planning.run_lanes(leader)
    (record,) = planning.run_lanes(leader)
    assert record.decision is not None
    assert record.decision.reasons == (HoldReason.NOTHING_TO_CHANGE,)
    assert plan_states(world) == ["act promoted"]
    assert world.column("SELECT count(*) FROM cycles WHERE state = 'closed'") == [2]
    check_history(world, [1])


def test_nodes_hear_of_another_limit_though_the_plan_stays_the_same(world: World, planning: Planning) -> None:
    world.build(service("labels"))
    leader = lead(world)
    planning.run_lanes(leader)
    (held,) = planning.run_lanes(leader)
    assert held.decision is not None
    assert not held.decision.promote
    world.declare(replace(service("labels"), slo=Slo(latency_ms=203.0)))
    (record,) = planning.run_lanes(leader)
    assert record.decision is not None
    assert record.decision.promote
    documents = world.column("SELECT document FROM node_targets")
    held_targets = [decode(NodeTarget, document) for document in documents]
    limits = {
        replica.latency_ms_limit for each in held_targets for device in each.devices for replica in device.replicas
    }
    assert limits == {203.0}
    planning.run_lanes(leader)
    check_history(world, [1, 2])


def test_growing_demand_moves_the_target_and_deleting_empties_it(world: World, planning: Planning) -> None:
    world.build()
    leader = lead(world)
    planning.run_lanes(leader)
    world.declare(service("labels", rate_rps=150.0))
    planning.run_lanes(leader)
    check_history(world, [1, 2])
    for name in ("labels", "search"):
        world.delete(kinds.SERVICE, "vision", name)
    (record,) = planning.run_lanes(leader)
    assert record.generation == 3
    check_history(world, [1, 2, 3])
    assert assigned(world) == set()
    assert planning.run_lanes(leader) == ()


def test_a_hold_is_recorded_with_its_reason(world: World, planning: Planning) -> None:
    world.build(service("labels", rate_rps=150.0))
    leader = lead(world)
    planning.run_lanes(leader)
    # Greed proposes what the gate holds; the joint planner itself proposes nothing that is not worth it.
    world.declare(replace(POLICY, planners=("greedy",), cost_basis=CostBasis.SHARE, gain_usd_per_h_min=1_000.0))
    world.declare(service("labels", rate_rps=5.0))
    (record,) = planning.run_lanes(leader)
    assert record.generation is None
    assert record.decision is not None
    assert HoldReason.SMALL_GAIN in record.decision.reasons
    assert plan_states(world) == ["act promoted", "act rejected"]
    (again,) = planning.run_lanes(leader)
    assert again.decision == record.decision
    assert plan_states(world) == ["act promoted", "act rejected"]  # the same answer once
    assert world.column("SELECT cycle_id FROM plans WHERE state = 'rejected'") == [record.id]
    world.declare(service("labels", rate_rps=100.0))
    (other,) = planning.run_lanes(leader)
    assert other.decision is not None
    assert not other.decision.promote
    assert plan_states(world) == ["act promoted", "act rejected", "act rejected"]
    check_history(world, [1])


def test_a_job_that_loses_its_place_is_counted_evicted(world: World, planning: Planning) -> None:
    world.build(service("labels"))
    world.declare(job())
    leader = lead(world)
    planning.run_lanes(leader)
    assert assigned(world) == {"vision/labels", "vision/train"}
    world.declare(replace(job(), gpu_types_allowed=("k80",)))
    (record,) = planning.run_lanes(leader)
    assert record.generation == 2
    assert world.rows("SELECT kind, name, evictions FROM job_progress") == [("job", "train", 1)]


def test_a_failing_planner_costs_the_cycle_and_keeps_the_target(world: World, planning: Planning) -> None:
    world.build()
    leader = lead(world)
    planning.run_lanes(leader)
    world.declare(replace(POLICY, planners=("no-such-planner",)), service("labels", rate_rps=150.0))
    (record,) = planning.run_lanes(leader)
    assert record.decision is not None
    assert record.decision.reasons == (HoldReason.NO_PLAN,)
    assert "no planner is called no-such-planner" in str(record.attempts[0].error)
    check_history(world, [1])
    world.declare(replace(POLICY, planners=("no-such-planner", "greedy")))
    (record,) = planning.run_lanes(leader)
    assert [attempt.status for attempt in record.attempts] == ["failed", "feasible"]
    check_history(world, [1, 2])


# -- modes and lanes ---------------------------------------------------------------------------------------------------


def test_modes_decide_who_is_moved_where(world: World, planning: Planning) -> None:
    world.build(*(service(mode.value, rate_rps=10.0, mode=mode) for mode in ServiceMode))
    records = {record.lane: record for record in planning.run_lanes(lead(world))}
    assert set(records) == {Lane.ACT, Lane.APPROVE, Lane.SHADOW}
    assert assigned(world) == {"vision/auto"}
    assert {item.workload for item in plan_of(records[Lane.APPROVE]).assignments} == {"vision/auto", "vision/approve"}
    assert {item.workload for item in plan_of(records[Lane.SHADOW]).assignments} == {
        "vision/auto",
        "vision/approve",
        "vision/shadow",
    }
    assert plan_states(world) == ["act promoted", "approve awaiting_approval", "shadow shadow"]
    check_history(world, [1])


def plan_of(record: CycleRecord) -> Plan:
    assert record.plan is not None
    return record.plan


@pytest.mark.parametrize("mode", [ServiceMode.OFF, ServiceMode.SHADOW, ServiceMode.APPROVE])
def test_without_auto_nothing_is_promoted(world: World, planning: Planning, mode: ServiceMode) -> None:
    world.build(service("labels", mode=mode))
    records = planning.run_lanes(lead(world))
    assert [record.lane.value for record in records] == ([] if mode is ServiceMode.OFF else [mode.value])
    assert world.column("SELECT count(*) FROM target_history") == [0]


def test_switching_off_pins_what_stands(world: World, planning: Planning) -> None:
    world.build()
    leader = lead(world)
    planning.run_lanes(leader)
    with world.database.reading() as session:
        before = targets.current(session, CLUSTER).assignments
    world.declare(service("labels", rate_rps=5_000.0, mode=ServiceMode.OFF), service("search", rate_rps=150.0))
    (record,) = planning.run_lanes(leader)
    assert record.generation == 2
    pinned = {item.replica: (item.device, item.share_pct_sm) for item in before if item.workload == "vision/labels"}
    after = {item.replica: (item.device, item.share_pct_sm) for item in plan_of(record).assignments}
    assert pinned
    assert pinned.items() <= after.items()


def test_a_waiting_plan_stays_readable_until_it_changes(world: World, planning: Planning) -> None:
    world.build(service("labels", mode=ServiceMode.APPROVE))
    leader = lead(world)
    planning.run_lanes(leader)
    planning.run_lanes(leader)
    assert plan_states(world) == ["approve awaiting_approval"]
    world.declare(service("labels", rate_rps=150.0, mode=ServiceMode.APPROVE))
    planning.run_lanes(leader)
    assert plan_states(world) == ["approve awaiting_approval", "approve superseded"]


# -- on request --------------------------------------------------------------------------------------------------------


def test_a_proposal_changes_nothing_and_can_be_applied(world: World, planning: Planning) -> None:
    world.build()
    plan_id = planning.propose(Lane.ACT, "token:t1")
    assert plan_states(world) == ["act proposed"]
    assert world.column("SELECT count(*) FROM target_history") == [0]
    assert world.rows("SELECT state, holder FROM cycles") == [("closed", "token:t1")]
    assert planning.apply(plan_id, "token:t2") == 1
    check_history(world, [1])
    assert world.rows("SELECT promoted_by, fencing_token FROM target_history") == [("token:t2", None)]
    with pytest.raises(StateError, match="promoted"):
        planning.apply(plan_id, "token:t2")
    check_history(world, [1])


def test_an_approved_plan_is_applied(world: World, planning: Planning) -> None:
    world.build(service("labels", mode=ServiceMode.APPROVE))
    leader = lead(world)
    (record,) = planning.run_lanes(leader)
    assert record.plan_digest is not None
    assert planning.apply(record.plan_digest, "token:t1") == 1
    assert assigned(world) == {"vision/labels"}
    (after,) = [each for each in planning.run_lanes(leader) if each.lane is Lane.APPROVE]
    assert after.decision is not None
    assert HoldReason.NOTHING_TO_CHANGE in after.decision.reasons
    check_history(world, [1])


def test_a_plan_with_a_stale_parent_is_refused(world: World, planning: Planning) -> None:
    world.build()
    stale = planning.propose(Lane.ACT, "token:t1")
    planning.run_lanes(lead(world))
    with pytest.raises(SupersededError):
        planning.apply(stale, "token:t1")
    check_history(world, [1])


def test_a_plan_that_the_world_outgrew_is_refused(world: World, planning: Planning) -> None:
    world.build(service("labels"))
    plan_id = planning.propose(Lane.ACT, "token:t1")
    world.delete(kinds.SERVICE, "vision", "labels")
    with pytest.raises(StateError, match="unknown workload"):
        planning.apply(plan_id, "token:t1")
    assert world.column("SELECT count(*) FROM target_history") == [0]


def test_a_shadow_plan_cannot_be_applied(world: World, planning: Planning) -> None:
    world.build(service("labels", mode=ServiceMode.SHADOW))
    plan_id = planning.propose(Lane.SHADOW, "token:t1")
    with pytest.raises(StateError, match="shadow"):
        planning.apply(plan_id, "token:t1")


def test_asking_for_what_there_is_not(world: World, planning: Planning) -> None:
    world.build()
    with pytest.raises(NotFoundError):
        planning.apply("sha256:" + "0" * 64, "token:t1")
    with pytest.raises(StateError, match="approve lane"):
        planning.propose(Lane.APPROVE, "token:t1")
    world.declare(replace(POLICY, planners=("no-such-planner",)))
    with pytest.raises(EngineError, match="no-such-planner"):
        planning.propose(Lane.ACT, "token:t1")


# -- replay ------------------------------------------------------------------------------------------------------------


def test_replay_reproduces_every_digest(world: World, planning: Planning, pool: SolvePool) -> None:
    world.build()
    leader = lead(world)
    records = list(planning.run_lanes(leader))
    world.offer({"vision/labels": 113.7})
    world.declare(job())
    records += planning.run_lanes(leader)
    for record in records:
        assert record.plan_digest is not None
        assert world.replays(pool, record.id)


def test_replay_notices_another_plan(world: World, planning: Planning, pool: SolvePool) -> None:
    world.build()
    (record,) = planning.run_lanes(lead(world))
    assert record.proposal is not None
    forged = replace(record, seed=record.seed + 1)
    with world.database.transaction() as session:
        cycles.begin(session, new_cycle("forged"))
        cycles.close(session, replace(forged, id="forged"))
    assert not world.replays(pool, "forged")


def new_cycle(cycle: str) -> cycles.NewCycle:
    return cycles.NewCycle(id=cycle, lane=Lane.ACT, holder="h", fencing_token=1, software_version="test")


# -- leadership and failure --------------------------------------------------------------------------------------------


def test_a_deposed_leader_cannot_promote(world: World, planning: Planning) -> None:
    world.build()
    old = lead(world)
    world.column("UPDATE leases SET expires_at = now() - interval '1 second' RETURNING 1")
    new = lead(world, "planner-2")
    assert new.fencing > old.fencing
    (record,) = planning.run_lanes(old)
    assert record.decision is not None
    assert record.decision.reasons == (HoldReason.LEASE_LOST,)
    assert world.column("SELECT count(*) FROM target_history") == [0]
    (record,) = planning.run_lanes(new)
    assert record.generation == 1
    check_history(world, [1])


def test_losing_the_race_for_the_parent_is_a_hold(world: World, pool: SolvePool) -> None:
    world.build()
    rival = world.planning(pool)
    proposed = rival.propose(Lane.ACT, "token:t1")

    class Racing:
        """Lets somebody else's plan win while ours is being made."""

        def think(self, planner: str, request: PlanRequest, state: bytes | None) -> object:
            rival.apply(proposed, "token:t1")
            return pool.think(planner, request, state)

    (record,) = world.planning(Racing()).run_lanes(lead(world))  # type: ignore[arg-type]
    assert record.decision is not None
    assert record.decision.reasons == (HoldReason.SUPERSEDED,)
    check_history(world, [1])
    assert world.column("SELECT promoted_by FROM target_history") == ["token:t1"]
    assert plan_states(world) == ["act promoted", "act superseded"]


@pytest.mark.parametrize(
    "meant",
    [
        replace(node("b"), schedulable=False),
        replace(device("GPU-b0", "b", V100), schedulable=False),
        service("labels", mode=ServiceMode.OFF),
    ],
    ids=["a node is drained", "a device is taken out of use", "a service is switched off"],
)
def test_what_was_forbidden_while_a_plan_was_made_holds(world: World, pool: SolvePool, meant: object) -> None:
    world.build()
    world.declare(replace(node("a"), schedulable=False))

    class Forbidding:
        """Somebody forbids what the plan does, while it is being made."""

        def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
            world.declare(meant)
            return pool.think(planner, request, state)

    leader = lead(world)
    (record,) = world.planning(Forbidding()).run_lanes(leader)
    assert {item.device for item in plan_of(record).assignments} == {"GPU-b0"}
    assert record.decision is not None
    assert record.decision.reasons == (HoldReason.SUPERSEDED,)
    assert world.column("SELECT count(*) FROM target_history") == [0]
    world.planning(pool).run_lanes(leader)
    assert "vision/labels" not in assigned(world)


def test_dying_between_draft_and_actuation_leaves_a_consistent_state(
    world: World, planning: Planning, pool: SolvePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.build()

    def die(*_: object) -> None:
        raise TransientError("the database went away")

    with monkeypatch.context() as patched:
        patched.setattr(StoreActuator, "promote", die)
        with pytest.raises(TransientError):
            planning.run_lanes(lead(world))
    assert world.rows("SELECT state, step FROM cycles") == [("running", "actuate")]
    assert plan_states(world) == ["act proposed"]
    assert world.column("SELECT count(*) FROM target_history") == [0]
    (drafted,) = world.column("SELECT id FROM cycles")
    assert world.replays(pool, str(drafted))
    # The same leader comes back: its broken cycle is aborted, the next one promotes.
    planning.run_lanes(lead(world))
    assert sorted(world.column("SELECT state FROM cycles"), key=str) == ["aborted", "closed"]
    assert plan_states(world) == ["act promoted", "act superseded"]
    check_history(world, [1])


def test_a_cycle_that_promoted_and_could_not_be_closed_knows_its_generation(
    world: World, planning: Planning, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.build()

    def die(*_: object) -> None:
        raise TransientError("the database went away")

    with monkeypatch.context() as patched:
        patched.setattr(LeaderJournal, "close", die)
        with pytest.raises(TransientError):
            planning.run_lanes(lead(world))
    planning.run_lanes(lead(world))
    found = world.rows("SELECT state, generation FROM cycles ORDER BY started_at")
    assert found == [("aborted", 1), ("closed", None)]


def test_a_new_leader_aborts_what_a_dead_one_left_running(world: World, planning: Planning) -> None:
    world.build()
    dead = lead(world)
    with world.database.transaction() as session:
        cycles.begin(session, replace(new_cycle("left"), fencing_token=dead.fencing))
    world.column("UPDATE leases SET expires_at = now() - interval '1 second' RETURNING 1")
    planning.run_lanes(lead(world, "planner-2"))
    assert world.column("SELECT state FROM cycles WHERE id = 'left'") == ["aborted"]


def test_the_policy_document_rules_the_cycle(world: World, planning: Planning) -> None:
    world.build()
    (record,) = planning.run_lanes(lead(world))
    assert record.snapshot.policy == POLICY
    world.delete(kinds.POLICY, "default")
    (record,) = planning.run_lanes(lead(world))
    assert record.snapshot.policy == Policy(name=POLICY.name)
    assert digest(record.snapshot) == record.snapshot_digest


def test_stored_plans_keep_their_state(world: World, planning: Planning) -> None:
    world.build()
    plan_id = planning.propose(Lane.ACT, "token:t1")
    with world.database.reading() as session:
        summary = plans.get(session, plan_id)
        specs = documents.all_specs(session, kinds.SERVICE)
    assert (summary.state, summary.created_by, summary.policy) == (PlanState.PROPOSED, "token:t1", "default")
    assert len(specs) == 2
