"""Webhooks before receivers that take, refuse, hang and trickle: told once, in order, signed, by one process."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app import kinds
from app.authority import Authority
from app.clock import SystemClock
from app.services.planning.planning import Leader
from app.store import events, webhooks
from app.store.engine import Database
from app.store.events import Event
from app.workers import webhooks as workers
from app.workers.solve_pool import SolvePool
from app.workers.webhooks import SigningSecrets, UntoldError, WebhookNetworks, WebhookSender, post
from solvers.cycle.ports import Clock, Runner
from solvers.domain.webhook import Webhook
from solvers.domain.workload import ServiceMode
from solvers.errors import EngineError, InputError, TransientError
from solvers.planners.base import PlanRequest, Thought
from tests.builders import webhook
from tests.integration.planner.test_leadership import HeldClock
from tests.integration.planner.test_planning import lead
from tests.integration.planner.world import World, replica_report
from tests.unit.app.services.whatif.small_fleet import service
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
SECRET = "0123456789abcdef-secret"
LEADER = Leader(holder="test", fencing=1)
LOCAL = WebhookNetworks("127.0.0.0/8")
TOLD = ("told.*",)
AWAY = "UPDATE node_states SET last_report_at = now() - make_interval(mins => 5) WHERE node_id = 'a'"


@dataclass
class Receiver:
    """A real server. `answers` are statuses for the next requests; 0: it never answers; then 204."""

    answers: list[int] = field(default_factory=list)
    heard: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    port: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?from=test"

    def numbers(self) -> list[int]:
        return [each["facts"]["number"] for each in self.heard]


@contextmanager
def receiving(*answers: int) -> Iterator[Receiver]:
    receiver = Receiver(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.answers.pop(0) if receiver.answers else 204
            if status == 0:
                receiver.released.wait(60.0)
                return
            receiver.bodies.append(body)
            receiver.headers.append(dict(self.headers))
            receiver.heard.append(json.loads(body) | {"status": status})
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.send_header("Location", "http://169.254.169.254/latest/meta-data")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield receiver
    receiver.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PAUSE_S_MIN", 0.01)


def sender_of(database: Database, clock: Clock | None = None) -> WebhookSender:
    secrets = SigningSecrets("", {"HEADROOM_WEBHOOK_SECRET_TEST": SECRET})
    return WebhookSender(database, clock or SystemClock(), LOCAL, secrets)


@pytest.fixture
def sender(world: World) -> Iterator[WebhookSender]:
    """It has led for long."""
    clock = HeldClock()
    made = sender_of(world.database, clock)
    made.look(LEADER)
    clock.pushed_ms = 60_000.0
    yield made
    made.close()


def tell(world: World, number: int, name: str = "told.once", project: str | None = None) -> None:
    with world.database.transaction() as session:
        events.append(session, Event(name=name, actor="test", subject="x", project=project, facts={"number": number}))


def states(world: World, name: str) -> list[tuple[str, int]]:
    with world.database.reading() as session:
        rows = session.execute(
            text("SELECT state, attempts FROM webhook_deliveries WHERE webhook = :name ORDER BY id"), {"name": name}
        )
        return [(row.state, row.attempts) for row in rows]


def looked(sender: WebhookSender, holds: Callable[[], object]) -> None:
    """Wake the loop until it holds."""

    def look() -> object:
        sender.look(LEADER)
        return holds()

    wait_until(look, "the webhooks", poll_s=0.05)


def test_what_happened_is_told_once_in_order_and_signed(world: World, sender: WebhookSender) -> None:
    with receiving(500, 503, 302) as receiver:
        tell(world, 0)
        world.declare(webhook("pager", receiver.url, TOLD))
        for number in (1, 2, 3):
            tell(world, number)
        tell(world, 4, "other.kind")
        looked(sender, lambda: len(receiver.heard) == 6)
        looked(sender, lambda: states(world, "pager") == [("delivered", 4), ("delivered", 1), ("delivered", 1)])
        assert receiver.numbers() == [1, 1, 1, 1, 2, 3], "what was refused comes again before all else; nothing twice"
        at, _, given = receiver.headers[-1]["Headroom-Signature"].removeprefix("t=").partition(",v1=")
        assert given == hmac.new(SECRET.encode(), f"{at}.".encode() + receiver.bodies[-1], hashlib.sha256).hexdigest()
        assert len({each["Headroom-Delivery"] for each in receiver.headers}) == 3
        told = receiver.heard[-1]
        assert (told["event"], told["actor"], told["subject"]) == ("told.once", "test", "x")


def test_who_never_answers_holds_nobody_up(
    world: World, sender: WebhookSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ANSWER_S", 600.0)
    names = [f"silent-{number}" for number in range(9)]
    with receiving(*[0] * 50) as silent, receiving() as well:
        world.declare(*(webhook(name, silent.url, TOLD) for name in names))
        tell(world, 0)
        looked(sender, lambda: all(states(world, name) == [("waiting", 1)] for name in names))
        world.declare(webhook("well", well.url, TOLD))
        for number in range(1, 21):
            tell(world, number)
        looked(sender, lambda: len(well.heard) == 20)
        assert well.numbers() == list(range(1, 21))
        assert [states(world, name) for name in names] == [[("waiting", 1)] + [("waiting", 0)] * 20] * 9


def test_whoever_answered_last_goes_before_those_that_never_did(world: World) -> None:
    with world.database.transaction() as session:
        world.declare(*(webhook(name, "http://127.0.0.1:1/", TOLD) for name in ("a", "b")))
        tell(world, 0)
        webhooks.enqueue(session)
        claimed = webhooks.claim(session, "a", 0.0)
        assert claimed is not None
        assert webhooks.due(session) == ("b", "a")


class Trickle(StrEnum):
    PLAIN = "plain"
    OVER_TLS = "over-tls"
    IN_HANDSHAKE = "in-handshake"


@pytest.mark.parametrize("where", Trickle)
def test_a_trickle_has_an_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: Trickle) -> None:
    """Also within TLS, where each byte is an answer on its own to whoever waits for the next."""
    authority = Authority(tmp_path / "authority.pem")
    authority.create()
    trusted, pair = tmp_path / "trusted.pem", tmp_path / "pair.pem"
    trusted.write_text(authority.bundle)
    pair.write_text(authority.server_pair(["127.0.0.1"])[0])
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    monkeypatch.setattr(workers, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def trickle() -> None:
            client, _ = server.accept()
            with context.wrap_socket(client, server_side=True) if where is Trickle.OVER_TLS else client as told:
                # Of a record that is long enough, or a first line.
                letters = b"\x16\x03\x03\x3f\xff" if where is Trickle.IN_HANDSHAKE else b""
                while not ended.wait(0.05):
                    try:
                        told.sendall(letters[:1] or b"H")
                    except OSError:
                        return
                    letters = letters[1:]

        thread = threading.Thread(target=trickle, daemon=True)
        # What is not bounded hangs: the test's own end ends it, and fails.
        release = threading.Timer(5.0, ended.set)
        release.start()
        thread.start()
        scheme = "http" if where is Trickle.PLAIN else "https"
        with pytest.raises(workers.UntoldError, match=r"^no answer within 0\.5 s$"):
            post(f"{scheme}://127.0.0.1:{server.getsockname()[1]}/", b"{}", {}, LOCAL)
        assert not ended.is_set()
        release.cancel()
        ended.set()
        thread.join()


def test_a_slow_lookup_leaves_no_more_time_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(workers, "ANSWER_S", 0.0)
        with pytest.raises(workers.UntoldError, match=r"^no answer within 0 s$"):
            post(f"http://127.0.0.1:{server.getsockname()[1]}/", b"{}", {}, LOCAL)


def test_a_lookup_that_never_ends_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(workers.socket, "getaddrinfo", lambda *_, **__: over.wait(5.0) and [])
    monkeypatch.setattr(workers, "ANSWER_S", 0.2)
    begun_s = time.monotonic()
    with pytest.raises(workers.UntoldError, match=r"no answer within 0.2 s"):
        workers.post("http://silent.example/", b"{}", {}, WebhookNetworks("public"))
    assert time.monotonic() - begun_s < 2.0
    over.set()


def test_what_was_not_settled_comes_again_after_a_restart(world: World, sender: WebhookSender) -> None:
    with receiving() as receiver:
        world.declare(webhook("pager", receiver.url, TOLD))
        tell(world, 1)
        with world.database.transaction() as session:
            webhooks.enqueue(session)
            claimed = webhooks.claim(session, "pager", 3600.0)
        assert claimed is not None, "a process took it and died"
        with world.database.transaction() as session:
            assert webhooks.claim(session, "pager", 3600.0) is None, "nobody else takes it meanwhile"
        sender.look(LEADER)
        assert receiver.heard == []
        with world.database.transaction() as session:
            session.execute(text("UPDATE webhook_deliveries SET next_at = now()"))
        looked(sender, lambda: states(world, "pager") == [("delivered", 2)])
        with world.database.transaction() as session:
            webhooks.settle(session, claimed, webhooks.DeliveryOutcome(state=webhooks.DeliveryState.GIVEN_UP))
        assert states(world, "pager") == [("delivered", 2)], "the dead one's word comes too late"


def test_two_processes_tell_each_thing_once(world: World, sender: WebhookSender) -> None:
    other = sender_of(world.database)
    with receiving() as receiver:
        world.declare(webhook("pager", receiver.url, TOLD))
        for number in range(30):
            tell(world, number)
        wait_until(lambda: (sender.look(LEADER), other.look(LEADER), len(receiver.heard) >= 30)[-1])
        looked(sender, lambda: set(states(world, "pager")) == {("delivered", 1)})
        assert sorted(receiver.numbers()) == list(range(30))
    other.close()


def test_a_refusal_is_given_up_and_the_next_one_told(world: World, sender: WebhookSender) -> None:
    with receiving(400, 400, 400) as receiver:
        world.declare(webhook("pager", receiver.url, TOLD))
        tell(world, 1)
        tell(world, 2)
        looked(sender, lambda: states(world, "pager") == [("given_up", 3), ("delivered", 1)])
        assert receiver.numbers() == [1, 1, 1, 2]


def test_the_line_is_bounded_and_projects_are_apart(
    world: World, sender: WebhookSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "WAITING_MAX", 3)
    nowhere = "http://127.0.0.1:1/"
    mine = Webhook(
        name="mine", url=nowhere, events=TOLD, project="demo", secret_environment="HEADROOM_WEBHOOK_SECRET_X"
    )
    world.build()
    world.declare(webhook("all", nowhere, TOLD), mine)
    for number in range(5):
        tell(world, number, project="demo" if number == 0 else None)
    with world.database.transaction() as session:
        webhooks.enqueue(session)
    assert [state for state, _ in states(world, "all")] == ["dropped"] * 2 + ["waiting"] * 3
    assert len(states(world, "mine")) == 1


def calm(world: World) -> None:
    """Let the alarms that stand no more be over."""
    with world.database.transaction() as session:
        session.execute(text("UPDATE alarms SET seen_at = seen_at - make_interval(mins => 2)"))


def test_what_a_service_breaks_is_told_and_its_end_also_when_it_is_gone(world: World, sender: WebhookSender) -> None:
    with receiving() as receiver:
        world.build()
        world.declare(webhook("pager", receiver.url, ("node.*", "slo.*")))
        world.report("a", replica_report("vision/labels#0", "GPU-a0"), replica_report("vision/search#0", "GPU-a1"))
        looked(sender, lambda: len(receiver.heard) == 2)
        told = {each["subject"]: each for each in receiver.heard}
        facts = {"attainment": 0.75, "objective": 0.99, "window_s": 300.0}
        assert {name: (each["event"], each["project"], each["facts"]) for name, each in told.items()} == {
            f"services/vision/{name}": ("slo.at_risk", "vision", facts) for name in ("labels", "search")
        }
        # One is deleted, the requests of the other are of long ago.
        world.delete(kinds.SERVICE, "vision", "search")
        with world.database.transaction() as session:
            session.execute(text("UPDATE node_samples SET received_at = received_at - make_interval(mins => 9)"))
            session.execute(text(AWAY.replace("= 'a'", "= 'b'")))
        sender.look(LEADER)
        with world.database.transaction() as session:
            session.execute(text("UPDATE node_states SET revoked_at = now() WHERE node_id = 'b'"))
        calm(world)
        looked(sender, lambda: len(receiver.heard) == 6)
        sender.look(LEADER)
        assert sorted((each["event"], each["subject"], str(each["facts"])) for each in receiver.heard[3:]) == [
            ("node.returned", "nodes/b", "{'gone': True}"),
            ("slo.kept", "services/vision/labels", "{}"),
            ("slo.kept", "services/vision/search", "{'gone': True}"),
        ]
        assert world.column("SELECT count(*) FROM webhook_deliveries") == [6]


class Broken:
    """A runner whose first planner fails."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        if planner == "joint":
            raise EngineError("broken")
        return self._runner.think(planner, request, state)


