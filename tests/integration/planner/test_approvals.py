"""Plans that wait for people: pinned while the fleet moves on, decided once, and never at the cost of others."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from agents.wire import NodeTarget, ReplicaTarget, decode
from app import kinds
from app.errors import PreconditionError
from app.services.declared.tokens import Deed
from app.services.planning.deciding import Remark
from app.services.planning.planning import WAITING_EVERY_S, Leader, Planning
from app.services.planning.plans import Plans
from app.services.planning.reviewing import tag_of
from app.services.planning.snapshots import StoreObserver
from app.store import plans, targets
from app.store.pages import PageOrder
from app.store.plans import NewPlan, PlanState, PlanSummary
from app.workers.solve_pool import SolvePool
from solvers.cycle.ports import Runner
from solvers.cycle.record import Lane
from solvers.domain.device import Label
from solvers.domain.worker import WorkerCommand
from solvers.domain.workload import Service, ServiceMode, Slo
from solvers.errors import HeadroomError, LeaseLostError, StateError, SupersededError
from solvers.planners.base import PlanRequest, Thought
from tests.integration.planner.test_planning import assigned, lead
from tests.integration.planner.world import CLUSTER, World, check_history
from tests.unit.app.services.whatif.small_fleet import service

pytestmark = pytest.mark.integration
ASKED = service("asked", mode=ServiceMode.APPROVE)
NOTHING_LEFT = "nothing is left to change for services on approve"


class Counted:
    """A runner that tells which lanes' questions reached a planner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.asked: list[int] = []

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        """Counts."""
        self.asked.append(len(request.movable))
        return self._runner.think(planner, request, state)


def waiting(world: World) -> tuple[PlanSummary, ...]:
    with world.database.reading() as session:
        return plans.waiting(session)


def reviewer(world: World) -> Plans:
    return Plans(world.database, CLUSTER, StoreObserver(world.database, CLUSTER))


@pytest.fixture
def leader(world: World, planning: Planning) -> Leader:
    """One service stands on auto, one waits for approval."""
    world.build(service("auto"), ASKED)
    leader = lead(world)
    planning.run_lanes(leader)
    return leader


def test_a_plan_stays_what_it_is_while_the_fleet_moves_on(world: World, planning: Planning, leader: Leader) -> None:
    (pinned,) = waiting(world)
    assert pinned.expires_at is not None
    world.declare(service("auto", rate_rps=120.0), service("more", rate_rps=5.0))
    planning.run_lanes(leader)
    check_history(world, [1, 2])
    # Another leader, a restart: what waits is in the database alone.
    planning.run_lanes(lead_anew(world))
    # It was made for one service of auto; what came since would lose its place, so a newer one waits for it.
    (newer,) = waiting(world)
    assert (newer.id != pinned.id, newer.blocked) == (True, ())
    short = newer.id.removeprefix("sha256:")[:12]
    with pytest.raises(SupersededError, match=rf"the plan is superseded \(plan {short} waits in its place\)"):
        planning.apply(pinned.id, "token:ann")
    (event,) = world.rows("SELECT actor, subject, facts FROM events WHERE name = 'plan.superseded'")
    assert event[1] == f"plans/{pinned.id}"
    assert event[2] == {"by": newer.id, "changed": {"state": {"from": "awaiting_approval", "to": "superseded"}}}
    # Whoever decides is told what it costs beside what stands.
    planning.run_lanes(lead_anew(world))
    listed = {
        item.id: item.told for item in reviewer(world).page(PageOrder(limit=9), None, PlanState.AWAITING_APPROVAL).items
    }
    added = reviewer(world).diff(newer.id).diff
    costs = f"costs ${added.after.cost_usd_per_h - added.before.cost_usd_per_h:.2f}/h more than what stands"
    (seen,) = (item for item in listed[newer.id] if item.startswith("as the planner saw it at "))
    assert listed == {newer.id: (costs, seen)}
    why = reviewer(world).explain(newer.id, None, "vision/asked").waiting
    assert why is not None
    assert why.sentence.endswith(f"waits for somebody to apply it; {costs}; {seen}.")
    assert planning.apply(newer.id, "token:ann") == 3
    assert "vision/asked" in assigned(world)
    assert world.column(f"SELECT plan_id = '{newer.id}' FROM cluster_state") == [True]


