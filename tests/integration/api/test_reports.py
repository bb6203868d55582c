"""Reports go two ways, from the connection to the store or by the application, and both tell the same."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agents.wire import Report, encode
from app.api import reports
from app.services.seen import telemetry
from app.store.engine import Database
from tests.integration.api.serving import DEADLINE_S, serving, short_ways
from tests.integration.api.world import NODE, World, build_world
from tests.integration.store.samples import count, device_report, replica_report, report

pytestmark = pytest.mark.integration
OTHER = "n2"


def _known(database: Database, **settings: Any) -> World:
    """Two nodes that are known here."""
    made = build_world(database, **settings)
    for node in (NODE, OTHER):
        made.joined(node)
        assert made.call("GET", f"/v1/agent/nodes/{node}/target", node).status_code == 200
    return made


@pytest.fixture
def world(database: Database) -> World:
    return _known(database)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    return short_ways(monkeypatch)


@pytest.fixture
def client(world: World, taken: list[bool]) -> Iterator[httpx.Client]:
    # Whether the database is to be asked again for everybody is a matter of time.
    world.app.state.authenticator._asked_ms = 1e15
    with serving(world) as (port, _), httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as made:
        yield made


def _report(sequence: int, node: str = NODE, **changes: Any) -> Report:
    made = report(node, sequence, boot_id="boot-1", observed_at_s=time.time(), devices=[device_report(f"GPU-{node}-0")])
    return replace(made, **changes)


def _head(world: World, who: str = NODE) -> dict[str, str]:
    return {"Authorization": f"Bearer {world.secrets[who]}", "Content-Type": "application/json"}


def _body(*said: Report, **changes: Any) -> bytes:
    (one,) = said
    return json.dumps(encode(one) | changes).encode()


def _told(answer: httpx.Response) -> tuple[int, Any, Mapping[str, str]]:
    content = answer.json()
    if "request_id" in content:
        assert answer.headers["x-request-id"] == content.pop("request_id")
    return answer.status_code, content, {name: answer.headers.get(name, "") for name in ("content-type", "retry-after")}


BODIES = {
    "good": lambda: _body(_report(7)),
    "of a list": lambda: b"[%b, %b]" % (_body(_report(7)), _body(_report(8))),
    "no JSON": lambda: b"{",
    "nothing": lambda: b"",
    "none": lambda: b"[]",
    "a field too many": lambda: _body(_report(7), more=1),
    "U+0000": lambda: _body(_report(7, boot_id="\0")),
    "out of range": lambda: _body(_report(7, interval_s=-1.0)),
    "of another node": lambda: _body(_report(7, OTHER)),
    "a device of another": lambda: _body(_report(7, devices=(device_report(f"GPU-{OTHER}-0"),))),
    "a device twice": lambda: _body(_report(7, devices=(device_report(f"GPU-{NODE}-0"),) * 2)),
    "from the future": lambda: _body(_report(7, observed_at_s=time.time() + 1e6)),
    "backwards": lambda: _body(_report(7, observed_at_s=5.0)),
    "too many": lambda: b"[%b]" % b",".join([b"1"] * (telemetry.REPORTS_PER_CALL_MAX + 1)),
    "foreign replicas": lambda: _body(_report(7, replicas=(replica_report("vision/a#0", f"GPU-{NODE}-0"),))),
    "another history": lambda: _body(_report(7, cluster_id="elsewhere", epoch=3)),
}


@pytest.mark.parametrize("name", BODIES)
def test_both_ways_tell_the_same(world: World, client: httpx.Client, taken: list[bool], name: str) -> None:
    first = client.post(reports.PATH, content=_body(_report(1)), headers=_head(world))
    assert _told(first)[:2] == (200, {"accepted": 1, "duplicates": 0})
    body = BODIES[name]()
    short = client.post(reports.PATH, content=body, headers=_head(world))
    assert taken == [True, True]
    if short.status_code == 200:
        with world.database.raw() as connection:
            assert count(connection, "report_log") > 1
            connection.execute("DELETE FROM report_log WHERE sequence > 1")
            connection.execute("UPDATE report_heads SET sequence = 1")
    long = client.post(reports.PATH, content=body, headers={**_head(world), "Content-Type": "application/json;a=b"})
    assert taken == [True, True]
    said, by_application = (json.dumps(_told(each)).replace(" 999999 s", " 1000000 s") for each in (short, long))
    assert said == by_application
    # A repeat is known, whichever way it comes.
    if short.status_code == 200:
        again = client.post(reports.PATH, content=body, headers=_head(world))
        assert again.json()["accepted"] == 0 < again.json()["duplicates"]


@pytest.mark.parametrize("forgotten", [False, True])
def test_who_is_due_to_be_asked_about_again_is_asked_on_the_short_way(
    world: World, client: httpx.Client, taken: list[bool], forgotten: bool
) -> None:
    """Else, in a full lane, all who come until the first of them had its turn would take the long way."""
    authenticator = world.app.state.authenticator
    if forgotten:
        authenticator.forget()
    else:
        authenticator._asked_ms = -1e15
    answer = client.post(reports.PATH, content=_body(_report(1)), headers=_head(world))
    assert (answer.status_code, taken) == (200, [True])
    assert authenticator._asked_ms > 0.0


@pytest.mark.parametrize(
    "odd",
    ["revoked", "unknown", "another kind", "too long", "in chunks", "two tokens", "waits for leave"],
)
def test_what_is_unusual_goes_by_the_application(
    world: World, client: httpx.Client, taken: list[bool], odd: str
) -> None:
    head, body, content = _head(world), _body(_report(1)), None
    wanted = 200
    if odd == "revoked":
        world.app.state.authenticator.forget()
        with world.database.raw() as connection:
            connection.execute("UPDATE tokens SET revoked_at = now() WHERE subject = %s", (NODE,))
        wanted = 401
    elif odd == "unknown":
        head["Authorization"], wanted = "Bearer hr_nobody", 401
    elif odd == "another kind":
        head["Authorization"], wanted = f"Bearer {world.secrets['admin']}", 403
    elif odd == "too long":
        body += b" " * reports.SHORT_BYTES_MAX
    elif odd == "in chunks":
        content = iter([body[:10], body[10:]])
    elif odd == "waits for leave":
        head["Expect"] = "100-continue"
    fields = list(head.items()) + [("Authorization", "Bearer hr_nobody")] * (odd == "two tokens")
    answer = client.post(reports.PATH, content=content or body, headers=fields)
    assert (answer.status_code, any(taken)) == (wanted, False)


def test_no_body_is_longer_than_any_may_be(database: Database, taken: list[bool]) -> None:
    world = _known(database, body_bytes_max=1000)
    body = _body(_report(1))
    with serving(world) as (port, _):
        for spare, wanted in ((0, 200), (1, 413)):
            padded = body + b" " * (1000 - len(body) + spare)
            url = f"http://127.0.0.1:{port}{reports.PATH}"
            answer = httpx.post(url, content=padded, headers=_head(world), timeout=DEADLINE_S)
            assert answer.status_code == wanted
    assert len(taken) == 1


def test_an_answer_says_that_the_process_ends(world: World, client: httpx.Client, monkeypatch: Any) -> None:
    """The next request of a kept connection belongs to another process."""
    accept = telemetry.Telemetry.accept_reports

    async def ending(*arguments: Any, **more: Any) -> Any:
        world.app.state.ending.set()
        return await accept(*arguments, **more)

    monkeypatch.setattr(telemetry.Telemetry, "accept_reports", ending)
    answer = client.post(reports.PATH, content=_body(_report(1)), headers=_head(world))
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")


def test_what_nobody_expected_is_a_problem_and_no_traceback(
    world: World, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(telemetry.Telemetry, "accept_reports", breaks)
    answer = client.post(reports.PATH, content=_body(_report(1)), headers=_head(world))
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text


def test_a_node_whose_clock_is_ahead_is_told_by_its_clock(world: World) -> None:
    def send(sequence: int, ahead_s: float) -> int:
        made = _report(sequence, observed_at_s=time.time() + ahead_s)
        return world.call("POST", reports.PATH, NODE, plain=encode(made)).status_code

    assert [send(1, 0.0), send(2, 95.0), send(2, 95.0)] == [200, 422, 422]
    (event,) = (item for item in world.call("GET", "/v1/events").json()["items"] if item["name"] == "node.clock_ahead")
    ahead_s = event["facts"]["ahead_s"]
    assert (event["subject"], 60 < ahead_s <= 95) == (f"nodes/{NODE}", True)
    told = f"node {NODE}: its clock is {ahead_s} s ahead of the server's, so its reports are refused"
    assert world.call("GET", "/v1/fleet").json()["problems"] == [told]
    endless = json.dumps({**encode(_report(3)), "observed_at_s": "?"}).replace('"?"', "1e400")
    assert world.call("POST", reports.PATH, NODE, body=endless.encode()).status_code == 422
    # Once it is right again nothing is in the way.
    assert send(3, 0.0) == 200
    assert world.call("GET", "/v1/fleet").json()["problems"] == []