def test_who_stood_in_and_what_waits_for_approval_is_told(world: World, sender: WebhookSender, pool: SolvePool) -> None:
    with receiving() as receiver:
        world.policy = replace(world.policy, planners=("joint", "greedy"))
        world.build(service("auto"), service("asked", mode=ServiceMode.APPROVE))
        world.declare(webhook("pager", receiver.url, ("planner.*", "plan.awaits_approval")))
        planning = world.planning(Broken(pool))
        planning.run_lanes(lead(world))
        looked(sender, lambda: len(receiver.heard) == 2)
        told = {each["event"]: each for each in receiver.heard}
        stood = told["planner.stood_in"]
        assert (stood["subject"], stood["facts"]["planner"]) == ("planners/joint", "greedy")
        assert stood["facts"]["failures"] == ["broken"]
        assert world.column("SELECT id FROM cycles WHERE state = 'closed'").count(stood["facts"]["cycle"]) == 1
        waits = told["plan.awaits_approval"]
        assert [waits["subject"]] == world.column("SELECT 'plans/' || id FROM plans WHERE state = 'awaiting_approval'")
        assert (waits["facts"]["lane"], waits["facts"]["cost_usd_per_h"] > 0) == ("approve", True)


def test_alarms_are_told_when_they_begin_and_when_they_are_over(world: World, sender: WebhookSender) -> None:
    with receiving() as receiver:
        world.build()
        world.declare(webhook("pager", receiver.url, ("node.*", "slo.*")))
        with world.database.transaction() as session:
            session.execute(text(AWAY))
        looked(sender, lambda: [each["event"] for each in receiver.heard] == ["node.lost"])
        sender.look(LEADER)
        assert receiver.heard[0]["subject"] == "nodes/a"
        with world.database.transaction() as session:
            session.execute(text("UPDATE node_states SET last_report_at = now()"))
        sender.look(LEADER)
        calm(world)
        looked(sender, lambda: [each["event"] for each in receiver.heard] == ["node.lost", "node.returned"])
        assert receiver.heard[1]["facts"] == {}


