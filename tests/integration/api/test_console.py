"""The console over a real database: who gets in, what everybody sees of the fleet, how the page stays live."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from typing import Any
from unittest import mock
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import text

from app import kinds
from app.api.console import door, machines, words, workloads
from app.clock import SystemClock
from app.services.declared.sign_ins import SIGN_IN_S
from app.services.seen.feed import FollowedFleet, Topic, difference
from app.store import pages, plans, targets
from app.store.ledger import CostBy
from app.store.plans import NewPlan, PlanState
from solvers.cycle.record import Lane
from solvers.domain.budget import MonthlyBudget
from solvers.domain.device import Label
from solvers.domain.ids import Generation, PolicyName, ProjectName, WorkloadId
from solvers.domain.plan import Unplaced
from solvers.domain.policy import Objective, Policy
from solvers.domain.webhook import Webhook
from solvers.domain.workload import Project, SloScope, WorkloadKind
from solvers.errors import TransientError
from tests import builders
from tests.integration.api.filled import FOREIGN_REPLICA, OWN_REPLICA, fill
from tests.integration.api.serving import DEADLINE_S, serving
from tests.integration.api.world import CLUSTER, DEVICE, FOREIGN, NODE, OWN, WHO, World
from tests.integration.store import plans as stored
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SIGN_IN = 'action="/session"'


@pytest.fixture
def full(world: World) -> World:
    """A cluster with a node that reports, services of two projects, a job and a cycle."""
    fill(world)
    return world


def _page(world: World, who: str) -> str:
    answer = world.call("GET", "/", None, headers=world.cookie(who))
    assert answer.status_code == 200
    return answer.text


def _sign_in(world: World, secret: str, **headers: str) -> httpx.Response:
    world.client.follow_redirects = False
    body = f"token={secret}".encode()
    return world.call("POST", "/session", None, body=body, headers={**FORM, **headers})


# -- the door ---------------------------------------------------------------------------------------------------------


def test_without_a_session_there_is_the_sign_in_and_nothing_else(full: World) -> None:
    for headers in ({}, {"Cookie": f"{door.COOKIE}=hr_stranger"}):
        answer = full.call("GET", "/", None, headers=headers)
        assert answer.status_code == 200
        assert SIGN_IN in answer.text
        assert DEVICE not in answer.text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert "set-cookie" not in answer.headers
        # The policy would stop them anyway.
        assert not re.search(r"<script(?! src=\"/static/)|\son\w+=|\sstyle=|https?://", answer.text)


def test_a_good_token_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(world: World) -> None:
    answer = _sign_in(world, world.secrets["viewer"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    morsel = SimpleCookie(answer.headers["set-cookie"])[door.COOKIE]
    assert morsel.value.startswith("hrs_")
    # Good for the console alone, as tokens are for the API.
    bearer = {"Authorization": f"Bearer {morsel.value}"}
    assert world.call("GET", "/v1/fleet", None, headers=bearer).status_code == 401
    assert (morsel["httponly"], morsel["samesite"].lower(), morsel["path"]) == (True, "strict", "/")
    assert int(morsel["max-age"]) == int(SIGN_IN_S)
    assert not morsel["domain"]
    # The client keeps the cookie, as a browser does.
    assert SIGN_IN not in world.client.get("/").text
    ended = world.client.post("/session/end")
    assert ended.status_code == 303
    assert SIGN_IN in world.client.get("/").text
    for over in (morsel.value, world.secrets["viewer"]):
        assert SIGN_IN in world.call("GET", "/", None, headers={"Cookie": f"{door.COOKIE}={over}"}).text


def test_over_https_the_cookie_stays_there(world: World) -> None:
    world.client.base_url = httpx.URL("https://console.test")
    answer = _sign_in(world, world.secrets["viewer"])
    assert "secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("who", ["nobody", "reporter", "own reporter", "node", "join", "gateway"])
def test_a_token_that_may_not_look_stays_outside(world: World, who: str) -> None:
    world.secrets["nobody"] = "hr_" + "x" * 43
    answer = _sign_in(world, world.secrets[who])
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert 'role="alert"' in answer.text
    assert world.secrets[who] not in answer.text
    assert "set-cookie" not in answer.headers
    held = world.call("GET", "/", None, headers=world.cookie(who))
    assert SIGN_IN in held.text
    stream = world.call("GET", "/console/events", None, headers=world.cookie(who))
    assert stream.status_code == 401


def test_what_is_stored_of_a_sign_in_is_no_secret(world: World) -> None:
    secret = SimpleCookie(world.cookie("viewer")["Cookie"])[door.COOKIE].value
    with world.database.raw() as connection:
        stored = str(connection.execute("SELECT * FROM sign_ins").fetchall())
    assert secret.removeprefix("hrs_") not in stored


def test_a_sign_in_ends_with_its_time_and_its_token(world: World) -> None:
    for over in (
        "UPDATE sign_ins SET expires_at = now()",
        "UPDATE sign_ins SET ended_at = now()",
        "UPDATE tokens SET expires_at = now() WHERE role = 'viewer'",
    ):
        held = world.cookie("viewer")
        assert SIGN_IN not in world.call("GET", "/", None, headers=held).text
        with world.database.raw() as connection:
            connection.execute(over)
        world.app.state.authenticator.forget()
        assert SIGN_IN in world.call("GET", "/", None, headers=held).text, over


def test_a_sign_in_is_told_to_end_no_later_than_its_token(world: World) -> None:
    with world.database.raw() as connection:
        connection.execute("UPDATE tokens SET expires_at = '2100-01-01' WHERE role = 'viewer'")
        connection.execute("UPDATE tokens SET expires_at = now() + interval '9 minutes' WHERE project IS NOT NULL")
    for who, seconds in (("viewer", SIGN_IN_S), ("own viewer", 540), ("admin", SIGN_IN_S)):
        world.cookie(who)
        last = "SELECT extract(epoch FROM expires_at - created_at) FROM sign_ins ORDER BY created_at DESC LIMIT 1"
        with world.database.raw() as connection:
            ((lasts_s,),) = connection.execute(last).fetchall()
        assert float(lasts_s) == pytest.approx(seconds, abs=60), who


def test_a_link_signs_in_once_and_for_a_minute(world: World) -> None:
    world.client.follow_redirects = False

    def follow(path: str) -> httpx.Response:
        code = path.partition("code=")[2]
        return world.call("POST", "/session/link", None, body=f"code={code}".encode(), headers=FORM)

    made = world.call("POST", "/v1/sign-in-links", "own viewer", headers={"Idempotency-Key": "k1"})
    again = world.call("POST", "/v1/sign-in-links", "own viewer", headers={"Idempotency-Key": "k1"})
    assert (made.status_code, again.json()["path"]) == (201, None)
    path = made.json()["path"]
    # Looking at it uses nothing up.
    for _ in range(2):
        shown = world.call("GET", path, None)
        assert 'action="/session/link"' in shown.text
        assert "set-cookie" not in shown.headers
    assert follow(path).status_code == 303
    assert f"project {OWN}" in world.client.get("/").text
    world.client.cookies.clear()
    late = world.call("POST", "/v1/sign-in-links", "viewer").json()["path"]
    with world.database.raw() as connection:
        connection.execute("UPDATE sign_in_links SET expires_at = now()")
    ended = world.call("POST", "/v1/sign-in-links", "operator").json()["path"]
    assert world.call("DELETE", f"/v1/tokens/{world.ids['operator']}").status_code == 204
    for used in (path, late, ended, "code=hrl_x"):
        answer = follow(used)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        assert "ask for a new one" in answer.text
    evil = {**FORM, "Sec-Fetch-Site": "cross-site"}
    assert world.call("POST", "/session/link", None, body=b"code=x", headers=evil).status_code == 403


@pytest.mark.parametrize("back", ["//evil.example/", "https://evil.example", "/\\evil.example", "evil"])
def test_signing_in_leads_nowhere_else(world: World, back: str) -> None:
    world.client.follow_redirects = False
    body = f"token={world.secrets['viewer']}&back={quote(back)}".encode()
    assert world.call("POST", "/session", None, body=body, headers=FORM).headers["location"] == "/"
    assert door.local("/services?sort=rate") == "/services?sort=rate"


def test_pages_that_are_not_there_are_pages(world: World) -> None:
    browser = {"Accept": "text/html", **world.cookie("viewer")}
    missing = world.call("GET", "/nowhere", None, headers=browser)
    assert (missing.status_code, missing.headers["content-type"].partition(";")[0]) == (404, "text/html")
    for path, accept in (("/v1/nowhere", "text/html"), ("/nowhere", "application/json")):
        answer = world.call("GET", path, "viewer", headers={"Accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_a_form_of_another_site_signs_nobody_in(world: World) -> None:
    secret = world.secrets["viewer"]
    for origin in ("https://evil.example", "null", "http://testserver.evil.example"):
        answer = _sign_in(world, secret, Origin=origin)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    assert _sign_in(world, secret, Origin="http://testserver").status_code == 303


def test_a_form_of_another_site_signs_nobody_out(world: World) -> None:
    _sign_in(world, world.secrets["viewer"])
    for origin in ("https://evil.example", "null"):
        answer = world.call("POST", "/session/end", None, headers={"Origin": origin})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    assert SIGN_IN not in world.client.get("/").text


def test_while_the_database_is_away_people_are_told_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    away = mock.Mock(side_effect=TransientError("the database is away"))
    held = world.cookie("viewer")
    monkeypatch.setattr(world.app.state.services.status, "fleet", away)
    opened = world.call("GET", "/", None, headers=held)
    monkeypatch.setattr(world.app.state.authenticator, "look_up", away)
    refused = _sign_in(world, world.secrets["operator"])
    for answer in (opened, refused):
        assert answer.status_code == 503
        assert '<p class="bad" role="alert">the database is away</p>' in answer.text
        assert "set-cookie" not in answer.headers


def test_what_was_deleted_since_waits_for_no_place(full: World) -> None:
    waiting = Unplaced(kind=WorkloadKind.JOB, workload=WorkloadId(f"{OWN}/train"), rate_rps_short=0.0, reasons=())
    gone = replace(waiting, workload=WorkloadId(f"{OWN}/gone"))
    with full.database.transaction() as session:
        targets.note_short(session, CLUSTER, Generation(1), (waiting, gone))
    fleet = full.call("GET", "/v1/fleet").json()
    assert (fleet["plan"]["unplaced_count"], [item["id"] for item in fleet["short"]]) == (1, [f"{OWN}/train"])
    page = _text(full, "viewer", "/")
    assert "services, jobs and tasks without a place, or with too little" in page
    assert f'<tr id="work/{OWN}/train">' in page
    assert full.call("DELETE", f"/v1/jobs/{OWN}/train").status_code == 204
    assert full.call("GET", "/v1/fleet").json()["plan"]["unplaced_count"] == 0


def test_only_the_pages_own_files_are_served_and_those_for_long(world: World) -> None:
    for name, kind in (
        ("console.css", "text/css"),
        ("console.js", "text/javascript"),
        ("htmx.min.js", "text/javascript"),
    ):
        answer = world.call("GET", f"/static/{name}", None)
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        assert "immutable" in world.call("GET", door.asset(name), None).headers["cache-control"]
    for name in ("console.py", "..%2Fconsole.py", "base.html", "htmx.LICENSE"):
        assert world.call("GET", f"/static/{name}", None).status_code == 404


def test_a_project_sees_its_own_part_only(full: World) -> None:
    told = {who: "".join(_text(full, who, path) for path in ("/", "/services", "/work", "/fleet")) for who in SEEING}
    assert f"project {OWN}" in told["own viewer"]
    assert OWN_REPLICA in told["own viewer"]
    for hidden in (FOREIGN_REPLICA, f"{FOREIGN}/speech", f"{FOREIGN}/batch", "too recent", "rack-1"):
        assert hidden in told["viewer"]
        assert hidden not in told["own viewer"]
    assert FOREIGN_REPLICA in told["foreign operator"]
    assert OWN_REPLICA not in told["foreign operator"]
    for path in (f"/services/{FOREIGN}/speech", f"/costs?project={FOREIGN}"):
        assert full.call("GET", path, None, headers=full.cookie("own viewer")).status_code == 404
    for path in (f"/nodes/{NODE}", f"/gpus/{DEVICE}", "/audit", "/what-if"):
        assert full.call("GET", path, None, headers=full.cookie("own operator")).status_code == 403


SEEING = ("viewer", "own viewer", "foreign operator")


def _text(world: World, who: str, path: str) -> str:
    answer = world.call("GET", path, None, headers=world.cookie(who))
    assert answer.status_code == 200, path
    return answer.text


def test_only_who_may_write_decides(full: World) -> None:
    plan = full.call("POST", "/v1/plans", plain={}).json()["id"]
    deeds = {
        f"/plans/{plan}/apply": b"",
        f"/plans/{plan}/reject": b"",
        "/plans/back": b"generation=1",
        "/plans/resume": b"",
        f"/nodes/{NODE}/drain": b"",
        f"/nodes/{NODE}/uncordon": b"",
    }
    for path, body in deeds.items():
        for who in ("viewer", "own operator"):
            answer = full.call("POST", path, None, body=body, headers={**FORM, **full.cookie(who)})
            assert answer.status_code == 403, (path, who)
        foreign = {**FORM, **full.cookie("operator"), "Origin": "https://evil.example"}
        assert full.call("POST", path, None, body=body, headers=foreign).status_code == 403
        assert full.call("POST", path, None, body=body, headers=FORM).status_code == 401
    assert full.call("GET", f"/v1/plans/{plan}").json()["state"] == "proposed"
    assert "Approve" in _text(full, "operator", f"/plans/{plan}")
    assert "Approve" not in _text(full, "viewer", f"/plans/{plan}")
    full.client.follow_redirects = False
    done = full.call(
        "POST", f"/plans/{plan}/apply", None, body=b"comment=go", headers={**FORM, **full.cookie("operator")}
    )
    assert (done.status_code, done.headers["location"]) == (303, f"/plans/{plan}")
    assert full.call("GET", f"/v1/plans/{plan}").json()["state"] == "promoted"
    again = full.call("POST", f"/plans/{plan}/reject", None, body=b"", headers={**FORM, **full.cookie("operator")})
    assert again.status_code == 409
    assert 'role="alert"' in again.text


def test_whatever_is_stored_is_shown_as_text(full: World) -> None:
    hostile = "<script>alert('x')</script>\"&"
    with full.database.transaction() as session:
        for table, field in (("services", "model"), ("devices", "gpu_type"), ("nodes", "rack")):
            session.execute(
                text(f"UPDATE {table} SET spec = jsonb_set(spec, :path, to_jsonb(CAST(:word AS text)))"),
                {"path": f"{{{field}}}", "word": f"{field}{hostile}"},
            )
        every = "array_fill(CAST(:word AS text), ARRAY[cardinality(replica_name)])"
        session.execute(text(f"UPDATE sample_shapes SET replica_name = {every}"), {"word": f"replica{hostile}"})
    pages = [_text(full, "viewer", path) for path in ("/", "/services", "/fleet", f"/gpus/{DEVICE}", f"/nodes/{NODE}")]
    for field in ("model", "gpu_type", "rack", "replica"):
        assert any(f"{field}&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&#34;&amp;" in page for page in pages)
    assert not any("<script>alert" in page for page in pages)


def test_an_empty_cluster_says_what_to_do(world: World) -> None:
    for path in ("/", "/fleet"):
        assert "No node has joined yet. <code>headroom agent" in _text(world, "viewer", path)
    assert "No services yet." in _text(world, "viewer", "/services")
    for path in ("/plans", "/fleet", "/costs", "/work", "/models", "/policies", "/settings", "/audit"):
        _text(world, "viewer", path)


def test_who_is_not_served_whole_is_named_with_how_much_and_why(full: World) -> None:
    said = "less than 0.1 % of 50 requests/s unserved: nothing is known about demo/speech: no profile (x 0.1)"
    lacks = text("UPDATE plans SET document = jsonb_set(document, '{unplaced,0,workload}', CAST(:who AS jsonb))")
    with full.database.transaction() as session:
        session.execute(lacks, {"who": json.dumps(f"{OWN}/vision")})
        targets.acquire_lease(session, targets.PLANNER, "x", 60.0)
        targets.release_lease(session, targets.PLANNER, "x")
    fleet = full.call("GET", "/v1/fleet", "viewer").json()
    assert [(item["id"], item["kind"], item["told"]) for item in fleet["short"]] == [(f"{OWN}/vision", "service", said)]
    assert full.call("GET", f"/v1/nodes/{NODE}/drain").json()["short"] == fleet["short"]
    full.call("POST", f"/v1/nodes/{NODE}/drain", plain={})
    assert f'href="/services/{OWN}/vision">{OWN}/vision</a>: {said}' in _text(full, "viewer", f"/nodes/{NODE}")
    assert fleet["plan"]["gap_told"] == "how far from the optimum was not proven"
    (row,) = re.findall(
        f'<tr[^>]*><td><a href="/services/{OWN}/vision">.*?</tr>', html.unescape(_text(full, "viewer", "/")), re.DOTALL
    )
    assert said in row
    assert f"{OWN}/vision" in _text(full, "viewer", "/services?risk=1")
    # Nobody is told of what is others'.
    assert full.call("GET", "/v1/fleet", "foreign operator").json()["short"] == []
    assert said not in html.unescape(_text(full, "foreign operator", "/"))


def test_the_overview_says_how_near_the_best_what_stands_was_seen_to_be(full: World) -> None:
    with full.database.transaction() as session:
        targets.note_proven(session, CLUSTER, targets.generation(session, CLUSTER), 0.31, 0.3)
    page = re.sub("<[^>]+>", "", html.unescape(_text(full, "operator", "/")))
    assert re.search(r", as of \d+ \w+ \d\d:\d\d at most 3\.3 % above the optimum", page), page
    assert "when planned" not in page


def test_a_bound_says_whose_it_is_and_what_waits_that_costs_less(full: World) -> None:
    pinned = text(
        "UPDATE plans SET bound_usd_per_h = 0.3,"
        " document = jsonb_set(document, CAST(:path AS text[]), CAST(:why AS jsonb))"
    )
    why = json.dumps([{"code": "pinned_by_mode", "subject": f"{OWN}/vision", "facts": []}])
    waits = replace(stored.plan(parent=1, seed=2), objective=Objective(cost_usd_per_h=0.2))
    with full.database.transaction() as session:
        for at in range(2):
            session.execute(pinned, {"path": f"{{assignments,{at},reasons}}", "why": why})
        state = PlanState.AWAITING_APPROVAL
        new = NewPlan(plan=waits, lane=Lane.APPROVE, state=state, created_by="planner", matter="m", waits_s=900.0)
        made = plans.put(session, new).id
        plans.note_look(session, made, (), -0.15)
    short = made.removeprefix("sha256:")[:12]
    gap = "at most 16.7 % above the optimum with 2 workloads that are not on auto left as they are"
    gap += ", which costs $0.30/h or more"
    cheaper = f"plan {short} waits for approval and costs $0.15/h less than what stands: headroom approve {short}"
    fleet = full.call("GET", "/v1/fleet", "viewer").json()
    plan = fleet["plan"]["id"]
    assert (fleet["plan"]["gap_told"], fleet["cheaper"]) == (gap, cheaper)
    told = full.call("GET", f"/v1/plans/{plan}/explain", "viewer").json()
    assert (told["gap_told"], told["cheaper"]) == (gap, cheaper)
    assert full.call("GET", f"/v1/plans/{plan}", "viewer").json()["gap_told"] == gap
    # A number of the summary leads to what explains it.
    assert re.search(f'<a href="#[a-z]+">{re.escape(gap)}</a>', _text(full, "operator", f"/plans/{plan}"))
    page = re.sub("<[^>]+>", "", html.unescape(_text(full, "operator", "/")))
    assert f"when planned {gap}{cheaper}" in page
    assert "Compare and approve it" in page
    assert "Compare and approve it" not in _text(full, "viewer", "/")
    assert gap in html.unescape(_text(full, "viewer", f"/plans/{plan}"))
    # A project's token is told nothing of others' plans.
    assert full.call("GET", "/v1/fleet", "own viewer").json()["cheaper"] is None


def test_that_no_planner_leads_is_on_the_first_page(full: World) -> None:
    assert "No planner" not in _text(full, "own viewer", "/")
    assert "no planner has led yet: nothing is planned until one runs" in _text(full, "viewer", "/")
    with full.database.transaction() as session:
        targets.acquire_lease(session, targets.PLANNER, "x", 60.0)
    full.app.state.glances.forget()
    assert "no planner" not in _text(full, "viewer", "/")


def test_a_question_that_asks_nothing_or_nonsense_is_told_beside_its_field(full: World) -> None:
    def faults(query: str) -> list[str]:
        page = html.unescape(_text(full, "operator", f"/what-if?{query}"))
        assert page.count('aria-invalid="true"') == page.count('id="problem')
        return re.findall(r'name="(\w+)" aria-invalid="true".*?role="alert">([^<]+)<', page, re.DOTALL)

    page = _text(full, "operator", "/what-if?gpus1=&type1=&rate1=&lose1=")
    assert "Nothing is asked yet." in page
    assert "Nothing is asked yet." not in _text(full, "operator", "/what-if")
    assert faults("gpus1=2") == [("type1", "say which GPU type to add")]
    assert faults("type2=t4") == [("gpus2", "say how many of this type to add")]
    assert faults("rate1=x&rate2=-1&rate3=nan&rate4=1") == [
        *((f"rate{number}", "a number up to 100, such as 1.5") for number in (1, 2, 3)),
        ("rate4", "this changes nothing"),
    ]  # fmt: skip
    assert faults("gpus1=1.5&type1=t4") == [("gpus1", "a whole number up to 512")]
    assert faults("lose3=nobody") == [("lose3", "there is no node nobody")]
    assert faults("gpus1=1&type1=nothing") == [("type1", "there is no GPU type nothing")]


def test_models_are_found_however_they_are_written(full: World) -> None:
    found = _text(full, "viewer", "/models?q=ResNet50")
    assert 'id="resnet50"' in found


def test_lists_of_more_than_a_page_are_whole_or_go_on(full: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("m-1", "m-2", "m-3"):
        full.put(kinds.MODEL, builders.model(name))
        full.put(kinds.POLICY, Policy(name=PolicyName(f"policy-{name}")))
        full.put(kinds.TASK, builders.task(f"task-{name}", project=OWN))
    monkeypatch.setattr(pages, "WHOLE_LIMIT", 2)
    monkeypatch.setattr(workloads, "TASKS_SHOWN", 2)
    models, policies = (_text(full, "viewer", path) for path in ("/models", "/policies"))
    for name in ("m-1", "m-2", "m-3"):
        assert f'id="{name}"' in models
        assert f'id="policy-{name}"' in policies
    settings = _text(full, "admin", "/settings")
    assert [name for name in WHO if f"<td>{name}</td>" not in settings] == []
    tasks, address = [], "/work"
    while address:
        page = _text(full, "viewer", address)
        tasks += re.findall(
            r'<tr[^>]*><td><a href="/work/([^"]+)">[^<]+</a></td><td class="left (?:bad|good|soft)"', page
        )
        more = re.search(r'<a href="(\?cursor=[^"]+)">More tasks</a>', page)
        address = f"/work{more[1]}" if more else ""
    assert tasks == [*(f"{OWN}/task-{name}" for name in ("m-1", "m-2", "m-3")), f"{FOREIGN}/batch"]


def test_of_many_nodes_those_that_need_somebody_come_first(full: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for node in ("b", "c"):
        full.joined(node)
    monkeypatch.setattr(machines, "NODES_SHOWN", 2)

    def listed(query: str) -> list[str]:
        return re.findall(r'<tr[^>]*><td><a href="/nodes/([^"]+)"', _text(full, "viewer", f"/fleet{query}"))

    # The first one reports, the others never did.
    assert (listed(""), listed("?every=true")) == (["b", "c"], ["b", "c", NODE])
    assert ">All 3 nodes</a>" in _text(full, "viewer", "/fleet")


def test_colours_are_named_of_those_who_hold_something_and_not_of_too_many(
    full: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(path: str) -> list[str]:
        legend = re.search(r'<div class="legend">(.*?)</div>', _text(full, "viewer", path), re.S)
        return re.findall(r"</svg>([^<]+)</span>|<span>(and \d+ more)</span>", legend[1])

    for number in range(3):
        full.put(kinds.SERVICE, builders.service(f"idle-{number}"))
    holding = [(f"{OWN}/vision", ""), (f"{FOREIGN}/speech", "")]
    assert (named("/fleet"), named(f"/nodes/{NODE}")) == ([*holding, ("free", "")], holding)
    monkeypatch.setattr(machines, "LEGEND_MAX", 1)
    assert named("/fleet") == [holding[0], ("", "and 1 more"), ("free", "")]
    assert named(f"/nodes/{NODE}") == [holding[0], ("", "and 1 more")]


def test_how_long_a_plan_stands_is_told_by_the_clock_that_wrote_it(
    full: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemClock, "now_s", lambda _: 0.0)
    with full.database.raw() as connection:
        connection.execute("UPDATE target_history SET promoted_at = now() - interval '3 hours'")
    assert '<a href="/plans">3 h old</a>' in _text(full, "viewer", "/")


def test_the_address_sorts_and_filters_services(full: World) -> None:
    def names(query: str) -> list[str]:
        return re.findall(r'<tr[^>]*><td><a href="/services/([^"]+)"', _text(full, "viewer", f"/services?{query}"))

    assert names("") == [f"{OWN}/vision", f"{FOREIGN}/speech"]
    assert names("sort=-rate_rps") == [f"{OWN}/vision", f"{FOREIGN}/speech"]
    with mock.patch.object(workloads, "SHOWN", 1):
        # Of many the first; the others in the same order, and found by name.
        page = _text(full, "viewer", "/services?sort=rate_rps")
        (rest,) = re.findall(r'href="\?([^"]+)">All 2 services', html.unescape(page))
        assert (names("sort=rate_rps"), len(names(rest))) == ([f"{FOREIGN}/speech"], 2)
        assert (names(rest), names("q=vision")) == (names("sort=rate_rps&every=true"), [f"{OWN}/vision"])
    assert names("sort=rate_rps") == [f"{FOREIGN}/speech", f"{OWN}/vision"]
    assert names("q=SPEECH") == names(f"project={FOREIGN}") == [f"{FOREIGN}/speech"]
    assert names("mode=off") == []


HOURS_AGO = "date_trunc('hour', now()) - interval '2 hours'"
SPENT = f"""
INSERT INTO ledger_hours (
    hour, device_uuid, kind, subject, node_id, gpu_type, region, price_kind, price_usd_per_h, project, workload, model,
    seconds, share_pct_sm_seconds, memory_mib_seconds, memory_mib_seconds_reserved, energy_j, usd_memory, usd_share,
    usd_whole, usd_energy)
