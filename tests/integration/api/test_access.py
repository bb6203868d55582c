"""Every route × everybody: who is let in, who is told no, and from whom it is hidden.

The routes come from the application, so that a new one without a line in the table fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from agents.wire import encode
from app.store.documents import Kind
from solvers.domain.device import PowerCap, PowerScope
from tests import builders
from tests.integration.api.world import DEVICE, FOREIGN, NODE, OWN, WHO, World, join_message, spare_policy, spec
from tests.integration.store.samples import device_report, edge_report, report

pytestmark = pytest.mark.integration

IN, NO, HIDDEN = "let in", "403", "404"
EVERYBODY = tuple(WHO)
_STALE = {"If-Match": '"999999999999"'}


def _who(**answers: str) -> dict[str, str]:
    """Answers by name (blanks as underscores); everybody else is told no."""
    named = {name.replace("_", " "): answer for name, answer in answers.items()}
    assert set(named) <= set(EVERYBODY)
    return {who: named.get(who, NO) for who in EVERYBODY}


_STAFF_READ = {"admin": IN, "operator": IN, "viewer": IN}
_PROJECT_READ = {"own_operator": IN, "own_viewer": IN, "foreign_operator": IN, "foreign_viewer": IN}
_OWN_READ = {"own_operator": IN, "own_viewer": IN, "foreign_operator": HIDDEN, "foreign_viewer": HIDDEN}

OPEN = dict.fromkeys(EVERYBODY, IN)
CLUSTER_READ = _who(**_STAFF_READ)
SHARED_READ = _who(**_STAFF_READ, **_PROJECT_READ)
CLUSTER_WRITE = _who(admin=IN, operator=IN)
ADMIN = _who(admin=IN)
OWN_READ = _who(**_STAFF_READ, **_OWN_READ)
OWN_WRITE = _who(admin=IN, operator=IN, own_operator=IN, foreign_operator=HIDDEN)
COSTS = _who(**_STAFF_READ, **_PROJECT_READ, reporter=IN, own_reporter=IN)
ROUTES = _who(**_STAFF_READ, **_PROJECT_READ, node=IN, foreign_node=IN, gateway=IN)
JOIN = _who(join=IN, node=IN)
OWN_NODE = _who(node=IN)
OWN_TARGET = _who(node=IN, foreign_node=HIDDEN)
EDGE = _who(admin=IN, operator=IN, gateway=IN)

TABLE: Mapping[str, Mapping[str, str]] = {
    **{f"{verb}_{noun}": SHARED_READ for verb, noun in (("get", "gpu_type"), ("get", "model"), ("get", "policy"))},
    **{f"list_{noun}": SHARED_READ for noun in ("gpu_types", "models", "policies", "projects")},
    **{f"list_{noun}": SHARED_READ for noun in ("services", "jobs", "tasks", "plans")},
    **{f"list_{noun}": CLUSTER_READ for noun in ("nodes", "devices", "power_caps", "profiles")},
    **{f"list_{noun}": CLUSTER_READ for noun in ("targets", "receipts", "cycles", "events")},
    **{f"get_{noun}": CLUSTER_READ for noun in ("node", "device", "power_cap", "profile", "cycle")},
    **{f"get_{noun}": OWN_READ for noun in ("project", "service", "job", "task", "service_telemetry")},
    **{f"put_{noun}": CLUSTER_WRITE for noun in ("gpu_type", "model", "policy", "node", "device", "power_cap")},
    **{f"delete_{noun}": CLUSTER_WRITE for noun in ("gpu_type", "model", "policy", "node", "power_cap", "profile")},
    **{f"{verb}_{noun}": OWN_WRITE for verb in ("put", "delete") for noun in ("service", "job", "task")},
    **{f"{verb}_project": ADMIN for verb in ("put", "delete")},
    "list_tokens": ADMIN,
    "get_token": ADMIN,
    "create_token": ADMIN,
    "revoke_token": ADMIN,
    "import_profiles": CLUSTER_WRITE,
    "propose_plan": CLUSTER_WRITE,
    "apply_plan": CLUSTER_WRITE,
    "get_plan": SHARED_READ,
    "explain_plan": SHARED_READ,
    "get_current_target": CLUSTER_READ,
    "get_device_telemetry": CLUSTER_READ,
    "get_fleet": SHARED_READ,
    "get_routes": ROUTES,
    "get_costs": COSTS,
    "listen_doorbell": ROUTES,
    "join_node": JOIN,
    "get_node_target": OWN_TARGET,
    "send_reports": OWN_NODE,
    "send_receipt": OWN_NODE,
    "send_edge_reports": EDGE,
    "get_health": OPEN,
    "get_ready": OPEN,
    "get_version": OPEN,
    "get_metrics": OPEN,
}


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the application."""

    operation: str
    method: str
    path: str


