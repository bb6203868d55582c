"""Followers against a model of HAProxy, a socket that is none, and an nginx that is a program of our own."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.client.offered import ReportLedger
from app.logs import EventLog, JsonFormatter
from app.routing.haproxy import NAME_KEPT_S, Command, HaproxyFollower, ResolvedNames, RuntimeSocket, SocketError
from app.routing.nginx import RELOAD_EVERY_S, NginxFollower, NginxOrder
from app.routing.offered import ASKED, OfferedLoad
from app.routing.routes import NewestRoutes, RouteServer, ServiceRoutes
from tests.unit.app.routing.model import Backend, empty

SERVICE = "vision/labels"
BACKEND = "vision:labels"


def routes(*servers: tuple[int, int], service: str = SERVICE, host: str = "10.0.0.1") -> ServiceRoutes:
    made = tuple(RouteServer(host=host, port=port, weight=weight) for port, weight in servers)
    return ServiceRoutes(service=service, servers=made)


class FakeRuntime(RuntimeSocket):
    """Answers as HAProxy would, from models of its backends."""

    def __init__(self, **backends: int) -> None:
        super().__init__(Path("/run/haproxy.sock"))
        self.backends = {
            name.replace("__", ":"): Backend(empty(f"slot{n}") for n in range(1, slots + 1))
            for name, slots in backends.items()
        }
        self.asked: list[str] = []
        self.arrived = 0
        self.refuse = ""
        self.away = False

    def ask(self, command: str) -> str:
        if self.away:
            raise SocketError(f"{self.path}: no such file or directory")
        if command == ASKED:
            lines = [f"{name},BACKEND,{self.arrived},0,0" for name in self.backends]
            return "\n".join(["Pid: 1", "Uptime_sec: 1", "", "# pxname,svname,stot,dreq,econ", *lines])
        if command.startswith("show"):
            return self._show(command)
        self.asked.append(command)
        place, _, words = command.removeprefix("set server ").partition(" ")
        backend, _, slot = place.partition("/")
        if backend not in self.backends:
            return "No such backend."
        if self.refuse and self.refuse in command:
            return "Invalid addr."
        self.backends[backend].take(Command(event="", slot=slot, server="", words=words))
        return "port changed from '1'" if words.startswith("addr") else ""

    def _show(self, command: str) -> str:
        pairs = [(name, slot) for name, backend in self.backends.items() for slot in backend.shown()]
        if command.endswith("conn"):
            lines = [f"{name}/{slot.name} {slot.used}" for name, slot in pairs]
            return "\n".join(["# bkname/svname used_cur", *lines])
        lines = [
            f"3 {name} {slot.name} {slot.host} {slot.port} {slot.weight} {slot.admin_state}" for name, slot in pairs
        ]
        return "\n".join(["1", "# be_id be_name srv_name srv_addr srv_port srv_uweight srv_admin_state", *lines])

    def ready(self, backend: str = BACKEND) -> dict[int, int]:
        return {port: weight for (_, port), weight in self.backends[backend].ready().items()}


@pytest.fixture
def said() -> Iterator[list[dict[str, Any]]]:
    """Lines logged, as the program writes them."""
    lines: list[dict[str, Any]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(self.format(record)))

    handler = Kept()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("test.follow")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    yield lines
    logger.removeHandler(handler)


LOG = EventLog("test.follow")


def events(said: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in said]


def test_every_change_is_a_line_and_repeats_are_none(said: list[dict[str, Any]]) -> None:
    runtime = FakeRuntime(vision__labels=3)
    follower = HaproxyFollower(runtime, [SERVICE], LOG)
    follower.check()
    told = {SERVICE: routes((9001, 100), (9002, 40))}
    assert follower.follow(told, 0.0) == 6
    assert runtime.ready() == {9001: 100, 9002: 40}
    assert follower.follow(told, 1.0) == 0
    assert events(said) == [
        "route.server_placed", "route.weight_set", "route.server_ready",
        "route.server_placed", "route.weight_set", "route.server_ready",
    ]  # fmt: skip
    assert said[0] | {"backend": BACKEND, "slot": "slot1", "server": "10.0.0.1:9001", "weight": 100} == said[0]
    said.clear()
    follower.follow({SERVICE: routes((9002, 100), (9003, 100))}, 2.0)
    assert sorted(events(said)) == [
        "route.server_drained", "route.server_placed", "route.server_ready", "route.weight_set", "route.weight_set",
    ]  # fmt: skip
    assert runtime.ready() == {9002: 100, 9003: 100}


def test_a_reloaded_haproxy_gets_its_servers_back() -> None:
    runtime = FakeRuntime(vision__labels=2)
    follower = HaproxyFollower(runtime, (), LOG)
    told = {SERVICE: routes((9001, 100))}
    follower.follow(told, 0.0)
    runtime.backends = FakeRuntime(vision__labels=2).backends
    follower.follow(told, 1.0)
    assert runtime.ready() == {9001: 100}


def test_a_refused_address_never_becomes_ready(said: list[dict[str, Any]]) -> None:
    runtime = FakeRuntime(vision__labels=2)
    runtime.refuse = "slot1 addr"
    HaproxyFollower(runtime, (), LOG).follow({SERVICE: routes((9001, 100), (9002, 100))}, 0.0)
    assert runtime.ready() == {9002: 100}
    assert not any("slot1 state ready" in command for command in runtime.asked)
    assert "route.command_refused" in events(said)


def test_services_without_a_backend_or_a_slot_are_told_of_once(said: list[dict[str, Any]]) -> None:
    runtime = FakeRuntime(vision__labels=1)
    follower = HaproxyFollower(runtime, (), LOG)
    told = {SERVICE: routes((9001, 100), (9002, 100)), "vision/faces": routes(service="vision/faces")}
    for now_s in (0.0, 1.0, 2.0):
        follower.follow(told, now_s)
    assert events(said).count("route.no_backend") == events(said).count("route.no_slot") == 1
    assert next(line for line in said if line["event"] == "route.no_slot")["servers"] == "10.0.0.1:9002"


def test_a_deleted_service_is_followed_to_its_end() -> None:
    runtime = FakeRuntime(vision__labels=1, others=1)
    follower = HaproxyFollower(runtime, (), LOG)
    follower.follow({SERVICE: routes((9001, 100))}, 0.0)
    follower.follow({}, 1.0)
    assert runtime.ready() == {}
    assert not any("others" in command for command in runtime.asked)


def test_only_the_named_service_is_followed() -> None:
    runtime = FakeRuntime(vision__labels=1, vision__faces=1)
    follower = HaproxyFollower(runtime, [SERVICE], LOG)
    follower.follow({SERVICE: routes((1, 1)), "vision/faces": routes((2, 1), service="vision/faces")}, 0.0)
    assert (runtime.ready(), runtime.ready("vision:faces")) == ({1: 1}, {})


@pytest.mark.parametrize(
    ("services", "counted"), [((), [SERVICE, "vision/faces"]), ((SERVICE, "vision/gone"), [SERVICE])]
)
def test_what_is_followed_is_counted(
    services: tuple[str, ...], counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, ledger = FakeRuntime(vision__labels=1, vision__faces=1, others=1), ReportLedger("g", "boot")
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(ledger, "count", lambda service, arrived, *_: told.append((service, arrived)))
    follower = HaproxyFollower(runtime, services, LOG, OfferedLoad(ledger))
    for now_s in (0.0, 1.0):
        follower.count([SERVICE, "vision/faces", "vision/unrouted"], now_s, now_s)
        runtime.arrived = 7
    assert told == [(service, 7) for service in counted]


def test_following_counts_unless_nobody_wants_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.routing.haproxy.TICK_S", 0.01)
    runtime, ledger, ending, board = FakeRuntime(), ReportLedger("g", "boot"), threading.Event(), NewestRoutes(LOG)
    runtime.backends = FakeRuntime(vision__labels=1).backends
    asked: list[str] = []

    def ask(command: str) -> str:
        asked.append(command)
        return FakeRuntime.ask(runtime, command)

    def end(*_: object) -> None:
        ending.set()
        board.news.set()

    monkeypatch.setattr(runtime, "ask", ask)
    monkeypatch.setattr(ledger, "count", end)
    board.tell([{"service": SERVICE, "replicas": []}])
    HaproxyFollower(runtime, (), LOG, OfferedLoad(ledger)).run(board, ending)
    assert ASKED in asked
    asked.clear()
    HaproxyFollower(runtime, (), LOG).count([SERVICE], 0.0, 0.0)
    assert asked == []


def test_a_socket_without_the_backend_will_not_do() -> None:
    with pytest.raises(SocketError, match="HAProxy has no backend vision:labels"):
        HaproxyFollower(FakeRuntime(others=1), [SERVICE], LOG).check()


def test_a_socket_that_stays_away_ends_the_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.routing.haproxy.PATIENCE_S", 0.05)
    monkeypatch.setattr("app.routing.haproxy.TICK_S", 0.01)
    runtime = FakeRuntime(vision__labels=1)
    runtime.away = True
    with pytest.raises(SocketError, match="no such file"):
        HaproxyFollower(runtime, (), LOG).run(NewestRoutes(LOG), threading.Event())


def test_names_are_looked_up_once_in_a_while_and_the_last_address_stands() -> None:
    answers: list[str | OSError] = ["10.0.0.5", OSError("no"), "10.0.0.6"]

    def resolve(host: str) -> str:
        assert host == "gpu-7"
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    names = ResolvedNames(LOG, resolve)
    assert names.address("fd00::7", 0.0) == "fd00::7"
    assert names.address("gpu-7", 0.0) == names.address("gpu-7", NAME_KEPT_S - 1) == "10.0.0.5"
    assert names.address("gpu-7", NAME_KEPT_S) == "10.0.0.5"
    assert names.address("gpu-7", NAME_KEPT_S) == "10.0.0.6"
    assert ResolvedNames(LOG, _nobody).address("gpu-7", 0.0) is None


def _nobody(host: str) -> str:
    raise OSError(f"unknown {host}")


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[tuple[Path, dict[str, bytes]]]:
    """A socket that gives canned answers."""
    path, answers = tmp_path / "s", dict[str, bytes]()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(20.0)

        def serve() -> None:
            while True:
                line, _ = listening.accept()
                with line:
                    asked = line.recv(1000).decode().strip()
                    if asked == "stop":
                        return
                    line.sendall(answers.get(asked, b"\n"))

        thread = threading.Thread(target=serve)
        thread.start()
        yield path, answers
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
            last.sendall(b"stop\n")
        thread.join()


def test_the_socket_gives_whole_answers_and_knows_when_it_will_never_do(
    answering: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    path, answers = answering
    runtime = RuntimeSocket(path)
    answers["show"] = b"x" * 200_000 + b"\n\n"
    assert len(runtime.ask("show")) == 200_000
    assert runtime.ask("set") == ""
    for useless, reason in ((b"Permission denied\n", "level admin"), (b"Unknown command: 'set'. Please\n", "older")):
        answers["set"] = useless
        with pytest.raises(SocketError, match=reason):
            runtime.ask("set")
    answers["show servers state"] = b"hello"
    with pytest.raises(SocketError, match="not an answer of HAProxy"):
        HaproxyFollower(runtime, (), LOG).follow({}, 0.0)
    answers[ASKED] = b"hello"
    with pytest.raises(SocketError, match="not an answer of HAProxy"):
        HaproxyFollower(runtime, (), LOG, OfferedLoad(ReportLedger("g", "boot"))).count((), 0.0, 0.0)
    with pytest.raises(SocketError, match=r"nowhere: no such file or directory"):
        RuntimeSocket(tmp_path / "nowhere").ask("show")


def nginx(tmp_path: Path, status: int = 0) -> tuple[NginxFollower, Path, Path]:
    """A follower whose reload command appends a line to a file and has a status."""
    out, reloads = tmp_path / "upstreams.conf", tmp_path / "reloads"
    reloads.touch()
    code = "import sys; open(sys.argv[1], 'a').write('x\\n'); sys.stderr.write('so\\nbad'); sys.exit(int(sys.argv[2]))"
    command = (sys.executable, "-c", code, str(reloads), str(status))
    return NginxFollower(NginxOrder(out=out, reload_command=command), LOG), out, reloads


def test_nginx_reads_every_change_but_not_more_often_than_it_can(tmp_path: Path) -> None:
    follower, out, reloads = nginx(tmp_path)
    told: Mapping[str, ServiceRoutes] = {SERVICE: routes((9001, 100))}
    follower.follow(told, 0.0)
    assert "server 10.0.0.1:9001" in out.read_text()
    follower.follow(told, 10.0)
    assert len(reloads.read_text().split()) == 1
    follower.follow({SERVICE: routes((9002, 100))}, 20.0)
    follower.follow({SERVICE: routes((9003, 100))}, 20.1)
    assert "server 10.0.0.1:9003" in out.read_text()
    assert len(reloads.read_text().split()) == 2
    follower.follow({SERVICE: routes((9003, 100))}, 20.0 + RELOAD_EVERY_S)
    assert len(reloads.read_text().split()) == 3


def test_a_reload_that_fails_is_tried_again(tmp_path: Path, said: list[dict[str, Any]]) -> None:
    follower, _, reloads = nginx(tmp_path, status=3)
    follower.follow({}, 0.0)
    follower.follow({}, 100.0)
    assert len(reloads.read_text().split()) == 2
    failed = [line for line in said if line["event"] == "nginx.not_reloaded"]
    assert [(line["status"], line["reason"]) for line in failed] == [(3, "bad"), (3, "bad")]


def test_a_reload_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    order = NginxOrder(out=tmp_path / "x", reload_command=("/nowhere/nginx",), services=(SERVICE,))
    with pytest.raises(FileNotFoundError):
        NginxFollower(order, LOG).follow({}, 0.0)
    assert "upstream vision.labels" in (tmp_path / "x").read_text()
