"""Plans, explanations, history, profiles and costs over HTTP."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest

from app import kinds
from app.store import plans as plan_store
from app.store.plans import NewPlan, PlanState
from solvers.cycle.record import Attempt, Lane
from solvers.domain.codec import bytes_digest, digest
from solvers.domain.evidence import Candidate, Fact, Insight, Reason, ReasonCode, Relaxation, Resource, ShadowPrice
from solvers.domain.ids import GpuTypeName, ModelName, WorkloadId
from solvers.domain.workload import ServiceMode
from tests import builders
from tests.integration.api.world import NODE, World, spec
from tests.integration.store import plans as stored

pytestmark = pytest.mark.integration


def test_propose_look_and_apply(world: World) -> None:
    proposed = world.call("POST", "/v1/plans", "operator", plain={"lane": "approve"})
    assert proposed.status_code == 201
    plan = proposed.json()
    assert (plan["lane"], plan["state"], plan["created_by"]) == (
        "approve",
        "proposed",
        f"token:{world.ids['operator']}",
    )
    assert world.call("GET", proposed.headers["location"]).json() == plan
    assert world.call("GET", "/v1/plans?state=proposed").json()["items"][0]["id"] == plan["id"]
    applied = world.call("POST", f"/v1/plans/{plan['id']}/apply", body=b"")
    trail = world.call("GET", f"/v1/events?subject=plans/{plan['id']}").json()["items"]
    assert [(event["name"], event["actor"]) for event in trail] == [
        ("plan.promoted", f"token:{world.ids['admin']}"),
        ("plan.proposed", f"token:{world.ids['operator']}"),
    ]
    assert applied.json() == {"plan_id": plan["id"], "generation": 1}
    target = world.call("GET", "/v1/targets/current")
    assert (target.json()["generation"], target.json()["plan"]) == (1, plan["id"])
    assert target.headers["etag"] == f'"1/{plan["id"]}"', "after a restore a generation may stand for another plan"
    assert [item["generation"] for item in world.call("GET", "/v1/targets").json()["items"]] == [1]


def test_a_plan_of_yesterday_is_superseded(world: World) -> None:
    old = world.call("POST", "/v1/plans", plain={}).json()["id"]
    new = world.call("POST", "/v1/plans", plain={}).json()["id"]
    assert world.call("POST", f"/v1/plans/{new}/apply", plain={}).status_code == 200
    answer = world.call("POST", f"/v1/plans/{old}/apply", plain={})
    assert (answer.status_code, answer.json()["code"]) == (409, "superseded")
    none = world.call("POST", f"/v1/plans/sha256:{'0' * 64}/apply", plain={})
    assert none.status_code == 404


def _explained(world: World) -> str:
    world.joined(NODE)
    on = builders.device(NODE, 0, "t4")
    reasons = (
        Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject="t4", facts=(Fact(name="usd_per_h", value=0.35),)),
        Reason(code=ReasonCode.COSTLIER, subject="v100", facts=(Fact(name="usd_per_h", value=2.48),)),
    )
    base = stored.plan()
    assignments = (
        builders.assignment("demo/vision#0", on, reasons=reasons),
        builders.assignment("other/vision#0", on),
    )
    plan = replace(base, assignments=assignments)
    with world.database.transaction() as session:
        plan_store.put(session, NewPlan(plan=plan, lane=Lane.ACT, state=PlanState.PROPOSED, created_by="test"))
    return digest(plan)


def test_an_explanation_says_why_and_why_not(world: World) -> None:
    plan = _explained(world)
    found = world.call("GET", f"/v1/plans/{plan}/explain?workload=demo/vision").json()
    (only,) = found["assignments"]
    assert only["gpu_type"] == "t4"
    assert [told["sentence"] for told in only["why"]] == [
        "t4 is the cheapest choice that keeps the SLO (cost 0.35 $/h)."
    ]
    assert [told["sentence"] for told in only["alternatives"]] == [
        "v100 would keep the SLO but costs more (cost 2.48 $/h)."
    ]
    assert found["unplaced"] == []
    whole = world.call("GET", f"/v1/plans/{plan}/explain").json()
    assert len(whole["assignments"]) == 2
    assert whole["unplaced"][0]["workload"] == "demo/speech"


def test_a_project_sees_its_own_part_of_a_plan(world: World) -> None:
    plan = _explained(world)
    shown = world.call("GET", f"/v1/plans/{plan}", "foreign viewer").json()["plan"]
    assert [item["replica"] for item in shown["assignments"]] == ["other/vision#0"]
    assert (shown["settings"], shown["unplaced"]) == ([], [])
    explained = world.call("GET", f"/v1/plans/{plan}/explain", "foreign viewer").json()
    assert [item["assignment"]["workload"] for item in explained["assignments"]] == ["other/vision"]
    hidden = world.call("GET", f"/v1/plans/{plan}/explain?workload=demo/vision", "foreign viewer")
    assert hidden.status_code == 404


def test_a_workload_that_does_not_exist_has_no_explanation(world: World) -> None:
    plan = _explained(world)
    for who in ("viewer", "own viewer"):
        answer = world.call("GET", f"/v1/plans/{plan}/explain?workload=demo/none", who)
        assert (answer.status_code, answer.json()["detail"]) == (404, "there is no workload demo/none")
    # It has no document either, but a part in the plan.
    assert world.call("GET", f"/v1/plans/{plan}/explain?workload=demo/vision").json()["waiting"] is None


@pytest.mark.parametrize(
    ("mode", "state", "words", "blocked", "told"),
    [
        (ServiceMode.APPROVE, PlanState.AWAITING_APPROVAL, "waits for somebody to apply it", (), "$765.43/h more"),
        (ServiceMode.APPROVE, PlanState.AWAITING_APPROVAL, "waits for", ("falls short (x/y)",), "falls short (x/y)"),
        (ServiceMode.SHADOW, PlanState.SHADOW, "only recorded", (), ""),
    ],
)
def test_an_explanation_names_the_plan_that_waits(
    world: World, mode: ServiceMode, state: PlanState, words: str, blocked: tuple[str, ...], told: str
) -> None:
    lane = Lane(mode.value)
    for name in ("vision", "idle", "moving"):
        chosen = ServiceMode.AUTO if name == "moving" else mode
        world.put(kinds.SERVICE, replace(builders.service(), name=name, mode=chosen))
    with world.database.transaction() as session:
        standing = plan_store.put(
            session, NewPlan(plan=stored.plan(), lane=Lane.ACT, state=PlanState.PROPOSED, created_by="test")
        ).id
    path = f"/v1/plans/{standing}/explain?workload=demo"
    before = world.call("GET", f"{path}/vision").json()["waiting"]
    assert (before["mode"], before["plan_id"]) == (mode.value, None)
    on = builders.device(NODE, 0, "t4")
    waiting_plan = replace(stored.plan(seed=9), assignments=(builders.assignment("demo/vision#0", on),))
    with world.database.transaction() as session:
        new = NewPlan(plan=waiting_plan, lane=lane, state=state, created_by="test")
        waiting = plan_store.put(session, new).id
    found = world.call("GET", f"{path}/vision", "own viewer").json()["waiting"]
    assert (found["mode"], found["plan_id"]) == (mode.value, waiting)
    assert waiting in found["sentence"]
    assert words in found["sentence"]
    # What the whole plan costs, and whom it leaves short, is no project's.
    with world.database.raw() as connection:
        connection.execute(
            "UPDATE plans SET added_usd_per_h = 765.43, blocked = %s WHERE id = %s", (list(blocked), waiting)
        )
    sentences = {
        who: world.call("GET", f"{path}/vision", who).json()["waiting"]["sentence"] for who in ("viewer", "own viewer")
    }
    assert told in sentences["viewer"]
    assert not told or told not in sentences["own viewer"]
    assert "made for generation" not in sentences["own viewer"]
    # A plan without a part for a workload does not make it wait; nor does anything on auto, or the whole plan.
    assert world.call("GET", f"{path}/idle").json()["waiting"]["plan_id"] is None
    assert world.call("GET", f"{path}/moving").json()["waiting"] is None
    assert world.call("GET", f"/v1/plans/{standing}/explain").json()["waiting"] is None


def test_a_cycle_comes_with_its_record(world: World) -> None:
    from app.store import cycles
    from app.store.cycles import NewCycle

    digests = (bytes_digest(b"kept"), bytes_digest(b"gone"))
    attempts = [Attempt(planner="joint", status="feasible", state_digest=held) for held in (*digests, None)]
    record = replace(stored.record(), attempts=tuple(attempts))
    with world.database.transaction() as session:
        cycles.put_state(session, "joint", "1", b"kept")
        new = NewCycle(id=record.id, lane=record.lane, holder="x", fencing_token=1, software_version="1")
        cycles.begin(session, new)
        cycles.close(session, record)
    found = world.call("GET", f"/v1/cycles/{record.id}").json()
    assert found["record"] == spec(record)
    assert world.call("GET", "/v1/cycles?state=closed").json()["items"][0]["id"] == record.id
    whose = {"policy": record.snapshot.policy.name, "planner": "joint"}
    assert world.call("GET", f"/v1/cycles/{record.id}/states").json()["items"] == [
        {**whose, "version": "1", "digest": digests[0], "state": b64encode(b"kept").decode()},
        {**whose, "version": None, "digest": digests[1], "state": None},
    ]
    assert world.call("GET", f"/v1/cycles/{record.id}/states", "own viewer").status_code == 403
    assert world.call("GET", "/v1/cycles/none/states").status_code == 404


def test_why_a_plan_failed_is_told_to_no_project(world: World) -> None:
    """What the verifier holds against a planner names others' workloads."""
    from app.store import cycles
    from app.store.cycles import NewCycle

    failed = Attempt(planner="joint", status="failed", error="refuted: latency over slo (other/secret#0)")
    record = stored.record()
    record = replace(record, attempts=(failed, *record.attempts))
    with world.database.transaction() as session:
        new = NewCycle(id=record.id, lane=record.lane, holder="x", fencing_token=1, software_version="1")
        cycles.begin(session, new)
        cycles.close(session, record)
        plan = stored.keep(session, stored.plan())
    told = {
        who: [
            world.call("GET", path, who).text
            for path in ("/v1/plans", f"/v1/plans/{plan}", f"/v1/plans/{plan}/explain")
        ]
        for who in ("viewer", "own viewer")
    }
    assert all("other/secret" in text for text in told["viewer"])
    assert not any("other/secret" in text for text in told["own viewer"])


