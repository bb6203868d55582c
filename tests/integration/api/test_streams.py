"""Open streams over real sockets, on two replicas of the API: they end with their token, are bounded, and leave nothing
behind.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from app import kinds
from app.api.streams import PER_NODE_MAX, PER_TOKEN_MAX
from app.store.engine import Database
from tests import builders
from tests.integration.api.routes import TOLD
from tests.integration.api.serving import DEADLINE_S, serving
from tests.integration.api.world import NODE, OWN, World, build_world
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
BLIND = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing is encrypted here: to read whom the system trusts takes most of opening a stream."""
DOORBELL, ROUTES, CONSOLE = "/v1/doorbell", "/v1/routes?watch=true", "/console/events"
LOGS = f"/v1/logs/{OWN}/vision?follow=true"
ENDS_S_MAX = 5.0
BEAT_S = 0.2


class Replicas:
    """Two processes' worth of the API over one database."""

    def __init__(self, stack: ExitStack, database: Database) -> None:
        self.worlds = [build_world(database, doorbell_heartbeat_s=BEAT_S) for _ in range(2)]
        self.first = self.worlds[0]
        self._stack = stack
        self._signed_in: dict[str, dict[str, str]] = {}
        self._ports = [stack.enter_context(serving(world))[0] for world in self.worlds]

    def open(self, path: str, secret: str, replica: int = 0) -> httpx.Response:
        """A stream that has begun, or whatever was answered instead."""
        client = self._stack.enter_context(httpx.Client(timeout=DEADLINE_S, verify=BLIND))
        sent = client.build_request("GET", self.address(replica) + path, headers=self.headers(path, secret))
        return client.send(sent, stream=True)

    def address(self, replica: int = 0) -> str:
        return f"http://127.0.0.1:{self._ports[replica]}"

    def headers(self, path: str, secret: str) -> dict[str, str]:
        """What whoever has a token sends, a browser's cookie where that is asked for."""
        if path == CONSOLE:
            return self._signed_in.get(secret) or self._sign_in(secret)
        return {"Authorization": f"Bearer {secret}"}

    def _sign_in(self, secret: str) -> dict[str, str]:
        self.first.secrets["signed in"] = secret
        self._signed_in[secret] = self.first.cookie("signed in")
        return self._signed_in[secret]

    def issue(self, **wanted: object) -> tuple[str, str]:
        """A fresh viewer's token: its secret and id."""
        made = self.first.call("POST", "/v1/tokens", plain={"name": "brief", "role": "viewer", **wanted}).json()
        return made["secret"], made["id"]


@pytest.fixture
def replicas(database: Database) -> Iterator[Replicas]:
    with ExitStack() as stack:
        yield Replicas(stack, database)


def ended(stream: httpx.Response, within_s: float) -> bool:
    """Whether a stream ends in time; it says something often."""
    until_s = time.monotonic() + within_s
    return all(time.monotonic() < until_s for _ in stream.iter_raw())


def open_streams(world: World) -> int:
    return sum(map(len, world.app.state.streams.open.values()))


@pytest.mark.parametrize("path", [DOORBELL, ROUTES, CONSOLE])
def test_a_revoked_tokens_streams_end_on_every_replica(replicas: Replicas, path: str) -> None:
    secret, token_id = replicas.issue()
    streams = [replicas.open(path, secret, replica) for replica in (0, 1)]
    kept = replicas.open(path, replicas.first.secrets["operator"])
    assert {stream.status_code for stream in (*streams, kept)} == {200}
    begun_s = time.monotonic()
    assert replicas.first.call("DELETE", f"/v1/tokens/{token_id}").status_code == 204
    assert all(ended(stream, begun_s + ENDS_S_MAX - time.monotonic()) for stream in streams)
    assert not ended(kept, 3 * BEAT_S)
    held = [actor.token_id for world in replicas.worlds for actor in world.app.state.streams.open]
    assert token_id not in held


def test_an_expired_tokens_stream_ends(replicas: Replicas) -> None:
    secret, _ = replicas.issue(ttl_s=2)
    stream = replicas.open(DOORBELL, secret)
    assert stream.status_code == 200
    assert ended(stream, 2.0 + ENDS_S_MAX)


