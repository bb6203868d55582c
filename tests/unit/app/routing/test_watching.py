"""What the gateway's side believes of what it is told, and how it keeps being told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agents.loop.uplink import BACKOFF_S_MAX
from app.client.held import EMPTY_HOLD_S, HeldRoutes
from app.logs import EventLog
from app.routing.routes import NewestRoutes, RouteServer, ServiceRoutes, Watcher
from headroom_client import ApiError, Client, UnreachableError

SERVICE = "vision/labels"
LOG = EventLog("test.routes")


def item(port: int | None, service: str = SERVICE, endpoint: str = "") -> dict[str, Any]:
    replica = {
        "replica": f"{service}#0", "endpoint": endpoint or f"http://10.0.0.1:{port}", "host": "10.0.0.1",
        "port": port, "weight": 1.0, "state": "ready", "generation": 1,
    }  # fmt: skip
    return {"service": service, "generation": 1, "ready_path": None, "replicas": [] if port is None else [replica]}


def routes(*ports: int) -> ServiceRoutes:
    servers = tuple(RouteServer(host="10.0.0.1", port=port, weight=100) for port in ports)
    return ServiceRoutes(service=SERVICE, servers=servers)


def test_that_nobody_serves_is_believed_after_a_while_only() -> None:
    assert EMPTY_HOLD_S > BACKOFF_S_MAX, "agents that found nobody may take so long to call again"
    held = HeldRoutes[ServiceRoutes]()
    assert held.believe({SERVICE: routes()}, 0.0) == {SERVICE: routes()}
    assert held.believe({SERVICE: routes(1)}, 1.0) == {SERVICE: routes(1)}
    assert held.believe({SERVICE: routes()}, 2.0) == {SERVICE: routes(1)}
    assert held.believe({SERVICE: routes()}, 2.0 + EMPTY_HOLD_S - 0.1) == {SERVICE: routes(1)}
    assert held.believe({SERVICE: routes()}, 2.0 + EMPTY_HOLD_S) == {SERVICE: routes()}
    assert held.believe({SERVICE: routes(2)}, 3.0 + EMPTY_HOLD_S) == {SERVICE: routes(2)}
    # A while begins anew whenever somebody served in between.
    assert held.believe({SERVICE: routes()}, 4.0 + EMPTY_HOLD_S) == {SERVICE: routes(2)}
    assert held.believe({SERVICE: routes(3)}, 9.0 + EMPTY_HOLD_S) == {SERVICE: routes(3)}
    assert held.believe({SERVICE: routes()}, 10.0 + 2 * EMPTY_HOLD_S - 0.1) == {SERVICE: routes(3)}


def test_that_a_service_is_gone_is_believed_at_once() -> None:
    held = HeldRoutes[ServiceRoutes]()
    held.believe({SERVICE: routes(1)}, 0.0)
    assert held.believe({}, 1.0) == {}
    assert held.believe({SERVICE: routes()}, 2.0) == {SERVICE: routes()}


def test_what_cannot_be_forwarded_to_leaves_what_was_told_before() -> None:
    board = NewestRoutes(LOG)
    board.tell([item(9001), item(9005, "vision/faces")])
    board.news.clear()
    board.tell([item(9001, endpoint="https://10.0.0.1:9001"), item(9006, "vision/faces")])
    assert board.news.is_set()
    assert [server.port for server in board.routes()[SERVICE].servers] == [9001]
    assert [server.port for server in board.routes()["vision/faces"].servers] == [9006]
    board.tell([item(9001, endpoint="https://10.0.0.1:9001", service="vision/new")])
    assert dict(board.routes()) == {}


class Control:
    """A control plane whose streams are scripted: each is the next list of lines, or an answer of another kind."""

    def __init__(self, *streams: list[str] | httpx.Response | Exception) -> None:
        self._streams = iter(streams)
        self.exhausted = threading.Event()
        self.paths: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(str(request.url.copy_with(scheme="http", host="x")))
        if request.url.params.get("watch") != "true":
            return httpx.Response(200, json=item(9001))
        told = next(self._streams, None)
        if told is None:
            self.exhausted.set()
            return httpx.Response(503, json={"code": "transient"})
        if isinstance(told, Exception):
            raise told
        return told if isinstance(told, httpx.Response) else httpx.Response(200, content=self._lines(told))

    @staticmethod
    def _lines(lines: list[str]) -> Iterator[bytes]:
        for line in lines:
            yield line.encode() + b"\n"


def client(control: Control) -> Client:
    return Client("http://control.test", "secret", transport=httpx.MockTransport(control), attempts_max=1)


def test_the_client_watches_lines_and_passes_over_heartbeats() -> None:
    control = Control([json.dumps(item(9001)), ": still here", json.dumps(item(9002))])
    told = [each["replicas"][0]["port"] for each in client(control).watch_routes(SERVICE)]
    assert told == [9001, 9002]
    assert control.paths == ["http://x/v1/routes/vision/labels?watch=true"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(httpx.Response(403, json={"code": "forbidden"}), ApiError), (httpx.ReadTimeout("quiet"), UnreachableError)],
)
def test_a_stream_that_fails_says_so(answer: Any, expected: type[Exception]) -> None:
    with pytest.raises(expected):
        list(client(Control(answer)).watch_routes())


def test_the_watcher_reconnects_and_learns_that_its_service_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.routing.routes._BACKOFF_S_MIN", 0.001)
    control = Control(
        [json.dumps(item(9002))],
        httpx.ConnectError("away"),
        ["{half a line"],
        [json.dumps({"items": [item(9003), item(9004, "vision/faces")]})],
        httpx.Response(404, json={"code": "not-found"}),
    )
    heard: list[list[int]] = []
    board = NewestRoutes(LOG)
    tell = board.tell

    def listen(items: list[Any]) -> None:
        tell(items)
        heard.append([server.port for each in board.routes().values() for server in each.servers])

    monkeypatch.setattr(board, "tell", listen)
    watcher = Watcher(client(control), SERVICE, board, LOG)
    watcher.start()
    assert control.exhausted.wait(20.0)
    watcher.ending.set()
    assert heard == [[9001], [9002], [9003, 9004], []]