SELECT {HOURS_AGO}, 'g', kind, subject, 'a', 't4', 'default', 'on_demand', 1,
    project, workload, 'm', 3600, 180000, 0, 0, 0, 0.5, usd, usd, 0
FROM (VALUES ('replica', 'r', 'demo', '=demo/vision', 1.25), ('replica', 'j', 'demo', 'demo/train', 0),
    ('idle', '', '', '', 0.75))
    AS v (kind, subject, project, workload, usd)
"""


@pytest.mark.parametrize("into_the_hour", [timedelta(), timedelta(minutes=30)])
def test_the_bill_is_the_same_as_a_page_a_file_and_sql(
    full: World, monkeypatch: pytest.MonkeyPatch, into_the_hour: timedelta
) -> None:
    # As if the test took no time: an hour may end while it runs.
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    monkeypatch.setattr(SystemClock, "now", lambda _: hour + timedelta(seconds=59) + into_the_hour)
    spent = SPENT.replace("now()", f"timestamptz '{hour}'")
    with full.database.raw() as connection:
        connection.execute(spent)
        connection.execute("SELECT headroom_ensure_ledger_partitions(%s, %s)", (hour, hour + timedelta(hours=1)))
        # The running hour is told by its minutes.
        connection.execute(
            spent.replace("ledger_hours (\n    hour", "ledger (\n    minute").replace(") - interval '2 hours'", ")")
        )
        connection.execute(
            "INSERT INTO accounting_marks SELECT unnest('{accounted_until,closed_until}'::text[]), %s", (hour,)
        )
    page = _text(full, "viewer", "/costs?by=service&days=1")
    assert f" UTC, accounted until {hour:%Y-%m-%d %H:%M}</small>" in page
    # What is declared leads to its page, what is gone nowhere.
    assert re.findall(r'<tr><td><a href="([^"]+)"', page) == ["/work/demo/train"]
    spent_in = full.call("GET", "/v1/costs").json()
    sums = {item["key"]: item["usd"] for item in spent_in["items"]}
    rows = list(csv.DictReader(io.StringIO(_text(full, "viewer", "/costs.csv?by=service&days=1"))))
    # A spreadsheet takes what begins so for a formula.
    assert {row["service"].removeprefix("'"): float(row["usd"]) for row in rows} == sums
    assert any(row["service"].startswith("'=") for row in rows)
    assert {(row["accounting"], row["accounted_until"]) for row in rows} == {("share", spent_in["accounted_until"])}
    assert all(row["start"] < row["accounted_until"] <= row["end"] for row in rows)
    full.put(kinds.PROJECT, Project(name=ProjectName(OWN), labels=(Label(key="team", value="red"),)))
    for by in (each for each in CostBy if each is not CostBy.LABEL):
        for query in (f"by={by}", f"by={by}&project={OWN}", f"by={by}&accounting=memory", "label=team"):
            shown = _text(full, "viewer", f"/costs?{query}&days=1")
            told = csv.reader(io.StringIO(_text(full, "viewer", f"/costs.csv?{query}&days=1")))
            statement = html.unescape(re.search(r'id="sql">(.*?)</pre>', shown, re.S)[1])
            with full.database.raw() as connection:
                # Whom docs/reference/sql.md has read, who may read no table.
                connection.execute("SET LOCAL ROLE headroom_reader")
                found = {str(key): float(usd) for key, usd in connection.execute(statement).fetchall()}
            assert found == {row[0].removeprefix("'"): float(row[1]) for row in list(told)[1:]}, query
            assert sum(found.values()) == pytest.approx(2.5 if OWN in query else 3.0 if "memory" in query else 4.0)
    assert "$4.00" in page
    assert 'id="sql"' not in _text(full, "viewer", "/costs?label=model&days=1")
    assert ">By team</h2>" in _text(full, "viewer", "/costs?label=team&days=1")
    # No link makes a statement of its own.
    for name in ("project", "label"):
        assert full.call("GET", f"/costs?{name}=x'--", None, headers=full.cookie("viewer")).status_code == 422
    api = full.call("GET", "/v1/costs/focus", "viewer").text
    assert _text(full, "viewer", "/costs/focus.csv?days=1").splitlines() == api.splitlines()
    assert len(api.splitlines()) > 2


def test_the_bills_form_says_what_was_asked(full: World) -> None:
    page = _text(full, "viewer", "/costs?days=3&project=gone-since")
    for asked in ("3", "gone-since"):
        assert f"<option selected>{asked}</option>" in page


def test_budgets_are_held_against_the_month(full: World) -> None:
    with full.database.raw() as connection:
        # Two hours ago may be last month.
        begun = "date_trunc('month', now(), 'UTC')"
        until = f"greatest(date_trunc('hour', now()), {begun} + interval '1 hour')"
        connection.execute(SPENT.replace(HOURS_AGO, f"greatest({HOURS_AGO}, {begun})"))
        connection.execute(f"INSERT INTO accounting_marks VALUES ('closed_until', {until})")
    full.put(kinds.BUDGET, MonthlyBudget(name="tight", usd_per_month=1.0))
    full.put(kinds.BUDGET, MonthlyBudget(name="wide", usd_per_month=1e6))
    page = _text(full, "viewer", "/costs")
    assert page.index("no, it is spent") < page.index("$1\u202f000\u202f000.00")
    # Whose project it is not, is not told.
    assert "tight" not in _text(full, "own viewer", "/costs")


def test_a_project_is_foretold_by_all_hours_not_by_those_in_which_it_spent(full: World) -> None:
    with full.database.raw() as connection:
        connection.execute(SPENT)
        # GPUs stood idle before anybody came.
        connection.execute(SPENT.replace("'2 hours'", "'100 hours'").replace("('replica', 'r',", "('idle', 'r',"))
        connection.execute("UPDATE ledger_hours SET project = '', workload = '' WHERE kind = 'idle'")
        connection.execute("INSERT INTO accounting_marks VALUES ('closed_until', date_trunc('hour', now()))")
    full.put(kinds.BUDGET, MonthlyBudget(name="own", usd_per_month=9.0, project=ProjectName(OWN)))
    (budget,) = full.call("GET", "/v1/budget-forecasts").json()["items"]
    for who, path in (("viewer", f"/costs?project={OWN}"), ("own viewer", "/costs")):
        told = re.search(r"\$([\d.\u202f]+)</a></b><span class=\"soft\">by the end of", _text(full, who, path))
        assert float(told[1].replace("\u202f", "")) == pytest.approx(budget["usd_forecast"], abs=0.02)


def test_people_are_called_by_their_names_and_revisions_told_apart(full: World) -> None:
    plan = full.call("POST", "/v1/plans", plain={}).json()["id"]
    full.call("POST", f"/v1/plans/{plan}/reject", "operator", plain={"comment": "no"})
    path = f"/v1/services/{OWN}/vision"
    change = {"slo": {"latency_ms": 45.0}, "rate_rps_declared": 12.5}
    merge = {"Content-Type": "application/merge-patch+json"}
    assert full.call("PATCH", path, "operator", plain=change, headers=merge).status_code == 200
    operator = f"token:{full.ids['operator']}"
    for page in (_text(full, "viewer", path) for path in ("/plans", f"/plans/{plan}", "/audit")):
        assert ">operator<" in page or "by operator" in page
    shown = _text(full, "viewer", f"/services/{OWN}/vision")
    assert "by operator</span>" in shown
    assert "<del>- /slo/latency_ms: 60</del>\n<ins>+ /slo/latency_ms: 45</ins>" in shown
    assert operator not in shown
    # Who is called how is the cluster's matter.
    own = _text(full, "own viewer", "/plans")
    assert operator in own
    assert ">operator<" not in own


def test_why_not_is_a_question_to_the_page(full: World) -> None:
    path = f"/services/{OWN}/vision"
    told = _text(full, "viewer", f"{path}?why_not=v100")
    assert 'role="status">' in told
    assert "<option selected>v100</option>" in told
    nothing = full.call("GET", f"{path}?why_not=h900", None, headers=full.cookie("viewer"))
    assert (nothing.status_code, "h900" in nothing.text) == (404, True)


def test_a_promise_of_execution_is_no_line_over_latencies_from_end_to_end(full: World) -> None:
    full.put(kinds.SERVICE, builders.service(slo=builders.slo(scope=SloScope.EXECUTION)))

    def line(service: str) -> object:
        (charts,) = re.findall(r"data-charts='([^']+)'", _text(full, "viewer", f"/services/{service}"))
        return json.loads(html.unescape(charts))["charts"][1]["line"]

    assert (line(f"{OWN}/vision"), line(f"{FOREIGN}/speech")) == (None, 60.0)


def test_settings_show_where_alarms_go_and_what_came_of_it(full: World) -> None:
    secret = "HEADROOM_WEBHOOK_SECRET_P"
    hook = Webhook(name="pager", url="https://hooks.example/secret-path?key=x", secret_environment=secret)
    full.put(kinds.WEBHOOK, hook)
    page = _text(full, "viewer", "/settings")
    assert "hooks.example" in page
    assert "secret-path" not in page
    assert "never" in page
    assert "pager" not in _text(full, "own viewer", "/settings")
    # Of a line that does not move it is told why: what waits behind the first was not tried yet.
    with full.database.raw() as connection:
        connection.execute(
            "INSERT INTO webhook_deliveries (webhook, event_id, attempts, error) SELECT 'pager', id, "
            "CASE row_number() OVER (ORDER BY id) WHEN 1 THEN 2 ELSE 0 END, "
            "CASE row_number() OVER (ORDER BY id) WHEN 1 THEN 'answered 500' END FROM events ORDER BY id LIMIT 3"
        )
    assert "waiting: answered 500" in _text(full, "viewer", "/settings")


def test_a_node_is_drained_and_put_back_and_says_how_far_it_is(full: World) -> None:
    full.client.follow_redirects = False

    def click(verb: str, comment: bytes = b"") -> None:
        operator = {**FORM, **full.cookie("operator")}
        done = full.call("POST", f"/nodes/{NODE}/{verb}", None, body=b"comment=" + comment, headers=operator)
        assert (done.status_code, done.headers["location"]) == (303, f"/nodes/{NODE}")

    assert "Yes, drain" in _text(full, "operator", f"/nodes/{NODE}")
    assert "Maintenance" not in _text(full, "viewer", f"/nodes/{NODE}")
    click("drain", b"new+fan")
    page = _text(full, "viewer", f"/nodes/{NODE}")
    assert "It is being emptied: 2 replicas run on it, 2 are planned for it." in page
    assert f"{OWN_REPLICA} is planned here: it leaves with the next plan" in page
    assert "node.drained" in page
    assert "new fan" in page
    with full.database.transaction() as session:
        targets.hold(session, CLUSTER, 60.0, f"token:{full.ids['admin']}", "rolled back")
    progress = full.call("GET", f"/v1/nodes/{NODE}/drain").json()
    assert progress["schedulable"] is False
    assert {told[-9:] for told in progress["blocks"] if "planning is held" in told} == {" by admin"}
    with full.database.transaction() as session:
        targets.let_go(session, CLUSTER)
    click("uncordon")
    assert full.call("GET", f"/v1/nodes/{NODE}/drain").json()["schedulable"] is True
    assert (
        full.call(
            "POST", "/nodes/nobody/drain", None, body=b"", headers={**FORM, **full.cookie("operator")}
        ).status_code
        == 404
    )


def test_lanes_show_who_held_a_gpu_beside_whom(full: World) -> None:
    held = """
    SELECT headroom_ensure_ledger_partitions(now() - interval '1 hour', now());
    INSERT INTO ledger (minute, device_uuid, kind, subject, node_id, gpu_type, region, price_kind, price_usd_per_h,
        project, workload, model, seconds, share_pct_sm_seconds, memory_mib_seconds, memory_mib_seconds_reserved,
        energy_j, usd_memory, usd_share, usd_whole, usd_energy)
    SELECT date_trunc('minute', now()) - make_interval(mins => back), 'GPU-a-0', 'replica', subject, 'a', 't4',
        'default', 'on_demand', 1, 'demo', workload, 'm', 60, 60 * share, 0, 0, 0, 0, 0, 0, 0
    FROM (VALUES ('demo/vision#0', 'demo/vision', 50), ('other/speech#0', 'other/speech', 25))
        AS v (subject, workload, share)
    CROSS JOIN generate_series(10, 39) AS back WHERE share = 50 OR back > 24
    """
    with full.database.raw() as connection:
        for statement in held.split(";"):
            connection.execute(statement)
    of_node, of_gpu = _text(full, "viewer", f"/nodes/{NODE}?hours=1"), _text(full, "viewer", f"/gpus/{DEVICE}")
    # On a node one stands above the other; of one GPU everybody has a lane, who held most first.
    blocks = re.compile(r'y="(\d+)" width="([\d.]+)" height="(\d+)"')
    assert [(y, height) for y, _, height in blocks.findall(of_node)] == [("50", "50"), ("25", "25")]
    assert [round(float(width)) for _, width, _ in blocks.findall(of_gpu)] == [500, 250]
    assert re.findall(r"([a-z/]+): held for ([\d.]+) hours", of_gpu) == [
        ("demo/vision", "0.5"),
        ("other/speech", "0.2"),
    ]


def test_numbers_in_facts_are_as_people_write_them() -> None:
    assert [words.said(each) for each in (5.405776000000001, 0.0, 12, "t4")] == ["5.40578", "0", "12", "t4"]


def test_times_in_facts_are_as_people_write_them() -> None:
    told = str(words.brief("until 2026-02-31T09:27:10.5+00:00, not 2026-13-01T00:00:00Z <b>"))
    shown = '<span title="2026-02-31T09:27:10.5+00:00">31 Feb 09:27</span>'
    assert told == f"until {shown}, not 2026-13-01T00:00:00Z &lt;b&gt;"


# -- what scripts read ------------------------------------------------------------------------------------------------


def _events(lines: Iterator[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Events with their id and data; comments and hints are passed over."""
    found: dict[str, str] = {}
    for line in lines:
        field, _, value = line.partition(": ")
        found[field] = value
        if not line:
            if "event" in found:
                yield found.get("id", ""), found["event"], json.loads(found["data"])
            found = {}