def _csv(*rows: str) -> bytes:
    header = "model,gpu_type,batch,share_pct_sm,clock_mhz_sm,latency_ms_mean,memory_mib,neighbours"
    return "\n".join((header, *rows)).encode()


GOOD = "resnet50,t4,4,50,1590,12.5,1200,"


def _import(world: World, body: bytes) -> Any:
    return world.call("POST", "/v1/profiles", body=body, headers={"Content-Type": "text/csv"})


def test_profiles_come_as_csv_or_json(world: World) -> None:
    answer = _import(world, _csv(GOOD, "resnet50,t4,8,50,1590,20.5,1300,bert;gpt2"))
    assert answer.json() == {
        "points": 2,
        "pairs": 0,
        "configurations": 2,
        "skipped": [],
        "skipped_count": 0,
        "doubtful": [],
    }
    points = world.call("GET", "/v1/profiles/resnet50/t4").json()["points"]
    assert [point["neighbours"] for point in points] == [[], ["bert", "gpt2"]]
    again = world.call("POST", "/v1/profiles", plain=[{**points[0], "latency_ms_mean": 11.0}])
    assert again.json()["configurations"] == 1
    assert world.call("GET", "/v1/profiles").json()["items"][0]["points"] == 2
    assert world.call("GET", "/v1/profiles/resnet50/t4").json()["points"][0]["latency_ms_mean"] == 11
    assert world.call("DELETE", "/v1/profiles/resnet50/t4").status_code == 204
    assert world.call("GET", "/v1/profiles/resnet50/t4").status_code == 404


