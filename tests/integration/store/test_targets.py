"""Promotion happens once per generation, whole or not at all, and never by a leader that was replaced."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from agents.wire import NodeTarget, decode
from app import kinds
from app.store import documents, events, plans, targets
from app.store.engine import Database
from app.store.pages import PageOrder
from app.store.plans import PlanState
from app.store.targets import Promotion, Standing
from solvers.domain.change import Target
from solvers.domain.codec import digest
from solvers.errors import FieldError, HeadroomError, LeaseLostError, NotFoundError, StateError, SupersededError
from tests.integration.store.plans import CLUSTER, keep, plan, promote
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


def test_before_the_first_plan_the_target_is_empty(database: Database) -> None:
    with database.reading() as session:
        assert targets.generation(session, CLUSTER) == 0
        assert targets.current(session, CLUSTER) == Target()
        assert targets.node_document(session, "a") is None


def test_a_promotion_writes_everything_together(database: Database) -> None:
    chosen = plan()
    with database.listening(targets.CHANNEL) as bell:
        with database.transaction() as session:
            assert promote(session, chosen, nodes=("a", "b")) == 1
        rung = next(bell.notifies(timeout=10, stop_after=1))
    assert rung.payload == "1"
    with database.reading() as session:
        standing = targets.current(session, CLUSTER)
        assert (standing.generation, standing.plan) == (1, digest(chosen))
        assert (standing.assignments, standing.settings) == (chosen.assignments, chosen.settings)
        assert standing.promoted_at_s > 1.7e9
        assert targets.generation(session, CLUSTER) == 1
        held = targets.node_document(session, "b")
        assert held is not None
        expected = NodeTarget(node="b", generation=1, plan=digest(chosen), devices=())
        assert decode(NodeTarget, held.document) == expected
        summary = plans.get(session, digest(chosen))
        assert (summary.state, summary.generation, summary.decided_by) == (PlanState.PROMOTED, 1, "somebody")
        (event,) = events.page(session, PageOrder(limit=5)).items
        assert (event.name, event.facts["generation"]) == ("plan.promoted", 1)


def test_a_rollback_leaves_nothing_and_rings_nothing(database: Database) -> None:
    def fail() -> None:
        with database.transaction() as session:
            promote(session, plan())
            raise RuntimeError

    with database.listening(targets.CHANNEL) as bell:
        with pytest.raises(RuntimeError):
            fail()
        with database.transaction() as session:
            session.execute(text("SELECT pg_notify('headroom_generation', 'end')"))
        assert [rung.payload for rung in bell.notifies(timeout=10, stop_after=1)] == ["end"]
    with database.reading() as session:
        assert targets.generation(session, CLUSTER) == 0
        assert targets.page(session, PageOrder(limit=5)).items == ()
        assert plans.page(session, PageOrder(limit=5)).items == ()


def test_generations_rise_by_one_and_keep_their_history(database: Database) -> None:
    for parent in range(3):
        with database.transaction() as session:
            assert promote(session, plan(parent)) == parent + 1
    with database.reading() as session:
        first = targets.page(session, PageOrder(limit=2))
        assert [item.generation for item in first.items] == [3, 2]
        second = targets.page(session, PageOrder(limit=2, cursor=first.next_cursor))
        assert [item.generation for item in second.items] == [1]
        assert second.next_cursor is None
        assert targets.at(session, 2).plan == digest(plan(1))
        states = [plans.get(session, digest(plan(parent))).state for parent in range(3)]
        assert states == [PlanState.SUPERSEDED, PlanState.SUPERSEDED, PlanState.PROMOTED]
        with pytest.raises(NotFoundError):
            targets.at(session, 9)
        with pytest.raises(FieldError):
            targets.page(session, PageOrder(limit=2, cursor="nonsense"))


def test_a_plan_for_an_older_generation_is_superseded(database: Database) -> None:
    with database.transaction() as session:
        promote(session, plan(0))
    with pytest.raises(SupersededError) as caught, database.transaction() as session:
        promote(session, plan(0, seed=2))
    assert caught.value.context["generation"] == 1


def test_a_plan_for_a_generation_that_never_was_is_superseded(database: Database) -> None:
    with pytest.raises(SupersededError), database.transaction() as session:
        promote(session, plan(5))


def test_of_many_rivals_exactly_one_wins(database: Database) -> None:
    rivals = 6
    start = Barrier(rivals)

    def run(seed: int) -> int | type[HeadroomError]:
        start.wait(timeout=30)
        try:
            with database.transaction() as session:
                return promote(session, plan(0, seed=seed))
        except HeadroomError as error:
            return type(error)

    with ThreadPoolExecutor(rivals) as pool:
        outcomes = list(pool.map(run, range(rivals)))
    assert sorted(map(str, outcomes)) == sorted(["1"] + [str(SupersededError)] * (rivals - 1))
    with database.reading() as session:
        assert targets.generation(session, CLUSTER) == 1
        assert len(targets.page(session, PageOrder(limit=9)).items) == 1


def test_a_replaced_leader_cannot_promote(database: Database) -> None:
    with database.transaction() as session:
        old = targets.acquire_lease(session, targets.PLANNER, "old", 60.0)
        targets.release_lease(session, targets.PLANNER, "old")
        new = targets.acquire_lease(session, targets.PLANNER, "new", 60.0)
    assert old is not None
    assert new is not None
    with pytest.raises(LeaseLostError) as caught, database.transaction() as session:
        promote(session, plan(0), token=old.token)
    assert caught.value.context["token"] == new.token
    with database.transaction() as session:
        assert promote(session, plan(0), token=new.token) == 1


def test_the_token_last_written_fences_even_without_a_lease_row(database: Database) -> None:
    with database.transaction() as session:
        promote(session, plan(0), token=8)
    with pytest.raises(LeaseLostError), database.transaction() as session:
        promote(session, plan(1), token=7)
    with database.transaction() as session:
        assert promote(session, plan(1), token=8) == 2


def test_a_person_needs_no_token_and_does_not_lower_the_fence(database: Database) -> None:
    with database.transaction() as session:
        promote(session, plan(0), token=8)
    with database.transaction() as session:
        assert promote(session, plan(1)) == 2
    with pytest.raises(LeaseLostError), database.transaction() as session:
        promote(session, plan(2), token=7)


@pytest.mark.parametrize(
    ("state", "error"),
    [(PlanState.SHADOW, StateError), (PlanState.REJECTED, StateError), (PlanState.SUPERSEDED, SupersededError)],
)
def test_only_open_plans_are_promoted(database: Database, state: PlanState, error: type[HeadroomError]) -> None:
    wish = targets.Promotion(
        cluster=CLUSTER, plan_id=digest(plan()), parent_generation=0, promoted_by="somebody", node_documents={}
    )
    with database.transaction() as session:
        keep(session, plan(), state=state)
    with pytest.raises(error), database.transaction() as session:
        targets.promote(session, wish)
    with database.reading() as session:
        assert targets.generation(session, CLUSTER) == 0


def test_nodes_left_out_hold_nothing_any_more(database: Database) -> None:
    with database.transaction() as session:
        promote(session, plan(0), nodes=("a", "b"))
    with database.transaction() as session:
        promote(session, plan(1), nodes=("b", "c"))
    with database.reading() as session:
        held = [targets.node_document(session, name) for name in ("a", "b", "c")]
        assert [None if item is None else item.generation for item in held] == [None, 2, 2]


def test_plans_overtaken_by_a_promotion_are_set_aside(database: Database) -> None:
    with database.transaction() as session:
        waiting = keep(session, plan(0, seed=5), state=PlanState.AWAITING_APPROVAL)
        shadow = keep(session, plan(0, seed=6), state=PlanState.SHADOW)
        ahead = keep(session, plan(1, seed=7))
        promote(session, plan(0))
        states = [plans.get(session, name).state for name in (waiting, shadow, ahead)]
    assert states == [PlanState.AWAITING_APPROVAL, PlanState.SHADOW, PlanState.PROPOSED]


def test_while_planning_is_held_only_people_promote(database: Database) -> None:
    with database.transaction() as session:
        lease = targets.acquire_lease(session, targets.PLANNER, "planner", 60.0)
        assert lease is not None
        promote(session, plan(0), token=lease.token)
        targets.hold(session, CLUSTER, 60.0, "ann", "generation 1 was rolled back")
        with pytest.raises(SupersededError, match="ann holds planning: generation 1 was rolled back"):
            promote(session, plan(1), token=lease.token)
        promote(session, plan(1))
        held = targets.let_go(session, CLUSTER)
        assert held is not None
        assert (held.by, targets.held_back(session, CLUSTER)) == ("ann", None)
        promote(session, plan(2), token=lease.token)
        targets.hold(session, CLUSTER, -1.0, "ann", "over")
        promote(session, plan(3), token=lease.token)


def test_a_plan_comes_back_under_its_digest(database: Database) -> None:
    with database.transaction() as session:
        promote(session, plan(0))
        promote(session, plan(1))
        first = digest(plan(0))
        wish = Promotion(
            cluster=CLUSTER, plan_id=first, parent_generation=2, promoted_by="ann", node_documents={}, again=True,
            parent_plan=digest(plan(0)), hold_s=60.0,
        )  # fmt: skip
        with pytest.raises(SupersededError, match="was made beside"):
            targets.promote(session, wish)
        targets.promote(session, replace(wish, parent_plan=digest(plan(1))))
        assert (targets.current(session, CLUSTER).plan, targets.generation(session, CLUSTER)) == (first, 3)
        assert [targets.line(session, number).plan_id == first for number in (1, 2, 3)] == [True, False, True]
        assert targets.held_back(session, CLUSTER) is not None


def test_epochs_rise_and_two_copies_never_begin_the_same(database: Database) -> None:
    """A backup that is restored twice begins where a history of its own would have to end."""
    with database.transaction() as session:
        assert targets.standing(session, CLUSTER) == Standing()
        promote(session, plan())
        first = targets.standing(session, CLUSTER)
        begun = targets.begin_epoch(session, CLUSTER)
    assert (first.generation, first.epoch) == (1, 1)
    assert (begun.generation, begun.cluster_id) == (1, first.cluster_id)
    assert begun.epoch is not None
    assert begun.epoch > 1.7e9
    with database.transaction() as session:
        session.execute(text("UPDATE cluster_state SET epoch = 9000000000"))
        assert targets.begin_epoch(session, CLUSTER).epoch == 9000000001


def test_who_led_what_a_restore_undid_leads_no_more(database: Database) -> None:
    """It froze with a token that the restored database, which is older, has yet to give."""
    with database.transaction() as session:
        undone = 1 + token_of(targets.acquire_lease(session, targets.PLANNER, "host:1", 60.0))
        begin_epoch(session)
    with database.transaction() as session, pytest.raises(LeaseLostError):
        promote(session, plan(), token=undone)
    with database.transaction() as session:
        again = token_of(targets.acquire_lease(session, targets.PLANNER, "host:2", 60.0))
        assert promote(session, plan(), token=again) == 1
    with database.transaction() as session, pytest.raises(LeaseLostError):
        promote(session, plan(1), token=undone)


def test_a_restored_database_knows_nobody_who_led_since(database: Database) -> None:
    """Nor where nobody had led yet when the backup was made."""
    with database.transaction() as session:
        begin_epoch(session)
    with database.transaction() as session, pytest.raises(LeaseLostError):
        promote(session, plan(), token=3)
    with database.transaction() as session:
        assert promote(session, plan(), token=token_of(targets.acquire_lease(session, targets.PLANNER, "a", 60.0))) == 1


def test_versions_of_what_a_restore_undid_fit_nothing(database: Database) -> None:
    """A version that was told since the backup would otherwise be told once more, for other text."""
    spec = {"name": "vision"}
    with database.transaction() as session:
        first = documents.put(session, kinds.PROJECT, spec).stored.version
        begin_epoch(session)
        after = documents.put(session, kinds.PROJECT, {**spec, "description": "after"}).stored.version
    assert after > first + 10**9


def begin_epoch(session: Session) -> None:
    targets.ensure_cluster(session, CLUSTER)
    targets.begin_epoch(session, CLUSTER)


def token_of(lease: targets.Lease | None) -> int:
    assert lease is not None
    return lease.token


def test_whoever_plans_or_serves_is_named(database: Database, database_url: str) -> None:
    with database.transaction() as session:
        assert targets.busy(session) == ()
        targets.acquire_lease(session, targets.PLANNER, "host:1", 60.0)
    api = Database(database_url, pool_size=1, application_name="headroom api")
    with api.reading() as session:
        (serving, planning) = targets.busy(session)
    api.dispose()
    assert serving == "an API process is connected"
    assert planning.startswith("planner host:1 holds the lease until ")
    with database.transaction() as session:
        targets.release_lease(session, targets.PLANNER, "host:1")
    wait_until(lambda: database.read(targets.busy) == (), "the connection is gone")
