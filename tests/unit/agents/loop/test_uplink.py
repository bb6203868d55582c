"""What the uplink makes of answers to reports, from servers of this version, of the one before and of others."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agents.config import NodeFacts
from agents.devices.base import LogRead
from agents.errors import StateFileError
from agents.identity import Identity
from agents.log import Log
from agents.loop import uplink as uplinks
from agents.loop.collect import ReportBuffer
from agents.loop.uplink import LOG_REQUESTS, Mailbox, Tails, Uplink
from agents.servers import Servers, SpreadConnection
from agents.state import TOKEN_FILE, StateDirectory
from agents.transport import HttpAnswer, UnreachableError
from agents.wire import NodeReceipt, Report
from tests.integration.api.world import join_message
from tests.unit.agents.builders import NODE
from tests.unit.agents.loop.test_unsent import report

FACTS = NodeFacts(
    node=NODE, servers=("http://scripted",), join_token="join", rack="rack-1", failure_domain="zone-1",
    region="default", endpoint=None,
)  # fmt: skip
HERE = {"cluster_id": "here", "epoch": 7}
RECEIPT = NodeReceipt(
    node=NODE, boot_id="boot-1", generation=1, plan=None, outcome="applied",
    observed_at_s=5e8, elapsed_ms=1.0, devices=(), replicas=(),
)  # fmt: skip


class Server(SpreadConnection):
    """Lets everybody in and keeps reports; `knows` no histories, or refuses those of another epoch."""

    def __init__(self, *, knows: bool = True) -> None:
        super().__init__(Servers(FACTS.servers, NODE))
        self.knows, self.history = knows, dict(HERE)
        self.is_behind = False
        """Its clock, as far as reports tell."""
        self.calls: list[str] = []
        self.stored: list[dict[str, Any]] = []

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> HttpAnswer:
        self.calls.append(path.rpartition("/")[2])
        if path.endswith("/join"):
            return _answer(200, {"token": "own", "report_interval_s": 5.0, **self.history})
        if path.endswith("/target"):
            return _answer(404, {})
        if self.is_behind:
            return _answer(422, {"errors": [{"pointer": "/0/observed_at_s", "code": "time-in-future"}]})
        assert isinstance(body, bytes)
        sent = json.loads(body)
        if not self.knows and any("epoch" in each for each in sent):
            return _answer(422, {"errors": [{"pointer": "/0/epoch", "code": "unknown-field"}]})
        if any(each.get("epoch", self.history["epoch"]) > self.history["epoch"] for each in sent):
            return _answer(422, {"errors": [{"pointer": "/0/epoch", "code": "history-foreign"}]})
        self.stored += sent
        return _answer(200, {"accepted": len(sent), "duplicates": 0})


def _answer(status: int, plain: object) -> HttpAnswer:
    return HttpAnswer(status, {}, json.dumps(plain).encode())


class Node:
    """An uplink to such a server, which goes round when told."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.said = io.StringIO()
        self.mailbox, state, log = Mailbox(ReportBuffer("boot-1")), StateDirectory(folder), Log(NODE, self.said)
        identity = Identity(FACTS.trust, state)
        self.uplink = Uplink(join_message(NODE, "boot-1"), FACTS, identity, state, self.mailbox, log)
        self.uplink._connection = server
        self.pauses: list[float] = []

    def go_round(self) -> None:
        node = self

        class Once(threading.Event):
            rounds = 0

            def is_set(self) -> bool:
                self.rounds += 1
                return self.rounds > 1

            def wait(self, timeout: float | None = None) -> bool:
                node.pauses.append(timeout or 0.0)
                return True

        self.mailbox.has_work = Once()
        self.uplink.run(Once(), lambda: 0.0)

    def post(self, *sequences: int, **history: Any) -> list[Report]:
        made = [replace(report(sequence), **(history or HERE)) for sequence in sequences]
        for each in made:
            self.mailbox.post_report(each)
        return made


def test_reports_tell_their_history(tmp_path: Path) -> None:
    server = Server()
    node = Node(tmp_path, server)
    node.post(1, 2)
    node.go_round()
    assert [(each["cluster_id"], each["epoch"]) for each in server.stored] == [("here", 7)] * 2
    assert server.calls == ["join", "target", "reports"]


def test_a_server_of_before_gets_reports_as_it_knows_them(tmp_path: Path) -> None:
    server = Server(knows=False)
    node = Node(tmp_path, server)
    node.post(1, 2)
    node.go_round()
    node.post(3)
    node.go_round()
    assert [each["sequence"] for each in server.stored] == [1, 2, 3]
    assert all("epoch" not in each and "cluster_id" not in each for each in server.stored)
    # It is asked once for each joining, not once for each report.
    assert server.calls.count("reports") == 3
    assert node.mailbox.reports.refused == 0


