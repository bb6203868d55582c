"""One suite for every registered planner: it keeps the contract whatever it is."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing.pool import Pool
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from app import own_planners
from solvers.domain.change import Target
from solvers.domain.codec import canonical_json, digest, from_json
from solvers.domain.evidence import ReasonCode, SilentReporter
from solvers.domain.ids import Generation
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.domain.snapshot import Snapshot
from solvers.errors import EngineError
from solvers.planners import registry
from solvers.planners.base import Budget, PlanRequest, Remembering, Thought
from solvers.verify.checks import is_fatal, verify
from tests import builders
from tests.property.worlds import worlds_with_target

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
"""Worlds are large, and Hypothesis now and then prints one for itself."""

OWN = f"{Path(__file__).parents[2]}/examples/my_policy.py:MyPlanner"
"""A policy of one's own keeps the same contract."""
NAMES = (*registry.names(), OWN)
ANSWERS = {ProposalStatus.OPTIMAL, ProposalStatus.FEASIBLE}
WORK_UNITS = 20
TRAINED = "inss_rl"
"""No actor was trained for the pictures here, and it alone may say so."""


def shown(name: str) -> str:
    return name.rpartition("/")[2]


each_planner = pytest.mark.parametrize("name", NAMES, ids=shown)


def world() -> Snapshot:
    services = [
        builders.service("vision"),
        builders.service("fast", slo=builders.slo(12.0), rate_rps_declared=200.0),
        builders.service("big", rate_rps_declared=900.0),
    ]
    return builders.lab(services, jobs=(builders.job(),), tasks=(builders.task(),))


@functools.cache
def standing_world() -> Snapshot:
    before = world()
    plan = registry.propose("greedy", asked(before)).plan
    assert plan is not None
    target = builders.target(plan.assignments, settings=plan.settings)
    return replace(before, target=target, demands=(builders.demand("demo/vision", 400.0),))


def shuffled(picture: Snapshot) -> Snapshot:
    """The same world with every table in another order, which no planner may notice."""
    tables = ("projects", "gpu_types", "nodes", "node_statuses", "devices", "models", "services", "profiles")
    changes: dict[str, object] = {name: tuple(reversed(getattr(picture, name))) for name in tables}
    target = replace(picture.target, assignments=tuple(reversed(picture.target.assignments)))
    return replace(picture, target=target, **changes)  # type: ignore[arg-type]


def asked(picture: Snapshot, movable: Iterable[str] | None = None) -> PlanRequest:
    """With little work allowed: what is asked here holds after any."""
    return replace(builders.request(picture, movable), budget=Budget(deadline_s=3600.0, work_units=WORK_UNITS))


def propose(name: str, request: PlanRequest, state: bytes | None = None) -> Proposal:
    return registry.think(own_planners.create(name), request, state, SilentReporter()).proposal


def answer(name: str, picture: Snapshot) -> Proposal:
    return propose(name, asked(picture))


@functools.cache
def shown_answer(name: str, view: str) -> Proposal:
    """The answer to a picture, made once for all the laws that look at it alone."""
    return answer(name, PICTURES[view])


@functools.cache
def first_proposal(name: str, view: str) -> Proposal:
    """The same, asked of the planner itself as it is when nothing is remembered."""
    planner = own_planners.create(name)
    return planner.propose(asked(PICTURES[view]), planner.first_state(), SilentReporter())


def plan_of(name: str, proposal: Proposal) -> Plan | None:
    """The plan, which only who is not for all pictures may refuse to make, and not without a reason."""
    if proposal.plan is None:
        assert name == TRAINED
        assert proposal.status is ProposalStatus.NOT_APPLICABLE
        assert proposal.reasons
    return proposal.plan


def in_child(name: str, request: PlanRequest) -> str:
    return canonical_json(propose(name, request))


PICTURES = {"empty": world(), "standing": standing_world(), "idle": builders.lab()}


@pytest.mark.parametrize("view", PICTURES)
@each_planner
class TestPlanner:
    def test_answers_within_the_contract(self, name: str, view: str) -> None:
        planner, picture = own_planners.create(name), PICTURES[view]
        called = planner.spec.name
        assert name in (called, OWN)
        proposal = first_proposal(name, view)
        assert proposal.planner == called
        assert (proposal.plan is not None) == (proposal.status in ANSWERS)
        plan = plan_of(name, proposal)
        if plan is None:
            return
        assert (plan.planner, plan.planner_version) == (called, planner.spec.version)
        assert (plan.snapshot, plan.parent) == (digest(picture), picture.target.generation)
        assert plan.assignments == tuple(sorted(plan.assignments, key=lambda item: item.replica))
        assert plan.settings == tuple(sorted(plan.settings, key=lambda item: item.device))
        assert all(item.reasons for item in plan.assignments)
        assert all(item.reasons for item in plan.unplaced)

    def test_its_plan_verifies(self, name: str, view: str) -> None:
        plan, picture = plan_of(name, shown_answer(name, view)), PICTURES[view]
        assert plan is None or not is_fatal(verify(picture, plan, builders.everything_movable(picture)))

    def test_same_request_same_plan(self, name: str, view: str) -> None:
        assert digest(shown_answer(name, view)) == digest(first_proposal(name, view))

    def test_order_of_input_does_not_matter(self, name: str, view: str) -> None:
        first = plan_of(name, shown_answer(name, view))
        second = plan_of(name, answer(name, shuffled(PICTURES[view])))
        assert (first is None) == (second is None)
        assert first is None or second is None or replace(second, snapshot=first.snapshot) == first

    def test_request_and_answer_travel(self, name: str, view: str) -> None:
        request = asked(PICTURES[view])
        assert pickle.loads(pickle.dumps(request)) == request
        proposal = shown_answer(name, view)
        assert pickle.loads(pickle.dumps(proposal)) == proposal
        assert from_json(Proposal, canonical_json(proposal)) == proposal

    def test_pinned_workloads_stay(self, name: str, view: str) -> None:
        picture = PICTURES[view]
        plan = plan_of(name, propose(name, asked(picture, movable=())))
        assert (plan is None) == (name == TRAINED)
        if plan is None:
            return
        assert not is_fatal(verify(picture, plan, ()))
        assert {item.replica for item in plan.assignments} == {item.replica for item in picture.target.assignments}


