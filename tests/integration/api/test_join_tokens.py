"""Join tokens: for one node and for an hour, unless more was asked for."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any

import pytest

from agents.wire import encode
from tests.integration.api.serving import serving
from tests.integration.api.world import Headroom, World, join_message

pytestmark = pytest.mark.integration

ROUNDS = 8


def _token(world: World, **more: object) -> dict[str, Any]:
    wanted = {"name": "to join", "role": "agent", "purpose": "join", **more}
    answer = world.call("POST", "/v1/tokens", plain=wanted)
    assert answer.status_code == 201, answer.text
    issued: dict[str, Any] = answer.json()
    world.secrets["once"] = issued["secret"]
    return issued


def _join(world: World, node: str, boot_id: str = "boot-1") -> tuple[int, str]:
    answer = world.call("POST", "/v1/agent/join", "once", plain=encode(join_message(node, boot_id)))
    return answer.status_code, answer.json().get("code", "")


def _told(world: World, token: dict[str, Any]) -> list[dict[str, Any]]:
    events = world.call("GET", f"/v1/events?subject=tokens/{token['id']}").json()["items"]
    return [event["facts"] for event in events if event["name"] == "join.refused"]


def test_a_join_token_is_for_one_node_and_for_an_hour(world: World) -> None:
    token = _token(world)
    assert (token["uses_max"], token["uses"]) == (1, 0)
    with world.database.raw() as connection:
        row = connection.execute(
            "SELECT extract(epoch FROM expires_at - created_at) FROM tokens WHERE id = %s", (token["id"],)
        ).fetchone()
    assert row is not None
    assert float(row[0]) == pytest.approx(3600.0, abs=1.0)
    assert _join(world, "first")[0] == 200
    assert _join(world, "second") == (403, "join-token-used")
    assert _join(world, "second") == (403, "join-token-used")
    assert world.call("GET", "/v1/nodes/second").status_code == 404
    assert _told(world, token) == [{"code": "join-token-used", "node": "second"}]
    seen = world.call("GET", f"/v1/tokens/{token['id']}").json()
    assert (token["state"], seen["state"], seen["uses"]) == ("good", "used", 1)
    world.call("DELETE", f"/v1/tokens/{token['id']}")
    assert world.call("GET", f"/v1/tokens/{token['id']}").json()["state"] == "revoked"


def test_lists_tell_which_tokens_let_nobody_in(world: World, headroom: Headroom) -> None:
    states = {}
    for name, made in (("spent", {}), ("half", {"uses_max": 2, "ttl_s": 60.0}), ("over", {}), ("ended", {})):
        states[name] = _token(world, **{**made, "name": name})["id"]
        if name in ("spent", "half"):
            assert _join(world, name)[0] == 200
    with world.database.raw() as connection:
        connection.execute("UPDATE tokens SET expires_at = now() WHERE id = %s", (states["over"],))
    world.call("DELETE", f"/v1/tokens/{states['ended']}")
    wanted = {"spent": "used", "half": "good", "over": "expired", "ended": "revoked"}
    status, told, _ = headroom("token", "list", "-o", "json")
    assert status == 0
    assert {item["name"]: item["state"] for item in json.loads(told) if item["name"] in wanted} == wanted
    page = world.call("GET", "/settings", None, headers=world.cookie("admin")).text
    shown = {row.split("<")[0]: row for row in page.split('<tr class="')[0:] for row in [row.partition("<td>")[2]]}
    assert {name: f">{state}</td>" in shown[name] for name, state in wanted.items()} == dict.fromkeys(wanted, True)


def test_a_lost_answer_is_asked_for_again_by_the_same_boot_alone(world: World) -> None:
    token = _token(world)
    assert _join(world, "first")[0] == 200
    assert _join(world, "first")[0] == 200
    # Another process of the API remembers nothing of the first join.
    world.app.state.services.fleet._joined.clear()
    assert _join(world, "first")[0] == 200
    assert _join(world, "first", "boot-of-a-thief") == (403, "join-token-used")
    assert _join(world, "second", "boot-1") == (403, "join-token-used")
    seen = world.call("GET", f"/v1/tokens/{token['id']}").json()
    assert (token["state"], seen["state"], seen["uses"]) == ("good", "used", 1)
    world.call("DELETE", f"/v1/tokens/{token['id']}")
    assert world.call("GET", f"/v1/tokens/{token['id']}").json()["state"] == "revoked"


def test_a_join_that_fails_costs_no_use(world: World) -> None:
    token = _token(world)
    message = encode(join_message("first", types=("l4",)))
    assert world.call("POST", "/v1/agent/join", "once", plain=message).status_code == 422
    assert world.call("GET", f"/v1/tokens/{token['id']}").json()["uses"] == 0
    assert _join(world, "first")[0] == 200


def test_a_join_token_may_name_its_node(world: World) -> None:
    _token(world, subject="first")
    assert _join(world, "second") == (403, "forbidden")
    assert _join(world, "first")[0] == 200


def test_an_expired_join_token_is_told_from_an_unknown_one(world: World) -> None:
    token = _token(world)
    with world.database.raw() as connection:
        connection.execute("UPDATE tokens SET expires_at = now() - interval '1 second' WHERE id = %s", (token["id"],))
    assert _join(world, "late") == (401, "join-token-expired")
    assert world.call("GET", "/v1/nodes", "once").status_code == 401
    world.app.state.authenticator.forget()
    assert _join(world, "late") == (401, "join-token-expired")
    assert _told(world, token) == [{"code": "join-token-expired", "node": None}]
    assert world.call("DELETE", f"/v1/tokens/{token['id']}").status_code == 204
    assert _join(world, "late") == (401, "unauthenticated")


def test_a_token_that_ends_while_its_identity_is_remembered_lets_nobody_in(world: World) -> None:
    token = _token(world)
    assert world.call("GET", "/v1/nodes", "once").status_code == 403
    with world.database.raw() as connection:
        connection.execute("UPDATE tokens SET revoked_at = now() WHERE id = %s", (token["id"],))
    assert _join(world, "late") == (401, "unauthenticated")
    assert world.call("GET", "/v1/nodes/late").status_code == 404


def test_many_nodes_need_a_count_and_an_end(world: World) -> None:
    wanted = {"name": "image", "role": "agent", "purpose": "join", "uses_max": 3}
    refused = world.call("POST", "/v1/tokens", plain=wanted)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/ttl_s")
    token = _token(world, uses_max=3, ttl_s=86_400)
    assert [_join(world, f"node-{index}")[0] for index in range(4)] == [200, 200, 200, 403]
    assert world.call("GET", f"/v1/tokens/{token['id']}").json()["uses"] == 3
    of_people = world.call("POST", "/v1/tokens", plain={"name": "x", "role": "viewer", "uses_max": 1})
    assert of_people.json()["errors"][0]["pointer"] == "/uses_max"


def test_of_two_nodes_at_once_exactly_one_gets_in(world: World) -> None:
    """Over real connections; both have sent all but the last byte before either may go on."""
    outcomes = []
    with serving(world) as (port, _):
        for index in range(ROUNDS):
            secret = _token(world)["secret"]
            start = threading.Barrier(2)
            statuses: list[int] = []

            def join(node: str, start: threading.Barrier, statuses: list[int], secret: str) -> None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                body = json.dumps(encode(join_message(node))).encode()
                connection.putrequest("POST", "/v1/agent/join")
                for name, value in (("Authorization", f"Bearer {secret}"), ("Content-Type", "application/json")):
                    connection.putheader(name, value)
                connection.putheader("Content-Length", str(len(body)))
                connection.endheaders(body[:-1])
                start.wait(30)
                connection.send(body[-1:])
                statuses.append(connection.getresponse().status)
                connection.close()

            threads = [
                threading.Thread(target=join, args=(f"race-{index}-{who}", start, statuses, secret)) for who in "ab"
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            outcomes.append(sorted(statuses))
    assert outcomes == [[200, 403]] * ROUNDS
