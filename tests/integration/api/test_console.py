"""The console over a real database: who gets in, what everybody sees of the fleet, how the page stays live."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from http.cookies import SimpleCookie
from unittest import mock
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import text

from app import kinds
from app.api.console import door, overview
from app.services.declared.sign_ins import SIGN_IN_S
from solvers.errors import TransientError
from tests import builders
from tests.integration.api.filled import FOREIGN_REPLICA, OWN_REPLICA, fill
from tests.integration.api.serving import DEADLINE_S, serving
from tests.integration.api.world import DEVICE, FOREIGN, NODE, OWN, World

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
    stream = world.call("GET", "/console/stream", None, headers=world.cookie(who))
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
    monkeypatch.setattr(world.app.state.services.status, "fleet", away)
    opened = world.call("GET", "/", None, headers=world.cookie("viewer"))
    monkeypatch.setattr(world.app.state.authenticator, "look_up", away)
    refused = _sign_in(world, world.secrets["operator"])
    for answer in (opened, refused):
        assert answer.status_code == 503
        assert '<p class="bad" role="alert">the database is away</p>' in answer.text
        assert "set-cookie" not in answer.headers


def test_only_the_pages_own_files_are_served(world: World) -> None:
    for name, kind in (("console.css", "text/css"), ("console.js", "text/javascript")):
        answer = world.call("GET", f"/static/{name}", None)
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind)
        assert answer.headers["x-content-type-options"] == "nosniff"
    for name in ("console.py", "..%2Fconsole.py", "base.html"):
        assert world.call("GET", f"/static/{name}", None).status_code == 404


# -- the picture ------------------------------------------------------------------------------------------------------


def test_a_node_that_never_reported_says_so(world: World) -> None:
    world.joined(NODE)
    assert 'class="bad">never seen<' in _page(world, "viewer")


def test_a_policy_without_planners_still_has_a_page(world: World) -> None:
    world.put(kinds.POLICY, replace(builders.policy(), planners=()))
    assert "no plan promoted yet" in _page(world, "viewer")


def test_the_page_shows_the_whole_fleet(full: World) -> None:
    page = _page(full, "viewer")
    assert "whole cluster" in page
    assert f"75 percent of the SMs held on {DEVICE}" in page
    assert f"<h3><span>{NODE}" in page
    assert 'class="good">up<' in page
    for replica, share in ((OWN_REPLICA, 50), (FOREIGN_REPLICA, 25)):
        assert f"<title>{replica}: {share} % of the SMs, batch 8, ready</title>" in page
    rows = _rows(page)
    assert rows[f"{OWN}/vision"][:5] == ["p99 ≤ 60 ms", "98.0 %", "42.5", "30.0", "1 / 1"]
    assert rows[f"{FOREIGN}/speech"][2:5] == ["17.5", "20.0", "1 / 1"]
    assert rows[f"{OWN}/train"][:3] == ["0.0 %", "0 / 10\N{NARROW NO-BREAK SPACE}000", "iterations"]
    assert f"{FOREIGN}/batch" in rows
    assert "p99 end to end, ms" in page
    assert "the last change is too recent" in page
    assert "(greedy, 22 ms)" in page


def _rows(page: str) -> dict[str, list[str]]:
    """Cells of every table row by the first."""
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.S) for row in re.findall(r"<tr>(.*?)</tr>", page, re.S)]
    return {cells[0]: cells[1:] for cells in rows if cells}


def test_a_project_sees_its_own_part_only(full: World) -> None:
    page = _page(full, "own viewer")
    assert f"project {OWN}" in page
    assert OWN_REPLICA in page
    assert f"{OWN}/train" in page
    for hidden in (FOREIGN_REPLICA, f"{FOREIGN}/speech", f"{FOREIGN}/batch", "too recent", "rack-1"):
        assert hidden in _page(full, "viewer")
        assert hidden not in page
    foreign = _page(full, "foreign operator")
    assert FOREIGN_REPLICA in foreign
    assert OWN_REPLICA not in foreign


def test_a_project_without_replicas_sees_no_device(full: World) -> None:
    with full.database.transaction() as session:
        session.execute(text("DELETE FROM replica_samples WHERE project = :project"), {"project": FOREIGN})
    assert DEVICE not in _page(full, "foreign viewer")


def test_an_empty_cluster_says_what_to_do(world: World) -> None:
    page = _page(world, "viewer")
    assert "No node has joined yet." in page
    assert "No services yet." in page
    assert "none yet" in page


def test_whatever_is_stored_is_shown_as_text(full: World) -> None:
    hostile = "<script>alert('x')</script>\"&"
    with full.database.transaction() as session:
        for table, field in (("services", "model"), ("devices", "gpu_type"), ("nodes", "rack")):
            session.execute(
                text(f"UPDATE {table} SET spec = jsonb_set(spec, :path, to_jsonb(CAST(:word AS text)))"),
                {"path": f"{{{field}}}", "word": f"{field}{hostile}"},
            )
        session.execute(text("UPDATE replica_samples SET replica = :word"), {"word": f"replica{hostile}"})
    page = _page(full, "viewer")
    for field in ("model", "gpu_type", "rack", "replica"):
        assert f"{field}&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&#34;&amp;" in page
    assert "<script>alert" not in page


def test_more_workloads_than_colours_are_told_apart_by_texture(full: World) -> None:
    for number in range(overview.COLOURS + 2):
        full.put(kinds.SERVICE, builders.service(f"more-{number}", project=OWN))
    legend = _page(full, "viewer").partition('<div class="fleet">')[0]
    painted = re.findall(r'<g class="(c\d+ t\d)"', legend)
    assert len(painted) == len(set(painted)) == overview.COLOURS + 6


def test_one_rendering_serves_everybody_of_a_scope_for_a_moment(full: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 0.0
    _page(full, "viewer")
    board = full.app.state.board
    monkeypatch.setattr(board, "_elapsed_ms", lambda: now_ms)
    board._kept.clear()
    seen: list[str | None] = []
    fleet = full.app.state.services.status.fleet
    monkeypatch.setattr(full.app.state.services.status, "fleet", lambda project: seen.append(project) or fleet(project))
    for who in ("viewer", "admin", "own viewer", "own operator"):
        _page(full, who)
    assert seen == [None, OWN]
    now_ms = overview.FRESH_MS
    _page(full, "viewer")
    assert seen == [None, OWN, None]


# -- the stream -------------------------------------------------------------------------------------------------------


class Watcher:
    """One page that stays open."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def event(self) -> tuple[str, str]:
        """The next event's name and data; comments are passed over."""
        name, data = "", []
        for line in self._lines:
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            elif not line and name:
                return name, "\n".join(data)
        raise AssertionError("the stream ended without saying so")

    def rest(self) -> list[str]:
        """What comes after."""
        return [line for line in self._lines if line]


