"""One cycle from end to end over in-memory ports: the order of steps, fallbacks, lost races, what is recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.cycle.cycle import CycleOrder, replay, run_cycle
from solvers.cycle.record import CycleRecord, HoldReason, Lane
from solvers.domain.codec import bytes_digest, canonical_json, digest, from_json
from solvers.domain.evidence import Fact, Reason, ReasonCode, SilentReporter
from solvers.domain.ids import CycleId
from solvers.domain.plan import Proposal, ProposalStatus
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ServiceMode
from solvers.errors import EngineError, InputError, LeaseLostError, SupersededError, TransientError
from solvers.planners import registry
from solvers.planners.base import PlanRequest, Thought
from tests import builders
from tests.memory import MemoryActuator, MemoryRunner, World


def order(**changes: object) -> CycleOrder:
    made = CycleOrder(id=CycleId("c1"), lane=Lane.ACT, seed=7, software_version="0.1.0")
    return replace(made, **changes)  # type: ignore[arg-type]


def lab(**policy: object) -> Snapshot:
    return builders.lab([builders.service()], policy=builders.policy(**policy))


def overloaded(request: PlanRequest) -> Proposal:
    """A plan that breaks a hard rule: its first replica takes more share than there is."""
    proposal = registry.propose("greedy", request)
    assert proposal.plan is not None
    first, *rest = proposal.plan.assignments
    return replace(proposal, plan=replace(proposal.plan, assignments=(replace(first, share_pct_sm=500), *rest)))


def planless(request: PlanRequest) -> Proposal:
    facts = (Fact(name="needs", value="another fleet"),)
    reason = Reason(code=ReasonCode.SOLVER_FAILED, subject="planless", facts=facts)
    return Proposal(status=ProposalStatus.NOT_APPLICABLE, planner="planless", plan=None, reasons=(reason,))


def test_a_good_plan_is_promoted_and_its_cause_is_stored_first() -> None:
    world = World(lab())
    record = run_cycle(world.ports, order())
    steps = ["observe", "propose", "verify", "diff", "gate", "actuate", "drafted", "record", "closed"]
    assert world.journal.events == steps
    assert record.generation == 1
    assert record.decision is not None
    assert record.decision.promote
    (drafted,), (closed,) = world.journal.drafts, world.journal.closed
    assert closed == record
    assert drafted.plan == record.plan
    assert drafted.generation is None
    ((_, plan),) = world.actuator.promoted
    assert record.transition is not None
    assert digest(plan) == record.plan_digest
    assert [change.subject for change in record.transition.changes] == ["demo/vision#0"]
    assert [name for name, _ in world.reporter.heard][-1] == "plan.promoted"


def test_the_record_says_what_it_was_made_from() -> None:
    record = run_cycle(World(lab(deadline_s=3.0)).ports, order(seed=99))
    assert (record.seed, record.budget.deadline_s, record.software_version) == (99, 3.0, "0.1.0")
    assert record.snapshot_digest == digest(record.snapshot)
    assert record.movable == ("demo/vision",)
    assert [(item.planner, item.status, item.error) for item in record.attempts] == [("greedy", "feasible", None)]
    assert [timing.step.value for timing in record.timings] == [
        "observe",
        "propose",
        "verify",
        "diff",
        "gate",
        "actuate",
    ]
    assert all(timing.elapsed_ms > 0 for timing in record.timings)


def test_a_crashed_planner_gives_way_to_the_next() -> None:
    world = World(lab(planners=("broken", "greedy")), runner=MemoryRunner({"broken": EngineError("killed by SIGKILL")}))
    record = run_cycle(world.ports, order())
    assert [(item.planner, item.status, item.error) for item in record.attempts] == [
        ("broken", "failed", "killed by SIGKILL"),
        ("greedy", "feasible", None),
    ]
    assert record.generation == 1


def test_a_planner_without_a_plan_gives_way_to_the_next() -> None:
    world = World(lab(planners=("planless", "greedy")), runner=MemoryRunner({"planless": planless}))
    record = run_cycle(world.ports, order())
    assert [(item.planner, item.status, item.error) for item in record.attempts] == [
        ("planless", "not_applicable", "another fleet"),
        ("greedy", "feasible", None),
    ]
    assert record.generation == 1


def test_a_refuted_plan_gives_way_to_the_next() -> None:
    world = World(lab(planners=("wild", "greedy")), runner=MemoryRunner({"wild": overloaded}))
    record = run_cycle(world.ports, order())
    assert record.attempts[0].error is not None
    assert "share invalid (demo/vision#0)" in record.attempts[0].error
    assert record.generation == 1
    assert record.plan is not None
    assert record.plan.assignments[0].share_pct_sm <= 100


def test_without_any_plan_the_target_stays() -> None:
    world = World(lab(), runner=MemoryRunner({"greedy": EngineError("out of memory")}))
    record = run_cycle(world.ports, order())
    assert (record.proposal, record.plan_digest, record.generation) == (None, None, None)
    assert record.decision is not None
    assert record.decision.reasons == (HoldReason.NO_PLAN,)
    assert world.journal.events == ["observe", "propose", "gate", "record", "closed"]
    assert world.actuator.promoted == []


def test_a_chain_of_refuted_plans_leaves_the_first_one_on_record() -> None:
    world = World(
        lab(planners=("wild", "greedy")),
        runner=MemoryRunner({"wild": overloaded, "greedy": EngineError("gone")}),
    )
    record = run_cycle(world.ports, order())
    assert record.decision is not None
    assert record.decision.reasons == (HoldReason.FATAL_FINDINGS,)
    assert record.plan is not None
    assert record.findings
    assert record.transition is None
    assert world.actuator.promoted == []


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (SupersededError("generation 4 is current"), HoldReason.SUPERSEDED),
        (LeaseLostError("token 3 is older than 4"), HoldReason.LEASE_LOST),
    ],
)
def test_a_lost_race_is_a_hold(failure: Exception, reason: HoldReason) -> None:
    world = World(lab(), actuator=MemoryActuator(failure=failure))
    record = run_cycle(world.ports, order())
    assert record.generation is None
    assert record.decision is not None
    assert (record.decision.promote, record.decision.reasons) == (False, (reason,))
    assert world.journal.events[-3:] == ["drafted", "record", "closed"]


def test_other_failures_abort_the_cycle_where_it_is() -> None:
    world = World(lab(), actuator=MemoryActuator(failure=TransientError("database away")))
    with pytest.raises(TransientError):
        run_cycle(world.ports, order())
    assert world.journal.events[-2:] == ["actuate", "drafted"]
    assert world.journal.closed == []


def test_on_request_nothing_is_promoted() -> None:
    world = World(lab())
    record = run_cycle(world.ports, order(promote=False))
    assert record.plan is not None
    assert record.transition is not None
    assert record.decision is not None
    assert record.decision.reasons == (HoldReason.AWAITING_APPROVAL,)
    assert world.journal.drafts == []
    assert world.actuator.promoted == []


def test_lanes_move_only_their_own() -> None:
    services = [
        builders.service("a", mode=ServiceMode.AUTO),
        builders.service("b", mode=ServiceMode.APPROVE),
        builders.service("c", mode=ServiceMode.SHADOW),
        builders.service("d", mode=ServiceMode.OFF),
    ]
    world = World(builders.lab(services))
    planned = {}
    for lane in Lane:
        record = run_cycle(world.ports, order(lane=lane))
        assert record.plan is not None
        planned[lane] = {item.workload.removeprefix("demo/") for item in record.plan.assignments}
    assert planned == {Lane.ACT: {"a"}, Lane.APPROVE: {"a", "b"}, Lane.SHADOW: {"a", "b", "c"}}
    assert len(world.actuator.promoted) == 1


def test_the_second_cycle_changes_nothing() -> None:
    first = run_cycle(World(lab()).ports, order())
    assert first.plan is not None
    target = builders.target(first.plan.assignments, settings=first.plan.settings)
    second = run_cycle(World(replace(lab(), target=target)).ports, order(id=CycleId("c2")))
    assert second.decision is not None
    assert second.decision.reasons == (HoldReason.NOTHING_TO_CHANGE,)
    assert second.generation is None


def test_a_record_survives_storage_and_replays_to_the_same_plan() -> None:
    record = run_cycle(World(lab()).ports, order())
    stored = from_json(CycleRecord, canonical_json(record))
    assert stored == record
    assert replay(stored) == record.plan_digest


def test_a_replay_with_another_planner_behind_the_name_shows() -> None:
    record = run_cycle(World(lab()).ports, order())
    assert replay(record, lambda name, request, state: overloaded(request)) != record.plan_digest


class Counting(MemoryRunner):
    """Its planner counts in its state how often it was asked."""

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        return Thought(proposal=registry.propose(planner, request), state=(state or b"")[:2] + b"x")


def test_what_a_planner_keeps_is_handed_in_next_time_and_named_in_the_record() -> None:
    world = World(lab(), runner=Counting())
    digests = [run_cycle(world.ports, order()).makers[0].state_digest for _ in range(3)]
    assert digests == [None, bytes_digest(b"x"), bytes_digest(b"xx")]
    assert world.memory.states == {"greedy": b"xxx"}


def test_what_is_kept_unchanged_is_not_written_again() -> None:
    world = World(lab(), runner=Counting())
    world.memory.states["greedy"] = b"xxx"
    record = run_cycle(world.ports, order())
    assert record.attempts[0].state_digest == bytes_digest(b"xxx")
    assert world.memory.kept == 0


def test_a_replay_hands_in_the_state_it_is_given() -> None:
    record = run_cycle(World(lab(), runner=Counting()).ports, order())
    seen: list[bytes | None] = []

    def propose(planner: str, request: PlanRequest, state: bytes | None) -> Proposal:
        seen.append(state)
        return registry.propose(planner, request, state)

    assert replay(record, propose, {record.snapshot.policy.name: b"then"}) == record.plan_digest
    assert seen == [b"then"]


def test_a_cycle_without_a_plan_cannot_be_replayed() -> None:
    world = World(lab(), runner=MemoryRunner({"greedy": EngineError("gone")}))
    record = run_cycle(world.ports, order())
    with pytest.raises(InputError):
        replay(record)


def test_a_planner_may_be_silent() -> None:
    proposal = registry.create("greedy").propose(builders.request(lab()), b"", SilentReporter())
    assert proposal.plan is not None
