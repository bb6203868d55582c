"""The node's HTTP endpoint, under which simulated replicas take load and anybody may ask whether the agent lives.

It binds to the loopback address unless told otherwise and has no authentication: it moves simulated requests and says
how this node does, nothing else.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agents.devices.fake.host import FakeDevices

BODY_BYTES_MAX = 2**20
REQUESTS_MAX = 1e9
INTERVAL_S_MAX = 3600.0


class LoadError(ValueError):
    """A body that is not a load."""


def read_load(body: bytes) -> tuple[dict[str, float], float]:
    """Requests by replica, and the seconds over which they arrive. Raises LoadError."""
    try:
        plain = json.loads(body)
    except ValueError as error:
        raise LoadError(f"not JSON: {error}") from None
    if not isinstance(plain, dict) or set(plain) != {"replicas", "interval_s"}:
        raise LoadError("expected an object with replicas and interval_s")
    replicas = plain["replicas"]
    if not isinstance(replicas, dict):
        raise LoadError("replicas: expected an object")
    interval_s = _number("interval_s", plain["interval_s"], INTERVAL_S_MAX)
    if interval_s <= 0.0:
        raise LoadError("interval_s: must be greater than 0")
    return {name: _number(f"replicas/{name}", found, REQUESTS_MAX) for name, found in replicas.items()}, interval_s


def _number(name: str, found: object, highest: float) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise LoadError(f"{name}: expected a finite number")
    if not 0.0 <= found <= highest:
        raise LoadError(f"{name}: must lie between 0 and {highest:g}")
    return float(found)


class Endpoint:
    """A small threaded HTTP server."""

    def __init__(self, host: str, port: int, node: str, offering: FakeDevices | None) -> None:
        """Bind; port 0 takes a free one. Raises OSError when the address is taken."""
        self._server = _Server((host, port), _Handler)
        self._server.node = node
        self._server.offering = offering
        self._server.health = dict
        self._server.metrics = str
        self._thread = threading.Thread(target=self._server.serve_forever, name="endpoint", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self, health: Callable[[], Mapping[str, object]] = dict, metrics: Callable[[], str] = str) -> None:
        """Answer from now on; `health` adds to what `/health` says, `metrics` is for Prometheus."""
        self._server.health = health
        self._server.metrics = metrics
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    node: str
    offering: FakeDevices | None
    health: Callable[[], Mapping[str, object]]
    metrics: Callable[[], str]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120.0
    server: _Server

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, {"node": self.server.node, **self.server.health()})
        elif self.path == "/metrics":
            self._send(200, "text/plain; version=0.0.4; charset=utf-8", self.server.metrics().encode())
        else:
            self._answer(404, {"detail": "no such path"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            self.close_connection = True
            self._answer(413 if length.isdigit() else 411, {"detail": f"send at most {BODY_BYTES_MAX} bytes"})
            return
        body = self.rfile.read(int(length))
        if self.path != "/load" or self.server.offering is None:
            self._answer(404, {"detail": "no such path"})
            return
        try:
            loads, interval_s = read_load(body)
        except LoadError as error:
            self._answer(422, {"detail": str(error)})
            return
        answer = self.server.offering.offer(loads, interval_s)
        self._answer(200, {"unknown": list(answer.unknown), "not_ready": list(answer.not_ready)})

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: a line for each second of load helps nobody."""

    def _answer(self, status: int, content: dict[str, object]) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