def _routes(world: World) -> list[Route]:
    found = [
        Route(operation["operationId"], method.upper(), path)
        for path, operations in world.app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]
    assert len(found) > 60
    return found


class Requests:
    """A request for every operation that gets past validation: what it answers then is about access alone."""

    def __init__(self, world: World) -> None:
        self._world = world
        cap = PowerCap(scope=PowerScope.RACK, subject="rack-1", limit_w=1000.0)
        self.documents: dict[str, object] = {
            "gpu_type": builders.gpu_type("t4"),
            "model": builders.model(),
            "policy": spare_policy(),
            "node": builders.node(NODE),
            "device": builders.device(NODE, 0, "t4"),
            "power_cap": cap,
            "service": builders.service(),
            "job": builders.job(),
            "task": builders.task(),
        }
        world.joined(NODE)
        world.put(Kind.POLICY, self.documents["policy"])
        world.put(Kind.POWER_CAP, cap)
        world.put(Kind.SERVICE, self.documents["service"])
        world.put(Kind.JOB, self.documents["job"])
        world.put(Kind.TASK, self.documents["task"])
        self.plan = world.call("POST", "/v1/plans", plain={}).json()["id"]
        self._sequence = 0

    def send(self, route: Route, who: str | None) -> int:
        """The status of one request."""
        path, plain, headers = self._request(route)
        return self._world.call(route.method, path, who, plain=plain, headers=headers).status_code

    def _request(self, route: Route) -> tuple[str, Any, dict[str, str]]:
        noun = route.operation.partition("_")[2]
        path = route.path.format_map(_Parts(self, noun))
        if route.method == "GET":
            return path, None, {}
        if route.operation.startswith(("put_", "delete_")) and "profile" not in noun:
            document = self.documents.get(noun, {"name": OWN})
            plain = document if isinstance(document, dict) else spec(document)
            # A version that nothing has: whoever is let in gets 412 and nothing changes.
            return path, plain if route.method == "PUT" else None, _STALE
        return path, self._post(route.operation), {}

    def _post(self, operation: str) -> Any:
        self._sequence += 1
        point = builders.profile().points[0]
        bodies: dict[str, Any] = {
            "import_profiles": [spec(point)],
            "propose_plan": {"lane": "act"},
            "apply_plan": {},
            "create_token": {"name": "new", "role": "viewer"},
            "join_node": encode(join_message(NODE)),
            "send_reports": encode(report(NODE, self._sequence, devices=[device_report(DEVICE)])),
            "send_receipt": _receipt(),
            "send_edge_reports": encode(edge_report(self._sequence, {f"{OWN}/vision": 3.0})),
        }
        return bodies.get(operation)

    def fresh_token(self) -> str:
        """A token that may be revoked."""
        made = self._world.call("POST", "/v1/tokens", plain={"name": "x", "role": "viewer"}).json()
        return str(made["id"])

    def fresh_profile(self) -> str:
        """A profile that may be deleted; its model."""
        point = spec(builders.profile().points[0])
        assert self._world.call("POST", "/v1/profiles", plain=[point]).status_code == 200
        return str(point["model"])


class _Parts(dict[str, str]):
    """Path parameters by name, and what they need to exist."""

    def __init__(self, requests: Requests, noun: str) -> None:
        super().__init__(node=NODE, uuid=DEVICE, scope="rack", subject="rack-1", project=OWN, gpu_type="t4")
        self._requests = requests
        self._noun = noun

    def __missing__(self, name: str) -> str:
        if name == "name":
            names = {"gpu_type": "t4", "model": "resnet50", "policy": "spare", "job": "train", "task": "batch"}
            return names.get(self._noun, OWN if self._noun == "project" else "vision")
        if name == "model":
            return self._requests.fresh_profile()
        if name == "token_id":
            return self._requests.fresh_token()
        return {"plan_id": self._requests.plan, "cycle_id": "cycle-1"}[name]