def lead_anew(world: World) -> Leader:
    """The leader died; another one takes the lease."""
    world.column("UPDATE leases SET expires_at = now() RETURNING 1")
    return lead(world, "planner-2")


def test_what_fits_is_approved_though_a_generation_came_between(
    world: World, planning: Planning, leader: Leader
) -> None:
    (pinned,) = waiting(world)
    other = planning.propose(Lane.ACT, "token:bob")
    assert planning.apply(other, "token:bob") == 2
    assert planning.apply(pinned.id, "token:ann", Remark(comment="as agreed")) == 3
    check_history(world, [1, 2, 3])
    with world.database.reading() as session:
        found = plans.get(session, pinned.id)
    assert (found.state, found.decided_by, found.comment) == (PlanState.PROMOTED, "token:ann", "as agreed")
    facts = world.column("SELECT facts FROM events WHERE name = 'plan.promoted' ORDER BY id DESC LIMIT 1")
    assert facts == [
        {"generation": 3, "parent_generation": 2, "nodes": 2, "comment": "as agreed",
         "changed": {"plan": {"from": other, "to": pinned.id}}}
    ]  # fmt: skip


def test_of_two_who_decide_at_once_one_wins_and_the_other_hears_who(
    world: World, planning: Planning, leader: Leader
) -> None:
    (pinned,) = waiting(world)
    ready, service_ = Barrier(2), reviewer(world)

    def decide(who: str) -> str:
        ready.wait()
        try:
            if who == "ann":
                planning.apply(pinned.id, who)
            else:
                service_.reject(pinned.id, "not now", Deed(actor=who))
        except HeadroomError as error:
            return error.message
        return "won"

    with ThreadPoolExecutor(2) as both:
        ann, bob = both.map(decide, ("ann", "bob"))
    assert [ann, bob].count("won") == 1
    winner = "ann" if ann == "won" else "bob"
    assert f", by {winner} at " in (bob if winner == "ann" else ann)
    assert len(world.column("SELECT 1 FROM target_history")) == (2 if winner == "ann" else 1)


def test_who_read_another_target_is_told_to_look_again(world: World, planning: Planning, leader: Leader) -> None:
    (pinned,) = waiting(world)
    with world.database.reading() as session:
        tag = tag_of(targets.current(session, CLUSTER))
    assert planning.apply(planning.propose(Lane.ACT, "token:bob"), "token:bob") == 2
    with pytest.raises(PreconditionError, match="generation 2 stands by now"):
        planning.apply(pinned.id, "token:ann", Remark(standing=tag))
    assert waiting(world) != ()


def test_what_was_rejected_is_not_asked_again_until_its_documents_change(
    world: World, planning: Planning, leader: Leader
) -> None:
    (pinned,) = waiting(world)
    reviewer(world).reject(pinned.id, "too dear", Deed(actor="token:ann"))
    planning.run_lanes(leader)
    assert waiting(world) == ()
    with pytest.raises(StateError, match=r"rejected, by token:ann at .*\(too dear\)"):
        planning.apply(pinned.id, "token:bob")
    (event,) = world.rows("SELECT actor, subject, facts FROM events WHERE name = 'plan.rejected'")
    assert event[:2] == ("token:ann", f"plans/{pinned.id}")
    assert event[2] == {"comment": "too dear", "changed": {"state": {"from": "awaiting_approval", "to": "rejected"}}}
    world.declare(replace(ASKED, priority=60))
    planning.run_lanes(leader)
    assert [item.id != pinned.id for item in waiting(world)] == [True]


def test_what_was_rejected_while_it_could_not_be_approved_is_not_asked_again(
    world: World, planning: Planning, leader: Leader
) -> None:
    (pinned,) = waiting(world)
    with world.database.transaction() as session:
        plans.note_look(session, pinned.id, ["falls short (vision/auto: 3 requests/s less than as it stands)"], 1.0)
    reviewer(world).reject(pinned.id, "never", Deed(actor="token:ann"))
    planning.run_lanes(leader)
    assert waiting(world) == ()


