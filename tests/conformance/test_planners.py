"""One suite for every registered planner: it keeps the contract whatever it is."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import replace

import pytest

from solvers.domain.codec import canonical_json, digest, from_json
from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.domain.snapshot import Snapshot
from solvers.errors import EngineError
from solvers.planners import registry
from solvers.planners.base import PlanRequest
from solvers.verify.checks import is_fatal, verify
from tests import builders

NAMES = registry.names()
ANSWERS = {ProposalStatus.OPTIMAL, ProposalStatus.FEASIBLE}


def world() -> Snapshot:
    services = [
        builders.service("vision"),
        builders.service("fast", slo=builders.slo(12.0), rate_rps_declared=200.0),
        builders.service("big", rate_rps_declared=900.0),
    ]
    return builders.lab(services, jobs=(builders.job(),), tasks=(builders.task(),))


def standing_world() -> Snapshot:
    before = world()
    plan = registry.propose("greedy", builders.request(before)).plan
    assert plan is not None
    target = builders.target(plan.assignments, settings=plan.settings)
    return replace(before, target=target, demands=(builders.demand("demo/vision", 400.0),))


def shuffled(picture: Snapshot) -> Snapshot:
    """The same world with every table in another order, which no planner may notice."""
    tables = ("projects", "gpu_types", "nodes", "node_statuses", "devices", "models", "services", "profiles")
    changes: dict[str, object] = {name: tuple(reversed(getattr(picture, name))) for name in tables}
    target = replace(picture.target, assignments=tuple(reversed(picture.target.assignments)))
    return replace(picture, target=target, **changes)  # type: ignore[arg-type]


def answer(name: str, picture: Snapshot) -> Proposal:
    return registry.propose(name, builders.request(picture))


def in_child(name: str, request: PlanRequest) -> str:
    return canonical_json(registry.propose(name, request))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("picture", [world(), standing_world(), builders.lab()], ids=["empty", "standing", "idle"])
class TestPlanner:
    def test_answers_within_the_contract(self, name: str, picture: Snapshot) -> None:
        planner = registry.create(name)
        assert planner.spec.name == name
        proposal = planner.propose(builders.request(picture), planner.first_state(), SilentReporter())
        assert proposal.planner == name
        assert (proposal.plan is not None) == (proposal.status in ANSWERS)
        plan = proposal.plan
        assert plan is not None
        assert (plan.planner, plan.planner_version) == (name, planner.spec.version)
        assert (plan.snapshot, plan.parent) == (digest(picture), picture.target.generation)
        assert plan.assignments == tuple(sorted(plan.assignments, key=lambda item: item.replica))
        assert plan.settings == tuple(sorted(plan.settings, key=lambda item: item.device))
        assert all(item.reasons for item in plan.assignments)
        assert all(item.reasons for item in plan.unplaced)

    def test_its_plan_verifies(self, name: str, picture: Snapshot) -> None:
        plan = answer(name, picture).plan
        assert plan is not None
        assert not is_fatal(verify(picture, plan, builders.everything_movable(picture)))

    def test_same_request_same_plan(self, name: str, picture: Snapshot) -> None:
        assert digest(answer(name, picture)) == digest(answer(name, picture))

    def test_order_of_input_does_not_matter(self, name: str, picture: Snapshot) -> None:
        first, second = answer(name, picture).plan, answer(name, shuffled(picture)).plan
        assert isinstance(first, Plan)
        assert isinstance(second, Plan)
        assert replace(second, snapshot=first.snapshot) == first

    def test_request_and_answer_travel(self, name: str, picture: Snapshot) -> None:
        request = builders.request(picture)
        assert pickle.loads(pickle.dumps(request)) == request
        proposal = answer(name, picture)
        assert pickle.loads(pickle.dumps(proposal)) == proposal
        assert from_json(Proposal, canonical_json(proposal)) == proposal

    def test_pinned_workloads_stay(self, name: str, picture: Snapshot) -> None:
        plan = registry.propose(name, builders.request(picture, movable=())).plan
        assert plan is not None
        assert not is_fatal(verify(picture, plan, ()))
        assert {item.replica for item in plan.assignments} == {item.replica for item in picture.target.assignments}

    def test_learning_returns_a_state(self, name: str, picture: Snapshot) -> None:
        planner = registry.create(name)
        assert isinstance(planner.learn(planner.first_state(), b"outcome"), bytes)


@pytest.mark.parametrize("name", NAMES)
def test_runs_in_a_spawned_child(name: str) -> None:
    request = builders.request(world())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        text = pool.apply(in_child, (name, request))
    assert text == canonical_json(registry.propose(name, request))


def test_an_unknown_planner_is_an_engine_error() -> None:
    with pytest.raises(EngineError):
        registry.create("nobody")
