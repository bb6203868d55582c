"""What strangers may cost before TLS is agreed on, and which files a server's certificate comes from."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app import authority as authorities
from app.api import server
from app.authority import Authority
from tests.integration.api.serving import DEADLINE_S, serving
from tests.integration.api.world import World, build_world
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
CROWD, FEW = 32, 4
"""How many may be connected, and how many of them from one address."""
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The begin of a handshake that never goes on."""


@pytest.fixture
def secured(database: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[World, int]]:
    """The application over TLS for few connections of a peer, whose handshakes may take a second."""
    monkeypatch.setattr(server, "HEAD_S", 1.0)
    monkeypatch.setattr(authorities, "LOOK_EVERY_S", 0.0)
    limits = {"connections_max": CROWD, "connections_per_peer_max": FEW}
    world = build_world(database, **limits, tls=True, ca=str(tmp_path / "authority.pem"))
    with serving(world) as (port, _):
        yield world, port


def _trusted(world: World) -> str:
    found: str = world.app.state.context.authority.bundle
    return found


def _shown(world: World, port: int) -> int:
    """The number of the certificate that a new connection sees; it answers, too."""
    context = ssl.create_default_context(cadata=_trusted(world))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=context)
    connection.request("GET", "/v1/health")
    assert connection.sock is not None
    number = int(str(connection.sock.getpeercert()["serialNumber"]), 16)
    assert connection.getresponse().status == 200
    connection.close()
    return number


def test_a_handshake_that_stalls_ends(secured: tuple[World, int]) -> None:
    world, port = secured
    for sent in (b"", HELLO):
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as caller:
            caller.sendall(sent)
            # Not before somebody ends it: reading would not return.
            assert caller.recv(1) == b""
    assert _shown(world, port)


def test_handshakes_that_stall_end_nobody_elses_service(
    database: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than there may be, all of them silent for longer than the test takes: the oldest give way."""
    monkeypatch.setattr(server, "HEAD_S", 600.0)
    world = build_world(database, connections_max=CROWD, tls=True, ca=str(tmp_path / "authority.pem"))
    with serving(world) as (port, _), ExitStack() as crowd:
        callers = []
        for number in range(3 * CROWD):
            caller = crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
            if number % 2:
                caller.sendall(HELLO)
            callers.append(caller)
        assert _shown(world, port)
        assert callers[0].recv(1) == b""


def test_what_is_no_tls_is_hung_up_on(secured: tuple[World, int]) -> None:
    world, port = secured
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as caller:
        caller.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not caller.makefile("rb").read().startswith(b"HTTP")
    assert _shown(world, port)


def test_a_handshake_gives_its_place_back_however_it_ends(secured: tuple[World, int]) -> None:
    """Of one peer, which may have few at a time: a place that is kept counts for ever."""
    world, port = secured
    for _ in range(3 * FEW):
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as caller:
            caller.sendall(b"no TLS")
            caller.recv(1)
    for _ in range(3 * FEW):
        assert _shown(world, port)


def test_a_server_changes_its_certificate_with_its_authority(secured: tuple[World, int]) -> None:
    world, port = secured
    first = _shown(world, port)
    assert _shown(world, port) == first
    authority = Authority(Path(world.app.state.context.authority.file))
    authority.rotate()
    wait_until(lambda: _shown(world, port) != first, "the new certificate")
    # A file that cannot be read changes nothing.
    kept = authority.file.read_bytes()
    trusted = _trusted(world)
    authority.file.write_text("nothing")
    context = ssl.create_default_context(cadata=trusted)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=context)
    connection.request("GET", "/v1/health")
    assert connection.getresponse().status == 200
    connection.close()
    authority.file.write_bytes(kept)
    assert _shown(world, port)
