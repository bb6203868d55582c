"""Reports and joins of a fleet at once, over real sockets: who finds no place is told to come again, others are
answered, none is worked on whose client has hung up, and a repeated join costs little.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from agents.wire import encode
from app.api import admission
from app.api.admission import AT_ONCE_MAX
from app.api.app import THREADS_MAX
from app.services.declared.documents import Documents
from app.services.seen import telemetry
from app.store import ingest
from app.store.engine import Database
from tests.integration.api.serving import DEADLINE_S, serving
from tests.integration.api.world import NODE, World, build_world, join_message
from tests.integration.store.samples import count, device_report, report
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
REPORTS, JOIN = "/v1/agent/reports", "/v1/agent/join"
NODES = [f"n{number}" for number in range(7)]
WAITING_MAX = 3
BLOCKED = "SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"


class SlowStore:
    """Reports are stored when the test lets them be."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.asked: list[str] = []

    def ingest(self, connection: Any, reports: Any) -> Any:
        self.asked += [each.node for each in reports]
        assert self.may_go_on.wait(DEADLINE_S)
        return ingest.ingest(connection, reports)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStore]:
    """And a lane of one worker."""
    slow = SlowStore()
    monkeypatch.setattr(telemetry, "ingest", slow)
    monkeypatch.setitem(admission.LANES, REPORTS, (1, WAITING_MAX))
    monkeypatch.setattr(admission, "LATE_S", DEADLINE_S)
    yield slow
    slow.may_go_on.set()


@pytest.fixture
def served(database: Database, store: SlowStore) -> Iterator[tuple[World, int]]:
    """Nodes that joined and are known here."""
    world = build_world(database)
    for node in NODES:
        world.joined(node)
        assert world.call("GET", f"/v1/agent/nodes/{node}/target", node).status_code == 200
    with serving(world) as (port, _):
        yield world, port


class Sent:
    """A report on a socket of its own."""

    def __init__(self, world: World, port: int, node: str) -> None:
        devices = [device_report(f"GPU-{node}-0")]
        made = report(node, 1, boot_id="boot-1", observed_at_s=time.time(), devices=devices)
        body = json.dumps(encode(made)).encode()
        head = f"POST {REPORTS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.secrets[node]}\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._reader = self._socket.makefile("rb")
        self.again()

    def again(self) -> None:
        """The same on the same connection."""
        self._socket.sendall(self._request)

    def answer(self) -> tuple[int, dict[str, str], Any]:
        """Status, headers and content."""
        first = self._reader.readline()
        fields = iter(lambda: self._reader.readline().decode().strip(), "")
        headers = dict(field.lower().split(": ", 1) for field in fields)
        content = json.loads(self._reader.read(int(headers["content-length"])))
        return int(first.split()[1]), headers, content

    def status(self) -> int:
        """Of the last answer on this socket."""
        found = self.answer()[0]
        self.hang_up()
        return found

    def hang_up(self) -> None:
        self._reader.close()
        self._socket.close()


def _waiting(world: World) -> int:
    lanes = world.app.state.admission
    return len(lanes.lane_of("POST", REPORTS, f"Bearer {world.secrets[NODES[0]]}").waiting)


def test_a_report_without_a_place_is_turned_away_and_others_are_answered(
    served: tuple[World, int], store: SlowStore
) -> None:
    world, port = served
    sent: dict[str, Sent] = {}
    for place, node in enumerate(NODES[:4]):
        sent[node] = Sent(world, port, node)
        wait_until(lambda place=place: store.asked and _waiting(world) == place)
    # Its connection stays, and so does what else is asked on it.
    turned = Sent(world, port, "n4")
    for _ in range(2):
        status, headers, problem = turned.answer()
        assert (status, problem["code"], headers["retry-after"]) == (429, "rate-limited", "5")
        assert headers["content-type"] == "application/problem+json"
        assert headers["x-request-id"] == problem["request_id"]
        turned.again()
    # One waits no longer and is not worked on; its place is free.
    sent.pop("n3").hang_up()
    wait_until(lambda: _waiting(world) == WAITING_MAX - 1)
    # All but reports goes on: what people ask, joins, and strangers' reports are refused.
    base = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{base}/v1/health", timeout=DEADLINE_S).status_code == 200
    admin = {"Authorization": f"Bearer {world.secrets['admin']}"}
    assert httpx.get(f"{base}/v1/nodes", headers=admin, timeout=DEADLINE_S).status_code == 200
    joining = {"Authorization": f"Bearer {world.secrets['join']}", "Content-Type": "application/json"}
    message = json.dumps(encode(join_message("late"))).encode()
    assert httpx.post(base + JOIN, content=message, headers=joining, timeout=DEADLINE_S).status_code == 200
    stranger = {**joining, "Authorization": "Bearer hr_nobody"}
    assert httpx.post(base + REPORTS, content=b"[]", headers=stranger, timeout=DEADLINE_S).status_code == 401
    assert store.asked == ["n0"]
    store.may_go_on.set()
    assert {node: each.status() for node, each in sent.items()} == dict.fromkeys(("n0", "n1", "n2"), 200)
    assert store.asked == ["n0", "n1", "n2"]
    assert turned.answer()[0] == 429
    turned.again()
    assert turned.status() == 200
    with world.database.raw() as connection:
        assert count(connection, "report_log") == 4
    metrics = world.call("GET", "/metrics", None).text
    assert f'headroom_http_requests_total{{method="POST",route="{REPORTS}",status="429"}} 3.0' in metrics
    assert f'headroom_http_requests_total{{method="POST",route="{REPORTS}",status="499"}} 1.0' in metrics