def test_a_deleted_nodes_streams_end(replicas: Replicas) -> None:
    """And so do those of a token that is another project's or role's now."""
    world = replicas.first
    world.joined(NODE)
    of_node, of_viewer = replicas.open(DOORBELL, world.secrets[NODE], 1), replicas.open(ROUTES, world.secrets["viewer"])
    assert world.call("DELETE", f"/v1/nodes/{NODE}").status_code == 204
    with world.database.raw() as connection:
        connection.execute("UPDATE tokens SET project = 'demo' WHERE id = %s", (world.ids["viewer"],))
    assert ended(of_node, ENDS_S_MAX)
    assert ended(of_viewer, ENDS_S_MAX)


def test_a_tokens_streams_are_bounded(replicas: Replicas) -> None:
    secret = replicas.first.secrets["viewer"]
    streams = [replicas.open((DOORBELL, ROUTES)[number % 2], secret) for number in range(PER_TOKEN_MAX)]
    streams += [replicas.open(CONSOLE, secret) for _ in range(PER_TOKEN_MAX)]
    assert {stream.status_code for stream in streams} == {200}
    for path in (DOORBELL, ROUTES, CONSOLE):
        refused = replicas.open(path, secret)
        refused.read()
        assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")
        assert refused.headers["content-type"] == "application/problem+json"
        assert int(refused.headers["retry-after"]) > 0
    # Others' streams and other replicas are no part of it.
    assert replicas.open(DOORBELL, replicas.first.secrets["gateway"]).status_code == 200
    assert replicas.open(DOORBELL, secret, 1).status_code == 200
    streams[0].close()
    wait_until(lambda: replicas.open(DOORBELL, secret).status_code == 200)


def test_a_nodes_newest_stream_displaces_its_oldest(replicas: Replicas) -> None:
    replicas.first.joined(NODE)
    streams = [replicas.open(DOORBELL, replicas.first.secrets[NODE]) for _ in range(PER_NODE_MAX + 1)]
    assert {stream.status_code for stream in streams} == {200}
    assert ended(streams[0], ENDS_S_MAX)
    assert not any(ended(stream, 2 * BEAT_S) for stream in streams[1:])


def test_who_hangs_up_leaves_nothing(replicas: Replicas) -> None:
    world = replicas.first
    for _ in range(3):
        streams = [
            replicas.open(path, world.secrets[who])
            for path in (DOORBELL, ROUTES, CONSOLE)
            for who in ("viewer", "admin", "operator")
        ]
        assert open_streams(world) == len(streams)
        # Two in three before they have read anything.
        next(streams[0].iter_raw())
        for stream in streams:
            stream.close()
        wait_until(lambda: world.app.state.streams.open == {})
    metrics = world.call("GET", "/metrics", None).text
    assert "headroom_doorbell_connections 0.0" in metrics
    assert "headroom_route_streams 0.0" in metrics


@pytest.mark.parametrize("path", [DOORBELL, ROUTES, "/v1/events/stream", CONSOLE, LOGS])
def test_head_of_a_stream_ends_at_once_and_leaves_nothing(replicas: Replicas, path: str) -> None:
    """On one kept connection, more often than a token may have streams."""
    world = replicas.first
    world.put(kinds.SERVICE, builders.service())
    world.joined(NODE)
    with world.database.raw() as connection:
        connection.execute(TOLD)
    with httpx.Client(base_url=replicas.address(), timeout=DEADLINE_S, verify=BLIND) as client:
        headers = replicas.headers(path, world.secrets["viewer"])
        for _ in range(3 * PER_TOKEN_MAX):
            answer = client.head(path, headers=headers)
            assert (answer.status_code, answer.content) == (200, b"")
        assert client.get("/v1/health").status_code == 200
    wait_until(lambda: world.app.state.streams.open == {})
    page = world.call("GET", "/metrics", None).text
    streams = ("doorbell_connections", "route_streams", "event_streams", "log_streams")
    assert [name for name in streams if f"headroom_{name} 0.0" not in page] == []
    with world.database.raw() as connection:
        assert connection.execute("SELECT count(*) FROM log_requests").fetchone() == (0,)
