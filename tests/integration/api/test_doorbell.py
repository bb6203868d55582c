"""The doorbell over real sockets: every listener hears of every promotion, also after PostgreSQL hung up."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
import uvicorn

from tests.integration.api.serving import DEADLINE_S, serving
from tests.integration.api.world import World, build_world
from tests.integration.store import plans as stored
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


class Ear:
    """One listener on a socket of its own."""

    def __init__(self, port: int, secret: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        request = f"GET /v1/doorbell HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n"
        self._socket.sendall(request.encode())
        self._lines = self._socket.makefile("rb")
        self.status = int(self._lines.readline().split()[1])

    def hear(self) -> int:
        """The next generation told; heartbeats and framing are passed over."""
        while True:
            line = self._lines.readline()
            assert line, "the stream ended"
            if line.startswith(b"{"):
                generation: int = json.loads(line)["generation"]
                return generation

    def hear_heartbeat(self) -> None:
        """Wait for a comment line."""
        while not self._lines.readline().startswith(b":"):
            pass

    def ended(self) -> bool:
        """Whether the stream ends."""
        while line := self._lines.readline():
            if line == b"0\r\n":
                return True
        return True

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()


@pytest.fixture
def served(database: object) -> Iterator[tuple[World, int, uvicorn.Server]]:
    """The application on a port of its own."""
    world = build_world(database, doorbell_heartbeat_s=0.2)
    with serving(world) as (port, server):
        yield world, port, server


def _promote(world: World, parent: int) -> None:
    with world.database.transaction() as session:
        stored.promote(session, stored.plan(parent=parent, seed=parent + 1))


Served = tuple[World, int, uvicorn.Server]


def test_everybody_hears_of_a_promotion(served: Served) -> None:
    world, port, _ = served
    ears = [Ear(port, world.secrets[who]) for who in ("viewer", "node", "gateway")]
    assert [ear.hear() for ear in ears] == [0, 0, 0]
    _promote(world, 0)
    assert [ear.hear() for ear in ears] == [1, 1, 1]
    _promote(world, 1)
    assert [ear.hear() for ear in ears] == [2, 2, 2]
    late = Ear(port, world.secrets["viewer"])
    assert late.hear() == 2
    for ear in (*ears, late):
        ear.close()


def test_silence_is_filled_with_heartbeats_and_hanging_up_is_noticed(served: Served) -> None:
    world, port, _ = served
    ear = Ear(port, world.secrets["viewer"])
    ear.hear()
    ear.hear_heartbeat()
    ear.hear_heartbeat()
    assert "headroom_doorbell_connections 1.0" in world.call("GET", "/metrics", None).text
    ear.close()
    wait_until(lambda: "headroom_doorbell_connections 0.0" in world.call("GET", "/metrics", None).text)


def test_a_promotion_during_a_lost_connection_is_heard(served: Served) -> None:
    world, port, _ = served
    ear = Ear(port, world.secrets["viewer"])
    assert ear.hear() == 0
    listeners = "FROM pg_stat_activity WHERE application_name = 'headroom listener' AND datname = current_database()"
    # The routes listen on a connection of their own, maybe a little later.
    with world.database.raw() as connection:
        wait_until(lambda: connection.execute(f"SELECT count(*) {listeners}").fetchall() == [(2,)])
        ended = connection.execute(f"SELECT pg_terminate_backend(pid) {listeners}").fetchall()
    assert ended == [(True,), (True,)]
    _promote(world, 0)
    assert ear.hear() == 1
    ear.close()


def test_strangers_hear_nothing(served: Served) -> None:
    _, port, _ = served
    ear = Ear(port, "hr_nobody")
    assert ear.status == 401
    ear.close()


def test_the_end_of_the_process_ends_the_streams(served: Served) -> None:
    world, port, server = served
    ear = Ear(port, world.secrets["viewer"])
    ear.hear()
    server.should_exit = True
    assert ear.ended()
    ear.close()