def test_the_stream_tells_the_whole_then_what_differs_and_goes_on_where_one_was(full: World) -> None:
    _lasting(full)
    with serving(full) as (port, _), httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as client:
        bearer = {"Authorization": f"Bearer {full.secrets['viewer']}"}
        with client.stream("GET", "/v1/events/stream?topics=services,nodes", headers=bearer) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            events = _events(response.iter_lines())
            seen, first, whole = next(events)
            assert (first, whole["whole"]) == ("services", True)
            assert whole["set"][f"{OWN}/vision"]["rate_rps"] == 30.0
            assert next(events)[1] == "nodes"
            _rack(full, "rack-2")
            # Of one field of one thing, and of nothing else.
            seen, topic, changes = next(events)
            assert (topic, changes) == ("nodes", {"set": {NODE: {"rack": "rack-2"}}, "gone": []})
        with client.stream("GET", "/v1/events/stream?topics=nodes", headers=bearer) as response:
            watching = _events(response.iter_lines())
            assert next(watching)[2]["whole"]
            _rack(full, "rack-3")
            wait_until(lambda: full.app.state.live_board.number > int(seen.partition(".")[2]))
        again = {**bearer, "Last-Event-ID": seen}
        with client.stream("GET", "/v1/events/stream?topics=nodes", headers=again) as response:
            assert next(_events(response.iter_lines()))[2]["set"] == {NODE: {"rack": "rack-3"}}
        for lost in ("another.1", f"{seen}0000", "x", f"{seen.partition('.')[0]}.-1"):
            with client.stream(
                "GET", "/console/events?topics=nodes", headers={**full.cookie("viewer"), "Last-Event-ID": lost}
            ) as response:
                assert next(_events(response.iter_lines()))[2]["whole"]