@pytest.mark.parametrize(
    ("row", "pointer"),
    [
        ("resnet50,t4,0,50,1590,12.5,1200,", "row:3/batch"),
        ("resnet50,t4,four,50,1590,12.5,1200,", "row:3/batch"),
        ("resnet50,t4,4,50,1590,nan,1200,", "row:3/latency_ms_mean"),
        ("resnet50,t4,4,50,99999999999,1,1200,", "row:3/clock_mhz_sm"),
        ("resnet50,t4,4,50,1590,12.5", "row:3"),
        ("none,t4,4,50,1590,12.5,1200,", "row:3/model"),
        ("resnet50,none,4,50,1590,12.5,1200,", "row:3/gpu_type"),
    ],
)
def test_one_bad_row_imports_nothing(refusing_world: World, row: str, pointer: str) -> None:
    answer = _import(refusing_world, _csv(GOOD, row))
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert refusing_world.call("GET", "/v1/profiles").json()["items"] == []


def test_csv_columns_are_strict(world: World) -> None:
    for body in (b"", b"model,colour\n", b"model,gpu_type\n", _csv().replace(b"batch", b"model"), b"\xff\xfe"):
        assert _import(world, body).status_code == 422
    wrong = world.call("POST", "/v1/profiles", plain=[{"model": "resnet50", "batch": "4"}])
    assert {"/0/gpu_type", "/0/batch"} <= {error["pointer"] for error in wrong.json()["errors"]}