def test_nothing_left_to_decide_is_set_aside(world: World, planning: Planning, leader: Leader) -> None:
    (first,) = waiting(world)
    asked = planning.propose(Lane.APPROVE, "token:bob")
    planning.apply(asked, "token:ann")
    planning.run_lanes(leader)
    with world.database.reading() as session:
        found = plans.get(session, first.id)
    assert waiting(world) == ()
    assert (found.state, found.comment) == (PlanState.SUPERSEDED, NOTHING_LEFT)


def test_what_was_deleted_while_it_waited_is_not_said_to_stand(
    world: World, planning: Planning, leader: Leader
) -> None:
    (first,) = waiting(world)
    world.delete(kinds.SERVICE, "vision", "asked")
    planning.run_lanes(leader)
    with world.database.reading() as session:
        found = plans.get(session, first.id)
    assert (found.state, found.comment, found.decided_by) == (PlanState.SUPERSEDED, NOTHING_LEFT, None)
    # Who was told that it waits is told that it does not any more.
    states = {"from": "awaiting_approval", "to": "superseded"}
    told = world.rows("SELECT subject, facts FROM events WHERE name = 'plan.superseded'")
    assert told == [(f"plans/{first.id}", {"changed": {"state": states}, "comment": NOTHING_LEFT})]


def _beside(world: World, waits: PlanSummary, created_by: str, seed: int) -> str:
    """Another plan of the same wish waits, too."""
    with world.database.transaction() as session:
        plan = replace(plans.load(session, waits.id), seed=seed)
        made = {"lane": Lane.APPROVE, "state": PlanState.AWAITING_APPROVAL, "created_by": created_by}
        return plans.put(session, NewPlan(plan=plan, matter=f"sha256:{seed}", waits_s=3600.0, **made)).id


def test_one_plan_waits_at_a_time(world: World, planning: Planning, leader: Leader) -> None:
    """What was read stays while something no better comes, and gives way to what somebody asked for."""
    (pinned,) = waiting(world)
    _beside(world, pinned, "planner-1", 77)
    planning.run_lanes(leader)
    assert [item.id for item in waiting(world)] == [pinned.id]
    assert world.rows("SELECT 1 FROM events WHERE name = 'plan.superseded'") == []
    asked = _beside(world, pinned, "token:bob", 78)
    planning.run_lanes(leader)
    assert [item.id for item in waiting(world)] == [asked]
    told = world.rows("SELECT subject, facts ->> 'by' FROM events WHERE name = 'plan.superseded'")
    assert told == [(f"plans/{pinned.id}", asked)]
    # However many were left by a release that let them pile up.
    for seed in range(80, 90):
        _beside(world, pinned, "planner-1", seed)
    planning.run_lanes(leader)
    assert [item.id for item in waiting(world)] == [asked]
    # Nobody decided, so no lane is planned again for it.
    with world.database.reading() as session:
        assert plans.last_decided(session) is None
    assert planning.apply(asked, "token:ann") == 2


def test_a_deposed_leader_sets_nothing_aside(world: World, planning: Planning, leader: Leader) -> None:
    lead_anew(world)
    with pytest.raises(LeaseLostError):
        planning.run_lanes(leader)
    assert len(waiting(world)) == 1


def test_lanes_share_one_solve_and_waiting_takes_no_cycles(world: World, pool: SolvePool) -> None:
    counted = Counted(pool)
    planning = world.planning(counted)
    world.build(service("auto"), ASKED)
    leader = lead(world)
    planning.run_lanes(leader)
    assert counted.asked == [1, 2], "what would be placed is asked for when the acting lane has its plan"
    (pinned,) = waiting(world)
    counted.asked.clear()
    planning.run_lanes(leader)
    planning.run_lanes(leader)
    assert counted.asked == [1, 1], "while it waits, only the acting lane is planned"
    planning.apply(pinned.id, "token:ann")
    planning.run_lanes(leader)
    counted.asked.clear()
    (act, approve) = planning.run_lanes(leader)
    assert counted.asked == [2], "both lanes see the same and are asked once"
    assert (act.asked, approve.asked) == (("vision/asked", "vision/auto"), ())
    assert world.replays(pool, act.id)
    assert WAITING_EVERY_S >= 300


