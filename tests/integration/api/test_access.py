"""Every route × everybody: who is let in, who is told no, and from whom it is hidden.

The routes come from the application, so that a new one without a line in the table fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from app import kinds
from app.api.console.door import COOKIE
from app.services.declared.tokens import Deed, Tokens
from app.store.plans import PlanState
from solvers.cycle.record import Lane
from solvers.domain.codec import digest
from solvers.domain.ids import Generation
from solvers.domain.plan import Destination
from solvers.domain.policy import Objective
from tests import builders
from tests.integration.api.routes import Requests, described, routes_of
from tests.integration.api.world import FOREIGN, NODE, OWN, WHO, World, spec
from tests.integration.store import plans as stored

pytestmark = pytest.mark.integration

IN, NO, HIDDEN = "let in", "403", "404"
EVERYBODY = tuple(WHO)


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
OWN_ROUTES = _who(**_STAFF_READ, **_OWN_READ, node=IN, foreign_node=IN, gateway=IN)
JOIN = _who(join=IN, node=IN)
OWN_NODE = _who(node=IN)
JUST_NODES = _who(node=IN, foreign_node=IN)
OWN_TARGET = _who(node=IN, foreign_node=HIDDEN)
EDGE = _who(admin=IN, operator=IN, gateway=IN)

TABLE: Mapping[str, Mapping[str, str]] = {
    **{f"{verb}_{noun}": SHARED_READ for verb, noun in (("get", "gpu_type"), ("get", "model"), ("get", "policy"))},
    **{f"list_{noun}": SHARED_READ for noun in ("gpu_types", "models", "policies", "projects")},
    **{f"list_{noun}": SHARED_READ for noun in ("services", "jobs", "tasks", "plans")},
    **{
        f"list_{noun}": CLUSTER_READ
        for noun in ("nodes", "devices", "power_caps", "profiles", "webhooks", "deliveries")
    },
    **{f"list_{noun}": CLUSTER_READ for noun in ("targets", "receipts", "cycles", "cycle_states", "events")},
    **{f"get_{noun}": CLUSTER_READ for noun in ("node", "device", "power_cap", "profile", "cycle", "webhook")},
    **dict.fromkeys(("list_budgets", "list_budget_forecasts", "get_budget"), CLUSTER_READ),
    **dict.fromkeys(("put_budget", "patch_budget", "delete_budget"), CLUSTER_WRITE),
    **{f"get_{noun}": OWN_READ for noun in ("project", "service", "job", "task", "service_telemetry")},
    **{f"put_{noun}": CLUSTER_WRITE for noun in ("gpu_type", "model", "policy", "node", "device", "power_cap")},
    **{f"delete_{noun}": CLUSTER_WRITE for noun in ("gpu_type", "model", "policy", "node", "power_cap", "profile")},
    **{f"{verb}_{noun}": OWN_WRITE for verb in ("put", "patch", "delete") for noun in ("service", "job", "task")},
    **{f"patch_{noun}": CLUSTER_WRITE for noun in ("gpu_type", "model", "policy", "node", "device", "power_cap")},
    **{f"{verb}_{noun}": ADMIN for verb in ("put", "patch", "delete") for noun in ("project", "webhook")},
    "get_drain": CLUSTER_READ,
    "drain_node": CLUSTER_WRITE,
    "uncordon_node": CLUSTER_WRITE,
    "list_tokens": ADMIN,
    "get_token": ADMIN,
    "create_token": ADMIN,
    "create_sign_in_link": SHARED_READ,
    "follow_events": SHARED_READ,
    "query_telemetry": OWN_READ,
    "revoke_token": ADMIN,
    "import_profiles": CLUSTER_WRITE,
    "list_profile_pairs": CLUSTER_READ,
    "list_next_points": CLUSTER_READ,
    "list_profile_runs": CLUSTER_READ,
    "get_profile_run": CLUSTER_READ,
    "create_profile_run": CLUSTER_WRITE,
    "delete_profile_run": CLUSTER_WRITE,
    "list_node_profile_runs": JUST_NODES,
    "list_profile_run_points": OWN_TARGET,
    "tell_profile_run": OWN_TARGET,
    "list_log_requests": JUST_NODES,
    "hand_over_log": OWN_TARGET,
    "read_logs": OWN_READ,
    "submit_task": OWN_WRITE,
    "list_task_statuses": SHARED_READ,
    "get_task_status": OWN_READ,
    "predict": SHARED_READ,
    "get_snapshot": CLUSTER_READ,
    "simulate": CLUSTER_WRITE,
    "check_documents": _who(admin=IN, operator=IN, own_operator=IN, foreign_operator=IN),
    "propose_plan": CLUSTER_WRITE,
    "apply_plan": CLUSTER_WRITE,
    "diff_plan": CLUSTER_READ,
    "get_planning": CLUSTER_READ,
    "reject_plan": CLUSTER_WRITE,
    "roll_back": CLUSTER_WRITE,
    "resume_planning": CLUSTER_WRITE,
    "get_plan": SHARED_READ,
    "explain_plan": SHARED_READ,
    "explain_plan_anew": CLUSTER_WRITE,
    "get_current_target": CLUSTER_READ,
    "get_device_telemetry": CLUSTER_READ,
    "get_fleet": SHARED_READ,
    "get_routes": ROUTES,
    "get_service_routes": OWN_ROUTES,
    "get_costs": COSTS,
    "get_focus": COSTS,
    "listen_doorbell": ROUTES,
    "join_node": JOIN,
    "get_node_target": OWN_TARGET,
    "send_reports": OWN_NODE,
    "send_receipt": OWN_NODE,
    "send_edge_reports": EDGE,
    "certify_node": OWN_TARGET,
    "list_identities": CLUSTER_READ,
    "revoke_node": CLUSTER_WRITE,
    "get_authorities": OPEN,
    "get_health": OPEN,
    "get_ready": OPEN,
    "get_version": OPEN,
    "get_metrics": OPEN,
}


def _as_told(status: int) -> str:
    if status in (403, 404):
        return str(status)
    assert status not in (400, 401, 405, 415, 422, 429, 500, 503), status
    return IN


def test_the_table_has_a_line_for_every_route(world: World) -> None:
    assert {route.operation for route in routes_of(world)} == set(TABLE)


def test_every_route_is_described_but_the_consoles(world: World) -> None:
    described = {(route.method, route.path) for route in routes_of(world)}
    served = {
        (method, context.path)
        for context in iter_route_contexts(world.app.routes)
        for method in getattr(context.original_route, "methods", None) or ()
        if method != "HEAD"
    }
    console = {path for _, path in served - described}
    assert {path for path in console if path.startswith("/v1")} == {"/v1/openapi.json"}
    assert described <= served


def test_everybody_at_every_door(world: World, requests: Requests) -> None:
    wrong = []
    for route in routes_of(world):
        for who, expected in TABLE[route.operation].items():
            status = requests.send(route, who)
            found = _as_told(status)
            if found != expected:
                wrong.append(f"{route.operation} by {who}: expected {expected}, got {status}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("who", [None, "revoked", "expired", "unknown", "garbled"])
def test_who_has_no_living_token_meets_closed_doors(world: World, requests: Requests, who: str | None) -> None:
    made = Tokens(world.database).issue(WHO["admin"], Deed(actor="test"))
    world.secrets.update(revoked=made.secret, expired=made.secret, unknown="hr_" + "x" * 43, garbled="a b")
    ended = "revoked_at" if who == "revoked" else "expires_at"
    with world.database.raw() as connection:
        connection.execute(f"UPDATE tokens SET {ended} = now() WHERE id = %s", (made.id,))
    for route in routes_of(world):
        status = requests.send(route, who)
        assert status == (200 if TABLE[route.operation] is OPEN else 401), route


def test_no_query_leads_into_another_project(world: World, requests: Requests) -> None:
    """Every operation that takes a project, as the description says, asked by each project about the other."""
    asked = {
        operation["operationId"]: path
        for path, operations in described(world).items()
        for operation in operations.values()
        if any(item["name"] == "project" and item["in"] == "query" for item in operation.get("parameters", ()))
    }
    assert set(asked) >= {"list_services", "list_jobs", "list_tasks", "get_costs"}
    for operation, path in asked.items():
        for who, project in (("own viewer", FOREIGN), ("foreign viewer", OWN), ("own reporter", FOREIGN)):
            status = world.call("GET", f"{path}?project={project}", who).status_code
            assert status == (404 if TABLE[operation][who] == IN else 403), (operation, who)
        assert world.call("GET", f"{path}?project={OWN}").status_code == 200


MAY_LOOK = {name for name, answer in SHARED_READ.items() if answer == IN}


def test_everybody_at_the_consoles_doors(world: World) -> None:
    """The console's own routes, which are not described: a page for whoever may read, the sign-in for all others."""
    world.client.follow_redirects = False
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for who in (*EVERYBODY, None):
        may = who in MAY_LOOK
        secret = world.secrets[who] if who is not None else "hr_" + "x" * 43
        session = world.cookie(who) if who is not None else {"Cookie": f"{COOKIE}={secret}"}
        page = world.call("GET", "/", None, headers=session)
        assert (page.status_code, 'action="/session"' in page.text) == (200, not may), who
        signed = world.call("POST", "/session", None, body=f"token={secret}".encode(), headers=form)
        assert (signed.status_code, "set-cookie" in signed.headers) == ((303, True) if may else (401, False)), who
        world.client.cookies.clear()
        assert world.call("POST", "/session/end", None, headers=session).status_code == 303
        world.client.cookies.clear()
        if not may:
            stream = world.call("GET", "/console/events", None, headers=session)
            assert stream.status_code == 401, who
        assert world.call("GET", "/static/console.css", None).status_code == 200
        assert world.call("GET", "/static/..%2Fapp.py", who).status_code == 404