@contextmanager
def _statements(world: World) -> Iterator[list[str]]:
    """What the database is asked meanwhile."""
    asked: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        asked.append(statement)

    event.listen(world.database._engine, "before_cursor_execute", note)
    yield asked
    event.remove(world.database._engine, "before_cursor_execute", note)


def _join(world: World, who: str = "join", **changes: Any) -> tuple[int, str]:
    answer = world.call("POST", JOIN, who, plain={**encode(join_message(types=("t4",) * 8)), **changes})
    return answer.status_code, answer.json().get("token")


def _is_good(world: World, secret: str) -> bool:
    world.secrets["asked"] = secret
    world.app.state.authenticator.forget()
    return world.call("GET", f"/v1/agent/nodes/{NODE}/target", "asked").status_code == 200


def test_a_join_whose_answer_was_lost_costs_little_and_ends_the_lost_token(world: World) -> None:
    with _statements(world) as whole:
        _, lost = _join(world)
    with _statements(world) as repeat:
        status, secret = _join(world)
    assert status == 200
    assert len(repeat) <= 10
    assert len(whole) > 30
    assert _is_good(world, secret)
    assert not _is_good(world, lost)
    # With the node's own token nothing is made at all.
    world.secrets[NODE] = secret
    with _statements(world) as own:
        assert _join(world, NODE) == (200, secret)
    assert len(own) <= 8


def test_a_join_that_says_something_else_is_whole(world: World) -> None:
    _, world.secrets[NODE] = _join(world)
    more = encode(join_message(types=("t4",) * 9))["devices"]
    assert _join(world, NODE, devices=more)[0] == 200
    assert len(world.call("GET", "/v1/devices?limit=100").json()["items"]) == 9
    # Another boot takes over, the first one that returns does so, too; a deleted node is made anew.
    for boot in ("boot-2", "boot-1"):
        assert _join(world, NODE, boot_id=boot)[0] == 200
        with world.database.raw() as connection:
            assert connection.execute("SELECT boot_id FROM node_states").fetchall() == [(boot,)]
    assert world.call("DELETE", f"/v1/nodes/{NODE}").status_code == 204
    world.app.state.authenticator.forget()
    assert _join(world, boot_id="boot-1")[0] == 200
    assert world.call("GET", f"/v1/nodes/{NODE}").status_code == 200


def test_a_repeat_is_judged_like_any_join(world: World) -> None:
    """A living node's name is not to be had by saying what it said."""
    _, world.secrets[NODE] = _join(world)
    made = report(NODE, 1, boot_id="boot-1", observed_at_s=time.time(), devices=[device_report(f"GPU-{NODE}-0")])
    assert world.call("POST", REPORTS, NODE, plain=encode(made)).status_code == 200
    assert _join(world)[0] == 409
    assert _join(world, "foreign node")[0] == 403


def test_who_joins_anew_and_who_repeats_lock_in_one_order(world: World) -> None:
    """Neither holds the node's state while it waits for the node's document, which the other one has."""
    _, world.secrets[NODE] = _join(world)
    with world.database.raw() as connection:
        # The same message, for which it looks whether it is a repeat; it is none, for it is too long after.
        connection.execute("UPDATE node_states SET joined_at = now() - interval '1 day'")
    with ThreadPoolExecutor(1) as pool, world.database.raw() as connection:
        connection.execute("SELECT 1 FROM nodes FOR UPDATE")
        joining = pool.submit(_join, world, NODE)
        wait_until(lambda: connection.execute(BLOCKED).fetchone(), limit_s=DEADLINE_S)
        connection.execute("SELECT 1 FROM node_states FOR UPDATE NOWAIT")
    assert joining.result(DEADLINE_S)[0] == 200


def test_slow_questions_of_one_token_leave_places_to_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are threads come at once and find the database slow; streams take none of the places."""
    world = build_world(database)
    may_go_on, going = threading.Event(), [0]
    read = Documents.page

    def slow(self: Any, *arguments: Any) -> Any:
        going[0] += 1
        assert may_go_on.wait(DEADLINE_S)
        return read(self, *arguments)

    monkeypatch.setattr(Documents, "page", slow)
    asked = "/v1/nodes?limit=3"
    with serving(world) as (port, _), ThreadPoolExecutor(THREADS_MAX + 20) as crowd:
        base = f"http://127.0.0.1:{port}"

        def ask(who: str, path: str) -> int:
            headers = {"Authorization": f"Bearer {world.secrets[who]}"}
            return httpx.get(base + path, headers=headers, timeout=DEADLINE_S).status_code

        try:
            with ExitStack() as streams:
                for _ in range(AT_ONCE_MAX + 1):
                    headers = {"Authorization": f"Bearer {world.secrets['viewer']}"}
                    streams.enter_context(
                        httpx.stream("GET", f"{base}/v1/events/stream", headers=headers, timeout=DEADLINE_S)
                    )
                slowly = [crowd.submit(ask, "viewer", asked) for _ in range(THREADS_MAX + 10)]
                wait_until(lambda: going[0] == AT_ONCE_MAX)
                assert [ask("admin", "/v1/nodes/none") for _ in range(5)] == [404] * 5
                assert going[0] == AT_ONCE_MAX
                may_go_on.set()
                assert {each.result() for each in slowly} == {200}
        finally:
            may_go_on.set()
    assert not world.app.state.shares._going
