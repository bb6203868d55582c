"""Plans come back as they were and change state only along allowed ways; so do cycles with their records."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.store import cycles, meters, plans, targets
from app.store.cycles import CycleState, NewCycle
from app.store.engine import Database
from app.store.pages import PageOrder
from app.store.plans import NewPlan, PlanState
from solvers.cycle.record import CycleStep, HoldReason, Lane
from solvers.domain.codec import digest
from solvers.domain.ids import CycleId, Generation
from solvers.errors import FieldError, LeaseLostError, NotFoundError, StateError, SupersededError
from tests.integration.store.plans import keep, plan, promote, record

pytestmark = pytest.mark.integration


def test_a_plan_comes_back_with_its_digest(database: Database) -> None:
    with database.transaction() as session:
        plan_id = keep(session, plan())
    with database.reading() as session:
        assert plans.load(session, plan_id) == plan()
        assert digest(plans.load(session, plan_id)) == plan_id
        summary = plans.get(session, plan_id)
        assert (summary.lane, summary.state, summary.cost_usd_per_h) == (Lane.ACT, PlanState.PROPOSED, 0.35)
        assert (summary.unplaced_count, summary.parent_generation, summary.generation) == (1, 0, None)
        for missing in (plans.load, plans.get):
            with pytest.raises(NotFoundError):
                missing(session, "sha256:none")


def test_putting_a_decided_plan_again_keeps_the_decision(database: Database) -> None:
    with database.transaction() as session:
        plan_id = keep(session, plan(), state=PlanState.SHADOW, lane=Lane.SHADOW)
        keep(session, plan(), state=PlanState.AWAITING_APPROVAL, lane=Lane.APPROVE)
        assert plans.get(session, plan_id).state is PlanState.AWAITING_APPROVAL
        plans.decide(session, plan_id, PlanState.REJECTED, "ann", among=[PlanState.AWAITING_APPROVAL])
        keep(session, plan())
        found = plans.get(session, plan_id)
        assert (found.state, found.lane, found.decided_by) == (PlanState.REJECTED, Lane.APPROVE, "ann")


def test_decisions_are_compare_and_set(database: Database) -> None:
    with database.transaction() as session:
        plan_id = keep(session, plan(), state=PlanState.AWAITING_APPROVAL)
        with pytest.raises(StateError, match="awaiting_approval"):
            plans.decide(session, plan_id, PlanState.REJECTED, "ann", among=[PlanState.PROPOSED])
        newer = keep(session, plan(seed=2), state=PlanState.AWAITING_APPROVAL)
        plans.decide(session, plan_id, PlanState.SUPERSEDED, "ann", among=[PlanState.AWAITING_APPROVAL])
        with pytest.raises(SupersededError, match="superseded, by ann at "):
            plans.decide(session, plan_id, PlanState.REJECTED, "bob", among=[PlanState.AWAITING_APPROVAL])
        with pytest.raises(NotFoundError):
            plans.decide(session, "none", PlanState.REJECTED, "ann", among=[PlanState.PROPOSED])
        assert plans.get(session, newer).state is PlanState.AWAITING_APPROVAL


def _waits(session: Session, seed: int, waits_s: float, matter: str = "m") -> str:
    return plans.put(
        session,
        NewPlan(
            plan=plan(seed=seed), lane=Lane.APPROVE, state=PlanState.AWAITING_APPROVAL, created_by="planner",
            matter=matter, waits_s=waits_s,
        ),
    ).id  # fmt: skip


def test_what_nobody_decided_in_time_is_expired_though_nobody_wrote_so(database: Database) -> None:
    with database.transaction() as session:
        late, in_time = _waits(session, 1, -1.0), _waits(session, 2, 900.0)
        assert [plans.get(session, name).state.value for name in (late, in_time)] == ["expired", "awaiting_approval"]
        assert [item.id for item in plans.waiting(session)] == [in_time]
        assert meters.whole(session).plans_awaiting == 1  # nor is anybody alarmed of it for ever
        found = plans.page(session, PageOrder(limit=9), state=PlanState.EXPIRED)
        assert [item.id for item in found.items] == [late]
        with pytest.raises(StateError, match="the plan is expired since 20"):
            plans.decide(session, late, PlanState.PROMOTED, "ann", among=[PlanState.AWAITING_APPROVAL])
        asked = plans.decided_on(session, "m")
        assert asked is not None
        assert asked.id == in_time


def test_a_prefix_names_one_plan_or_is_told_to_be_ambiguous(database: Database) -> None:
    with database.transaction() as session:
        ids = sorted(keep(session, plan(seed=seed)).removeprefix("sha256:") for seed in range(40))
        shared = next(a[:1] for a, b in pairwise(ids) if a[0] == b[0])
        for text in (ids[0], f"sha256:{ids[0]}", ids[0][:12]):
            assert plans.full_id(session, text) == f"sha256:{ids[0]}"
        with pytest.raises(FieldError, match=f"{shared} is ambiguous: {shared}"):
            plans.full_id(session, shared)
        with pytest.raises(NotFoundError):
            plans.full_id(session, "ffff" if not ids[-1].startswith("ffff") else "0000")


def test_plans_are_listed_newest_first_by_lane_and_state(database: Database) -> None:
    ids = []
    for seed in range(5):
        with database.transaction() as session:
            lane = Lane.SHADOW if seed % 2 else Lane.ACT
            state = PlanState.SHADOW if seed % 2 else PlanState.PROPOSED
            ids.append(keep(session, plan(seed=seed), lane=lane, state=state))
    with database.reading() as session:
        first = plans.page(session, PageOrder(limit=2))
        second = plans.page(session, PageOrder(limit=2, cursor=first.next_cursor))
        third = plans.page(session, PageOrder(limit=2, cursor=second.next_cursor))
        assert [item.id for page in (first, second, third) for item in page.items] == ids[::-1]
        assert third.next_cursor is None
        assert [item.id for item in plans.page(session, PageOrder(limit=9), lane=Lane.SHADOW).items] == [ids[3], ids[1]]
        assert [item.id for item in plans.page(session, PageOrder(limit=9), state=PlanState.SHADOW).items] == [
            ids[3],
            ids[1],
        ]
        with pytest.raises(FieldError):
            plans.page(session, PageOrder(limit=2, cursor=str(first.next_cursor)[:-2]))


def test_plans_of_one_moment_are_all_listed(database: Database) -> None:
    with database.transaction() as session:
        ids = {keep(session, plan(seed=seed)) for seed in range(5)}
    with database.reading() as session:
        first = plans.page(session, PageOrder(limit=3))
        second = plans.page(session, PageOrder(limit=3, cursor=first.next_cursor))
    assert {item.id for item in (*first.items, *second.items)} == ids


def _remain(session: Session) -> list[int]:
    """Generations of the plans that are there, the newest first, once those of more than a day have been deleted."""
    plans.delete_older(session, 1.0)
    return sorted((item.generation or 0 for item in plans.page(session, PageOrder(limit=9)).items), reverse=True)


def test_old_plans_go_but_the_standing_one_and_the_one_before_stay(database: Database) -> None:
    """However long ago both were made: without a plan there is nothing to go back to."""
    with database.transaction() as session:
        for parent in range(4):
            promote(session, plan(parent))
        assert plans.delete_older(session, 1.0) == 0
        session.execute(text("UPDATE plans SET created_at = now() - interval '40 days'"))
        session.execute(text("UPDATE target_history SET promoted_at = now() - interval '40 days'"))
        assert _remain(session) == [4, 3]
        assert [line.generation for line in targets.page(session, PageOrder(limit=9)).items] == [4, 3]
        assert plans.load(session, targets.line(session, 3).plan_id) == plan(2)


def test_a_plan_is_kept_by_when_it_stood_and_not_by_when_it_was_made(database: Database) -> None:
    """The second stood for forty days, until an hour ago; three have taken its place in turn since."""
    with database.transaction() as session:
        for parent in range(5):
            promote(session, plan(parent))
        session.execute(text("UPDATE plans SET created_at = now() - interval '40 days' WHERE generation <= 2"))
        session.execute(
            text("UPDATE target_history SET promoted_at = now() - interval '40 days' WHERE generation <= 2")
        )
        assert _remain(session) == [5, 4, 3, 2]
        assert targets.at(session, 2).plan == digest(plan(1))


def test_a_plan_that_still_waits_is_not_deleted(database: Database) -> None:
    with database.transaction() as session:
        for seed, waits_s in enumerate((3600.0, -1.0)):
            new = NewPlan(
                plan=plan(seed=seed),
                lane=Lane.APPROVE,
                state=PlanState.AWAITING_APPROVAL,
                created_by="planner",
                waits_s=waits_s,
            )
            plans.put(session, new)
        session.execute(text("UPDATE plans SET created_at = now() - interval '40 days'"))
        assert plans.delete_older(session, 1.0) == 1
        assert [item.id for item in plans.waiting(session)] == [digest(plan(seed=0))]


def _begin(database: Database, cycle_id: str = "cycle-1", token: int = 1) -> None:
    new = NewCycle(id=CycleId(cycle_id), lane=Lane.ACT, holder="me", fencing_token=token, software_version="0.1.0")
    with database.transaction() as session:
        cycles.begin(session, new)


def test_a_cycle_leaves_its_whole_record(database: Database) -> None:
    _begin(database)
    with database.transaction() as session:
        cycles.note_step(session, "cycle-1", CycleStep.GATE)
        with pytest.raises(StateError, match="left no record"):
            cycles.load(session, "cycle-1")
    with database.transaction() as session:
        cycles.draft(session, record())
    with database.reading() as session:
        running = cycles.get(session, "cycle-1")
        assert (running.state, running.step, running.ended_at) == (CycleState.RUNNING, "gate", None)
        assert cycles.load(session, "cycle-1") == record()
    finished = replace(record(), generation=Generation(3))
    with database.transaction() as session:
        cycles.close(session, finished)
    with database.reading() as session:
        assert cycles.load(session, "cycle-1") == finished
        closed = cycles.get(session, "cycle-1")
        assert (closed.state, closed.generation, closed.elapsed_ms) == (CycleState.CLOSED, 3, 21.75)
        assert (closed.snapshot_digest, closed.plan_digest) == (finished.snapshot_digest, finished.plan_digest)
        assert (closed.policy, closed.planner) == ("default", "greedy")
        assert closed.decision is not None
        assert closed.decision.reasons == (HoldReason.COOLDOWN,)


def test_a_closed_cycle_is_not_written_again(database: Database) -> None:
    _begin(database)
    with database.transaction() as session:
        cycles.close(session, record())
        with pytest.raises(StateError):
            cycles.close(session, record())
        with pytest.raises(NotFoundError):
            cycles.draft(session, record("cycle-2"))


def test_a_new_leader_aborts_what_the_old_one_left(database: Database) -> None:
    _begin(database, "old", token=1)
    _begin(database, "own", token=2)
    with database.transaction() as session:
        assert cycles.abort_older(session, 2) == ("old",)
    with database.transaction() as session:
        assert cycles.abort_older(session, 2) == ()
        assert cycles.get(session, "own").state is CycleState.RUNNING
        old = cycles.get(session, "old")
        assert (old.state, old.generation) == (CycleState.ABORTED, None)
        assert old.ended_at is not None
        for write in (cycles.draft, cycles.close):
            with pytest.raises(LeaseLostError):
                write(session, record("old"))


def test_an_aborted_cycle_that_had_promoted_knows_its_generation(database: Database) -> None:
    _begin(database)
    with database.transaction() as session:
        cycles.draft(session, record())
        promote(session, plan())
    with database.transaction() as session:
        assert cycles.abort_older(session, 2) == ("cycle-1",)
        assert cycles.get(session, "cycle-1").generation == 1
        assert cycles.load(session, "cycle-1") == record()


def test_a_single_cycle_can_be_aborted(database: Database) -> None:
    _begin(database)
    with database.transaction() as session:
        assert cycles.abort(session, "cycle-1")
        assert not cycles.abort(session, "cycle-1")


def test_cycles_are_listed_newest_first_and_old_ones_go(database: Database) -> None:
    for number in range(3):
        _begin(database, f"cycle-{number}")
    with database.transaction() as session:
        cycles.close(session, record("cycle-1"))
        first = cycles.page(session, PageOrder(limit=2))
        rest = cycles.page(session, PageOrder(limit=2, cursor=first.next_cursor))
        assert [item.id for item in (*first.items, *rest.items)] == ["cycle-2", "cycle-1", "cycle-0"]
        assert [item.id for item in cycles.page(session, PageOrder(limit=9), state=CycleState.CLOSED).items] == [
            "cycle-1"
        ]
        assert cycles.page(session, PageOrder(limit=9), lane=Lane.SHADOW).items == ()
        session.execute(text("UPDATE cycles SET started_at = now() - interval '2 days'"))
        assert cycles.delete_older(session, 1.0) == 1
        assert {item.id for item in cycles.page(session, PageOrder(limit=9)).items} == {"cycle-0", "cycle-2"}