def test_strangers_learn_nothing(world: World) -> None:
    world.secrets["stranger"] = "hr_" + "x" * 43
    answer = world.call("GET", "/v1/nodes", "stranger")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == "application/problem+json"


def test_lists_show_a_project_its_own_only(world: World) -> None:
    for project in (OWN, FOREIGN):
        world.put(kinds.SERVICE, builders.service(project=project))
    shown = world.call("GET", "/v1/services", "own viewer").json()["items"]
    assert [item["project"] for item in shown] == [OWN]
    assert [item["name"] for item in world.call("GET", "/v1/projects", "own viewer").json()["items"]] == [OWN]
    assert len(world.call("GET", "/v1/services", "viewer").json()["items"]) == 2
    assert world.call("GET", f"/v1/services?project={FOREIGN}", "own viewer").status_code == 404
    assert [item["project"] for item in world.call("GET", "/v1/fleet", "own viewer").json()["services"]] == [OWN]


WHOLE_USD = 7654.321
CONSOLE_PAGES = ("/", "/services", "/plans", "/plans/{plan}", "/fleet", "/costs", "/work", "/models", "/policies")


def test_what_everything_costs_is_told_to_no_project(world: World, requests: Requests) -> None:
    """Nor what the rest of a plan has, on any route that lets a project's token in, nor on any page."""
    on = builders.device(NODE, 0, "t4")
    mine, theirs = (builders.assignment(f"{project}/vision#0", on, share_pct_sm=30) for project in (OWN, FOREIGN))
    objective = Objective(cost_usd_per_h=WHOLE_USD, unserved=7654.322)
    rest = {"objective": objective, "bound_usd_per_h": 7654.323, "unplaced": (), "assignments": (mine, theirs)}
    plan = replace(stored.plan(), **rest, toward=Destination(settings=(), **rest))
    waiting = replace(plan, seed=2, parent=Generation(1))
    with world.database.transaction() as session:
        stored.promote(session, plan)
        stored.keep(session, waiting, state=PlanState.AWAITING_APPROVAL, lane=Lane.APPROVE)
    requests.plan = digest(plan)
    gets = [route for route in routes_of(world) if route.method == "GET" and route.path != "/metrics"]
    shown: dict[str, set[str]] = {}
    for who in ("viewer", "own viewer", "own operator", "own reporter"):
        told = {route.operation: world.call("GET", requests.request(route)[0], who).text for route in gets}
        cookie = world.cookie(who)
        for page in CONSOLE_PAGES if "reporter" not in who else ():
            told[page] = world.call("GET", page.format(plan=digest(plan)), None, headers=cookie).text
        shown[who] = {name for name, text in told.items() if re.search(r"7[,\u202f]?654[.]3", text)}
        if who != "viewer":
            assert f"{FOREIGN}/vision" not in told["get_plan"] + told["explain_plan"] + told["get_fleet"], who
    assert shown.pop("viewer") >= {"get_plan", "list_plans", "explain_plan", "get_fleet", "/", "/plans"}
    assert not any(shown.values()), shown
    fleet = world.call("GET", "/v1/fleet", "own viewer").json()
    assert (fleet["plan"]["id"], fleet["plan"]["cost_usd_per_h"]) == (digest(plan), None)
    # Its own part is what its shares cost.
    assert 0.0 < fleet["cost"]["planned_usd_per_h"] < 10.0
    # What a plan costs with its energy is never more than the whole fleet.
    cost = world.call("GET", "/v1/fleet", "viewer").json()["cost"]
    assert cost["fleet_usd_per_h"] >= cost["planned_usd_per_h"] == WHOLE_USD


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
    # Of everybody's services, and of what everything costs.
    assert closed.call("GET", "/metrics", "own viewer").status_code == 403
    assert closed.call("GET", "/metrics", "viewer").status_code == 200
