"""Every operation's example in the API's description: sent to a real API over a real database, it is answered as the
description says.

`--examples benchmarks/same/examples.json` writes them anew from the same requests (`make examples`): what a clock, a
random number or a digest gives has one value there, and of long answers the beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from jsonschema import Draft202012Validator

from app import kinds
from app.services.seen.feed import FollowedFleet
from app.store import cycles, events, profiles, webhooks
from app.store.engine import Database
from app.store.events import Event
from solvers.cycle.record import Attempt
from solvers.domain.ids import GpuTypeName, ModelName, ProjectName
from solvers.domain.profile import PairPoint
from solvers.domain.workload import Project
from tests import builders
from tests.integration.api.filled import fill
from tests.integration.api.routes import Asked, Route, requests_of
from tests.integration.api.test_access import IN, TABLE
from tests.integration.api.test_console import SPENT
from tests.integration.api.world import World, build_world
from tests.integration.store import plans as stored

pytestmark = pytest.mark.integration

DOCUMENT = Path(__file__).parents[3] / "openapi" / "openapi.json"
GIVEN = ("plan_id", "run", "token_id", "log_request")
"""Parts of paths that the server makes up."""
SPARE: Mapping[str, Mapping[str, str]] = {
    "delete_gpu_type": {"name": "spare"},
    "delete_model": {"name": "spare"},
    "delete_project": {"name": "spare"},
    "delete_node": {"node": "spare"},
    "revoke_node": {"node": "leaver"},
}
"""What nothing needs."""
METHODS = ("GET", "PUT", "PATCH", "POST", "DELETE")
FIRST = ("propose_plan", "apply_plan", "roll_back", "resume_planning", "reject_plan")
LINES = 6
PROCESS = re.compile(r"\b(process|python)_")
LOG = '{"node": "a", "replica": "demo/vision#0", "line": "ready"}\n'
"""Streams end at once here, so that nobody hands over any line."""
MADE_UP = "00000000-0000-4000-8000-000000000001"
STABLE = {
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"): "2026-01-01T12:00:00Z",
    re.compile(r"sha256:[0-9a-f]{64}"): "sha256:" + "4f" * 32,
    re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"): MADE_UP,
    re.compile(r"\btask-[0-9a-f]{12}\b"): "task-4f4f4f4f4f4f",
    re.compile(r"retry: \d+"): "retry: 250",
    re.compile(r"\bid: [0-9a-f]{8}\."): "id: 4f4f4f4f.",
    re.compile(r"\b[0-9a-f]{32,64}\b"): "4f" * 16,
    re.compile(r"\b(h[a-z]+)_[A-Za-z0-9_-]{30,}"): r"\1_" + "x" * 43,
    re.compile(r"(-----BEGIN CERTIFICATE-----\n)[^-]*"): r"\1…\n",
}
MEASURED = {
    "age_s": 2.0, "elapsed_ms": 5.0, "window_s": 2.0, "certificate_s": 2_592_000.0,
    "usd_forecast": 90.0, "usd_spent": 1.25,
}  # fmt: skip
LATELY_USD_PER_H = 0.5
"""What a budget is spent by goes by how much of the month is over."""
AT_S = 1767268800.0


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """A cluster in the middle of its life, with an authority of its own and with what may be thrown away."""
    made = build_world(database, tls=True, ca=str(tmp_path / "authority.pem"))
    made.put(kinds.GPU_TYPE, replace(builders.gpu_type("t4"), name=GpuTypeName("spare")))
    made.put(kinds.MODEL, builders.model("spare"))
    made.put(kinds.PROJECT, Project(name=ProjectName("spare")))
    made.put(kinds.NODE, builders.node("spare"))
    made.joined("leaver", types=())
    yield made
    made.client.close()


def test_every_example_is_answered_as_described(world: World, request: pytest.FixtureRequest) -> None:
    anew: Path | None = request.config.getoption("--examples")
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    requests = requests_of(world)
    fill(world)
    _live_on(world)
    found: dict[str, Any] = {}
    for route in sorted(_routes(document), key=_turn):
        operation = document["paths"][route.path][route.method.lower()]
        asked = requests.asked(route)
        asked.parameters.update(SPARE.get(route.operation, {}))
        if route.operation in ("apply_plan", "reject_plan"):
            asked.parameters["plan_id"] = world.call("POST", "/v1/plans", plain={}).json()["id"]
        if route.operation == "create_profile_run":
            world.call("DELETE", f"/v1/profile-runs/{requests.fresh_run()}")
        if route.operation == "list_log_requests":
            requests.fresh_log_request()
        told = _told(operation)
        if anew is None:
            live = {name: asked.parameters[name] for name in GIVEN if name in asked.parameters}
            assert set(told.parameters) == set(asked.parameters), route.operation
            assert _stable(asked.plain) == told.plain, f"{route.operation}: record it anew, `make examples`"
            asked = Asked({**told.parameters, **live}, told.plain)
        answer = _send(world, route, asked)
        status = str(answer.status_code)
        assert answer.is_success, (route.operation, answer.text)
        assert anew or status == _status(operation), route.operation
        wrong = _wrong(document, operation["responses"][status], answer)
        assert wrong == [], (route.operation, wrong)
        if anew is None:
            assert (ill := _ill_shown(operation["responses"][status], answer)) == "", (route.operation, ill)
        found[route.operation] = _example(asked, answer)
    if anew is not None:
        anew.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _live_on(world: World) -> None:
    """Let everything have something to tell: a bill, a pair, a delivery, what a planner kept, what streams say."""
    model = ModelName("resnet50")
    pair = PairPoint(
        gpu_type=GpuTypeName("t4"), model_a=model, batch_a=4, share_pct_a=50, model_b=model, batch_b=8, share_pct_b=50,
        latency_ms_a=12.5, latency_ms_b=21.0,
    )  # fmt: skip
    with world.database.transaction() as session:
        profiles.put_pairs(session, [pair])
        events.append(session, Event(name="node.lost", actor="planner", subject="nodes/b", facts={"silent_s": 75}))
        webhooks.enqueue(session)
        kept = cycles.put_state(session, "greedy", "1", b"what it learned")
        attempt = Attempt(planner="greedy", status="feasible", state_digest=kept)
        record = replace(stored.record(), attempts=(attempt,))
        cycles.draft(session, record)
        cycles.close(session, record)
    with world.database.raw() as connection:
        connection.execute(SPENT.replace("=demo", "demo"))
        connection.execute("INSERT INTO accounting_marks VALUES ('closed_until', date_trunc('hour', now()))")
    services = world.app.state.services
    world.app.state.live_board.publish(FollowedFleet(services.status, services.history).picture(), {})


def _routes(document: Mapping[str, Any]) -> Iterator[Route]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield Route(operation["operationId"], method.upper(), path)


def _turn(route: Route) -> tuple[int, int, str]:
    """What looks comes first, what takes away last; some others have an order of their own."""
    turn = FIRST.index(route.operation) if route.operation in FIRST else len(FIRST)
    return METHODS.index(route.method), turn + (route.operation == "certify_node"), route.operation


def _told(operation: Mapping[str, Any]) -> Asked:
    """What the description's example asks."""
    parameters = {item["name"]: item["example"] for item in operation.get("parameters", ()) if "example" in item}
    bodies = operation.get("requestBody", {}).get("content", {}).values()
    return Asked(parameters, next((content["example"] for content in bodies if "example" in content), None))


