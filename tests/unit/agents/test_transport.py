"""Statuses and reasons without a network, and what an unusable address leads to."""

from __future__ import annotations

import socket
import threading

import pytest

from agents.errors import ConfigError
from agents.transport import HttpAnswer, HttpConnection, UnreachableError


@pytest.mark.parametrize("address", ["api:8080", "ftp://api", "http://", "/v1"])
def test_only_http_addresses_are_addresses(address: str) -> None:
    with pytest.raises(ConfigError):
        HttpConnection(address)


def test_nobody_there_is_unreachable() -> None:
    # Port 1 of the loopback address: nothing listens there.
    with pytest.raises(UnreachableError, match="ConnectionRefused"):
        HttpConnection("http://127.0.0.1:1").call("GET", "/v1/health")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"detail": "token expired"}', "status 401: token expired"),
        (b'{"title": "Unauthorized"}', "status 401: Unauthorized"),
        (b"<html>", "status 401"),
        (b"[]", "status 401"),
    ],
)
def test_a_refusal_says_why(body: bytes, reason: str) -> None:
    answer = HttpAnswer(401, {}, body)
    assert answer.reason() == reason
    assert not answer.ok


def test_an_answer_of_something_else_is_not_an_answer() -> None:
    with pytest.raises(UnreachableError):
        HttpAnswer(200, {}, b"<html>welcome to the hotel</html>").json()


def test_who_says_nothing_is_waited_for_once() -> None:
    """A connection that was kept may have been closed meanwhile; one that is silent would be silent again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = HttpConnection(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.2)
        ends: list[socket.socket] = []

        def serve() -> None:
            end, _ = server.accept()
            end.recv(4096)
            end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            ends.append(end)

        thread = threading.Thread(target=serve)
        thread.start()
        assert connection.call("GET", "/").ok
        thread.join()
        with pytest.raises(UnreachableError) as caught:
            connection.call("GET", "/")
        assert caught.value.is_silence
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
        ends[0].close()
