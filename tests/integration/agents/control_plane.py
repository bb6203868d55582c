"""A small control plane for agents under test: joins, targets, reports, receipts and the doorbell, with outages on
demand.

Owns what a real one promises to agents (tokens checked, reports unique by boot and sequence) and records everything it
is told.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_TAGGED = ("generation", "epoch", "cluster_id")
JOIN_TOKEN = "join-me"
NODE_TOKEN = "node-token"


class ControlPlane:
    """Runs on a free loopback port until closed. State survives `go_away` and `come_back`."""

    def __init__(self, report_interval_s: float = 0.1, heartbeat_s: float = 0.5) -> None:
        self.report_interval_s = report_interval_s
        self.heartbeat_s = heartbeat_s
        self.joins: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.receipts: list[dict[str, Any]] = []
        self.fetches = 0
        self.attempts = self.doorbells = 0
        self.target: dict[str, Any] | None = None
        self.history: dict[str, Any] = {}
        """Cluster and epoch, where this is a control plane that tells of them."""
        self.failing = False
        self.busy_s: int | None = None
        """What Retry-After says of joins and reports, which are turned away while it is set."""
        self.turned_away_s: list[float] = []
        self.refuse_sequences: set[int] = set()
        self.changed = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.come_back()

    @property
    def url(self) -> str:
        """Where agents find it."""
        return f"http://127.0.0.1:{self.port}"

    def come_back(self) -> None:
        """Listen, on the same port as before."""
        self.failing = False
        if self._server is None:
            self._server = _Server(("127.0.0.1", self.port), _Handler)
            self._server.plane = self  # type: ignore[attr-defined]
            self.port = self._server.server_address[1]
            serve = self._server.serve_forever
            threading.Thread(target=serve, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def go_away(self) -> None:
        """Close the port and every open stream."""
        server, self._server = self._server, None
        with self.changed:
            self.changed.notify_all()
        if server is not None:
            server.shutdown()
            server.server_close()

    def promote(self, target: dict[str, Any]) -> None:
        """Make a target current and ring."""
        with self.changed:
            self.target = {**target, **self.history}
            self.changed.notify_all()

    def wait_for(self, condition: Any, deadline_s: float = 60.0) -> None:
        """Until the condition holds; fails the test otherwise."""
        ends_at = time.monotonic() + deadline_s
        with self.changed:
            while not condition():
                left_s = ends_at - time.monotonic()
                assert left_s > 0.0, f"never came true; last receipt {self.receipts[-1:]}, joins {len(self.joins)}"
                self.changed.wait(min(left_s, 0.1))

    def alive(self, server: object) -> bool:
        """Whether this server is the one that listens."""
        return self._server is server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def plane(self) -> ControlPlane:
        return self.server.plane  # type: ignore[attr-defined, no-any-return]

    def do_POST(self) -> None:
        plane = self.plane
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        token = self.headers["Authorization"].removeprefix("Bearer ")
        if not plane.alive(self.server):
            self.close_connection = True
            return
        if plane.failing:
            self._answer(503, {"detail": "not now"})
        elif plane.busy_s is not None and self.path in ("/v1/agent/join", "/v1/agent/reports"):
            with plane.changed:
                plane.turned_away_s.append(time.monotonic())
                plane.changed.notify_all()
            self._answer(429, {"detail": "too much to do"}, {"Retry-After": str(plane.busy_s)})
        elif self.path == "/v1/agent/join":
            self._join(body, token)
        elif token != NODE_TOKEN:
            self._answer(401, {"detail": "unknown token"})
        elif self.path == "/v1/agent/reports":
            self._reports(body)
        elif self.path == "/v1/agent/receipts":
            with plane.changed:
                plane.receipts.append(body)
                plane.changed.notify_all()
            self._answer(202, {})
        else:
            self._answer(404, {})

    def do_GET(self) -> None:
        plane = self.plane
        if not plane.alive(self.server):
            # A process that is gone answers nobody, on no connection.
            self.close_connection = True
            return
        if self.path == "/v1/ready":
            self._answer(503 if plane.failing else 200, {})
        elif self.headers["Authorization"] != f"Bearer {NODE_TOKEN}":
            self._answer(401, {"detail": "unknown token"})
        elif plane.failing:
            self._answer(503, {"detail": "not now"})
        elif self.path == "/v1/doorbell":
            self._doorbell()
        elif self.path.endswith("/target"):
            plane.fetches += 1
            target = plane.target
            tag = f'"{"/".join(str(target.get(part)) for part in _TAGGED)}"' if target else ""
            if target is None:
                self._answer(404, {"detail": "no target yet"})
            elif self.headers.get("If-None-Match") == tag:
                self._answer(304, None, {"ETag": tag})
            else:
                self._answer(200, target, {"ETag": tag})
        else:
            self._answer(404, {})

    def _join(self, body: dict[str, Any], token: str) -> None:
        if token not in (JOIN_TOKEN, NODE_TOKEN):
            self._answer(401, {"detail": "unknown token"})
            return
        plane = self.plane
        with plane.changed:
            plane.joins.append({**body, "token": token})
            plane.changed.notify_all()
        given = NODE_TOKEN if token == JOIN_TOKEN else None
        joined = {"node": body["node"], "token": given, "report_interval_s": plane.report_interval_s, "generation": 0}
        self._answer(200, {**joined, **plane.history})

    def _reports(self, body: list[dict[str, Any]]) -> None:
        plane = self.plane
        plane.attempts += 1
        if any(report["sequence"] in plane.refuse_sequences for report in body):
            self._answer(422, {"detail": "a field is wrong"})
            return
        with plane.changed:
            known = {(report["boot_id"], report["sequence"]) for report in plane.reports}
            plane.reports.extend(report for report in body if (report["boot_id"], report["sequence"]) not in known)
            plane.changed.notify_all()
        self._answer(202, {"accepted": len(body)})

    def _doorbell(self) -> None:
        plane = self.plane
        plane.doorbells += 1
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        said = -1
        try:
            while plane.alive(self.server):
                generation = plane.target["generation"] if plane.target else 0
                line = b": still here\n" if generation == said else b'{"generation": %d}\n' % generation
                said = generation
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
                with plane.changed:
                    if plane.alive(self.server) and (plane.target or {"generation": 0})["generation"] == said:
                        plane.changed.wait(plane.heartbeat_s)
        except OSError:
            return

    def _answer(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""
