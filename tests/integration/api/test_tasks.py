"""Offline tasks over HTTP: submitted without a key, told where they are, cancelled by deleting their document."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from agents.wire import encode
from app import kinds
from app.store import plans, targets
from app.store.plans import NewPlan, PlanState
from app.store.targets import Promotion
from solvers.cycle.record import Lane
from solvers.domain.ids import DeviceId, ModelName, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment, Envelope, Plan
from solvers.domain.workload import WorkloadKind
from tests import builders
from tests.integration.api.world import CLUSTER, DEVICE, FOREIGN, NODE, OWN, World
from tests.integration.store import plans as stored
from tests.integration.store.samples import device_report, replica_report, report, tell

pytestmark = pytest.mark.integration
NEW: dict[str, Any] = {
    "project": OWN,
    "model": "resnet50",
    "inputs_total": 1000,
    "slo": {"kind": "deadline", "deadline_s": 600.0},
}


def submit(world: World, status: int = 201, who: str = "operator", key: str | None = None, **more: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    plain = {name: found for name, found in {**NEW, **more}.items() if found is not None}
    answer = world.call("POST", "/v1/tasks", who, plain=plain, headers=headers)
    assert answer.status_code == status, answer.text
    return answer


def statuses(world: World, query: str = "", who: str = "viewer") -> list[dict[str, Any]]:
    answer = world.call("GET", f"/v1/tasks/status{query}", who)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [item["id"] for item in found]


def aged(world: World, name: str, seconds: float) -> None:
    """As if it had been submitted earlier."""
    statement = text("UPDATE tasks SET created_at = created_at - make_interval(secs => :s) WHERE name = :name")
    with world.database.transaction() as session:
        session.execute(statement, {"s": seconds, "name": name})


def test_a_task_gets_a_name_and_a_document(world: World) -> None:
    answer = submit(world, class_lambda=0.7)
    made = answer.json()
    assert answer.headers["location"] == f"/v1/tasks/{OWN}/{made['name']}"
    document = world.call("GET", answer.headers["location"], "viewer")
    assert document.json() == made
    assert (made["inputs_total"], made["class_lambda"], made["priority"]) == (1000, 0.7, 50)
    assert document.headers["etag"] == answer.headers["etag"]
    assert submit(world).json()["name"] != made["name"]


def test_a_repeat_under_a_key_makes_one_task(world: World) -> None:
    first, again = submit(world, key="once"), submit(world, key="once")
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert len(statuses(world)) == 1
    assert submit(world, 422, key="once", inputs_total=7).json()["code"] == "idempotency-key-reused"


def test_a_name_is_taken_once(world: World) -> None:
    submit(world, name="night")
    assert "demo/night already" in submit(world, 409, name="night").json()["detail"]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"slo": {"kind": "latency", "latency_ms": 5.0}}, "/slo"),
        ({"slo": {"kind": "deadline"}}, "/slo/deadline_s"),
        ({"inputs_total": 0}, "/inputs_total"),
        ({"class_lambda": 1.0}, "/class_lambda"),
        ({"model": "nobody"}, "/model"),
        ({"name": "Not a name"}, "/name"),
        ({"gpu_types_allowed": ["t4", "t4"]}, "/gpu_types_allowed"),
        ({"colour": "red"}, "/colour"),
        ({"project": None}, "/project"),
    ],
)
def test_what_is_wrong_is_pointed_at(world: World, changes: dict[str, Any], pointer: str) -> None:
    problem = submit(world, 422, **changes)
    assert problem.headers["content-type"] == "application/problem+json"
    assert [fault["pointer"] for fault in problem.json()["errors"]] == [pointer]
    assert statuses(world) == []


def test_a_project_token_needs_to_name_no_project_and_sees_its_own(world: World) -> None:
    own = submit(world, who="own operator", project=None).json()
    assert own["project"] == OWN
    foreign = submit(world, who="foreign operator", project=FOREIGN).json()
    submit(world, 404, who="own operator", project=FOREIGN)
    assert ids(statuses(world, who="own viewer")) == [f"{OWN}/{own['name']}"]
    path = f"/v1/tasks/{FOREIGN}/{foreign['name']}/status"
    assert world.call("GET", path, "own viewer").status_code == 404
    assert world.call("GET", path, "foreign viewer").status_code == 200
    assert len(statuses(world)) == 2
    assert len(statuses(world, f"?project={FOREIGN}")) == 1


def test_waiting_tasks_stand_in_line_by_priority_and_are_paged(world: World) -> None:
    for name, priority in (("a", 10), ("b", 90), ("c", 50)):
        submit(world, name=name, priority=priority)
    found = statuses(world)
    assert {item["name"]: item["queue_position"] for item in found} == {"b": 1, "c": 2, "a": 3}
    assert {item["state"] for item in found} == {"waiting"}
    page = world.call("GET", "/v1/tasks/status?limit=2", "viewer").json()
    rest = world.call("GET", f"/v1/tasks/status?limit=2&cursor={page['next_cursor']}", "viewer").json()
    assert [item["name"] for item in page["items"] + rest["items"]] == ["a", "b", "c"]
    assert rest["next_cursor"] is None
    assert world.call("GET", "/v1/tasks/status?cursor=AAAA", "viewer").status_code == 422


def test_a_task_that_nobody_plans_stands_in_no_line_and_says_why(world: World) -> None:
    for name, mode in (("a", "off"), ("b", "auto"), ("c", "shadow")):
        submit(world, name=name, mode=mode)
    found = {item["name"]: item for item in statuses(world, "?state=waiting")}
    assert {name: item["queue_position"] for name, item in found.items()} == {"a": None, "b": 1, "c": None}
    assert (found["a"]["why"], found["b"]["why"]) == ([f"{OWN}/a is off: nobody plans for it."], [])


def test_a_task_whose_time_is_over_is_late(world: World) -> None:
    submit(world, name="soon")
    submit(world, name="never", slo={"kind": "throughput", "throughput_rps_min": 5.0})
    for name in ("soon", "never"):
        aged(world, name, 601.0)
    assert ids(statuses(world, "?state=late")) == [f"{OWN}/soon"]
    assert ids(statuses(world, "?state=waiting")) == [f"{OWN}/never"]
    late = world.call("GET", f"/v1/tasks/{OWN}/soon/status", "viewer").json()
    assert (late["deadline_kept"], late["state"]) == (False, "late")


def test_cancelling_is_deleting(world: World) -> None:
    made = submit(world).json()
    assert world.call("DELETE", f"/v1/tasks/{OWN}/{made['name']}", "operator").status_code == 204
    assert statuses(world) == []
    assert world.call("GET", f"/v1/tasks/{OWN}/{made['name']}/status", "viewer").status_code == 404


def assignment(name: str, capacity_rps: float = 100.0, project: str = OWN) -> Assignment:
    return Assignment(
        replica=ReplicaId(f"{project}/{name}#0"),
        kind=WorkloadKind.TASK,
        workload=WorkloadId(f"{project}/{name}"),
        model=ModelName("resnet50"),
        device=DeviceId(DEVICE),
        share_pct_sm=40,
        memory_mib_limit=2000,
        batch=8,
        envelope=Envelope(batch_min=8, batch_max=8, clock_mhz_sm_min=1000, clock_mhz_sm_max=1000),
        latency_ms_planned=None,
        capacity_rps=capacity_rps,
        power_w_planned=10.0,
    )


def test_running_and_finished_tasks_tell_their_group_and_what_was_measured(world: World) -> None:
    world.joined(NODE)
    for name in ("one", "two"):
        submit(world, name=name)
    plan = replace(stored.plan(parent=0, seed=1), assignments=(assignment("one"), assignment("two", 50.0)))
    _stand(world, plan)
    found = {item["name"]: item for item in statuses(world, "?state=running")}
    assert set(found) == {"one", "two"}
    assert found["one"]["group"]["tasks"] == [f"{OWN}/one", f"{OWN}/two"]
    assert (found["one"]["group"]["gpu_type"], found["one"]["latency_ms_predicted"]) == ("t4", 80.0)
    assert found["two"]["rate_rps_predicted"] == 50.0
    assert found["one"]["finish_at_predicted"] is not None
    _work(world, 1, done=400)
    half = world.call("GET", f"/v1/tasks/{OWN}/one/status", "viewer").json()
    assert (half["state"], half["inputs_done"], half["latency_ms_measured"]) == ("running", 400.0, 100.0)
    # The last batches do more than was asked.
    _work(world, 2, done=736)
    done = world.call("GET", f"/v1/tasks/{OWN}/one/status", "viewer").json()
    assert (done["state"], done["deadline_kept"], done["group"], done["why"]) == ("done", True, None, [])
    assert (done["inputs_done"], done["inputs_total"]) == (1000.0, 1000)
    _work(world, 3, done=1)
    assert world.call("GET", f"/v1/tasks/{OWN}/one/status", "viewer").json()["finished_at"] == done["finished_at"]
    with world.database.reading() as session:
        row = session.execute(text("SELECT * FROM task_outcomes WHERE name = 'one'")).one()
        errors = session.execute(text("SELECT * FROM task_error_by_model")).one()
    assert (row.state, row.gpu_type, row.planner, row.deadline_kept) == ("done", "t4", "greedy", True)
    assert (row.inputs_done, row.inputs_total) == (1000.0, 1000.0)
    assert row.task_group == [f"{OWN}/one", f"{OWN}/two"]
    assert (row.latency_ms_predicted, row.latency_ms_measured, row.error_pct) == (80.0, 100.0, -20.0)
    assert (errors.model, errors.tasks, errors.finished, errors.deadlines_kept) == ("resnet50", 2, 1, 1)
    assert (errors.measured, errors.error_pct_mean, errors.bias_pct) == (1, 20.0, -20.0)
    more = {**NEW, "name": "one", "inputs_total": 5000}
    document = world.call("GET", f"/v1/tasks/{OWN}/one", "viewer").json()
    assert world.call("PUT", f"/v1/tasks/{OWN}/one", "operator", plain={**document, **more}).status_code == 200
    again = world.call("GET", f"/v1/tasks/{OWN}/one/status", "viewer").json()
    assert (again["state"], again["inputs_done"]) == ("running", 1000.0)
    document = world.call("GET", f"/v1/tasks/{OWN}/one", "viewer").json()
    less = {**document, "inputs_total": 700}
    assert world.call("PUT", f"/v1/tasks/{OWN}/one", "operator", plain=less).status_code == 200
    again = world.call("GET", f"/v1/tasks/{OWN}/one/status", "viewer").json()
    assert (again["state"], again["inputs_done"]) == ("done", 700.0)


def test_a_project_is_not_told_whose_tasks_share_its_device(world: World) -> None:
    world.joined(NODE)
    submit(world, name="one")
    submit(world, name="secret", project=FOREIGN)
    _stand(world, replace(stored.plan(), assignments=(assignment("one"), assignment("secret", project=FOREIGN))))

    def told(who: str) -> list[list[str]]:
        (item,) = (each for each in statuses(world, who=who) if each["name"] == "one")
        one = world.call("GET", f"/v1/tasks/{OWN}/one/status", who).json()
        return [item["group"]["tasks"], one["group"]["tasks"]]

    assert told("viewer") == [[f"{OWN}/one", f"{FOREIGN}/secret"]] * 2
    assert told("own viewer") == [[f"{OWN}/one"]] * 2
    assert FOREIGN not in world.call("GET", "/work", None, headers=world.cookie("own viewer")).text


def _stand(world: World, plan: Plan) -> None:
    """Make it the target."""
    with world.database.transaction() as session:
        new = NewPlan(plan=plan, lane=Lane.ACT, state=PlanState.PROPOSED, created_by="test")
        wish = Promotion(
            cluster=CLUSTER,
            plan_id=plans.put(session, new).id,
            parent_generation=0,
            promoted_by="test",
            node_documents={},
        )
        targets.promote(session, wish)


def _work(world: World, sequence: int, done: int) -> None:
    """Five seconds of work on the first task, in batches that take 100 ms."""
    replica = replica_report(
        f"{OWN}/one#0",
        DEVICE,
        kind="task",
        model="resnet50",
        iterations_done=done,
        executions=done / 8.0,
        execution_ms_mean=100.0,
    )
    with world.database.transaction() as session:
        tell(session, NODE, replica)
    sent = encode(report(NODE, sequence, devices=[device_report(DEVICE)], replicas=[replica]))
    answer = world.call("POST", "/v1/agent/reports", NODE, plain=sent)
    assert answer.status_code in (200, 202), answer.text


def test_the_console_shows_where_they_are(world: World) -> None:
    headers = world.cookie("viewer")
    submit(world, name="night")
    submit(world, name="soon", priority=1)
    aged(world, "soon", 601.0)
    page = world.call("GET", "/work", None, headers=headers).text
    assert "Offline tasks" in page
    assert page.index("demo/night") < page.index("demo/soon")
    assert ">late<" in page
    assert "number 1 in line" in page


def test_the_reader_sees_the_views(world: World) -> None:
    world.put(kinds.TASK, builders.task())
    with world.database.reading() as session:
        session.execute(text("SET LOCAL ROLE headroom_reader"))
        assert session.execute(text("SELECT state FROM task_outcomes")).scalars().all() == ["waiting"]
        assert session.execute(text("SELECT * FROM task_error_by_model")).all() == []