@pytest.mark.parametrize("begins", [True, False])
def test_what_another_history_refuses_waits_until_that_is_cleared_up(tmp_path: Path, begins: bool) -> None:
    """As where a backup stands and nobody has begun an epoch yet: nothing is given up, and nobody is pressed."""
    server = Server()
    node = Node(tmp_path, server)
    node.post(1, 2, cluster_id="here", epoch=9)
    node.go_round()
    assert (len(node.mailbox.reports), node.mailbox.reports.refused, server.stored) == (2, 0, [])
    assert 15.0 <= node.pauses[-1] <= 45.0
    assert not node.uplink.joined.is_set()
    if begins:
        server.history["epoch"] = 10
        node.go_round()
        assert [each["sequence"] for each in server.stored] == [1, 2]
        assert server.calls.count("join") == 2


def test_reports_are_sent_though_the_disk_is_too_full_for_another_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    StateDirectory(tmp_path).write_text(TOKEN_FILE, "own")
    node = Node(tmp_path, server)

    def full(*_: object) -> None:
        raise StateFileError("no space left")

    monkeypatch.setattr(Identity, "is_due", lambda _: True)
    monkeypatch.setattr(Identity, "request", full)
    node.post(1)
    node.go_round()
    assert [each["sequence"] for each in server.stored] == [1]


def test_a_token_that_the_disk_did_not_take_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join token lets in once: without its own the node would stay out after its next start."""
    node = Node(tmp_path, Server())
    with monkeypatch.context() as full:
        full.setattr(StateDirectory, "write_text", mock.Mock(side_effect=StateFileError("no space left")))
        for _ in range(3):
            node.go_round()
    node.go_round()
    assert (tmp_path / TOKEN_FILE).read_text() == "own\n"
    said = [json.loads(line)["event"] for line in node.said.getvalue().splitlines()]
    assert [name for name in said if name.startswith("token.")] == ["token.not_kept", "token.kept"]


def test_who_is_refused_after_an_outage_says_so_and_what_lets_it_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    node = Node(tmp_path, server)
    monkeypatch.setattr(server, "call", mock.Mock(side_effect=UnreachableError("nobody is there")))
    node.go_round()
    monkeypatch.setattr(server, "call", lambda *_: _answer(401, {"detail": "shows no certificate"}))
    monkeypatch.setattr(Identity, "has_ended", lambda _: True)
    node.go_round()
    node.go_round()
    said = [json.loads(line) for line in node.said.getvalue().splitlines()]
    assert [line["event"] for line in said] == ["control-plane.away", "control-plane.refuses"]
    assert "shows no certificate" in said[1]["reason"]
    assert said[1]["reason"].endswith("certificate has ended: a join token lets it in again")


def test_what_is_refused_as_of_the_future_is_told_to_who_keeps_the_time(tmp_path: Path) -> None:
    server = Server()
    node = Node(tmp_path, server)
    node.post(1)
    node.go_round()
    assert not node.mailbox.from_future.is_set()
    server.is_behind = True
    node.post(2)
    node.go_round()
    assert (node.mailbox.from_future.is_set(), node.mailbox.reports.refused) == (True, 1)
    node.mailbox.from_future.clear()
    node.mailbox.post_receipt(RECEIPT)
    node.go_round()
    assert node.mailbox.from_future.is_set()


@pytest.mark.parametrize(("error", "asked"), [(TimeoutError(), False), (ConnectionResetError(), True)])
def test_only_of_who_hung_up_it_is_asked_whether_the_certificate_was_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, asked: bool
) -> None:
    """To ask takes two connections, for which a silent server would be waited as long again, each."""
    server, urls = Server(), list[str]()
    node = Node(tmp_path, server)

    def lost(*_: object) -> HttpAnswer:
        raise UnreachableError.of(error)

    monkeypatch.setattr(server, "call", lost)
    monkeypatch.setattr(Identity, "is_refused", lambda _, url: bool(urls.append(url)))
    node.go_round()
    assert urls == (["http://scripted"] if asked else [])
    assert node.pauses[-1] <= 0.5


class Reader(SpreadConnection):
    """Reads one replica behind a server that is away at first, sheds the next look and the first piece."""

    def __init__(self) -> None:
        super().__init__(Servers(FACTS.servers, NODE))
        self.answers = iter([None, 503, 200, 429, 200, 204])
        self.read = threading.Event()

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> HttpAnswer:
        status = next(self.answers, 200)
        if status is None:
            raise UnreachableError("away")
        if status == 204:
            self.read.set()
        asked = [] if self.read.is_set() else [{"request": 1, "replica": "vision#0", "lines": 1}]
        return _answer(status, {"items": asked} if path == LOG_REQUESTS else {})


def test_who_reads_is_told_though_the_bell_rang_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplinks, "LOOK_S", 0.01)
    reader, devices, stop, wanted = Reader(), mock.Mock(), threading.Event(), threading.Event()
    devices.read_log.return_value = LogRead(lines=("one",), places={})
    tails = Tails(devices, reader, lambda: "own", Log(NODE, io.StringIO()))
    thread = threading.Thread(target=tails.run, args=(stop, wanted), daemon=True)
    thread.start()
    wanted.set()
    assert reader.read.wait(30.0)
    stop.set()
    wanted.set()
    thread.join(30.0)
    assert not thread.is_alive()
