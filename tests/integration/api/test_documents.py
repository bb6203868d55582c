"""Declarative documents over HTTP: versions, preconditions, references, pages, limits, and an audit trail of it all."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from app import kinds
from app.services.declared import documents as declared
from solvers.domain.device import Label, PowerCap, PowerScope
from solvers.domain.ids import NodeId, PolicyName, ServiceId
from solvers.domain.policy import Policy, Pool
from solvers.domain.profile import TokenLengths
from solvers.domain.workload import Affinity, LayerCount, Slo, SloKind
from tests import builders
from tests.integration.api.world import NODE, OWN, World, build_world, spare_policy, spec
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

VISION = f"/v1/services/{OWN}/vision"


def _problem(answer: Any, status: int, code: str, pointer: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["code"] == code
    assert found["type"] == f"/problems/{code}"
    assert found["status"] == status
    assert found["request_id"] == answer.headers["x-request-id"]
    if pointer is not None:
        assert pointer in [error["pointer"] for error in found["errors"]]
    return found


def test_put_creates_then_replaces_then_changes_nothing(world: World) -> None:
    created = world.call("PUT", VISION, plain=spec(builders.service()))
    assert (created.status_code, created.json()) == (201, spec(builders.service()))
    replaced = world.call("PUT", VISION, plain=spec(builders.service(priority=7)))
    assert replaced.status_code == 200
    assert replaced.headers["etag"] != created.headers["etag"]
    again = world.call("PUT", VISION, plain=spec(builders.service(priority=7)))
    assert (again.status_code, again.headers["etag"]) == (200, replaced.headers["etag"])
    read = world.call("GET", VISION)
    assert (read.json()["priority"], read.headers["etag"]) == (7, replaced.headers["etag"])
    assert world.call("GET", VISION, headers={"If-None-Match": read.headers["etag"]}).status_code == 304


def test_a_patch_that_others_keep_overtaking_is_told_to_try_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.call("PUT", VISION, plain=spec(builders.service()))
    priorities = count(1)

    def overtaken(before: Any, wish: Any) -> Any:
        assert world.call("PUT", VISION, plain=spec(builders.service(priority=next(priorities)))).status_code == 200
        return {**before, **wish}

    monkeypatch.setattr(declared, "merged", overtaken)
    patch = {"Content-Type": "application/merge-patch+json"}
    _problem(world.call("PATCH", VISION, plain={"rate_rps_declared": 8}, headers=patch), 503, "transient")


def test_preconditions_prevent_lost_updates(world: World) -> None:
    tag = world.call("PUT", VISION, plain=spec(builders.service())).headers["etag"]
    only_new = world.call("PUT", VISION, plain=spec(builders.service()), headers={"If-None-Match": "*"})
    _problem(only_new, 412, "precondition-failed")
    changed = spec(builders.service(priority=7))
    assert world.call("PUT", VISION, plain=changed, headers={"If-Match": tag}).status_code == 200
    for stale in (tag, f"W/{tag}", '"other"'):
        _problem(world.call("PUT", VISION, plain=changed, headers={"If-Match": stale}), 412, "precondition-failed")
        _problem(world.call("DELETE", VISION, headers={"If-Match": stale}), 412, "precondition-failed")
    assert world.call("PUT", VISION, plain=changed, headers={"If-Match": "*"}).status_code == 200
    patch = {"If-Match": "*", "Content-Type": "application/merge-patch+json"}
    assert world.call("PATCH", VISION, plain={"priority": 8}, headers=patch).status_code == 200
    assert world.call("DELETE", VISION, headers={"If-Match": "*"}).status_code == 204
    _problem(world.call("PUT", VISION, plain=changed, headers={"If-Match": "*"}), 412, "precondition-failed")
    malformed = world.call("PUT", VISION, plain=changed, headers={"If-Match": "7"})
    _problem(malformed, 422, "field-invalid", "header:If-Match")


def test_delete_then_it_is_gone(world: World) -> None:
    world.put(kinds.SERVICE, builders.service())
    assert world.call("DELETE", VISION).status_code == 204
    _problem(world.call("GET", VISION), 404, "not-found")
    _problem(world.call("DELETE", VISION), 404, "not-found")


def test_workloads_of_a_project_share_their_names(world: World) -> None:
    assert world.call("PUT", VISION, plain=spec(builders.service())).status_code == 201
    said = "a service has this name already: services, jobs and tasks of a project share their names"
    job, task = spec(builders.job("vision")), spec(builders.task("vision"))
    for answer in (
        world.call("PUT", f"/v1/jobs/{OWN}/vision", plain=job),
        world.call("PUT", f"/v1/tasks/{OWN}/vision", plain=task),
        world.call("POST", "/v1/tasks", plain=task),
    ):
        found = _problem(answer, 422, "field-invalid", "/name")
        assert [(error["code"], error["detail"]) for error in found["errors"]] == [("contradiction", said)]
    assert world.call("DELETE", VISION).status_code == 204
    assert world.call("PUT", f"/v1/jobs/{OWN}/vision", plain=job).status_code == 201
    _problem(world.call("PUT", VISION, plain=spec(builders.service())), 422, "field-invalid", "/name")


def _overtaken(
    world: World, monkeypatch: pytest.MonkeyPatch, looks: str, first: tuple[str, Any], second: tuple[str, Any]
) -> tuple[Any, Any]:
    """Answers of two who put at one instant: the second comes when the first has looked, and has not stored yet."""
    look, came = getattr(declared, looks), list[Future[Any]]()
    with ThreadPoolExecutor(1) as rivals:

        def looked(*asked: Any) -> Any:
            found = list(look(*asked))
            if not came:
                came.append(rivals.submit(lambda: world.call("PUT", second[0], plain=second[1])))
                wait_until(lambda: came[0].done() or world.waits())
            return found

        monkeypatch.setattr(declared, looks, looked)
        return world.call("PUT", first[0], plain=first[1]), came[0].result()


def test_two_kinds_put_at_one_instant_do_not_share_a_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = (f"/v1/jobs/{OWN}/vision", spec(builders.job("vision")))
    first, second = _overtaken(world, monkeypatch, "_namesakes", (VISION, spec(builders.service())), job)
    assert first.status_code == 201
    _problem(second, 422, "field-invalid", "/name")


def test_two_pools_put_at_one_instant_do_not_share_a_gpu(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put(kinds.NODE, builders.node(NODE))
    world.put(kinds.DEVICE, builders.device(NODE, 0, "v100"))
    one, two = (spec(Policy(name=PolicyName(name), pool=Pool(nodes=(NodeId(NODE),)))) for name in ("one", "two"))
    first, second = _overtaken(
        world, monkeypatch, "policy_faults", ("/v1/policies/one", one), ("/v1/policies/two", two)
    )
    assert first.status_code == 201
    _problem(second, 422, "field-invalid", "/pool")


def test_a_device_and_labels_of_its_node_put_at_one_instant_do_not_share_pools(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(kinds.NODE, builders.node(NODE))
    device, label = builders.device(NODE, 0, "v100"), Label(key="tier", value="a")
    pools = {"one": Pool(devices=(device.id,)), "two": Pool(labels=(label,))}
    for name, pool in pools.items():
        world.put(kinds.POLICY, Policy(name=PolicyName(name), pool=pool))
    labelled = (f"/v1/nodes/{NODE}", spec(replace(builders.node(NODE), labels=(label,))))
    first, second = _overtaken(world, monkeypatch, "fleet_faults", (f"/v1/devices/{device.id}", spec(device)), labelled)
    assert first.status_code == 201
    _problem(second, 422, "field-invalid", "/labels")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"model": "none-such"}, "/model"),
        ({"alternatives": ("resnet50", "none-such")}, "/alternatives/1"),
        ({"gpu_types_allowed": ("h999",)}, "/gpu_types_allowed/0"),
        ({"policy": "none-such"}, "/policy"),
    ],
)
def test_references_must_exist(refusing_world: World, change: dict[str, Any], pointer: str) -> None:
    answer = refusing_world.call("PUT", VISION, plain=spec(builders.service(**change)))
    found = _problem(answer, 422, "field-invalid", pointer)
    assert found["errors"][0]["code"] == "reference-unknown"
    assert refusing_world.call("GET", VISION).status_code == 404


@pytest.mark.parametrize(
    ("change", "pointer", "told"),
    [
        (
            {"affinity": Affinity(avoid_services=tuple(ServiceId(f"a/b{number}") for number in range(257)))},
            "/affinity/avoid_services",
            "avoid_services may list 256 at most, got 257",
        ),
        (
            {"gpu_types_allowed": tuple(f"h{number}" for number in range(257))},
            "/gpu_types_allowed",
            "gpu_types_allowed may list 256 at most, got 257",
        ),
        (
            {"affinity": Affinity(avoid_services=(ServiceId("a/b"), ServiceId("resnet50")))},
            "/affinity/avoid_services/1",
            "a service is named PROJECT/NAME, got 'resnet50'",
        ),
    ],
)
def test_endless_lists_and_services_of_no_project_are_refused(
    refusing_world: World, change: dict[str, Any], pointer: str, told: str
) -> None:
    answer = refusing_world.call("PUT", VISION, plain=spec(builders.service(**change)))
    found = _problem(answer, 422, "field-invalid", pointer)
    assert [fault["detail"] for fault in found["errors"]] == [told]
    assert refusing_world.call("GET", VISION).status_code == 404


def test_one_put_tells_wrong_fields_keys_and_names_at_once(refusing_world: World) -> None:
    odd = {**spec(builders.service()), "rate_rps_declared": -1, "name": "another", "model": "none-such"}
    for body in (json.dumps({**odd, "model": "\x00\ud800"}).encode(), b'{"model": "a", "model": "\\u0000"}', b"[NaN]"):
        assert refusing_world.call("PUT", VISION, body=body).status_code == 422
    told = refusing_world.call("PUT", VISION, body=json.dumps(odd).encode())
    wrong = {"/rate_rps_declared", "/model"}
    assert {error["pointer"] for error in _problem(told, 422, "field-invalid")["errors"]} == wrong
    odd["rate_rps_declared"] = 1
    told = refusing_world.call("PUT", VISION, body=json.dumps(odd).encode())
    assert {error["pointer"] for error in _problem(told, 422, "field-invalid")["errors"]} == {"/name", "/model"}
    # Whether another's project is there is nobody's business.
    foreign = {**odd, "project": "nowhere"}
    told = refusing_world.call("PUT", VISION, "own operator", body=json.dumps(foreign).encode())
    assert {error["code"] for error in _problem(told, 422, "field-invalid")["errors"]} == {"key-mismatch"}


def test_who_promises_tokens_says_how_long_requests_are(refusing_world: World) -> None:
    promise = Slo(kind=SloKind.TOKENS, first_token_ms=800.0, inter_token_ms=80.0)
    service = builders.service(slo=promise)
    found = _problem(refusing_world.call("PUT", VISION, plain=spec(service)), 422, "field-invalid", "/tokens")
    assert found["errors"][0]["code"] == "value-invalid"
    told = {**spec(service), "tokens": {"input_tokens_mean": 400, "output_tokens_mean": 0}}
    _problem(refusing_world.call("PUT", VISION, plain=told), 422, "field-invalid", "/tokens/output_tokens_mean")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"layers": [{"kind": f"k{number}", "count": 1} for number in range(65)]}, "/layers"),
        ({"layers": [{"kind": "conv", "count": 10**7}]}, "/layers/0/count"),
        ({"layers": [{"kind": "conv", "count": 10**15}]}, "/layers/0/count"),
        ({"parameters_million": 1e12}, "/parameters_million"),
        ({"memory_mib_weights": 1e30}, "/memory_mib_weights"),
        ({"gflop_per_input": 1e300}, "/gflop_per_input"),
        ({"launch_s": 1e9}, "/launch_s"),
    ],
)
def test_models_have_sizes_that_networks_have(refusing_world: World, change: dict[str, Any], pointer: str) -> None:
    wished = {**spec(builders.model("vast")), **change}
    found = _problem(refusing_world.call("PUT", "/v1/models/vast", plain=wished), 422, "field-invalid", pointer)
    assert [error["code"] for error in found["errors"]] == ["value-invalid"]
    asked = {"changes": {"models": [wished]}, "planner": "greedy", "work_units": 100}
    _problem(refusing_world.call("POST", "/v1/simulations", plain=asked), 422, "field-invalid")
    assert refusing_world.call("GET", "/v1/models/vast").status_code == 404


def test_a_model_stored_before_sizes_had_bounds_is_still_read(world: World) -> None:
    layers = tuple(LayerCount(kind=f"k{number}", count=10**7) for number in range(100))
    world.put(kinds.MODEL, builders.model("vast", layers=layers))
    assert len(world.call("GET", "/v1/models/vast").json()["layers"]) == 100
    assert world.call("DELETE", "/v1/models/vast").status_code == 204


def test_lengths_of_requests_come_back(world: World) -> None:
    promise = Slo(kind=SloKind.TOKENS, first_token_ms=800.0, inter_token_ms=80.0)
    lengths = TokenLengths(input_tokens_mean=400, output_tokens_mean=150, input_tokens_p99=1600)
    world.put(kinds.SERVICE, builders.service(slo=promise, tokens=lengths))
    assert world.call("GET", VISION).json()["tokens"] == {
        "input_tokens_mean": 400,
        "output_tokens_mean": 150,
        "input_tokens_p99": 1600,
    }


def test_policies_name_planners_there_are(world: World) -> None:
    policy = {**spec(spare_policy()), "planners": ["greedy", "wizard"]}
    found = _problem(world.call("PUT", "/v1/policies/spare", plain=policy), 422, "field-invalid", "/planners/1")
    assert "greedy" in found["errors"][0]["detail"]


@pytest.mark.parametrize("field", ["stale_after_s", "cooldown_s", "gain_usd_per_h_min"])
def test_a_policy_waits_no_longer_than_anybody_lives(world: World, field: str) -> None:
    """JSON would tell more without a point, as an integer that does not fit, and the document could not be patched."""
    policy = {**spec(spare_policy()), field: 1e308}
    found = _problem(world.call("PUT", "/v1/policies/spare", plain=policy), 422, "field-invalid", f"/{field}")
    assert found["errors"][0]["detail"].startswith(f"{field} must lie between 0 and ")


def test_webhooks_name_events_there_are(world: World) -> None:
    """One that is misspelt would be told of nothing, and nobody would notice."""
    good = ["node.lost", "gpu_type.updated", "power_cap.*", "profile_run.done", "task.refused", "budget.at_risk"]
    pager = spec(builders.webhook(events=tuple(good)))
    assert world.call("PUT", "/v1/webhooks/pager", plain=pager).status_code == 201
    wrong = ["node.lost", "node.losst", "budgets.*", "zzz.qqq"]
    refused = world.call("PUT", "/v1/webhooks/pager", plain={**pager, "events": wrong})
    found = _problem(refused, 422, "field-invalid", "/events/1")
    losst, budgets, neither = (error["detail"] for error in found["errors"])
    assert losst.startswith("there is no event node.losst; did you mean node.lost or ")
    assert budgets.startswith("there is no event budgets.*; did you mean budget.* or ")
    assert neither.startswith("there is no event zzz.qqq; known are belief.*, budget.*, certificate.*, ")
    # One that was stored before is read and told of what there is.
    world.put(kinds.WEBHOOK, builders.webhook(events=("node.losst",)))
    assert world.call("GET", "/v1/webhooks/pager").json()["events"] == ["node.losst"]


def test_policies_tune_planners_by_what_these_have(world: World) -> None:
    setting = {"planner": "hetsev", "name": "share_pct", "value": 40}
    policy = {**spec(spare_policy()), "planner_settings": [setting]}
    assert world.call("PUT", "/v1/policies/spare", plain=policy).status_code in (200, 201)
    assert world.call("GET", "/v1/policies/spare").json()["planner_settings"] == [setting]
    for wrong, part in (({"planner": "wizard"}, "planner"), ({"name": "share"}, "name"), ({"value": "much"}, "value")):
        policy["planner_settings"] = [setting, {**setting, "planner": "hetsev", "name": "queues", **wrong}]
        pointer = f"/planner_settings/1/{part}"
        found = _problem(world.call("PUT", "/v1/policies/spare", plain=policy), 422, "field-invalid", pointer)
        assert len(found["errors"]) == 1


def test_nothing_is_deleted_under_a_name_that_is_being_used(world: World) -> None:
    """Rival puts and deletions in every order: never a service whose model is gone."""

    def put(number: int) -> int:
        service = builders.service(f"service-{number}", model="racer")
        return world.call("PUT", f"/v1/services/{OWN}/service-{number}", plain=spec(service)).status_code

    def delete(_: int) -> int:
        return world.call("DELETE", "/v1/models/racer").status_code

    for turn in range(4):
        assert world.call("PUT", "/v1/models/racer", plain=spec(builders.model("racer"))).status_code in (200, 201)
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(act, turn) for act in (put, delete, put, delete)]
            answers = [future.result() for future in futures]
        assert set(answers) <= {200, 201, 204, 404, 409, 422}
        gone = world.call("GET", "/v1/models/racer").status_code == 404
        used = world.call("GET", f"/v1/services/{OWN}/service-{turn}").status_code == 200
        assert not (gone and used)
        world.call("DELETE", f"/v1/services/{OWN}/service-{turn}")


def test_projects_are_not_made_in_passing(world: World) -> None:
    service = spec(builders.service(project="nowhere"))
    _problem(world.call("PUT", "/v1/services/nowhere/vision", plain=service), 422, "field-invalid", "/project")
    assert world.call("GET", "/v1/projects/nowhere").status_code == 404


@pytest.mark.parametrize("path", ["/v1/services", "/v1/jobs", "/v1/tasks", "/v1/tasks/status", "/v1/events"])
def test_a_list_of_a_project_that_is_not_there_says_so(refusing_world: World, path: str) -> None:
    found = _problem(refusing_world.call("GET", f"{path}?project=dmo"), 404, "not-found")
    assert found["detail"] == "there is no project dmo"
    assert refusing_world.call("GET", f"{path}?project={OWN}").status_code == 200


def test_what_is_used_stays(world: World) -> None:
    world.joined(NODE)
    world.put(kinds.POLICY, spare_policy())
    world.put(kinds.SERVICE, builders.service(policy="spare", gpu_types_allowed=("v100",)))
    for path in ("gpu-types/t4", "gpu-types/v100", "models/resnet50", "policies/spare", f"projects/{OWN}"):
        _problem(world.call("DELETE", f"/v1/{path}"), 409, "still-referenced")
        assert world.call("GET", f"/v1/{path}").status_code == 200
    for path in ("policies/default", "projects/default"):
        _problem(world.call("DELETE", f"/v1/{path}"), 409, "state-conflict")


def test_a_node_goes_with_its_devices_and_its_token(world: World) -> None:
    world.joined(NODE)
    assert world.call("GET", "/v1/devices/GPU-a-0").status_code == 200
    assert world.call("DELETE", f"/v1/nodes/{NODE}").status_code == 204
    assert world.call("GET", "/v1/devices/GPU-a-0").status_code == 404
    world.app.state.authenticator.forget()
    assert world.call("GET", f"/v1/agent/nodes/{NODE}/target", NODE).status_code == 401


def test_power_caps_name_what_there_is(world: World) -> None:
    for scope, subject, status in (
        (PowerScope.NODE, "none-such", 422),
        (PowerScope.DEVICE, "GPU-none", 422),
        (PowerScope.CLUSTER, "elsewhere", 422),
        (PowerScope.CLUSTER, "lab", 201),
        (PowerScope.RACK, "rack-7", 201),
    ):
        cap = spec(PowerCap(scope=scope, subject=subject, limit_w=500.0))
        assert world.call("PUT", f"/v1/power-caps/{scope.value}/{subject}", plain=cap).status_code == status


def test_bodies_are_closed_and_read_strictly(world: World) -> None:
    good = spec(builders.service())
    unknown = world.call("PUT", VISION, plain={**good, "colour": "red"})
    _problem(unknown, 422, "field-invalid", "/colour")
    for number in ("NaN", "Infinity", "1e999"):
        body = json.dumps(good).replace("100", number, 1).encode()
        assert number.encode() in body
        assert world.call("PUT", VISION, body=body).status_code == 422
    impossible = {**good, "slo": {**good["slo"], "latency_ms": 0}}
    _problem(world.call("PUT", VISION, plain=impossible), 422, "field-invalid", "/slo/latency_ms")
    _problem(world.call("PUT", VISION, body=b"{"), 422, "request-malformed")
    _problem(
        world.call("PUT", VISION, body=b"a=b", headers={"Content-Type": "text/plain"}), 415, "media-type-unsupported"
    )
    assert world.call("GET", VISION).status_code == 404


def test_the_frameworks_refusals_are_problems_too(world: World) -> None:
    _problem(world.call("GET", "/v1/none-such"), 404, "not-found")
    refused = world.call("POST", VISION, plain={})
    _problem(refused, 405, "method-not-allowed")
    assert refused.headers["allow"] == "GET, HEAD, PUT, PATCH, DELETE"
    _problem(world.call("GET", "/v1/services/UPPER/x"), 422, "field-invalid", "path:project")
    _problem(world.call("GET", "/v1/services?limit=0"), 422, "field-invalid", "query:limit")
    _problem(world.call("GET", "/v1/services?cursor=abc"), 422, "field-invalid", "query:cursor")
    for path in ("/v1/costs", "/v1/telemetry/devices/GPU-1"):
        series = world.call("GET", f"{path}?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z")
        _problem(series, 422, "field-invalid", "query:from")
        assert series.json()["detail"] == "`from` must lie before `to`"
    early = world.call("GET", "/v1/telemetry/devices/GPU-1?from=1999-01-01T00:00:00Z")
    _problem(early, 422, "field-invalid", "query:from")


def test_head_is_answered_where_get_is(world: World) -> None:
    made = world.call("PUT", VISION, plain=spec(builders.service()))
    for path in ("/v1/health", "/v1/ready", "/v1/services", "/v1/openapi.json", "/metrics", VISION):
        answer = world.call("HEAD", path)
        assert (path, answer.status_code, answer.content) == (path, 200, b"")
    assert world.call("HEAD", VISION).headers["etag"] == made.headers["etag"]
    held = world.call("HEAD", VISION, headers={"If-None-Match": made.headers["etag"]})
    assert (held.status_code, world.call("HEAD", "/v1/none-such").status_code) == (304, 404)
    assert world.call("HEAD", "/v1/predictions").status_code == 405


def test_a_request_id_is_taken_over_or_made(world: World) -> None:
    assert (
        world.call("GET", "/v1/health", headers={"X-Request-Id": "trace-12345"}).headers["x-request-id"]
        == "trace-12345"
    )
    assert len(world.call("GET", "/v1/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"]) == 36


def test_pages_cover_everything_once(world: World) -> None:
    for number in range(7):
        world.put(kinds.SERVICE, builders.service(f"service-{number}"))
    seen: list[str] = []
    path = "/v1/services?limit=3"
    while path:
        page = world.call("GET", path).json()
        assert len(page["items"]) <= 3
        seen += [item["name"] for item in page["items"]]
        path = f"/v1/services?limit=3&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert seen == [f"service-{number}" for number in range(7)]
    foreign = world.call("GET", "/v1/services?limit=1").json()["next_cursor"]
    assert world.call("GET", f"/v1/jobs?cursor={foreign}").status_code == 422


def test_oversize_bodies_are_refused_also_when_chunked(database: Any) -> None:
    small = build_world(database, body_bytes_max=2_000)
    large = {**spec(builders.service()), "name": "x" * 4_000}
    _problem(small.call("PUT", VISION, plain=large), 413, "body-too-large")

    def chunks() -> Any:
        yield from (b"[" + b" " * 500 for _ in range(20))

    headers = {"Authorization": f"Bearer {small.secrets['admin']}", "Content-Type": "application/json"}
    _problem(small.client.request("PUT", VISION, content=chunks(), headers=headers), 413, "body-too-large")


def test_a_token_that_asks_too_often_waits(database: Any) -> None:
    slow = build_world(database, rate_limit_per_s=1.0)
    statuses = [slow.call("GET", "/v1/nodes", "viewer").status_code for _ in range(5)]
    assert statuses[:2] == [200, 200]
    answer = slow.call("GET", "/v1/nodes", "viewer")
    _problem(answer, 429, "rate-limited")
    assert int(answer.headers["retry-after"]) >= 1
    assert slow.call("GET", "/v1/nodes", "operator").status_code == 200


def test_a_body_of_untold_length_costs_a_whole_burst(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = build_world(database, rate_limit_per_s=100.0)
    # No time passes, in which there would be room again.
    monkeypatch.setattr(slow.app.state.authenticator, "_elapsed_ms", lambda: 0.0)
    plain = json.dumps(spec(builders.service())).encode()
    headers = {"Authorization": f"Bearer {slow.secrets['admin']}", "Content-Type": "application/json"}
    statuses = [slow.client.request("PUT", VISION, content=plain, headers=headers).status_code for _ in range(3)]
    assert statuses == [201, 200, 200]
    statuses = [slow.client.request("PUT", VISION, content=iter([plain]), headers=headers).status_code for _ in "ab"]
    assert statuses == [200, 429]


def test_every_change_is_in_the_audit_trail_and_reading_leaves_none(world: World) -> None:
    def trail() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = world.call("GET", f"/v1/events?subject=services/{OWN}/vision").json()["items"]
        return found

    created = world.call("PUT", VISION, "own operator", plain=spec(builders.service()))
    world.call("PUT", VISION, plain=spec(builders.service(priority=3)))
    world.call("PUT", VISION, plain=spec(builders.service(priority=3)))
    world.call("GET", VISION)
    world.call("DELETE", VISION)
    events = trail()
    assert [event["name"] for event in events] == ["service.deleted", "service.updated", "service.created"]
    assert events[2]["actor"] == f"token:{world.ids['own operator']}"
    assert events[2]["request_id"] == created.headers["x-request-id"]
    assert events[1]["facts"]["version_before"] == events[2]["facts"]["version_after"]
    assert events[0]["project"] == OWN