def _receipt() -> dict[str, Any]:
    return {
        "node": NODE,
        "boot_id": "boot-1",
        "generation": 0,
        "plan": None,
        "outcome": "applied",
        "observed_at_s": 1_000_000.0,
        "elapsed_ms": 5.0,
        "devices": [],
        "replicas": [],
    }


@pytest.fixture
def requests(world: World) -> Requests:
    """Requests past validation. The doorbell's streams end at once."""
    world.app.state.listener.closing.set()
    with world.database.transaction() as session:
        from app.store import cycles
        from app.store.cycles import NewCycle
        from solvers.cycle.record import Lane
        from solvers.domain.ids import CycleId

        new = NewCycle(id=CycleId("cycle-1"), lane=Lane.ACT, holder="x", fencing_token=1, software_version="1")
        cycles.begin(session, new)
    made = Requests(world)
    # The node joined under its own token; the table's `node` is that of the same node made by an admin.
    world.secrets["node"] = world.secrets[NODE]
    return made


def _as_told(status: int) -> str:
    if status in (403, 404):
        return str(status)
    assert status not in (400, 401, 405, 415, 422, 429, 500, 503), status
    return IN


def test_the_table_has_a_line_for_every_route(world: World) -> None:
    assert {route.operation for route in _routes(world)} == set(TABLE)


def test_every_route_is_described_but_the_consoles(world: World) -> None:
    described = {(route.method, route.path) for route in _routes(world)}
    served = {
        (method, context.path)
        for context in iter_route_contexts(world.app.routes)
        for method in getattr(context.original_route, "methods", None) or ()
        if method != "HEAD"
    }
    console = {path for _, path in served - described}
    assert console == {"/", "/session", "/session/end", "/console/stream", "/static/{name}", "/v1/openapi.json"}
    assert described <= served


def test_everybody_at_every_door(world: World, requests: Requests) -> None:
    wrong = []
    for route in _routes(world):
        for who, expected in TABLE[route.operation].items():
            status = requests.send(route, who)
            found = _as_told(status)
            if found != expected:
                wrong.append(f"{route.operation} by {who}: expected {expected}, got {status}")
    assert not wrong, "\n".join(wrong)


def test_nobody_without_a_token(world: World, requests: Requests) -> None:
    for route in _routes(world):
        status = requests.send(route, None)
        assert status == (200 if TABLE[route.operation] is OPEN else 401), route


def test_strangers_learn_nothing(world: World) -> None:
    world.secrets["stranger"] = "hr_" + "x" * 43
    answer = world.call("GET", "/v1/nodes", "stranger")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == "application/problem+json"


def test_lists_show_a_project_its_own_only(world: World) -> None:
    for project in (OWN, FOREIGN):
        world.put(Kind.SERVICE, builders.service(project=project))
    shown = world.call("GET", "/v1/services", "own viewer").json()["items"]
    assert [item["project"] for item in shown] == [OWN]
    assert [item["name"] for item in world.call("GET", "/v1/projects", "own viewer").json()["items"]] == [OWN]
    assert len(world.call("GET", "/v1/services", "viewer").json()["items"]) == 2
    assert world.call("GET", f"/v1/services?project={FOREIGN}", "own viewer").status_code == 404
    assert [item["project"] for item in world.call("GET", "/v1/fleet", "own viewer").json()["services"]] == [OWN]


def test_a_project_cannot_be_entered_through_the_body(world: World) -> None:
    foreign = spec(builders.service(project=FOREIGN))
    answer = world.call("PUT", f"/v1/services/{OWN}/vision", "own operator", plain=foreign)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/project"


def test_metrics_can_be_closed(database: Any) -> None:
    from tests.integration.api.world import build_world

    closed = build_world(database, metrics_public=False)
    assert closed.call("GET", "/metrics", None).status_code == 401
    assert closed.call("GET", "/metrics", "gateway").status_code == 403
    assert closed.call("GET", "/metrics", "viewer").status_code == 200