@pytest.fixture
def watcher(full: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    """A viewer's open page."""
    monkeypatch.setattr(overview, "REFRESH_S", 0.05)
    with (
        serving(full) as (port, _),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as client,
        client.stream("GET", "/console/stream", headers=full.cookie("viewer")) as response,
    ):
        yield Watcher(response)


def test_the_stream_brings_the_picture_and_every_change_of_it(full: World, watcher: Watcher) -> None:
    assert watcher.response.status_code == 200
    assert watcher.response.headers["content-type"].startswith("text/event-stream")
    name, first = watcher.event()
    assert name == "fragment"
    assert OWN_REPLICA in first
    assert first.startswith("<section")
    with full.database.transaction() as session:
        session.execute(text("UPDATE replica_samples SET state = 'draining'"))
    while "draining" not in first:
        name, first = watcher.event()
        assert name == "fragment"


def test_a_stream_says_that_there_is_nothing_new_to_be_had(
    full: World, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watcher.event()[0] == "fragment"
    with monkeypatch.context() as broken:
        broken.setattr(full.app.state.board, "fragment", mock.Mock(side_effect=TransientError("the database is away")))
        name = "fragment"
        while name == "fragment":
            name, _ = watcher.event()
        assert name == "away"
    while name == "away":
        name, _ = watcher.event()
    assert name == "fragment"


def test_a_revoked_token_ends_its_stream(full: World, watcher: Watcher) -> None:
    assert watcher.event()[0] == "fragment"
    assert full.call("DELETE", f"/v1/tokens/{full.ids['viewer']}").status_code == 204
    name = "fragment"
    while name == "fragment":
        name, _ = watcher.event()
    assert name == "end"
    assert watcher.rest() == []
    assert SIGN_IN in full.call("GET", "/", None, headers=full.cookie("viewer")).text


def test_the_end_of_the_process_ends_the_stream(full: World, watcher: Watcher) -> None:
    assert watcher.event()[0] == "fragment"
    full.app.state.streams.closing.set()
    rest = watcher.rest()
    assert rest[-1].startswith("retry: "), "it comes again, by itself and to another process"
    assert "event: end" not in rest
