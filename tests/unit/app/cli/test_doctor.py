"""`headroom doctor`: what is asked of a machine, and of facts that no test can bring about for real."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from agents import doctor as agents_doctor
from agents.state import StateDirectory
from app.authority import Authority
from app.cli.doctor import database, deployment
from app.cli.doctor.checks import Check, Grade, Symptom, told_skew, well
from app.demo.home import Home, SupervisedProcess, SupervisorState
from app.settings import Settings
from headroom_client import Client
from solvers.engines import compiled
from tests.unit.app.cli.conftest import Api, Headroom, page

Lines = dict[str, dict[str, str]]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in [name for name in os.environ if name.startswith("HEADROOM_")]:
        monkeypatch.delenv(name)
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("HEADROOM_HOME", str(made))
    return made


def told(headroom: Headroom, *options: str) -> Lines:
    return {line["check"]: line for line in headroom("doctor", "--json", *options).json}


def test_a_bare_machine_is_well_and_says_what_was_not_looked_at(headroom: Headroom, home: Path) -> None:
    said = headroom("doctor", "--limit-s", "100", "-o", "json")
    lines = {line["check"]: line["state"] for line in said.json}
    assert said.status == 0
    assert lines["solvers"] == lines["python"] == lines["home"] == "well"
    assert (lines["database"], lines["api"]) == ("unseen", "unseen")
    assert list(home.iterdir()) == []
    assert "what to do" in headroom("doctor").out


def test_a_home_that_is_a_file(headroom: Headroom, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "notes"
    file.touch()
    monkeypatch.setenv("HEADROOM_HOME", str(file))
    line = told(headroom)["home"]
    assert (line["state"], line["found"]) == ("wrong", f"{file} is not a folder")


def test_rights_that_let_others_in(headroom: Headroom, home: Path) -> None:
    for secret in (home / "admin.token", home / "authority.pem"):
        secret.write_text("hush")
        secret.chmod(0o640)
        line = told(headroom)["home"]
        assert (line["state"], line["todo"]) == ("wrong", f"chmod go-rw {secret}")
        secret.chmod(0o600)
    home.chmod(0o711)
    assert told(headroom)["home"]["state"] == "well"
    home.chmod(0o755)
    assert headroom("doctor").status == 1
    assert stat.S_IMODE(home.stat().st_mode) == 0o755


def test_a_home_that_this_user_may_not_write_to(
    headroom: Headroom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever runs this may be root, who may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _: path != home)
    line = told(headroom)["home"]
    assert (line["state"], line["found"]) == ("wrong", f"{home} cannot be written to by this user")


@pytest.mark.parametrize(("free_gib", "state"), [(0.5, "wrong"), (5, "odd"), (50, "well")])
def test_a_full_disk(
    headroom: Headroom, home: Path, monkeypatch: pytest.MonkeyPatch, free_gib: float, state: str
) -> None:
    usage = SimpleNamespace(free=free_gib * 2**30, total=100 * 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert told(headroom)["disk"]["state"] == state


def test_a_port_that_somebody_else_has(headroom: Headroom, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("HEADROOM_PORT", str(other.getsockname()[1]))
        line = told(headroom)["port"]
    assert (line["state"], "end what listens" in line["todo"]) == ("wrong", True)


@contextmanager
def an_api(tls: bool, folder: Path, misheard: list[int] | None = None) -> Iterator[int]:
    """The port of what answers as an API does, with a certificate that nobody here believes, or without any; `misheard`
    is told of what it did not understand.
    """

    class Answers(BaseHTTPRequestHandler):
        def send_error(self, code: int, *_: Any) -> None:
            if misheard is not None:
                misheard.append(code)

        def do_GET(self) -> None:
            body = b'{"status": "ok"}'
            self.send_response_only(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Not to standard error."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    server.timeout = 5.0
    if tls:
        authority = Authority(folder / "authority.pem")
        authority.create()
        pair = folder / "pair.pem"
        pair.write_text(authority.server_pair(("localhost",))[0])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("speaks_tls", "wants_tls", "said"),
    [
        (False, "0", "well: the API has 127.0.0.1:{}"),
        (True, "1", "well: the API has 127.0.0.1:{}, over TLS"),
        (
            True,
            "0",
            "well: the API has 127.0.0.1:{}, over TLS",
        ),  # as `headroom serve --tls` is told by its option alone
        (False, "1", "wrong: the API has 127.0.0.1:{}, without TLS, though HEADROOM_TLS is set here"),
    ],
)
def test_a_port_that_the_api_has_with_and_without_tls(
    headroom: Headroom, home: Path, monkeypatch: pytest.MonkeyPatch, speaks_tls: bool, wants_tls: str, said: str
) -> None:
    misheard: list[int] = []
    with an_api(speaks_tls, home.parent, misheard) as port:
        monkeypatch.setenv("HEADROOM_PORT", str(port))
        monkeypatch.setenv("HEADROOM_TLS", wants_tls)
        line = told(headroom)["port"]
    assert f"{line['state']}: {line['found']}" == said.format(port)
    # A handshake that it does not expect stands in its log as a fault.
    assert bool(misheard) == (wants_tls == "1" and not speaks_tls)


def test_the_port_of_a_headroom_up_that_was_told_another(
    headroom: Headroom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Often because somebody else has the usual one."""
    with an_api(False, home.parent) as port, socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("HEADROOM_PORT", str(other.getsockname()[1]))
        supervisor, address = SupervisedProcess(name="supervisor", pid=1, started_ticks=1), f"http://127.0.0.1:{port}"
        Home(home).write_state(
            SupervisorState(supervisor=supervisor, address=address, ready=True, owns_database=True, processes=())
        )
        line = told(headroom)["port"]
    assert f"{line['state']}: {line['found']}" == f"well: the API has 127.0.0.1:{port}"


