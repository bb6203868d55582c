"""What strangers may cost, over real sockets: heads, silence, and clients that hang up."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from app.api.server import HEAD_FIELDS_MAX
from tests.integration.api.serving import DEADLINE_S, serving
from tests.integration.api.world import World, build_world

pytestmark = pytest.mark.integration
HEAD = b"POST /v1/agent/reports HTTP/1.1\r\nHost: x\r\n"
CROWD = 64


@pytest.fixture
def served(database: object) -> Iterator[tuple[World, int]]:
    """The application on a port of its own, for few connections."""
    world = build_world(database, connections_max=CROWD)
    with serving(world) as (port, _):
        yield world, port


def _call(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)


def _sent_until_refused(caller: socket.socket) -> int:
    sent = 0
    with suppress(OSError):
        while sent < 92 * 2**20:
            caller.sendall(b"a" * 65_536)
            sent += 65_536
    return sent


def _is_healthy(port: int) -> bool:
    return httpx.get(f"http://127.0.0.1:{port}/v1/health", timeout=DEADLINE_S).status_code == 200


def test_an_endless_header_is_cut_off(served: tuple[World, int]) -> None:
    _, port = served
    with _call(port) as caller:
        caller.sendall(HEAD + b"X-Long: ")
        sent = _sent_until_refused(caller)
    # What the two kernels hold between them, and what a refused peer may still send.
    assert sent < 16 * 2**20
    assert _is_healthy(port)


@pytest.mark.parametrize("fields", [HEAD_FIELDS_MAX, 20_000])
def test_too_many_fields_are_answered(served: tuple[World, int], fields: int) -> None:
    _, port = served
    with _call(port) as caller:
        caller.sendall(HEAD + b"".join(b"X: %d\r\n" % number for number in range(fields)) + b"\r\n")
        answer = caller.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in answer


def test_silent_connections_end_nobody_elses_service(served: tuple[World, int]) -> None:
    _, port = served
    with ExitStack() as crowd:
        for number in range(3 * CROWD):
            caller = crowd.enter_context(_call(port))
            if number % 2:
                caller.sendall(HEAD)
        assert _is_healthy(port)
