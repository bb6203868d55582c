"""What workers write, from a node to whoever reads: over real sockets, with two processes of the API and an agent's own
part for it in between.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
from sqlalchemy import text

from agents.loop.uplink import LOG_REQUESTS as REQUESTS
from agents.servers import Servers
from app import kinds
from app.store import logs
from app.store.engine import Database
from headroom_client import ApiError, Client
from tests import builders
from tests.integration.api.routes import TOLD
from tests.integration.api.serving import serving
from tests.integration.api.world import NODE, OWN, build_world
from tests.integration.api.writing import Written, writing
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
REPLICA, VISION, READ = f"{OWN}/vision#0", "vision", f"/v1/logs/{OWN}/vision"


class Site:
    """Two processes of the API, a node that was told to hold a replica, and people."""

    def __init__(self, stack: ExitStack, database: Database) -> None:
        self.worlds = [build_world(database, doorbell_heartbeat_s=0.1) for _ in range(2)]
        self.world = self.worlds[0]
        self.world.put(kinds.SERVICE, builders.service())
        self.world.joined(NODE)
        with database.raw() as connection:
            connection.execute(TOLD)
        self._stack = stack
        self.ports = [stack.enter_context(serving(world))[0] for world in self.worlds]

    def client(self, who: str = "own viewer", process: int = 0) -> Client:
        made = Client(f"http://127.0.0.1:{self.ports[process]}", self.world.secrets[who])
        return self._stack.enter_context(made)

    def lines(self, **asked: Any) -> list[dict[str, Any]]:
        return list(self.client().logs(OWN, VISION, **asked))

    def hand_over(self, piece: object, request: int = 1, who: str = NODE) -> int:
        return self.world.call("POST", f"{REQUESTS}/{request}", who, plain=piece).status_code

    def wanted(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.world.call("GET", REQUESTS, NODE).json()["items"]
        return found


@pytest.fixture
def site(database: Database) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, database)


def agent(site: Site, process: int = 1) -> AbstractContextManager[Written]:
    """At another process than people read from."""
    return writing(f"http://127.0.0.1:{site.ports[process]}", site.world.secrets[NODE])


def test_lines_travel_from_a_node_to_who_reads(site: Site) -> None:
    with agent(site) as written:
        written.lines = [f"line {number}" for number in range(5)]
        told = site.lines(tail=2)
        assert told == [{"node": NODE, "replica": REPLICA, "line": f"line {number}"} for number in (3, 4)]
        following = site.client("viewer").logs(OWN, VISION, tail=1, follow=True)
        assert next(following)["line"] == "line 4"
        written.lines += ["line 5", "naïve \N{SNOWMAN}"]
        assert [next(following)["line"] for _ in range(2)] == ["line 5", "naïve \N{SNOWMAN}"]
    assert set(written.asked) == {REPLICA}


def test_nobody_is_asked_when_nobody_reads_any_more(site: Site) -> None:
    with agent(site) as written:
        written.lines = ["one"]
        with site.client() as client:
            following = client.logs(OWN, VISION, follow=True)
            assert next(following)["line"] == "one"
            assert len(site.wanted()) == 1
            following.close()
        wait_until(lambda: not site.wanted())
        with site.world.database.raw() as connection:
            assert connection.execute("SELECT count(*) FROM log_requests").fetchone() == (0,)


def test_an_agent_that_does_not_know_of_logs_is_told_of_in_words(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PATIENCE_S", 0.2)
    (told,) = site.lines()
    assert "older than `headroom logs`" in told["problem"]
    # One that asks and says nothing.
    following = site.client().logs(OWN, VISION, follow=True)
    reader = threading.Thread(target=lambda: told.update(next(following)), daemon=True)
    reader.start()
    wait_until(site.wanted)
    reader.join(30.0)
    assert "did not answer" in told["problem"]


def test_only_its_own_project_reads(site: Site) -> None:
    for who, status in (("foreign viewer", 404), ("foreign operator", 404), ("reporter", 403), (NODE, 403)):
        assert site.world.call("GET", READ, who).status_code == status
    for path, stranger in ((f"/console/logs/{OWN}/{VISION}", 401), (f"/logs/{OWN}/{VISION}", 200)):
        for who, status in (("foreign viewer", 404), ("reporter", stranger), ("nobody", stranger)):
            cookie = {} if who == "nobody" else site.world.cookie(who)
            answer = site.world.call("GET", path, None, headers=cookie)
            assert (answer.status_code, "Token" in answer.text) == (status, status == 200), (path, who)
    for path, words in (
        (f"/v1/logs/{OWN}/nothing", "there is no service, job or task"),
        (f"{READ}?replica={OWN}/vision%231", f"did you mean {REPLICA}?"),
    ):
        refused = site.world.call("GET", path)
        assert (refused.status_code, words in refused.json()["detail"]) == (404, True), refused.text
    with site.world.database.raw() as connection:
        connection.execute("UPDATE told_replicas SET told_until = now()")
    refused = site.world.call("GET", READ)
    assert (refused.status_code, REPLICA in refused.json()["detail"]) == (404, True)
    # What was held within a day may be asked for by its name.
    with agent(site) as written:
        written.lines = ["last words"]
        assert [each["line"] for each in site.lines(replica=REPLICA)] == ["last words"]


def test_only_the_node_that_was_asked_hands_over(site: Site) -> None:
    site.world.joined("rogue")
    with site.world.database.transaction() as session:
        logs.ask(session, "reader", f"{OWN}/vision", None, 10)
        (wanted,) = logs.wanted_of(session, NODE)
    number = wanted.request
    assert site.world.call("GET", REQUESTS, "rogue").json() == {"items": []}
    assert [site.hand_over({"lines": ["a lie"]}, each, "rogue") for each in (number, number, 99)] == [404, 404, 404]
    events = site.world.call("GET", "/v1/events?subject=nodes/rogue").json()["items"]
    foreign = [event for event in events if event["name"] == "node.spoke_of_others"]
    assert [event["facts"] for event in foreign] == [{"code": "logs-not-asked", "named": [str(number)]}]
    assert site.hand_over({"lines": ["the truth"]}, number) == 204
    with site.world.database.transaction() as session:
        (taken,) = logs.take(session, "reader")
    assert [piece["lines"] for piece in taken.pieces] == [["the truth"]]


@pytest.mark.parametrize(
    ("piece", "status"),
    [
        ({"lines": ["\x1b]0;owned\x07"]}, 422),
        ({"lines": ["\x9b31m"]}, 422),
        ({"lines": ["two\nlines"]}, 422),
        ({"lines": ["x" * 4001]}, 422),
        ({"lines": ["x" * 4000] * 70}, 422),
        ({"lines": [1]}, 422),
        ({"lines": [], "replica": "other/vision#0"}, 422),
        ({"problem": "none"}, 422),
    ],
)
def test_what_may_harm_who_reads_is_refused(site: Site, piece: object, status: int) -> None:
    with site.world.database.transaction() as session:
        logs.ask(session, "reader", f"{OWN}/vision", None, 10)
    (wanted,) = site.wanted()
    assert site.hand_over(piece, wanted["request"]) == status
    with site.world.database.transaction() as session:
        assert logs.take(session, "reader")[0].pieces == []


def test_who_does_not_keep_up_bounds_what_is_kept(site: Site) -> None:
    with site.world.database.transaction() as session:
        logs.ask(session, "reader", f"{OWN}/vision", None, 10)
    (wanted,) = site.wanted()
    statuses = [site.hand_over({"lines": ["x"]}, wanted["request"]) for _ in range(logs.PIECES_MAX + 1)]
    assert statuses == [204] * logs.PIECES_MAX + [429]


def test_who_reads_again_after_a_pause_is_asked_for_anew(site: Site) -> None:
    """As a reader that was suspended for longer than it is waited for."""

    def ask() -> int:
        with site.world.database.transaction() as session:
            logs.ask(session, "reader", f"{OWN}/vision", None, 10)
        return int(site.wanted()[0]["request"])

    before = ask()
    assert (site.hand_over({"lines": ["old"]}, before), ask()) == (204, before)
    with site.world.database.transaction() as session:
        session.execute(text("UPDATE log_requests SET expires_at = now() - interval '1 s'"))
    after = ask()
    assert (site.hand_over({"lines": ["late"]}, before), site.hand_over({"lines": ["new"]}, after)) == (404, 204)
    with site.world.database.transaction() as session:
        assert [piece["lines"] for each in logs.take(session, "reader") for piece in each.pieces] == [["new"]]


def test_a_revoked_tokens_reading_ends(site: Site) -> None:
    made = site.world.call("POST", "/v1/tokens", plain={"name": "brief", "role": "viewer"}).json()
    site.world.secrets["brief"] = made["secret"]
    with agent(site) as written:
        written.lines = ["one"]
        following = site.client("brief").logs(OWN, VISION, follow=True)
        assert next(following)["line"] == "one"
        assert site.world.call("DELETE", f"/v1/tokens/{made['id']}").status_code == 204
        assert list(following) == []
        with pytest.raises(ApiError):
            next(site.client("brief").logs(OWN, VISION))


def test_the_doorbell_tells_only_the_node_that_is_asked(site: Site) -> None:
    site.world.joined("other-node")
    heard: dict[str, list[dict[str, Any]]] = {name: [] for name in (NODE, "other-node", "viewer")}

    def hear(name: str) -> None:
        connection = Servers((f"http://127.0.0.1:{site.ports[0]}",), name).connection()
        connection.token = site.world.secrets[name]
        beats = 0
        for line in connection.lines("/v1/doorbell", 30.0):
            if line.startswith(b"{"):
                heard[name].append(json.loads(line))
            beats += line.startswith(b":")
            if beats > 20 or "logs" in heard[name][-1]:
                return

    threads = [threading.Thread(target=hear, args=(name,), daemon=True) for name in heard]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(heard.values()))
    with site.world.database.transaction() as session:
        logs.ask(session, "reader", f"{OWN}/vision", None, 10)
    for thread in threads:
        thread.join(30.0)
    assert heard == {NODE: [{"generation": 0}, {"generation": 0, "logs": 1}]} | {
        name: [{"generation": 0}] for name in ("other-node", "viewer")
    }


def test_the_bell_rings_again_until_the_node_looks(site: Site) -> None:
    def rings() -> int:
        with site.world.database.transaction() as session:
            logs.ask(session, "reader", f"{OWN}/vision", None, 10)
        return len(list(listener.notifies(timeout=0.2, stop_after=1)))

    with site.world.database.listening(logs.CHANNEL) as listener:
        assert (rings(), rings()) == (1, 1)
        assert site.wanted()
        assert rings() == 0