@pytest.fixture(scope="module")
def child() -> Iterator[Pool]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@each_planner
def test_runs_in_a_spawned_child(name: str, child: Pool) -> None:
    text = child.apply(in_child, (name, asked(PICTURES["empty"])))
    assert text == canonical_json(shown_answer(name, "empty"))


CYCLES = 2
CYCLE_S = 200.0


def course(name: str, picture: Snapshot) -> list[Thought]:
    """Cycle after cycle: each plan stands in the next, each state is handed on, demand rises and falls."""
    state, thoughts = None, list[Thought]()
    for cycle in range(CYCLES):
        request, planner = asked(picture), own_planners.create(name)
        thought = registry.think(planner, request, state, SilentReporter())
        thoughts.append(thought)
        plan = plan_of(name, thought.proposal)
        if plan is None:
            break
        # A planner without knobs restates what stands, whatever has become of it.
        assert not planner.spec.knobs or not is_fatal(verify(picture, plan, request.movable))
        assert all(item.reasons for item in (*plan.assignments, *plan.unplaced))
        state = state if thought.state is None else thought.state
        factor = 3.0 if cycle == 0 else 0.2
        picture = replace(
            picture,
            taken_at_s=picture.taken_at_s + CYCLE_S,
            target=Target(generation=Generation(10 + cycle), assignments=plan.assignments, settings=plan.settings),
            demands=tuple(replace(item, rate_rps_upper=item.rate_rps_upper * factor) for item in picture.demands),
        )
    return thoughts


@functools.cache
def standing_course(name: str) -> list[Thought]:
    """The course from a standing target, gone once for both laws that look at it."""
    return course(name, standing_world())


@functools.cache
def random_worlds() -> tuple[Snapshot, ...]:
    """The same for every planner, for drawing one takes longer than most take to plan in it."""
    drawn = list[Snapshot]()

    @given(picture=worlds_with_target())
    @settings(
        max_examples=3,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    def draw(picture: Snapshot) -> None:
        drawn.append(picture)

    draw()
    assert len(drawn) == 3
    return tuple(drawn)


@each_planner
def test_plans_of_random_worlds_verify_cycle_after_cycle(name: str) -> None:
    for picture in random_worlds():
        course(name, picture)


@each_planner
class TestState:
    def test_the_same_course_twice_is_the_same(self, name: str) -> None:
        first, second = standing_course(name), course(name, standing_world.__wrapped__())
        assert [digest(item.proposal) for item in first] == [digest(item.proposal) for item in second]
        assert [item.state for item in first] == [item.state for item in second]

    def test_state_travels_as_bytes(self, name: str) -> None:
        thoughts = standing_course(name)
        kept = [item.state for item in thoughts if item.state is not None]
        assert all(isinstance(item, bytes) for item in kept)
        assert pickle.loads(pickle.dumps(thoughts)) == thoughts
        if isinstance(own_planners.create(name), Remembering):
            assert kept

    def test_foreign_state_is_as_good_as_none(self, name: str) -> None:
        request = asked(standing_world())
        fresh = standing_course(name)[0].proposal
        states = (b"junk", b"{}", b"\xff\x00", b'{"form":"someone-else-1"}')
        for state in states if isinstance(own_planners.create(name), Remembering) else states[:1]:
            assert registry.think(own_planners.create(name), request, state, SilentReporter()).proposal == fresh


@each_planner
def test_a_passed_deadline_still_ends_in_a_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at the clock finds that it is much too late."""
    ticks = itertools.count(start=10**9, step=10)
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    picture = standing_world()
    request = replace(asked(picture), budget=Budget(deadline_s=0.05))
    proposal = own_planners.create(name).propose(request, b"", SilentReporter())
    plan = plan_of(name, proposal)
    assert plan is None or not is_fatal(verify(picture, plan, request.movable))


@each_planner
def test_a_missing_profile_is_a_reason(name: str) -> None:
    if not own_planners.create(name).spec.needs_profiles:
        assert name == "keep-target"
        return
    services = [builders.service("vision"), builders.service("blind", model="bert")]
    picture = builders.lab(
        services, profiles=(builders.profile("resnet50", "t4"), builders.profile("resnet50", "v100"))
    )
    plan = plan_of(name, answer(name, picture))
    assert (plan is None) == (name == TRAINED)
    if plan is None:
        return
    assert not is_fatal(verify(picture, plan, builders.everything_movable(picture)))
    (blind,) = (item for item in plan.unplaced if item.workload == "demo/blind")
    assert ReasonCode.NO_PROFILE in {reason.code for reason in blind.reasons}
    assert "demo/blind" not in {item.workload for item in plan.assignments}


def test_an_unknown_planner_is_an_engine_error() -> None:
    with pytest.raises(EngineError):
        registry.create("nobody")
