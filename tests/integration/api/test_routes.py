"""Routes over HTTP: read-backs before reports, tags, streams that hear within a second and end with their service."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from agents.wire import NodeReceipt, ReplicaReadBack, encode
from app import kinds
from app.api.streams import STREAMS_MAX
from solvers.domain.worker import WorkerCommand
from tests import builders
from tests.integration.api.serving import DEADLINE_S, serving
from tests.integration.api.world import NODE, World, build_world
from tests.integration.store import plans as stored
from tests.integration.store.samples import device_report, replica_report, report, tell
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PATH = "/v1/routes/demo/vision"
SERVICE = "demo/vision"


def read_back(ordinal: int = 0, *, share_pct_sm: int = 30, ready: bool = True, port: int | None = 9001) -> Any:
    planned = stored.plan().assignments[0]
    return ReplicaReadBack(
        replica=f"{SERVICE}#{ordinal}",
        uuid=planned.device,
        share_pct_sm=share_pct_sm,
        sm_count=12,
        memory_mib_limit=planned.memory_mib_limit,
        batch=planned.batch,
        ready=ready,
        endpoint=None if port is None else f"http://127.0.0.1:{port}",
    )


def receive(world: World, *replicas: ReplicaReadBack, observed_at_s: float | None = None, boot: str = "boot-1") -> None:
    receipt = NodeReceipt(
        node=NODE,
        boot_id=boot,
        generation=1,
        plan=None,
        outcome="partial",
        observed_at_s=time.time() if observed_at_s is None else observed_at_s,
        elapsed_ms=1.0,
        devices=(),
        replicas=replicas,
    )
    answer = world.call("POST", "/v1/agent/receipts", NODE, plain=encode(receipt))
    assert answer.json() == {"new": True}


def send_report(world: World, sequence: int, observed_at_s: float, state: str = "ready", **changes: object) -> None:
    planned = stored.plan().assignments[0]
    memory = {"memory_mib_limit": planned.memory_mib_limit, "batch": planned.batch}
    replica = replica_report(f"{SERVICE}#0", "GPU-a-0", state=state, **memory, **changes)
    with world.database.transaction() as session:
        tell(session, NODE, replica)
    sent = report(
        NODE, sequence, boot_id="boot-1", observed_at_s=observed_at_s,
        devices=[device_report("GPU-a-0")], replicas=[replica],
    )  # fmt: skip
    assert world.call("POST", "/v1/agent/reports", NODE, plain=encode(sent)).status_code == 200


def prepare(world: World) -> None:
    """A service with one planned replica on a node that joined."""
    world.joined(NODE)
    world.put(kinds.SERVICE, builders.service())
    with world.database.transaction() as session:
        stored.promote(session, stored.plan(), nodes=(NODE,))


def endpoints(world: World) -> list[str | None]:
    return [replica["endpoint"] for replica in world.call("GET", PATH).json()["replicas"]]


def test_a_read_back_says_where_a_replica_answers(world: World) -> None:
    prepare(world)
    assert world.call("GET", PATH).json() == {
        "service": SERVICE, "generation": 1, "ready_path": None, "replicas": [],
    }  # fmt: skip
    receive(world, read_back())
    answer = world.call("GET", PATH, "gateway")
    assert answer.json()["replicas"] == [
        {
            "replica": f"{SERVICE}#0",
            "endpoint": "http://127.0.0.1:9001",
            "host": "127.0.0.1",
            "port": 9001,
            "weight": 50.0,
            "state": "ready",
            "generation": 1,
        }
    ]
    assert world.call("GET", "/v1/routes").json() == {"items": [answer.json()]}
    tag = answer.headers["etag"]
    assert not tag.startswith("W/")
    assert world.call("GET", PATH, headers={"If-None-Match": tag}).status_code == 304
    receive(world, read_back(ready=False))
    changed = world.call("GET", PATH, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["replicas"]) == (200, [])


def test_whatever_was_observed_last_speaks(world: World) -> None:
    prepare(world)
    now_s = time.time() - 60
    receive(world, read_back(), observed_at_s=now_s)
    send_report(world, 1, now_s + 1)
    assert endpoints(world) == ["http://127.0.0.1:9001"]
    send_report(world, 2, now_s + 2, state="draining")
    assert endpoints(world) == []
    receive(world, read_back(port=9002), observed_at_s=now_s + 3)
    assert endpoints(world) == ["http://127.0.0.1:9002"]
    # A late repeat of what was read back before changes nothing.
    receive(world, read_back(port=9001), observed_at_s=now_s + 2.5)
    assert endpoints(world) == ["http://127.0.0.1:9002"]
    # Of a process that was not read back yet, nobody knows where it answers.
    send_report(world, 3, now_s + 4, share_pct_sm=40)
    assert endpoints(world) == []
    send_report(world, 4, now_s + 5)
    assert endpoints(world) == ["http://127.0.0.1:9002"]


def test_an_agents_next_life_speaks_for_itself(world: World) -> None:
    prepare(world)
    now_s = time.time()
    receive(world, read_back(), observed_at_s=now_s)
    world.joined(NODE, boot_id="boot-2")
    assert endpoints(world) == ["http://127.0.0.1:9001"]
    receive(world, read_back(port=9005), observed_at_s=now_s + 1)
    assert endpoints(world) == ["http://127.0.0.1:9001"]
    receive(world, read_back(port=9003), observed_at_s=now_s - 1, boot="boot-2")
    assert endpoints(world) == ["http://127.0.0.1:9003"]


def test_silent_nodes_are_forgotten(world: World) -> None:
    prepare(world)
    receive(world, read_back())
    with world.database.raw() as connection:
        connection.execute("UPDATE node_read_backs SET received_at = now() - interval '21 seconds'")
    assert endpoints(world) == []


def test_the_old_process_serves_until_the_new_one_can(world: World) -> None:
    prepare(world)
    old = read_back()
    receive(world, old)
    with world.database.transaction() as session:
        stored.promote(session, stored.plan(parent=1, share_pct_sm=50), nodes=(NODE,))
    shadow = read_back(share_pct_sm=50, port=9002)
    receive(world, old, read_back(share_pct_sm=50, port=9002, ready=False))
    (leaving,) = world.call("GET", PATH).json()["replicas"]
    assert (leaving["port"], leaving["state"], leaving["generation"], leaving["weight"]) == (9001, "leaving", 1, 50.0)
    receive(world, old, shadow)
    (new,) = world.call("GET", PATH).json()["replicas"]
    assert (new["port"], new["state"], new["generation"]) == (9002, "ready", 2)


def test_services_name_their_ready_path_and_foreign_ones_do_not_exist(world: World) -> None:
    world.put(kinds.SERVICE, builders.service(worker=WorkerCommand(command=("serve",), ready_path="/up")))
    assert world.call("GET", PATH).json()["ready_path"] == "/up"
    for path, who in ((PATH, "foreign viewer"), ("/v1/routes/demo/nothing", "viewer"), (f"{PATH}x?watch=true", "node")):
        answer = world.call("GET", path, who)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert world.call("GET", "/v1/routes", "foreign viewer").json() == {"items": []}


class Watcher:
    """One stream on a socket of its own."""

    def __init__(self, port: int, secret: str, path: str = PATH) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        request = f"GET {path}?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n"
        self._socket.sendall(request.encode())
        self._lines = self._socket.makefile("rb")
        self.status = int(self._lines.readline().split()[1])

    def hear(self) -> dict[str, Any]:
        """The next state told."""
        while True:
            line = self._lines.readline()
            assert line, "the stream ended"
            if line.startswith(b"{"):
                found: dict[str, Any] = json.loads(line)
                return found

    def hear_heartbeat(self) -> None:
        while not self._lines.readline().startswith(b":"):
            pass

    def ended(self) -> bool:
        while line := self._lines.readline():
            if line == b"0\r\n":
                return True
        return True

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


Served = tuple[World, int, uvicorn.Server]


@pytest.fixture(params=[0.3])
def served(database: object, request: pytest.FixtureRequest) -> Iterator[Served]:
    world = build_world(database, doorbell_heartbeat_s=request.param)
    prepare(world)
    with serving(world) as (port, server):
        yield world, port, server


@pytest.mark.parametrize("served", [3600.0], indirect=True)
def test_watchers_hear_at_once(served: Served) -> None:
    """By the change itself: the next beat would come too late for every deadline here."""
    world, port, _ = served
    watchers = [Watcher(port, world.secrets[who]) for who in ("viewer", "gateway")]
    whole = Watcher(port, world.secrets["admin"], "/v1/routes")
    assert [each.hear()["replicas"] for each in watchers] == [[], []]
    assert [item["service"] for item in whole.hear()["items"]] == [SERVICE]
    for share, port_told in ((30, 9001), (30, 9002)):
        receive(world, read_back(share_pct_sm=share, port=port_told))
        heard = [each.hear() for each in (*watchers, whole)]
        assert [each["replicas"][0]["port"] for each in heard[:2]] == [port_told, port_told]
        assert heard[2]["items"][0] == heard[0]
    with world.database.transaction() as session:
        stored.promote(session, stored.plan(parent=1), nodes=(NODE,))
    assert {each.hear()["generation"] for each in watchers} == {2}
    send_report(world, 1, time.time() + 1, state="draining")
    assert [each.hear()["replicas"] for each in watchers] == [[], []]
    for each in (*watchers, whole):
        each.close()
    wait_until(lambda: "headroom_route_streams 0.0" in world.call("GET", "/metrics", None).text)


def test_a_stream_beats_and_ends_with_its_service(served: Served) -> None:
    world, port, _ = served
    watcher, whole = Watcher(port, world.secrets["viewer"]), Watcher(port, world.secrets["viewer"], "/v1/routes")
    watcher.hear()
    whole.hear()
    watcher.hear_heartbeat()
    watcher.hear_heartbeat()
    version = world.call("GET", "/v1/services/demo/vision").headers["etag"]
    gone = world.call("DELETE", "/v1/services/demo/vision", headers={"If-Match": version})
    assert gone.status_code == 204, gone.text
    assert watcher.ended()
    assert whole.hear() == {"items": []}
    late = Watcher(port, world.secrets["viewer"])
    assert late.status == 404
    for each in (watcher, whole, late):
        each.close()


def test_what_changed_during_a_lost_connection_is_heard(served: Served) -> None:
    world, port, _ = served
    watcher = Watcher(port, world.secrets["viewer"])
    watcher.hear()
    with world.database.raw() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'headroom listener' AND datname = current_database()"
        )
    receive(world, read_back())
    assert watcher.hear()["replicas"][0]["port"] == 9001
    watcher.close()


def test_streams_are_bounded_and_end_with_the_process(served: Served) -> None:
    world, port, server = served
    watcher = Watcher(port, world.secrets["viewer"])
    watcher.hear()
    hub = world.app.state.route_board.hub
    before, hub.listeners = hub.listeners, STREAMS_MAX
    assert world.call("GET", f"{PATH}?watch=true").status_code == 503
    hub.listeners = before
    server.should_exit = True
    assert watcher.ended()
    watcher.close()
