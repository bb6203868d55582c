"""A real HAProxy: it reads what is rendered, takes what the follower commands, gets back what a restart lost, and
counts what it is asked for.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from app.client.offered import ReportLedger
from app.logs import EventLog
from app.routing.haproxy import (
    Balance,
    HaproxyFollower,
    HaproxyStyle,
    RuntimeSocket,
    Slot,
    SocketError,
    backends,
    read_slots,
)
from app.routing.offered import OfferedLoad
from app.routing.routes import RouteServer, ServiceRoutes
from benchmarks.gateway.processes import (
    ROOT,
    Gateway,
    Load,
    Worker,
    await_true,
    end,
    haproxy_program,
    running_haproxy,
    start_worker,
)

pytestmark = pytest.mark.integration

SERVICE, BACKEND = "demo/vision", "demo:vision"
LOG = EventLog("test.haproxy")
STYLE = HaproxyStyle(slots=3)


def routes(*servers: tuple[str, int, int], ready_path: str | None = None) -> ServiceRoutes:
    made = tuple(RouteServer(host=host, port=port, weight=weight) for host, port, weight in servers)
    return ServiceRoutes(service=SERVICE, servers=made, ready_path=ready_path)


def slots(gateway: Gateway) -> dict[str, Slot]:
    runtime = RuntimeSocket(gateway.socket)
    found = read_slots(runtime.ask("show servers state"), runtime.ask("show servers conn"))
    return {slot.name: slot for slot in found[BACKEND]}


def ready(gateway: Gateway) -> dict[tuple[str, int], int]:
    return {(slot.host, slot.port): slot.weight for slot in slots(gateway).values() if slot.ready}


@pytest.mark.parametrize("balance", list(Balance))
def test_haproxy_accepts_what_is_rendered_without_a_warning(tmp_path: Path, balance: Balance) -> None:
    strange = ServiceRoutes(service="a.b_c/x-1", servers=(), ready_path='/it\'s "ready"?a=#1&b=%5B$HOME\\')
    named = routes(("localhost", 9001, 7), ("fd00::7", 9001, 100), ready_path="/ready")
    (tmp_path / "backends.cfg").write_text(backends([named, strange], HaproxyStyle(balance=balance)), encoding="utf-8")
    (tmp_path / "base.cfg").write_text(
        "defaults\n    mode http\n    timeout client 1s\n    timeout server 1s\nfrontend edge\n    bind 127.0.0.1:1\n"
    )
    checked = subprocess.run(
        [haproxy_program(), "-c", "-f", str(tmp_path / "base.cfg"), "-f", str(tmp_path / "backends.cfg")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stdout + checked.stderr


def test_the_follower_fills_drains_frees_and_weighs(tmp_path: Path) -> None:
    with running_haproxy(tmp_path, backends([routes(("127.0.0.1", 9001, 100))], STYLE), BACKEND) as gateway:
        follower = HaproxyFollower(RuntimeSocket(gateway.socket), [SERVICE], LOG)
        follower.check()
        assert ready(gateway) == {("127.0.0.1", 9001): 100}
        assert follower.follow({SERVICE: routes(("127.0.0.1", 9001, 100))}, 0.0) == 0
        follower.follow({SERVICE: routes(("127.0.0.1", 9001, 40), ("fd00::7", 9002, 100))}, 1.0)
        assert ready(gateway) == {("127.0.0.1", 9001): 40, ("fd00::7", 9002): 100}
        follower.follow({SERVICE: routes(("fd00::7", 9002, 100))}, 2.0)
        assert slots(gateway)["slot1"].draining
        follower.follow({SERVICE: routes(("fd00::7", 9002, 100))}, 3.0)
        assert slots(gateway)["slot1"].in_maintenance
        assert follower.follow({SERVICE: routes(("fd00::7", 9002, 100))}, 4.0) == 0
        # A service that is gone takes its servers with it.
        follower.follow({}, 5.0)
        assert ready(gateway) == {}


def test_a_restart_of_haproxy_is_made_good(tmp_path: Path) -> None:
    rendered = backends([routes()], STYLE)
    told = {SERVICE: routes(("127.0.0.1", 9001, 100))}
    with running_haproxy(tmp_path, rendered, BACKEND) as gateway:
        follower = HaproxyFollower(RuntimeSocket(gateway.socket), [SERVICE], LOG)
        follower.follow(told, 0.0)
        assert ready(gateway) == {("127.0.0.1", 9001): 100}
    gateway.socket.unlink(missing_ok=True)
    with pytest.raises(SocketError):
        follower.follow(told, 1.0)
    with running_haproxy(tmp_path, rendered, BACKEND) as gateway:
        assert ready(gateway) == {}
        follower.follow(told, 2.0)
        assert ready(gateway) == {("127.0.0.1", 9001): 100}


@pytest.fixture
def worker() -> Iterator[Worker]:
    """One stand-in that is ready."""
    made = start_worker("demo/vision#0")
    try:
        await_true(made.ready, "the start of a worker")
        yield made
    finally:
        end(made.process)


def test_the_load_would_notice_a_lost_request(tmp_path: Path, worker: Worker) -> None:
    with running_haproxy(tmp_path, backends([routes(("127.0.0.1", worker.port, 100))], STYLE), BACKEND) as gateway:
        load = Load(gateway.port, 4, 100)
        try:
            worker.process.send_signal(signal.SIGSTOP)  # what it has now it never answers
            await_true(lambda: slots(gateway)["slot1"].used > 0, "the first requests")
            worker.process.kill()
            worker.process.wait()
            await_true(lambda: slots(gateway)["slot1"].used == 0, "the end of the requests")
            load_found = None
            other = start_worker("demo/vision#1")
            try:
                await_true(other.ready, "the start of another worker")
                follower = HaproxyFollower(RuntimeSocket(gateway.socket), [SERVICE], LOG)
                follower.follow({SERVICE: routes(("127.0.0.1", other.port, 100))}, 0.0)
                load_found = load.finish(60.0)
            finally:
                end(other.process)
        finally:
            load.close()
    assert load_found["failed"] > 0
    assert load_found["requests"] > load_found["failed"]


def test_a_crashed_worker_is_left_out_before_anybody_says_so(tmp_path: Path, worker: Worker) -> None:
    """Requests that cannot even be connected go elsewhere, and checks find the dead one within seconds."""
    nobody = ("127.0.0.1", 1, 100)
    rendered = backends([routes(nobody, ("127.0.0.1", worker.port, 100), ready_path="/health")], STYLE)
    with running_haproxy(tmp_path, rendered, BACKEND) as gateway:
        load = Load(gateway.port, 4, 200)
        try:
            found = load.finish(60.0)
        finally:
            load.close()
    assert found["failures"] == {}


def ask_for(gateway: Gateway, count: int, path: str = "/") -> list[int]:
    """So many requests over one connection, as clients keep theirs; their statuses."""
    line = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20.0)
    statuses = []
    try:
        for _ in range(count):
            line.request("GET", path)
            answer = line.getresponse()
            answer.read()
            statuses.append(answer.status)
    finally:
        line.close()
    return statuses


def test_every_request_is_counted_once_and_through_a_restart(tmp_path: Path, worker: Worker) -> None:
    """However often it is tried, and where nobody serves it, too."""
    ledger = ReportLedger("edge", "boot")
    counted: list[tuple[float, float]] = []

    def note(service: str, arrived: float, unrouted: float, interval_s: float) -> None:
        assert (service, interval_s > 0) == (SERVICE, True)
        counted.append((arrived, unrouted))

    ledger.count = note  # type: ignore[method-assign]
    offered = OfferedLoad(ledger)

    def count(gateway: Gateway) -> None:
        HaproxyFollower(RuntimeSocket(gateway.socket), (), LOG, offered).count([SERVICE], time.monotonic(), 0.0)

    served = backends([routes(("127.0.0.1", worker.port, 100), ready_path="/health")], STYLE)
    with running_haproxy(tmp_path, served, BACKEND) as gateway:
        assert ask_for(gateway, 2, "/health") == [200] * 2
        count(gateway)
        assert ask_for(gateway, 5, "/health") == [200] * 5
        count(gateway)
    assert counted == [(5, 0)]
    gateway.socket.unlink(missing_ok=True)
    with running_haproxy(tmp_path, backends([routes(("127.0.0.1", 1, 100))], STYLE), BACKEND) as gateway:
        assert ask_for(gateway, 3) == [503] * 3
        count(gateway)
        assert RuntimeSocket(gateway.socket).ask("clear counters all") == ""
        assert ask_for(gateway, 1) == [503]
        count(gateway)
    assert counted[1:] == [(3, 3), (1, 1)]


class _Api(BaseHTTPRequestHandler):
    """Answers with the routes of one service, and never streams. Takes reports, and loses its first answer to one that
    says something."""

    bodies: ClassVar[list[list[dict[str, Any]]]] = []

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(told if isinstance(told, list) else [told])
        if len(self.bodies) == 2:
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_GET(self) -> None:
        replica = {
            "replica": f"{SERVICE}#0", "endpoint": "http://127.0.0.1:9001", "host": "127.0.0.1", "port": 9001,
            "weight": 5.0, "state": "ready", "generation": 1,
        }  # fmt: skip
        body = json.dumps({"service": SERVICE, "generation": 1, "ready_path": None, "replicas": [replica]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def api() -> Iterator[str]:
    """A control plane that is about to go away."""
    _Api.bodies.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def follow(socket: Path, server: str, options: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Killed at the end, if it is still there."""
    command = [
        sys.executable,
        "-m",
        "app",
        "routes",
        "follow",
        "haproxy",
        "--socket",
        str(socket),
        "--service",
        SERVICE,
        *options,
    ]
    environment = {**os.environ, "HEADROOM_SERVER": server, "HEADROOM_TOKEN": "secret"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_program_says_in_one_line_that_a_socket_will_not_do(tmp_path: Path, api: str) -> None:
    with follow(tmp_path / "nowhere.sock", api) as process:
        _, said = process.communicate(timeout=30.0)
    assert process.returncode == 1
    assert said == f"headroom: {tmp_path}/nowhere.sock: no such file or directory\n"


def test_the_program_ends_when_asked_and_leaves_the_servers(tmp_path: Path, api: str) -> None:
    with running_haproxy(tmp_path, backends([routes()], STYLE), BACKEND) as gateway:
        with follow(gateway.socket, api) as process:
            await_true(lambda: ready(gateway) != {}, "the first change")
            process.terminate()
            _, said = process.communicate(timeout=30.0)
        lines: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
        assert process.returncode == 0
        assert [line["event"] for line in lines if line["event"].startswith("route.")] == [
            "route.server_placed", "route.weight_set", "route.server_ready",
        ]  # fmt: skip
        assert ready(gateway) == {("127.0.0.1", 9001): 100}


def test_the_program_reports_what_was_asked_for_and_nothing_twice(tmp_path: Path, api: str) -> None:
    with (
        running_haproxy(tmp_path, backends([routes()], STYLE), BACKEND) as gateway,
        follow(gateway.socket, api, ["--gateway", "edge"]) as process,
    ):
        await_true(lambda: len(_Api.bodies) >= 2, "the first report")
        assert ask_for(gateway, 5) == [503] * 5
        process.terminate()
        _, said = process.communicate(timeout=30.0)
    assert process.returncode == 0
    (first,), (second,), *rest = _Api.bodies
    assert (first["gateway"], first["samples"]) == ("edge", [])
    assert [sample["arrived"] for sample in second["samples"]] == [0]
    # Its answer was lost.
    assert "report.delayed" in [json.loads(line)["event"] for line in said.splitlines()]
    assert rest[0][0] == second
    taken = {(each["boot_id"], each["sequence"]): each for body in _Api.bodies for each in body}
    samples = [sample for each in taken.values() for sample in each["samples"]]
    assert sum(sample["arrived"] for sample in samples) == sum(sample["unrouted"] for sample in samples) == 5
    assert {sample["service"] for sample in samples} == {SERVICE}