def test_costs_are_reported_by_everything(world: World) -> None:
    world.put(kinds.SERVICE, builders.service())
    for by in ("service", "project", "device", "node", "gpu_type", "hour", "day"):
        for accounting in ("memory", "share", "whole"):
            found = world.call("GET", f"/v1/costs?by={by}&accounting={accounting}", "reporter")
            assert found.status_code == 200, found.text
            assert (found.json()["items"], found.json()["usd"]) == ([], 0.0)
    assert world.call("GET", "/v1/costs", "own reporter").json()["project"] == "demo"
    assert world.call("GET", "/v1/costs?project=other", "own reporter").status_code == 404
    for path in ("/v1/costs", "/v1/costs/focus"):
        assert world.call("GET", f"{path}?project=demo", "reporter").status_code == 200
        found = world.call("GET", f"{path}?project=dmo", "reporter")
        assert (found.status_code, found.json()["detail"]) == (404, "there is no project dmo")
    for query in ("from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "from=0001-01-01T00:00:00Z", "to=nonsense"):
        assert world.call("GET", f"/v1/costs?{query}", "reporter").status_code == 422


def test_health_readiness_and_version(world: World) -> None:
    assert world.call("GET", "/v1/health", None).json() == {"status": "ok"}
    assert world.call("GET", "/v1/ready", None).json() == {"status": "ok"}
    assert world.call("GET", "/v1/version", None).json()["cluster"] == "lab"
    with world.database.raw() as connection:
        connection.execute("UPDATE schema_version SET version_num = '0001'")
    world.app.state.services.fleet._schema_checked = False
    assert world.call("GET", "/v1/ready", None).status_code == 503


def _with_insight(world: World) -> str:
    """A plan of two projects with what its planner found out."""
    candidates = tuple(
        Candidate(
            workload=WorkloadId(workload),
            gpu_type=GpuTypeName(gpu_type),
            model=ModelName("resnet50"),
            chosen=gpu_type == "t4",
            feasible=True,
            share_pct_sm=40,
            replicas=1.0,
            usd_per_h=usd,
            usd_per_h_more=usd - 0.35,
        )
        for workload in ("demo/vision", "other/vision")
        for gpu_type, usd in (("t4", 0.35), ("v100", 2.48))
    )
    insight = Insight(
        prices=(
            ShadowPrice(resource=Resource.GPU, subject="t4", usd_per_h=0.2),
            ShadowPrice(resource=Resource.POWER_W, subject="rack/r1", usd_per_h=0.01),
        ),
        candidates=candidates,
        relaxations=(
            Relaxation(
                resource=Resource.GPU,
                subject="t4",
                workload=WorkloadId("demo/speech"),
                value_now=1.0,
                value_needed=2.0,
            ),
        ),
    )
    plan = _explained(world)
    with world.database.transaction() as session:
        new = NewPlan(
            plan=plan_store.load(session, plan),
            lane=Lane.ACT,
            state=PlanState.PROPOSED,
            created_by="test",
            insight=insight,
        )
        plan_store.put(session, new)
    for name in ("t4", "v100"):
        world.put(kinds.GPU_TYPE, builders.gpu_type(name))
    return plan


def test_an_explanation_tells_what_the_planner_found_out(world: World) -> None:
    plan = _with_insight(world)
    whole = world.call("GET", f"/v1/plans/{plan}/explain").json()["insight"]
    assert len(whole["candidates"]) == 4
    assert [item["sentence"] for item in whole["ways_out"]] == ["1 more t4 (1 now)"]
    mine = world.call("GET", f"/v1/plans/{plan}/explain?workload=demo/vision").json()["insight"]
    assert [item["candidate"]["gpu_type"] for item in mine["candidates"]] == ["t4", "v100"]
    seen = world.call("GET", f"/v1/plans/{plan}/explain", "foreign viewer").json()["insight"]
    assert {item["candidate"]["workload"] for item in seen["candidates"]} == {"other/vision"}
    assert [item["price"]["subject"] for item in seen["prices"]] == ["t4"]
    assert seen["ways_out"] == []


def test_why_not_is_answered_or_refused_as_a_problem(world: World) -> None:
    plan = _with_insight(world)
    path = f"/v1/plans/{plan}/explain"
    answer = world.call("GET", f"{path}?workload=demo/vision&why_not=v100").json()["why_not"]
    assert (answer["verdict"], answer["candidate"]["usd_per_h"]) == ("dearer", 2.48)
    assert "cost $2.13/h more" in answer["sentence"]
    unknown = world.call("GET", f"{path}?workload=demo/vision&why_not=zx81")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not-found")
    alone = world.call("GET", f"{path}?why_not=v100")
    assert (alone.status_code, alone.json()["errors"][0]["pointer"]) == (422, "query:workload")
    hidden = world.call("GET", f"{path}?workload=demo/vision&why_not=v100", "foreign viewer")
    assert hidden.status_code == 404


def test_a_plan_that_somebody_asked_for_keeps_its_insight(world: World) -> None:
    plan = world.call("POST", "/v1/plans", plain={}).json()["id"]
    insight = world.call("GET", f"/v1/plans/{plan}/explain").json()["insight"]
    assert set(insight) == {"contenders", "prices", "candidates", "ways_out", "facts"}