def test_a_rollback_restores_what_stood_and_holds_the_planner(world: World, planning: Planning, leader: Leader) -> None:
    world.declare(service("auto", rate_rps=120.0))
    planning.run_lanes(leader)
    check_history(world, [1, 2])
    before, after = world.column("SELECT plan_id FROM target_history ORDER BY generation")
    with world.database.whole():  # as a request that carries a key has it
        done = planning.rollback(None, 600.0, "token:ann", Remark(comment="slow"))
    assert (done.plan_id, done.generation, done.restored) == (before, 3, 1)
    assert any("vision/auto" in item for item in done.worse)
    assert done.held is not None
    assert (done.held.by, done.held.reason) == ("token:ann", "generation 2 was rolled back")
    check_history(world, [1, 2, 3])
    assert planning.run_lanes(leader) == ()
    reviewer(world).resume(Deed(actor="token:bob"))
    assert world.column("SELECT actor FROM events WHERE name = 'planning.resumed'") == ["token:bob"]
    planning.run_lanes(leader)
    check_history(world, [1, 2, 3, 4])
    with pytest.raises(StateError, match="stands already"):
        planning.rollback(4, 0.0, "token:ann")
    assert after in world.column("SELECT plan_id FROM target_history")


def test_a_rollback_to_devices_that_are_gone_is_refused_with_reasons(
    world: World, planning: Planning, leader: Leader
) -> None:
    world.declare(service("auto", rate_rps=120.0))
    planning.run_lanes(leader)
    (device,) = world.column("SELECT a ->> 'device' FROM plans, jsonb_array_elements(document -> 'assignments') a"
                             " WHERE generation = 1 LIMIT 1")  # fmt: skip
    world.column("DELETE FROM node_targets RETURNING 1")
    world.delete(kinds.DEVICE, str(device))
    with pytest.raises(StateError, match=rf"generation 1 no longer fits: unknown device \({device}\)"):
        planning.rollback(1, 600.0, "token:ann")
    assert world.column("SELECT held_until FROM cluster_state") == [None]


def told(world: World, workload: str) -> list[ReplicaTarget]:
    """What nodes are told of a workload's replicas."""
    found = (decode(NodeTarget, document) for document in world.column("SELECT document FROM node_targets"))
    replicas = (each for target in found for device in target.devices for each in device.replicas)
    return [each for each in replicas if each.workload == workload]


def another_document(mode: ServiceMode) -> Service:
    """The service `asked` with another process and limit than stand."""
    worker = WorkerCommand(command=("serve", "v2"))
    return replace(service("asked", mode=mode), slo=Slo(latency_ms=203.0), worker=worker)


@pytest.mark.parametrize("mode", [ServiceMode.OFF, ServiceMode.SHADOW, ServiceMode.APPROVE])
def test_a_document_that_may_not_act_reaches_no_process_with_others_promotions(
    world: World, planning: Planning, mode: ServiceMode
) -> None:
    world.build(service("auto"), service("asked"))
    leader = lead(world)
    planning.run_lanes(leader)
    before = told(world, "vision/asked")
    world.declare(another_document(mode), service("auto", rate_rps=120.0))
    planning.run_lanes(leader)
    check_history(world, [1, 2])
    assert told(world, "vision/asked") == before
    assert planning.rollback(1, 0.0, "token:ann").generation == 3
    assert told(world, "vision/asked") == before


def test_an_approved_document_reaches_its_process(world: World, planning: Planning) -> None:
    world.build(service("auto"), service("asked"))
    leader = lead(world)
    planning.run_lanes(leader)
    world.declare(another_document(ServiceMode.APPROVE), service("auto", rate_rps=120.0))
    planning.run_lanes(leader)
    planning.run_lanes(lead_anew(world))
    (waits, *_) = waiting(world)
    planning.apply(waits.id, "token:ann")
    stands = told(world, "vision/asked")
    assert {each.latency_ms_limit for each in stands} == {203.0}
    assert {each.worker.command for each in stands if each.worker is not None} == {("serve", "v2")}


