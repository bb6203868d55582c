"""The live fleet's picture and what-if questions over HTTP: answers, that nothing changes, and what is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from agents.wire import encode
from app import kinds
from app.clock import SystemClock
from app.services.planning.plans import AT_ONCE_MAX
from app.store import profiles
from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.codec import digest, from_json, from_plain
from solvers.domain.ids import Digest
from solvers.domain.plan import Plan, Proposal
from solvers.domain.snapshot import Snapshot
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.registry import propose
from tests import builders
from tests.integration.api.world import DEVICE, NODE, World
from tests.integration.store.samples import device_report, report

pytestmark = pytest.mark.integration

TWICE = {"changes": {"rate_factor": 2.0}, "planner": "greedy", "work_units": 100}
_TABLES = ("plans", "cycles", "events", "node_targets", "cluster_state", "services", "nodes", "idempotency_keys")


_sequences = count(1)


@pytest.fixture(scope="module")
def joined(refusing_world: World) -> World:
    """One node with a T4, and a service that was measured on it; simulations leave nothing behind."""
    refusing_world.joined(NODE)
    refusing_world.put(kinds.SERVICE, builders.service())
    with refusing_world.database.transaction() as session:
        profiles.put_points(session, list(builders.profile().points))
    return refusing_world


@pytest.fixture
def busy(joined: World) -> World:
    """The same, its device just seen."""
    now_s = SystemClock().now_s()
    sent = report(NODE, next(_sequences), boot_id="boot-1", observed_at_s=now_s, devices=[device_report(DEVICE)])
    answer = joined.call("POST", "/v1/agent/reports", NODE, plain=encode(sent))
    assert answer.status_code < 300, answer.text
    return joined


def _counts(world: World) -> dict[str, int]:
    with world.database.raw() as connection:
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in _TABLES}


def test_the_picture_is_canonical_and_plans_as_the_server_would(busy: World) -> None:
    answer = busy.call("GET", "/v1/snapshot", "viewer")
    assert answer.status_code == 200
    snapshot = from_json(Snapshot, answer.content)
    assert from_plain(Snapshot, answer.json()) == snapshot
    simulated = busy.call("POST", "/v1/simulations", "operator", plain=TWICE).json()["simulation"]["before"]
    assert simulated["verified"]
    # Ages differ from one picture to the next, so the plan is made again from the very picture.
    movable = movable_workloads(snapshot, Lane.ACT)
    wanted = PlanRequest(snapshot=snapshot, movable=movable, budget=Budget(work_units=100), seed=snapshot.policy.seed)
    plan = _plan(propose("greedy", wanted))
    assert plan.snapshot == Digest(digest(snapshot))
    assert plan.objective.cost_usd_per_h == pytest.approx(simulated["cost_usd_per_h"])


def _plan(proposal: Proposal) -> Plan:
    assert proposal.plan is not None
    return proposal.plan


def test_a_simulation_answers_the_difference_and_leaves_no_trace(busy: World) -> None:
    before = _counts(busy)
    answer = busy.call("POST", "/v1/simulations", "operator", plain={**TWICE, "advise": 2})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["simulation"]["difference"]["cost_usd_per_h"] >= 0
    (row,) = found["simulation"]["workloads"]
    assert (row["workload"], row["after"]["rate_rps"]) == ("demo/vision", 2 * row["before"]["rate_rps"])
    assert {item["gpu_type"] for item in found["advised"]["advice"]} <= {"t4", "v100"}
    assert _counts(busy) == before


def test_changes_that_name_nothing_are_pointed_at(busy: World) -> None:
    wrong = {"changes": {"nodes_lost": ["z"], "rates": [{"service": "demo/visions", "factor": 2.0}]}}
    answer = busy.call("POST", "/v1/simulations", "operator", plain=wrong)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert {item["pointer"] for item in answer.json()["errors"]} == {
        "/changes/nodes_lost/0",
        "/changes/rates/0/service",
    }
    assert "did you mean demo/vision?" in answer.text


@pytest.mark.parametrize(
    ("plain", "pointer"),
    [
        ({}, "/changes"),
        ({"changes": {"surprise": 1}}, "/changes/surprise"),
        ({"changes": {"rates": [{"service": "demo/vision"}]}}, "/changes/rates/0/factor"),
        ({**TWICE, "planner": "prophet"}, "/planner"),
        ({**TWICE, "deadline_s": 400.0}, "/deadline_s"),
        ({"advise": 9}, "/advise"),
        ({"changes": {"policy": {"seed": "x"}}}, "/changes/policy/seed"),
    ],
)
def test_a_question_out_of_form_is_pointed_at(busy: World, plain: dict[str, Any], pointer: str) -> None:
    answer = busy.call("POST", "/v1/simulations", "operator", plain=plain)
    assert answer.status_code == 422, answer.text
    assert [item["pointer"] for item in answer.json()["errors"]] == [pointer]


def test_where_no_planner_is_asked_any_more_the_plan_before_is_kept(busy: World) -> None:
    unplanned = {"changes": {"policy": {"planners": []}}}
    answer = busy.call("POST", "/v1/simulations", "operator", plain=unplanned)
    assert answer.status_code == 200, answer.text
    after = answer.json()["simulation"]["after"]
    assert (after["as_before"], after["verified"], after["answered"]) == (True, True, "keep-target, which finished")


def test_where_nobody_plans_that_is_told(world: World) -> None:
    world.put(kinds.POLICY, replace(builders.policy(), planners=()))
    answer = world.call("POST", "/v1/simulations", "operator", plain={"changes": {"rate_factor": 2.0}})
    assert (answer.status_code, answer.json()["code"]) == (503, "engine-failed")


ABOUT = {"workload": "demo/vision", "planner": "greedy", "work_units": 100}


def _plan_id(busy: World) -> str:
    return str(busy.call("POST", "/v1/plans", plain={}).json()["id"])


def test_a_service_is_explained_by_plans_made_now(busy: World) -> None:
    path = f"/v1/plans/{_plan_id(busy)}/explain"
    before = _counts(busy)
    asked = {**ABOUT, "slo_curve": True, "why_not": "v100"}
    answer = busy.call("POST", path, "operator", plain=asked)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    points = found["slo_curve"]
    assert [point["factor"] for point in points] == [0.5, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0]
    assert points[3]["cost_usd_per_h_more"] == 0
    costs = [(point["unserved_more"], point["cost_usd_per_h"]) for point in points]
    assert costs == sorted(costs, reverse=True)
    assert found["why_not"]["verdict"] == "ruled_out"
    assert found["assignments"][0]["assignment"]["workload"] == "demo/vision"
    assert _counts(busy) == before
    stored = busy.call("GET", f"{path}?workload=demo/vision").json()
    assert (stored["slo_curve"], stored["forced"]) == (None, None)


@pytest.mark.parametrize(
    ("more", "status", "pointer"),
    [
        ({}, 422, "/why_not"),
        ({"slo_curve": True, "planner": "prophet"}, 422, "/planner"),
        ({"slo_curve": True, "deadline_s": 100.0}, 422, "/deadline_s"),
        ({"slo_curve": True, "surprise": 1}, 422, "/surprise"),
        ({"why_not": "zx81"}, 404, None),
        ({"slo_curve": True, "workload": "demo/nobody"}, 404, None),
    ],
)
def test_a_question_about_a_plan_out_of_form_is_a_problem(
    busy: World, more: dict[str, Any], status: int, pointer: str | None
) -> None:
    answer = busy.call("POST", f"/v1/plans/{_plan_id(busy)}/explain", "operator", plain={**ABOUT, **more})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert [item["pointer"] for item in answer.json()["errors"]] == ([pointer] if pointer else [])


def test_more_questions_than_places_are_turned_away(busy: World) -> None:
    simulations = busy.app.state.services.simulations
    held: threading.BoundedSemaphore = simulations._places
    for _ in range(AT_ONCE_MAX):
        assert held.acquire(blocking=False)
    answer = busy.call("POST", "/v1/simulations", "operator", plain=TWICE)
    assert (answer.status_code, answer.json()["code"]) == (503, "transient")
    assert "retry-after" in answer.headers
    asked = {**ABOUT, "slo_curve": True}
    assert busy.call("POST", f"/v1/plans/{_plan_id(busy)}/explain", "operator", plain=asked).status_code == 503
    for _ in range(AT_ONCE_MAX):
        held.release()
    assert busy.call("POST", "/v1/simulations", "operator", plain=TWICE).status_code == 200
