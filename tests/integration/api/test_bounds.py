"""What a project's document bounds, and who is held by it: services, jobs and tasks by every way in."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app import kinds
from app.cli.program import run
from app.store import documents
from solvers.domain.ids import GpuTypeName, NodeId, PolicyName, ProjectName
from solvers.domain.policy import Policy, Pool
from solvers.domain.worker import EnvironmentVariable, WorkerCommand
from solvers.domain.workload import Project
from tests import builders
from tests.integration.api.serving import serving
from tests.integration.api.world import OWN, World, spec

pytestmark = pytest.mark.integration
TENANT, ADMIN = "own operator", "admin"
VISION = f"/v1/services/{OWN}/vision"
TASK: dict[str, Any] = {
    "project": OWN,
    "name": "embed",
    "model": "resnet50",
    "inputs_total": 1000,
    "slo": {"kind": "deadline", "deadline_s": 600.0},
}


def bound(world: World, **bounds: Any) -> None:
    """An administrator writes the project's document."""
    project = Project(name=ProjectName(OWN), **bounds)
    assert world.call("PUT", f"/v1/projects/{OWN}", ADMIN, plain=spec(project)).status_code == 200


def put(world: World, name: str = "vision", who: str = TENANT, **changes: Any) -> Any:
    return world.call("PUT", f"/v1/services/{OWN}/{name}", who, plain=spec(builders.service(name, **changes)))


def refused(answer: Any, pointer: str, *said: str) -> None:
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    (fault,) = answer.json()["errors"]
    assert (fault["pointer"], fault["code"]) == (pointer, "bound-exceeded")
    assert [text for text in said if text not in fault["detail"]] == []


