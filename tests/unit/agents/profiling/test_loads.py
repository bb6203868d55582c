"""Load over real HTTP: so many requests under way, failures counted and named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agents.profiling.loads import ClientLoad, LoadSeen
from agents.wire import WarmUpTarget
from tests.waiting import wait_until


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.status = 200
        self.gate = threading.Event()
        self.gate.set()
        self.bodies: set[bytes] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        with self.server.lock:
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        self.server.bodies.add(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.gate.wait(10.0)
        with self.server.lock:
            self.server.now -= 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.gate.set()
    made.shutdown()
    thread.join()
    made.server_close()


def gather(load: ClientLoad, enough: Callable[[LoadSeen], bool]) -> LoadSeen:
    total = LoadSeen()

    def came_back() -> bool:
        seen = load.take()
        total.latencies_ms += seen.latencies_ms
        total.failed += seen.failed
        total.first_failure = total.first_failure or seen.first_failure
        return enough(total)

    wait_until(came_back, "enough answers")
    return total


POST = WarmUpTarget(path="/infer", body="{}", content_type="application/json", requests=1, timeout_s=1.0)


def test_a_closed_loop_keeps_so_many_under_way(server: Server) -> None:
    server.gate.clear()
    load = ClientLoad(server.url, POST, 6)
    wait_until(lambda: server.most >= 6, "six at once")
    server.gate.set()
    seen = gather(load, lambda total: len(total.latencies_ms) >= 60)
    load.close()
    assert server.most == 6
    assert seen.failed == 0
    assert server.bodies == {b"{}"}


def test_failures_are_counted_and_named(server: Server) -> None:
    server.status = 503
    load = ClientLoad(server.url, POST, 2)
    seen = gather(load, lambda total: total.failed >= 4)
    load.close()
    assert seen.latencies_ms == []
    assert seen.first_failure == "status 503"


def test_nobody_there_is_a_failure() -> None:
    load = ClientLoad("http://127.0.0.1:9", POST, 1)
    seen = gather(load, lambda total: total.failed >= 2)
    load.close()
    assert "Refused" in seen.first_failure
