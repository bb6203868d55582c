"""Strict reading of loads, and the endpoint's answers over a real socket."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from agents.devices.fake.host import OfferAnswer
from agents.loop.endpoint import BODY_BYTES_MAX, Endpoint, LoadError, read_load


def test_a_load_is_requests_by_replica_over_an_interval() -> None:
    assert read_load(b'{"replicas": {"a": 3, "b": 0.5}, "interval_s": 2}') == ({"a": 3.0, "b": 0.5}, 2.0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"replicas": {}}',
        b'{"replicas": {}, "interval_s": 1, "more": 1}',
        b'{"replicas": [], "interval_s": 1}',
        b'{"replicas": {"a": -1}, "interval_s": 1}',
        b'{"replicas": {"a": "3"}, "interval_s": 1}',
        b'{"replicas": {"a": true}, "interval_s": 1}',
        b'{"replicas": {"a": NaN}, "interval_s": 1}',
        b'{"replicas": {"a": 1e12}, "interval_s": 1}',
        b'{"replicas": {"a": 1}, "interval_s": 0}',
        b'{"replicas": {"a": 1}, "interval_s": Infinity}',
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(LoadError):
        read_load(body)


class Recorder:
    """Takes note of what is offered."""

    def __init__(self) -> None:
        self.offers: list[tuple[dict[str, float], float]] = []

    def offer(self, loads: dict[str, float], over_s: float) -> OfferAnswer:
        self.offers.append((loads, over_s))
        return OfferAnswer(unknown=("x",), not_ready=("y",))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def connection(recorder: Recorder) -> Iterator[http.client.HTTPConnection]:
    endpoint = Endpoint("127.0.0.1", 0, "node-1", recorder)
    endpoint.start()
    found = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=5)
    yield found
    found.close()
    endpoint.close()


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: str = "") -> tuple[int, Any]:
    connection.request(method, path, body or None)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_it_answers_on_one_kept_connection(connection: http.client.HTTPConnection, recorder: Recorder) -> None:
    assert ask(connection, "GET", "/health") == (200, {"node": "node-1"})
    answer = ask(connection, "POST", "/load", '{"replicas": {"a": 1}, "interval_s": 1}')
    assert answer == (200, {"unknown": ["x"], "not_ready": ["y"]})
    assert recorder.offers == [({"a": 1.0}, 1.0)]
    assert ask(connection, "POST", "/load", "no")[0] == 422
    assert ask(connection, "POST", "/other", "no")[0] == 404
    assert ask(connection, "GET", "/load")[0] == 404


def test_a_body_that_is_too_long_is_not_read(connection: http.client.HTTPConnection, recorder: Recorder) -> None:
    connection.putrequest("POST", "/load")
    connection.putheader("Content-Length", str(BODY_BYTES_MAX + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    assert recorder.offers == []


def test_it_tells_what_the_agent_says_of_itself() -> None:
    endpoint = Endpoint("127.0.0.1", 0, "node-1", None)
    endpoint.start(lambda: {"frozen": True}, lambda: "headroom_agent_frozen 1.0\n")
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=5)
    assert ask(connection, "GET", "/health") == (200, {"node": "node-1", "frozen": True})
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"headroom_agent_frozen 1.0\n")
    assert str(answer.headers["Content-Type"]).startswith("text/plain; version=0.0.4")
    assert ask(connection, "POST", "/load", "{}")[0] == 404
    connection.close()
    endpoint.close()