def test_a_diff_tells_what_changes_and_whether_it_may(world: World, planning: Planning, leader: Leader) -> None:
    (pinned,) = waiting(world)
    found = reviewer(world).diff(pinned.id)
    diff = found.diff
    assert (diff.fits, diff.blocked, diff.generation) == (True, (), 1)
    assert [item.workload for item in diff.workloads] == ["vision/asked"]
    (change,) = diff.workloads
    assert (change.before.replicas, change.after.replicas > 0) == (0, True)
    assert diff.after.replicas - diff.before.replicas == len(
        [step for step in diff.steps if step.kind.value == "start"]
    )
    assert diff.after.power_w > diff.before.power_w
    touched = {step.device_after for step in diff.steps if step.device_after}
    assert touched <= {item.device for item in diff.devices}
    planning.apply(pinned.id, "token:ann", Remark(standing=found.tag))


def test_a_plan_that_would_undo_what_was_done_meanwhile_says_so(
    world: World, planning: Planning, leader: Leader
) -> None:
    (pinned,) = waiting(world)
    assert reviewer(world).diff(pinned.id).diff.undoes == ()
    world.declare(service("auto", rate_rps=120.0))
    planning.run_lanes(leader)
    # The load is gone again, so nothing is served less: it can be approved, and takes back what the lane did.
    world.declare(service("auto"))
    diff = reviewer(world).diff(pinned.id).diff
    assert (diff.fits, diff.generation) == (True, 2)
    assert diff.undoes == ("vision/auto (changed since generation 1; it would stand as it did then)",)
    assert any(step.workload == "vision/auto" for step in diff.steps)
    assert planning.apply(pinned.id, "token:ann") == 3


def test_a_document_that_changed_since_is_told_only_with_a_plan_of_its_own(
    world: World, planning: Planning, leader: Leader
) -> None:
    (pinned,) = waiting(world)
    changed = another_document(ServiceMode.APPROVE)
    world.declare(changed)
    why = "made before its document changed (vision/asked)"
    assert reviewer(world).diff(pinned.id).diff.blocked == (why,)
    with pytest.raises(StateError, match=re.escape(f"the plan no longer fits: {why}")):
        planning.apply(pinned.id, "token:ann")
    # As it was, it is what was read.
    world.declare(ASKED)
    assert reviewer(world).diff(pinned.id).diff.fits
    world.declare(changed)
    planning.run_lanes(leader)
    (newer,) = waiting(world)
    with pytest.raises(SupersededError, match="waits in its place"):
        planning.apply(pinned.id, "token:ann")
    planning.apply(newer.id, "token:ann")
    assert {each.latency_ms_limit for each in told(world, "vision/asked")} == {203.0}


def test_what_reaches_no_process_leaves_a_plan_that_waits_as_it_is(
    world: World, planning: Planning, leader: Leader
) -> None:
    (pinned,) = waiting(world)
    world.declare(replace(ASKED, priority=60, rate_rps_declared=40.0, labels=(Label(key="team", value="blue"),)))
    planning.run_lanes(leader)
    assert [(item.id, item.blocked) for item in waiting(world)] == [(pinned.id, ())]
    # What is on auto is told its documents by the acting lane, whoever approves what.
    world.declare(replace(another_document(ServiceMode.AUTO), name="auto"))
    assert reviewer(world).diff(pinned.id).diff.fits
    planning.apply(pinned.id, "token:ann")


def test_a_plan_from_before_a_service_came_on_approve_tells_it_nothing(
    world: World, planning: Planning, leader: Leader
) -> None:
    (pinned,) = waiting(world)
    world.declare(service("auto", mode=ServiceMode.APPROVE))
    assert reviewer(world).diff(pinned.id).diff.blocked == ("made before its document changed (vision/auto)",)