def test_nodes_that_come_back_after_the_database_was_away_are_not_lost_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HeldClock()
    sender = sender_of(world.database, clock)
    world.build()
    with world.database.transaction() as session:
        session.execute(text(AWAY))

    def told(after_s: float, leader: Leader = LEADER) -> list[str]:
        clock.pushed_ms += 1000.0 * after_s
        sender.look(leader)
        return [str(name) for name in world.column("SELECT name FROM events WHERE name LIKE 'node.%' ORDER BY id")]

    assert (told(0.0), told(29.0)) == ([], [])
    with monkeypatch.context() as away:
        away.setattr(workers.webhooks, "raise_alarms", _away)
        with pytest.raises(TransientError):
            sender.look(LEADER)
    assert (told(2.0), told(29.0)) == ([], [])
    # A leader looks as long as nobody else led: from the first look of a term.
    another = replace(LEADER, fencing=2)
    assert (told(2.0, another), told(29.0, another), told(2.0, another)) == ([], [], ["node.lost"])
    # What was lost before is lost still, however long nobody looked.
    calm(world)
    assert told(300.0, replace(LEADER, fencing=3)) == ["node.lost"]
    sender.close()


def _away(*_: object, **__: object) -> None:
    raise TransientError("database: connection refused")


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "fd00:ec2::254", "100.100.100.200", "0.0.0.0",
        "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "224.0.0.1", "::", "64:ff9b:1::a9fe:a9fe", "::169.254.169.254",
        "::ffff:0:a9fe:a9fe", "168.63.129.16", "192.0.0.192",
    ],
)  # fmt: skip
def test_some_addresses_are_never_reached(address: str) -> None:
    assert not WebhookNetworks("public,0.0.0.0/0,::/0").allows(address)