def _rack(world: World, name: str) -> None:
    merge = {"Content-Type": "application/merge-patch+json"}
    assert world.call("PATCH", f"/v1/nodes/{NODE}", plain={"rack": name}, headers=merge).status_code == 200


def _lasting(world: World) -> None:
    """Nobody is silent, however slow the machine is."""
    world.put(kinds.POLICY, Policy(name=PolicyName("default"), device_silent_after_s=3600.0))


def test_a_project_follows_its_own_and_one_reader_serves_all(full: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    status = full.app.state.services.status
    fleet = status.fleet
    monkeypatch.setattr(status, "fleet", lambda project: read.append(project) or fleet(project))
    for topics in ("devices", "nodes", "fleet", "events", "cycles", "nonsense"):
        refused = full.call("GET", f"/v1/events/stream?topics={topics}", "own viewer")
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "query:topics")
    with serving(full) as (port, _), ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S)) for _ in range(8)
        ]
        opened = [
            stack.enter_context(
                client.stream(
                    "GET", "/v1/events/stream", headers={"Authorization": f"Bearer {full.secrets['own viewer']}"}
                )
            )
            for client in clients
        ]
        watching = [_events(response.iter_lines()) for response in opened]
        for events in watching:
            assert list(next(events)[2]["set"]) == [f"{OWN}/vision"]
        wait_until(lambda: len(read) >= 3)
        assert set(read) == {None}
        reads, turns = len(read), full.app.state.live_board.hub.listeners
        assert turns == len(opened) > reads / 8