def events(world: World, name: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = world.call("GET", "/v1/events?limit=200").json()["items"]
    return [item for item in items if item["name"] == name]


def test_a_project_without_bounds_may_do_what_it_could(world: World) -> None:
    assert put(world, priority=1000, replicas_min=50, replicas_max=64).status_code == 201
    assert world.call("GET", "/v1/fleet").json()["beyond"] == []


def test_tenants_do_not_write_their_own_bounds(world: World) -> None:
    bound(world, priority_max=200)
    wider = spec(Project(name=ProjectName(OWN), priority_max=1000))
    for who in (TENANT, "operator"):
        assert world.call("PUT", f"/v1/projects/{OWN}", who, plain=wider).status_code == 403
        assert world.call("DELETE", f"/v1/projects/{OWN}", who).status_code == 403
    assert world.call("GET", f"/v1/projects/{OWN}").json()["priority_max"] == 200


@pytest.mark.parametrize(
    ("bounds", "changes", "pointer", "said"),
    [
        ({"priority_max": 200}, {"priority": 201}, "/priority", ("priority 201", "priority_max", "is 200")),
        ({"quota_replicas_min": 4}, {"replicas_min": 5}, "/replicas_min", ("replicas_min 5", "quota_replicas_min")),
        ({"quota_budget_usd_per_h": 9.5}, {"budget_usd_per_h": 9.75}, "/budget_usd_per_h", ("9.75", "is 9.5")),
        ({"quota_budget_usd_per_h": 9.5}, {}, "/budget_usd_per_h", ("no budget_usd_per_h",)),
    ],
)
def test_a_service_beyond_a_bound_is_refused_and_noted(
    world: World, bounds: dict[str, Any], changes: dict[str, Any], pointer: str, said: tuple[str, ...]
) -> None:
    bound(world, **bounds)
    for who in (TENANT, "operator", ADMIN):
        refused(put(world, who=who, **changes), pointer, *said, OWN)
    assert world.call("GET", VISION).status_code == 404
    noted = events(world, "service.refused")
    assert [item["actor"] for item in noted] == [f"token:{world.ids[who]}" for who in (ADMIN, "operator", TENANT)]
    assert {(item["subject"], item["project"], item["facts"]["code"]) for item in noted} == {
        (f"services/{OWN}/vision", OWN, "bound-exceeded")
    }
    assert said[0] in noted[0]["facts"]["asked"][0]
    assert put(world, priority=200, replicas_min=4, budget_usd_per_h=9.5).status_code == 201


def test_jobs_and_tasks_are_held_by_both_ways_in(world: World) -> None:
    bound(world, priority_max=60)
    job = spec(builders.job(priority=61))
    refused(world.call("PUT", f"/v1/jobs/{OWN}/train", TENANT, plain=job), "/priority", "priority 61")
    task = spec(builders.task("embed", priority=61))
    refused(world.call("PUT", f"/v1/tasks/{OWN}/embed", TENANT, plain=task), "/priority", "priority 61")
    for headers in ({}, {"Idempotency-Key": "once"}):
        refused(
            world.call("POST", "/v1/tasks", TENANT, plain={**TASK, "priority": 61}, headers=headers),
            "/priority", "priority 61",
        )  # fmt: skip
    assert world.call("GET", "/v1/tasks").json()["items"] == []
    assert [item["subject"] for item in events(world, "task.refused")] == [f"tasks/{OWN}/embed"] * 3
    assert len(events(world, "job.refused")) == 1
    assert world.call("POST", "/v1/tasks", TENANT, plain={**TASK, "priority": 60}).status_code == 201


def test_sums_are_over_all_services_of_one_project(world: World) -> None:
    bound(world, quota_replicas_min=5, quota_budget_usd_per_h=10.0)
    assert put(world, "one", replicas_min=3, budget_usd_per_h=6.0).status_code == 201
    refused(put(world, "two", replicas_min=3, budget_usd_per_h=4.0), "/replicas_min", "replicas_min 6", "is 5")
    refused(put(world, "two", replicas_min=2, budget_usd_per_h=4.5), "/budget_usd_per_h", "10.5", "is 10")
    assert put(world, "two", replicas_min=2, budget_usd_per_h=4.0).status_code == 201
    # What one gives up another may have; and other projects do not count.
    assert put(world, "one", replicas_min=1, budget_usd_per_h=1.0).status_code == 200
    assert put(world, "two", replicas_min=4, budget_usd_per_h=9.0).status_code == 200
    other = builders.service(project="other", replicas_min=16, priority=1000)
    assert world.call("PUT", "/v1/services/other/vision", plain=spec(other)).status_code == 201


def test_services_jobs_and_tasks_are_counted_together(world: World) -> None:
    bound(world, quota_workloads=2)
    assert put(world, "one").status_code == 201
    assert world.call("POST", "/v1/tasks", TENANT, plain=TASK).status_code == 201
    refused(put(world, "two"), "/name", "3 of them", "quota_workloads", "is 2")
    job = spec(builders.job())
    refused(world.call("PUT", f"/v1/jobs/{OWN}/train", TENANT, plain=job), "/name", "3 of them")
    assert put(world, "one", priority=7).status_code == 200
    assert world.call("DELETE", f"/v1/services/{OWN}/one").status_code == 204
    assert put(world, "two").status_code == 201


def test_a_lowered_bound_lets_stand_what_stands_and_tells_it(world: World) -> None:
    assert put(world, priority=900, replicas_min=8).status_code == 201
    assert put(world, "speech", priority=100, replicas_min=2).status_code == 201
    bound(world, priority_max=500, quota_replicas_min=4)
    for who, count in ((TENANT, 2), (ADMIN, 2), ("foreign viewer", 0)):
        told = world.call("GET", "/v1/fleet", who).json()["beyond"]
        assert len(told) == count, told
    assert world.call("GET", "/v1/fleet", TENANT).json()["beyond"] == [
        f"all services: replicas_min 10, where quota_replicas_min of project {OWN} is 4",
        f"Service {OWN}/vision: priority 900, where priority_max of project {OWN} is 500",
    ]
    # The same again and anything that asks for no more is taken; more is not, also where it is another service's.
    assert put(world, priority=900, replicas_min=8).status_code == 200
    assert put(world, priority=900, replicas_min=8, replicas_max=32).status_code == 200
    refused(put(world, priority=901, replicas_min=8), "/priority", "901")
    refused(put(world, "speech", priority=100, replicas_min=3), "/replicas_min", "replicas_min 11")
    assert put(world, priority=700, replicas_min=5).status_code == 200
    refused(put(world, priority=900, replicas_min=5), "/priority", "900")
    assert put(world, priority=500, replicas_min=2).status_code == 200
    assert world.call("GET", "/v1/fleet").json()["beyond"] == []


def test_of_two_at_once_only_one_gets_what_is_left(world: World) -> None:
    bound(world, quota_replicas_min=8)

    def write(name: str) -> int:
        status: int = put(world, name, replicas_min=2).status_code
        return status

    for turn in range(3):
        names = [f"service-{turn}-{number}" for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(write, names))
        assert sorted(answers) == [201] * 4 + [422] * 4
        for name in names:
            world.call("DELETE", f"/v1/services/{OWN}/{name}")


def test_the_command_line_says_which_bound_stands_in_the_way(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bound(world, priority_max=200)
    files = {"high": 201, "low": 200}
    for name, priority in files.items():
        plain = {"kind": "service", **spec(builders.service(name, priority=priority))}
        (tmp_path / f"{name}.json").write_text(json.dumps(plain))
    with serving(world) as (port, _):
        at = ["--server", f"http://127.0.0.1:{port}", "--token", world.secrets[TENANT]]
        status = run(["apply", "-f", str(tmp_path), *at])
        told = capsys.readouterr()
        assert run(["apply", "-f", str(tmp_path / "low.json"), *at]) == 0
        assert capsys.readouterr().out.splitlines() == [f"created    service/{OWN}/low"]
        bound(world, priority_max=100)
        assert run(["status", *at]) == 0
    assert status not in (0, 1)
    assert f"{tmp_path / 'high.json'}:1: priority: " in told.err
    assert "priority 201, where priority_max of project demo is 200" in told.err
    assert "1 of 2 documents are refused; nothing was sent" in told.err
    assert not told.out
    assert f"beyond its project's bounds: Service {OWN}/low: priority 200" in capsys.readouterr().out


def worker(*environment: dict[str, str]) -> dict[str, Any]:
    return {"command": ["/opt/serve"], "environment": list(environment)}


def with_worker(*environment: dict[str, str], **changes: Any) -> dict[str, Any]:
    return {**spec(builders.service(**changes)), "worker": worker(*environment)}


def test_variables_that_steer_programs_need_an_administrators_word(world: World) -> None:
    ours = {"name": "OMP_NUM_THREADS", "value": "4"}
    path, home = {"name": "PYTHONPATH", "value": "/srv/lib"}, {"name": "HOME", "from_environment": "HOME"}
    pointer = "/worker/environment/1/name"
    for wrong in (path, home, {"name": "LD_AUDIT", "value": "/tmp/a.so"}):
        for who in (TENANT, ADMIN):
            answer = world.call("PUT", VISION, who, plain=with_worker(ours, wrong))
            refused(answer, pointer, wrong["name"], "environment_allowed", OWN)
        plain = {**TASK, "worker": worker(ours, wrong)}
        refused(world.call("POST", "/v1/tasks", TENANT, plain=plain), pointer, wrong["name"])
    assert len(events(world, "service.refused")) == 6
    assert world.call("GET", VISION).status_code == 404
    bound(world, environment_allowed=("HOME", "PYTHONPATH"))
    assert world.call("PUT", VISION, TENANT, plain=with_worker(ours, path, home)).status_code == 201
    refused(
        world.call("PUT", VISION, TENANT, plain=with_worker({"name": "LD_AUDIT", "value": "x"})),
        "/worker/environment/0/name",
    )


def test_what_apply_refuses_before_it_writes_is_noted_too(world: World) -> None:
    """Once a minute, however often it is asked; what is wrong otherwise leaves nothing."""
    bound(world, priority_max=200)
    over, fine = (spec(builders.service(name, priority=rank)) for name, rank in (("vision", 201), ("labels", 200)))
    odd = {**spec(builders.service("odd")), "model": "no-such-model"}
    asked = {"documents": [{"kind": "service", "document": each} for each in (over, fine, odd)]}
    for _ in range(3):
        checked = world.call("POST", "/v1/checks", TENANT, plain=asked)
        assert [line["outcome"] for line in checked.json()["items"]] == ["refused", "created", "refused"]
    (noted,) = events(world, "service.refused")
    assert (noted["subject"], noted["actor"]) == (f"services/{OWN}/vision", f"token:{world.ids[TENANT]}")
    assert "priority 201" in noted["facts"]["asked"][0]
    assert world.call("GET", f"/v1/services/{OWN}/labels").status_code == 404


def test_documents_are_checked_together_by_reading_what_stands_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is judged beside those before it, and however many there are, what they are judged beside is read once."""
    bound(world, quota_workloads=12)
    pool = Pool(nodes=(NodeId("n0"), NodeId("n1")))
    policy = Policy(name=PolicyName("edge"), planners=("greedy",), pool=pool)
    nodes = [builders.node(f"n{number}") for number in range(2)]
    devices = [builders.device(node.id, 0, "t4") for node in nodes]
    fleet = [
        *({"kind": "node", "document": spec(each)} for each in nodes),
        *({"kind": "device", "document": spec(each)} for each in devices),
    ]
    read, rows = documents.all_specs, list[int]()

    def counted(*asked: Any, **where: Any) -> list[documents.Stored]:
        found = read(*asked, **where)
        rows.append(len(found))
        return found

    monkeypatch.setattr(documents, "all_specs", counted)

    def checked(count: int) -> list[str]:
        rows.clear()
        changes: dict[str, Any] = {"policy": "edge"}
        works = [builders.service(f"s{number}", **changes) for number in range(count)]
        astray = builders.service("astray", gpu_types_allowed=(GpuTypeName("v100"),), **changes)
        plain = [{"kind": "service", "document": spec(each)} for each in (astray, *works)]
        asked = {"documents": [{"kind": "policy", "document": spec(policy)}, *fleet, *plain]}
        lines = world.call("POST", "/v1/checks", ADMIN, plain=asked).json()["items"]
        assert {line["outcome"] for line in lines[:5]} == {"created"}
        assert "t4" in lines[5]["faults"][0]["detail"]
        return [line["outcome"] for line in lines[6:]]

    assert checked(10) == ["created"] * 10
    few = sum(rows)
    assert checked(40) == ["created"] * 12 + ["refused"] * 28
    assert sum(rows) <= few


def test_what_was_declared_before_is_still_planned(world: World) -> None:
    """Nodes judge for themselves when they start it."""
    variable = EnvironmentVariable(name="PYTHONPATH", value="/srv/lib")
    stands = builders.service(worker=WorkerCommand(command=("/opt/serve",), environment=(variable,)))
    world.put(kinds.SERVICE, stands)
    (found,) = world.call("GET", "/v1/snapshot").json()["services"]
    assert found["worker"]["environment"] == [{"name": "PYTHONPATH", "value": "/srv/lib"}]
    assert world.call("DELETE", VISION).status_code == 204


def test_secrets_are_kept_as_references_alone(world: World) -> None:
    variables = (
        {"name": "API_KEY", "from_file": "/run/secrets/demo/key"},
        {"name": "HF_TOKEN", "from_environment": "TEAM_HF_TOKEN"},
        {"name": "DB_KEY", "from_command": "kv/demo#db"},
    )
    written = world.call("PUT", VISION, TENANT, plain=with_worker(*variables))
    assert written.status_code == 201, written.text
    kept = [{**each, "value": None} for each in variables]
    assert written.json()["worker"]["environment"] == kept
    assert world.call("PUT", VISION, TENANT, plain=written.json()).status_code == 200
    (found,) = world.call("GET", "/v1/snapshot").json()["services"]
    assert found["worker"]["environment"] == kept


@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ({"name": "KEY"}, "value"),
        ({"name": "KEY", "value": "x", "from_file": "/a"}, "value"),
        ({"name": "KEY", "from_environment": "A", "from_file": "/a"}, "value"),
        ({"name": "KEY", "from_file": "relative/key"}, "from_file"),
        ({"name": "KEY", "from_file": "/with\nlines"}, "from_file"),
        ({"name": "KEY", "from_file": "/" + 5000 * "x"}, "from_file"),
        ({"name": "KEY", "from_environment": "no name"}, "from_environment"),
        ({"name": "KEY", "from_environment": "A", "from_command": "a"}, "value"),
        ({"name": "KEY", "from_command": "-field=key"}, "from_command"),
        ({"name": "KEY", "from_command": "two words"}, "from_command"),
        ({"name": "CUDA_VISIBLE_DEVICES", "from_environment": "A"}, "name"),
    ],
)
def test_a_variable_has_one_value_or_one_place(refusing_world: World, variable: dict[str, str], field: str) -> None:
    answer = refusing_world.call("PUT", VISION, TENANT, plain=with_worker(variable))
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [f"/worker/environment/0/{field}"]


def test_what_if_questions_are_held_like_writes(world: World) -> None:
    bound(world, priority_max=200)
    world.put(kinds.SERVICE, builders.service())
    asked = {"changes": {"services": [spec(builders.service(priority=201))]}}
    answer = world.call("POST", "/v1/simulations", "operator", plain=asked)
    assert answer.status_code == 422, answer.text
    (fault,) = answer.json()["errors"]
    assert fault["code"] == "bound-exceeded"
    assert "priority 201" in fault["detail"]


def test_projects_are_listed_with_their_bounds(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    bound(world, priority_max=200, quota_budget_usd_per_h=12.5)
    with serving(world) as (port, _):
        at = ["--server", f"http://127.0.0.1:{port}", "--token", world.secrets[TENANT]]
        assert run(["get", "projects", *at]) == 0
    (title, *rows) = capsys.readouterr().out.splitlines()
    assert "priority_max" in title
    assert [row.split() for row in rows if row.split()[0] == OWN] == [[OWN, "-", "-", "-", "12.5", "-", "200"]]