def _status(operation: Mapping[str, Any]) -> str:
    """How the description says that the example is answered."""
    answers = {status: answer for status, answer in operation["responses"].items() if status < "400"}
    shown = [status for status, answer in answers.items() if "example" in str(answer.get("content", ""))]
    return next(iter(shown or answers))


def _send(world: World, route: Route, asked: Asked) -> httpx.Response:
    answers = TABLE[route.operation]
    who = next(who for who in ("admin", "node", *answers) if answers[who] == IN)
    path = route.path.format_map(asked.parameters)
    query = {name: value for name, value in asked.parameters.items() if f"{{{name}}}" not in route.path}
    headers = {"Content-Type": "application/merge-patch+json"} if route.method == "PATCH" else None
    # Nobody's identity is remembered: some of the requests end tokens.
    world.app.state.authenticator.forget()
    return world.call(
        route.method, path + ("?" + urlencode(query) if query else ""), who, plain=asked.plain, headers=headers
    )


def _wrong(document: Mapping[str, Any], told: Mapping[str, Any], answer: httpx.Response) -> list[str]:
    """What an answer has that the description does not, or the other way round."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    content = told.get("content", {})
    if not content:
        return [] if not answer.content else ["a body"]
    if kind not in content:
        return [f"{kind} in place of {list(content)}"]
    if kind != "application/json":
        return []
    schema = {**content[kind]["schema"], "components": document["components"]}
    return [
        f"{fault.json_path}: {fault.message[:200]}" for fault in Draft202012Validator(schema).iter_errors(answer.json())
    ]


def _ill_shown(told: Mapping[str, Any], answer: httpx.Response) -> str:
    """How a described example misleads: it stands under another media type, tells of nothing, or is cut."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if not answer.content:
        return ""
    shown = told["content"][kind].get("example")
    if not shown or (isinstance(shown, dict) and shown.get("items", ...) == []):
        return f"nothing is shown of {kind}"
    begin = [] if kind == "application/json" else _lines(answer)[:1]
    return "" if not begin or shown.startswith(f"{begin[0]}\n") else f"it does not begin with {begin[0]}"


def _lines(answer: httpx.Response) -> list[str]:
    """What stands in a text at every time and on every machine."""
    return [_stable(line) for line in answer.text.splitlines() if not PROCESS.search(line)]


def _example(asked: Asked, answer: httpx.Response) -> dict[str, Any]:
    """What is kept of an operation that was tried."""
    found: dict[str, Any] = {"status": answer.status_code}
    if asked.parameters:
        found["parameters"] = _stable(asked.parameters)
    if asked.plain is not None:
        found["body"] = _stable(asked.plain)
    if answer.headers.get("content-type") == "application/json" and answer.content:
        found["answer"] = _short(_stable(answer.json()))
    elif answer.status_code == 200:
        found["answer"] = "".join(f"{line}\n" for line in _lines(answer)[:LINES]) or LOG
    return found


def _stable(part: Any, name: str = "") -> Any:
    """The same at every time and on every machine."""
    if isinstance(part, dict):
        lately = {"usd_per_h": LATELY_USD_PER_H} if "usd_forecast" in part else {}
        return {key: _stable(inner, key) for key, inner in (part | lately).items()}
    if isinstance(part, list | tuple):
        return [_stable(inner, name) for inner in part]
    if isinstance(part, str):
        for pattern, same in STABLE.items():
            part = pattern.sub(same, part)
    elif isinstance(part, float):
        return MEASURED.get(name, AT_S if name.endswith("_at_s") else round(part, 3))
    return part


def _short(part: Any) -> Any:
    """Of every list the first item; where what is made up says which that is, the first by name."""
    if isinstance(part, dict):
        return {key: _short(inner) for key, inner in part.items()}
    if not isinstance(part, list):
        return part
    named = [item for item in part if isinstance(item, dict) and item.get("id") == MADE_UP and "name" in item]
    return [_short(inner) for inner in (sorted(named, key=itemgetter("name")) or part)[:1]]