def test_the_stream_says_when_there_is_nothing_new_to_be_had(full: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _lasting(full)
    with serving(full) as (port, _), httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as client:
        bearer = {"Authorization": f"Bearer {full.secrets['viewer']}"}
        with client.stream("GET", "/v1/events/stream?topics=nodes", headers=bearer) as response:
            events = _events(response.iter_lines())
            assert next(events)[1] == "nodes"
            with monkeypatch.context() as broken:
                away = mock.Mock(side_effect=TransientError("the database is away"))
                broken.setattr(full.app.state.services.status, "fleet", away)
                assert next(events)[1] == "away"
            _rack(full, "rack-9")
            assert next(events)[2]["set"] == {NODE: {"rack": "rack-9"}}


def test_telemetry_of_many_is_asked_at_once(full: World) -> None:
    base = (
        f"/v1/telemetry?step_s=60&subject=services/{OWN}/vision&subject=services/{FOREIGN}/speech&field=completed_rps"
    )
    each = full.call("GET", base, "viewer").json()["items"]
    assert [(line["subject"], line["field"]) for line in each] == [
        (f"services/{OWN}/vision", "completed_rps"), (f"services/{FOREIGN}/speech", "completed_rps"),
    ]  # fmt: skip
    assert {len(line["values"]) for line in each} == {60}
    alone = full.call("GET", f"/v1/telemetry/services/{OWN}/vision", "viewer").json()["items"]
    assert [value for value in each[0]["values"] if value is not None] == [point["completed_rps"] for point in alone]
    (total,) = full.call("GET", f"{base}&together=sum", "viewer").json()["items"]
    there = [
        [value for value in step if value is not None] for step in zip(*(line["values"] for line in each), strict=True)
    ]
    assert total["values"] == [sum(step) if step else None for step in there]
    assert full.call("GET", base, "own viewer").status_code == 404
    assert full.call("GET", f"/v1/telemetry?subject=devices/{DEVICE}&field=power_w", "own viewer").status_code == 404
    wrong = (
        "subject=x&field=y",
        "subject=services/a&field=offered_rps",
        f"subject=devices/{DEVICE}&field=offered_rps",
        "field=power_w",
    )
    many = "&".join(f"subject=services/{OWN}/s{number}" for number in range(33))
    for query in (
        *wrong,
        f"{many}&field=offered_rps",
        f"subject=devices/{DEVICE}&field=power_w&step_s=1&from=2026-01-01",
    ):
        assert full.call("GET", f"/v1/telemetry?{query}", "viewer").status_code == 422, query


# -- what is kept between two looks -----------------------------------------------------------------------------------


def test_what_is_declared_is_seen_however_often_one_looked_before(full: World) -> None:
    def fleet() -> dict[str, Any]:
        found: dict[str, Any] = full.call("GET", "/v1/fleet", "viewer").json()
        return found

    def device() -> dict[str, Any]:
        found: dict[str, Any] = next(item for item in fleet()["devices"] if item["id"] == DEVICE)
        return found

    def service() -> dict[str, Any]:
        found: dict[str, Any] = next(item for item in fleet()["services"] if item["id"] == f"{OWN}/vision")
        return found

    assert (device()["price_usd_per_h"], service()["slo"]["latency_ms"], fleet()["nodes"][0]["schedulable"]) == (
        pytest.approx(0.35), 60.0, True,
    )  # fmt: skip
    patches: dict[str, Any] = {
        f"/v1/services/{OWN}/vision": {"slo": {"latency_ms": 45.0}},
        f"/v1/nodes/{NODE}": {"schedulable": False},
        "/v1/gpu-types/t4": {"prices": [{"kind": "on_demand", "usd_per_h": 2.5}]},
    }
    for path, patch in patches.items():
        merge = {"Content-Type": "application/merge-patch+json"}
        assert full.call("PATCH", path, plain=patch, headers=merge).status_code == 200, path
    assert (device()["price_usd_per_h"], service()["slo"]["latency_ms"], fleet()["nodes"][0]["schedulable"]) == (
        2.5, 45.0, False,
    )  # fmt: skip
    plan = full.call("POST", "/v1/plans", plain={}).json()["id"]
    assert full.call("POST", f"/v1/plans/{plan}/apply", plain={}).status_code == 200
    assert (fleet()["generation"], fleet()["plan"]["id"]) == (2, plan)
    assert full.call("GET", "/v1/fleet", "own viewer").json()["plan"]["id"] == plan


def test_rates_and_events_are_told_without_reading_the_fleet_again(full: World) -> None:
    services = full.app.state.services
    fleet = FollowedFleet(services.status, services.history)
    before = fleet.picture()
    assert difference(before, fleet.freshened(before)) == {}
    full.call("POST", f"/v1/nodes/{NODE}/drain", plain={})
    with full.database.raw() as connection:
        connection.execute("UPDATE rate_samples SET arrived = arrived * 2 WHERE service = 'demo/vision'")
    with mock.patch.object(services.status, "fleet", side_effect=AssertionError):
        told = difference(before, fleet.freshened(before))
    assert set(told) == {Topic.SERVICES, Topic.EVENTS}
    assert told[Topic.SERVICES] == {"set": {f"{OWN}/vision": {"rate_rps": 60.0}}, "gone": []}
    assert {"node.drained"} < {event["name"] for event in told[Topic.EVENTS]["set"].values()}
    # What it told is what the next whole reading tells.
    assert fleet.picture()[Topic.SERVICES][f"{OWN}/vision"]["rate_rps"] == 60.0


def test_a_subject_that_no_text_can_be_is_no_subject(full: World) -> None:
    answer = full.client.get("/audit?subject=%00", headers=full.cookie("admin"))
    assert answer.status_code == 200
    assert "PostgreSQL" not in answer.text


def test_an_address_that_names_no_plan_is_no_page(full: World) -> None:
    answer = full.client.get("/plans/zzz", headers=full.cookie("admin"))
    assert (answer.status_code, "There is no page /plans/zzz." in answer.text) == (404, True)
    assert "sha256:" not in answer.text.partition("<main")[2]
