"""Load over real HTTP: so many requests under way, failures counted and named."""

from __future__ import annotations

import contextlib
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agents.errors import DeviceError
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


class Endless(Handler):
    """Answers without end: as much as is taken, or so little that no time-out of a socket ever comes."""

    server: Pouring

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.server.over.wait(self.server.pause_s):
                self.wfile.write(self.server.piece)
                self.server.sent += len(self.server.piece)


class Pouring(ThreadingHTTPServer):
    daemon_threads = True
    pause_s, piece, sent = 0.0, b"x" * 2**20, 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Endless)
        self.over = threading.Event()


@pytest.fixture
def pouring() -> Iterator[Pouring]:
    made = Pouring()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.over.set()
    made.shutdown()
    thread.join()
    made.server_close()


def test_an_answer_without_end_takes_no_memory(pouring: Pouring) -> None:
    tracemalloc.start()
    try:
        load = ClientLoad(f"http://127.0.0.1:{pouring.server_address[1]}", POST, 1)
        wait_until(lambda: pouring.sent > 64 * 2**20, "more came than may be kept")
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
    pouring.over.set()
    load.close()


def test_clients_that_are_still_answered_are_waited_for_once_not_each(
    pouring: Pouring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.profiling.loads.TIMEOUT_S", 0.5)
    pouring.pause_s, pouring.piece = 0.1, b"x"
    load = ClientLoad(f"http://127.0.0.1:{pouring.server_address[1]}", POST, 3)
    wait_until(lambda: pouring.sent > 3, "they are answered")
    waited: list[float] = []
    join = threading.Thread.join

    def note(thread: threading.Thread, timeout: float | None = None) -> None:
        waited.append(timeout or 0.0)
        join(thread, timeout)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", note)
        load.close()
    assert len(waited) == 3
    assert sum(waited) <= 0.5


def test_a_host_without_threads_gets_no_load_and_keeps_none(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def start_two(thread: threading.Thread) -> None:
        if thread.name == "load":
            if len(begun) == 2:
                raise RuntimeError("can't start new thread")
            begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(DeviceError, match="no thread left for the load: can't start new thread"):
        ClientLoad(server.url, POST, 6)
    assert len(begun) == 2
    assert not any(thread.is_alive() for thread in begun)


def test_nobody_there_is_a_failure() -> None:
    load = ClientLoad("http://127.0.0.1:9", POST, 1)
    seen = gather(load, lambda total: total.failed >= 2)
    load.close()
    assert "Refused" in seen.first_failure