def test_an_api_whose_certificate_is_not_believed(
    headroom: Headroom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with an_api(True, home.parent) as port:
        monkeypatch.setenv("HEADROOM_SERVER", f"https://localhost:{port}")
        monkeypatch.setenv("HEADROOM_TOKEN", "secret")
        line = told(headroom)["api"]
        assert (line["state"], "SSL_CERT_FILE" in line["todo"]) == ("wrong", True), line
        monkeypatch.setenv("SSL_CERT_FILE", str(home.parent / "authority.pem"))
        # The client's own way is that of every command; what it makes of this stand-in is not the matter here.
        assert "SSL_CERT_FILE" not in told(headroom)["api"]["todo"]


def test_too_few_open_files_an_old_python_and_missing_libraries(
    headroom: Headroom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    monkeypatch.setattr(compiled, "place", lambda source: source.with_suffix(".gone"))
    lines = told(headroom)
    assert (lines["open files"]["state"], lines["open files"]["found"][:8]) == ("odd", "1024 may")
    assert lines["python"]["todo"] == "install Python 3.11 or newer"
    assert lines["solvers"]["found"] == "not compiled: anneal.c, contents.c, exchange.c"


def test_a_look_that_hangs_or_fails_is_told() -> None:
    never = threading.Event()

    def hang() -> Symptom:
        never.wait()
        return well("")

    def fail() -> Symptom:
        raise RuntimeError("of\nno use")

    assert Check("x", hang, "do this").symptom(0.05) == Symptom(Grade.WRONG, "no answer within 0.05 s", "do this")
    assert Check("x", fail, "do that").symptom(5.0) == Symptom(Grade.WRONG, "RuntimeError: of no use", "do that")
    never.set()


def facts(**changed: Any) -> Any:
    values = {"connections_max": 197, "connections": 20, "bytes": 2**30, "raw_days": 2, "fsync": "on",
              "synchronous_commit": "on", "full_page_writes": "on", **changed}  # fmt: skip
    return SimpleNamespace(**values, read=lambda _: None)


def test_facts_of_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    monkeypatch.setattr(database, "_facts", lambda told: told)
    assert database._connections(facts(), settings).state is Grade.WELL
    assert database._connections(facts(connections=190), settings).state is Grade.WRONG
    assert database._kept(facts(), settings).state is Grade.WELL
    assert database._kept(facts(raw_days=10), settings).state is Grade.WRONG
    assert database._kept(facts(raw_days=None), settings).state is Grade.WELL
    told = [database._kept(facts(raw_days=days), settings).found for days in (None, 0, 2)]
    assert [text.partition("telemetry of ")[2] for text in told] == ["less than a day", "less than a day", "2 days"]
    assert "fsync, full_page_writes off" in database._durability(facts(fsync="off", full_page_writes="off")).found


@pytest.mark.parametrize(
    ("ahead_s", "grade"), [(1, Grade.WELL), (-20, Grade.ODD), (60, Grade.WRONG), (-61, Grade.WRONG)]
)
def test_clocks(ahead_s: float, grade: Grade) -> None:
    assert told_skew(ahead_s, "the database's", Settings()).state is grade


def fleet(**changed: Any) -> dict[str, Any]:
    planning = {"at": "2020-01-01T00:00:00+00:00", "answered": "joint", "stood_in": False}
    return {"generation": 3, "nodes": [], "planning": planning, "beliefs": None, **changed}


@pytest.fixture
def answering(api: Api, home: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    """An API that is ready and takes the token; what of its fleet is for the test to say."""
    monkeypatch.setenv("HEADROOM_SERVER", "http://control.test")
    monkeypatch.setenv("HEADROOM_TOKEN", "secret")
    monkeypatch.setattr(deployment, "_clock", lambda *_: well(""))
    api.answers |= {
        "GET /v1/version": {"cluster": "default", "version": "9"},
        "GET /v1/ready": {"status": "ok"},
        "GET /v1/tokens": page(),
    }
    return api


def test_what_the_api_tells_is_judged(headroom: Headroom, answering: Api) -> None:
    answering.answers["GET /v1/fleet"] = fleet(
        beliefs="beliefs are of then; newer measurements, which cannot be learned: 9"
    )
    lines = told(headroom)
    assert {name: lines[name]["state"] for name in ("api", "tokens", "nodes", "plans", "beliefs")} == {
        "api": "well", "tokens": "well", "nodes": "odd", "plans": "wrong", "beliefs": "wrong",
    }  # fmt: skip
    answering.answers["GET /v1/fleet"] = fleet(
        nodes=[{"id": "a", "up": True, "generation_applied": 2}],
        planning={"at": "2999-01-01T00:00:00+00:00", "answered": "greedy", "stood_in": True},
        beliefs="beliefs are of then; newer measurements, being learned: 9",
    )
    lines = told(headroom)
    assert {lines[name]["state"] for name in ("nodes", "plans", "beliefs")} == {"odd"}
    assert (lines["nodes"]["found"], lines["nodes"]["todo"]) == ("not yet at generation 3: a", "look again soon")
    answering.answers["GET /v1/fleet"] |= {"problems": ["node b: no", "node a: GPU-0 p/x#0: 9 workers failed"]}
    assert told(headroom)["nodes"]["todo"] == "see headroom status: node a: GPU-0 p/x#0: 9 workers failed"
    ahead = "node b: its clock is 95 s ahead of the server's, so its reports are refused"
    nodes = [{"id": name, "up": name == "a", "generation_applied": 3} for name in "abc"]
    answering.answers["GET /v1/fleet"] = fleet(nodes=nodes, problems=["node a: no", ahead])
    line = told(headroom)["nodes"]
    assert (line["found"], line["todo"]) == ("2 of 3 are silent: b, c", f"see headroom status: {ahead}")
    answering.answers["GET /v1/fleet"] |= {"problems": []}
    assert told(headroom)["nodes"]["todo"] == "there: systemctl status headroom-agent, headroom doctor --node"
    node = {"id": "a", "up": True, "generation_applied": 3}
    gpus = [{"id": f"GPU-{at}", "node": "a", "up": at != 1, "healthy": at != 2 and None} for at in range(3)]
    answering.answers["GET /v1/fleet"] = fleet(nodes=[node], devices=gpus)
    line = told(headroom)["nodes"]
    assert (line["state"], line["found"]) == (
        "odd",
        "not reported, or called ill, by their nodes: GPU-1 on a, GPU-2 on a",
    )
    problems = ["node a: GPU-0: clock 900 MHz was asked for, it is at 1200", "node a: no", "GPU-0 on a: slow"]
    answering.answers["GET /v1/fleet"] = fleet(nodes=[node], devices=[], problems=problems)
    line = told(headroom)["nodes"]
    assert (line["state"], line["found"]) == ("odd", f"1 report, all at generation 3, with 2 problems: {problems[0]}")
    assert line["todo"] == "see headroom status"
    nodes = [node | {"id": name, "agent_version": version} for name, version in (("a", "9"), ("b", "8"), ("c", None))]
    answering.answers["GET /v1/fleet"] = fleet(nodes=nodes, devices=[])
    line = told(headroom)["nodes"]
    assert (line["state"], line["found"]) == (
        "well",
        "3 report, all at generation 3; 1 with an agent of another version than the API: b (8)",
    )


@pytest.mark.parametrize(
    ("status", "todo"),
    [
        (401, "name a good token with --token, or headroom login"),
        (403, "ask with a token of the whole cluster, at least a viewer's"),
        (404, f"start `headroom up`, or {deployment.ANOTHER}"),
        (500, "see the API's log"),
    ],
)
def test_an_api_that_answers_with_a_problem_is_there(
    headroom: Headroom, answering: Api, status: int, todo: str
) -> None:
    answering.answers["GET /v1/fleet"] = httpx.Response(status, json={"status": status, "code": "no", "detail": "no"})
    assert [told(headroom)[name]["todo"] for name in ("nodes", "plans", "beliefs")] == [todo] * 3


def test_whoever_has_a_database_of_the_home_is_told_to_start_it_as_they_did(
    headroom: Headroom, home: Path, answering: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering.answers["GET /v1/fleet"] = httpx.Response(404, json={"status": 404, "code": "no", "detail": "no"})
    (home / "pgdata").mkdir()
    lines = told(headroom)
    assert (lines["database"]["state"], lines["database"]["todo"]) == ("wrong", database.START_EMBEDDED)
    assert lines["nodes"]["todo"].startswith("start `headroom up`")
    monkeypatch.setenv("HEADROOM_DATABASE_URL", "postgresql://headroom@127.0.0.1:9/headroom")
    lines = told(headroom)
    assert "correct HEADROOM_DATABASE_URL" in lines["database"]["todo"]
    assert lines["nodes"]["todo"].startswith("start `headroom serve`")


@pytest.mark.parametrize(
    ("terms", "state"),
    [
        ({"purpose": None, "created_by": "token"}, "odd"),
        ({"purpose": "node", "created_by": "token"}, "odd"),
        ({"purpose": "join", "created_by": "token"}, "well"),
        ({"purpose": None, "created_by": "oidc:ada"}, "well"),
    ],
)
def test_tokens_that_are_made_to_end_are_no_matter(
    headroom: Headroom, api: Api, home: Path, monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any], state: str
) -> None:
    monkeypatch.setenv("HEADROOM_SERVER", "http://control.test")
    monkeypatch.setenv("HEADROOM_TOKEN", "secret")
    monkeypatch.setattr(deployment, "_clock", lambda *_: well(""))
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    api.answers |= {
        "GET /v1/version": {"cluster": "default", "version": "9"},
        "GET /v1/ready": {"status": "ok"},
        "GET /v1/tokens": page({"name": "it", "revoked_at": None, "expires_at": ends, **terms}),
        "GET /v1/fleet": fleet(),
    }
    assert told(headroom)["tokens"]["state"] == state


Served = Callable[[float], str]


@pytest.fixture
def served() -> Iterator[Served]:
    """A server whose clock is so far ahead; its address."""
    ahead_s = [0.0]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(401 if self.headers.get("Authorization") == "Bearer over" else 200)
            self.send_header("Date", formatdate(time.time() + ahead_s[0], usegmt=True))
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            """Not to standard error."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def address(seconds: float) -> str:
        ahead_s[0] = seconds
        return f"http://127.0.0.1:{server.server_port}"

    yield address
    server.shutdown()
    thread.join()
    server.server_close()


def agent_told(*arguments: str) -> Lines:
    return {line["check"]: line for line in agents_doctor.looked_at(arguments)}


@pytest.mark.parametrize(("ahead_s", "state"), [(0, "well"), (-30, "odd"), (3600, "wrong")])
def test_a_skewed_clock(served: Served, tmp_path: Path, ahead_s: float, state: str) -> None:
    own = ("--server", served(ahead_s), "--devices", "fake:t4", "--state-dir", str(tmp_path / "none"))
    lines = agent_told(*own)
    assert (lines["clock"]["state"], lines["gpus"]["state"]) == (state, "well")
    assert lines["state"]["state"] == "unseen"
    with Client(served(ahead_s), "") as client:
        assert deployment._clock(client, Settings()).state.value == state


def test_a_host_without_gpus_says_so(headroom: Headroom, home: Path, served: Served, tmp_path: Path) -> None:
    state = tmp_path / "state"
    socket_path = tmp_path / "helper.sock"
    said = headroom(
        "doctor", "--json", "--node", "--", "--server", served(0), "--devices", "nvml:all", "--state-dir", str(state),
        "--helper", str(socket_path), "--mps-control", "no-such-program",
    )  # fmt: skip
    lines = {line["check"]: line for line in said.json}
    assert said.status == 1
    assert "no GPU to work with here" in lines["driver"]["found"]
    assert (lines["mps"]["state"], lines["helper"]["state"]) == ("odd", "wrong")
    assert "no helper answers" in lines["helper"]["found"]
    assert not state.exists()
    assert "database" not in lines


def test_gpus_that_are_not_used_are_odd(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boards = SimpleNamespace(inventory=tuple, left_out=("GPU 1 is left out: lost",))
    monkeypatch.setattr("agents.devices.nvml.open_boards", lambda *_, **__: boards)
    said = agent_told("--server", served(0), "--devices", "nvml:all", "--state-dir", str(tmp_path / "none"))
    assert (said["driver"]["state"], "GPU 1 is left out" in said["driver"]["found"]) == ("odd", True)


def test_a_node_by_its_state(served: Served, tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    own = ("--server", served(0), "--devices", "fake:t4", "--state-dir", str(state.path), "--node", "n")
    lines = agent_told(*own)
    assert (lines["agent"]["state"], lines["agent"]["todo"]) == ("odd", "start it")
    assert lines["rehearsal"]["found"] == "no target: this node has not joined yet"
    with state.lock():
        assert "an agent lives" in agent_told(*own)["agent"]["found"]
    state.write_text("token", "over")
    refused = agent_told(*own)["rehearsal"]
    assert (refused["state"], "join token" in refused["todo"]) == ("wrong", True)
    state.write_text("target.json", "{")
    assert "cannot be read" in agent_told(*own)["rehearsal"]["found"]
    state.path.chmod(0o755)
    assert agent_told(*own)["state"]["todo"].startswith("chown")
    assert stat.S_IMODE(state.path.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("server", "more", "state"),
    [
        ("http://127.0.0.1:9", (), None),
        ("http://localhost:9", (), None),
        ("http://192.0.2.1:9", (), "odd"),
        ("http://192.0.2.1:9", ("--listen", "192.0.2.7:0"), "well"),
        ("http://192.0.2.1:9", ("--advertise", "http://gpu-7:8000"), "well"),
    ],
)
def test_a_node_that_nobody_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, more: tuple[str, ...], state: str | None
) -> None:
    monkeypatch.setattr(agents_doctor, "_server", lambda *_: iter(()))
    lines = agent_told("--server", server, "--devices", "fake:t4", "--state-dir", str(tmp_path / "none"), *more)
    assert lines.get("address", {}).get("state") == state


def test_options_and_servers_that_are_none(headroom: Headroom, home: Path) -> None:
    assert "expected" in agent_told("--server", "http://x", "--devices", "toy:1")["options"]["found"]
    said = headroom("doctor", "--json", "--node", "--", "--devices")
    assert [line["check"] for line in said.json if line["state"] == "unseen"] == ["gpu side"]
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        lines = agent_told("--server", f"http://127.0.0.1:{nobody.getsockname()[1]}", "--devices", "fake:t4")
    assert lines["server"]["state"] == "wrong"