def test_networks_are_the_operators_to_open() -> None:
    public = WebhookNetworks("public")
    inside = ("127.0.0.1", "10.1.2.3", "192.168.0.1", "::1", "fd12::1", "::ffff:127.0.0.1", "fec0::1")
    assert [address for address in inside if public.allows(address)] == []
    assert public.allows("93.184.216.34")
    assert WebhookNetworks("10.0.0.0/8").allows("10.1.2.3")
    assert WebhookNetworks("::1/128").allows("::1")
    assert not WebhookNetworks("10.0.0.0/8").allows("93.184.216.34")
    with pytest.raises(UntoldError, match=r"leads to 127\.0\.0\.1, which HEADROOM_WEBHOOK_NETWORKS does not allow"):
        post("http://127.0.0.1:9/", b"{}", {}, public)
    with pytest.raises(InputError, match="HEADROOM_WEBHOOK_NETWORKS"):
        WebhookNetworks("10.0.0.1/8")


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
def test_what_can_be_no_name_is_told_as_one_that_is_not_found(host: str) -> None:
    with pytest.raises(UntoldError, match="cannot be resolved"):
        post(f"http://{host}/", b"{}", {}, WebhookNetworks("public"))


def test_a_name_with_one_bad_address_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        return [(2, 1, 6, "", (address, port)) for address in ("93.184.216.34", "169.254.169.254")]

    monkeypatch.setattr(workers.socket, "getaddrinfo", both)
    with pytest.raises(UntoldError, match=r"169\.254\.169\.254"):
        WebhookNetworks("public").resolved("rebinding.example", 443)


def test_secrets_are_references_and_never_told(tmp_path: Path) -> None:
    (tmp_path / "good").write_text(f"{SECRET}\n")
    (tmp_path / "short").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "good")
    secrets = SigningSecrets(str(tmp_path), {})

    def named(file: str) -> Webhook:
        return Webhook(name="a", url="https://a.example/", secret_file=file)

    assert secrets.of(named("good")) == SECRET.encode()
    for file, why in (("short", "shorter than 16"), ("link", "cannot be read"), ("none", "cannot be read")):
        with pytest.raises(UntoldError, match=why):
            secrets.of(named(file))
    with pytest.raises(UntoldError, match="missing"):
        secrets.of(webhook())
    with pytest.raises(UntoldError, match="no folder"):
        SigningSecrets("", {}).of(named("good"))
