"""Hand-overs by a real agent behind a real HAProxy, under load: plans, shadows, receipts, routes, their stream, the
follower, no request lost, and each counted as offered load. GPUs and model servers are stand-ins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from app.routing.haproxy import HaproxyStyle, backends
from app.routing.routes import read_services
from app.store.engine import Database
from benchmarks.gateway.node import GRACE_S, SERVICE, SHARES, ControlPlane, Node
from benchmarks.gateway.processes import Load, await_true, following, log_lines, running_haproxy
from headroom_client import Client
from tests.integration.api.serving import serving
from tests.integration.api.world import CLUSTER, build_world

pytestmark = pytest.mark.integration

HAND_OVERS = 5
REQUESTS_MIN = 3000


@pytest.fixture
def plane(database: Database) -> Iterator[ControlPlane]:
    """The API behind a socket, over a database of this test's own."""
    world = build_world(database)
    with serving(world) as (port, _):
        yield ControlPlane(
            database=database, cluster=CLUSTER, server=f"http://127.0.0.1:{port}", admin_token=world.secrets["admin"]
        )
    world.client.close()


def test_no_request_is_lost_while_every_share_changes(plane: ControlPlane, tmp_path: Path) -> None:
    node = Node(plane, 1, tmp_path / "host", GRACE_S)
    environment = {"HEADROOM_SERVER": plane.server}
    try:
        node.prepare()
        with Client(plane.server, plane.admin_token) as client:
            rendered = backends(read_services(client.routes().body), HaproxyStyle(slots=3))
            gateway_token = {"name": "edge", "role": "agent", "purpose": "gateway", "subject": "edge"}
            environment["HEADROOM_TOKEN"] = client.create_token(gateway_token)["secret"]
        with (
            running_haproxy(tmp_path, rendered, "demo:vision") as gateway,
            Client(plane.server, plane.admin_token) as client,
            following(gateway, SERVICE, environment, ["--gateway", "edge"]) as log,
        ):
            # From then on every request counts.
            await_true(lambda: _counted(plane.database) != [], "the first report of offered load")
            load = Load(gateway.port, 8, REQUESTS_MIN)
            try:
                for turn in range(HAND_OVERS):
                    node.change([SHARES[turn % len(SHARES)]])
                await_true(lambda: _rate_rps(client) > 0.0, "a report of the load")
                found = load.finish(60.0)
            finally:
                load.close()
            await_true(
                lambda: sum(line["event"] == "route.slot_freed" for line in log_lines(log)) >= HAND_OVERS, "the end"
            )
            lines = log_lines(log)
    finally:
        node.close()
    # The follower tells what it counted last when it ends.
    assert _counted(plane.database) == [(SERVICE, "edge", found["requests"], 0.0)]
    assert found["failures"] == {}
    assert found["requests"] >= REQUESTS_MIN
    # The first worker and one for each hand-over answered.
    assert found["processes"] == HAND_OVERS + 1
    events = [line["event"] for line in lines]
    assert events.count("route.server_drained") == HAND_OVERS
    assert events.count("route.server_placed") == HAND_OVERS
    assert {line["level"] for line in lines} == {"info"}


def _rate_rps(client: Client) -> float:
    """What the fleet says that the service is asked for."""
    (service,) = client.fleet()["services"]
    return float(service["rate_rps"] or 0.0)


def _counted(database: Database) -> list[tuple[str, str, float, float]]:
    """All requests that gateways told of, and those that found nobody."""
    asked = text("SELECT service, gateway, sum(arrived), sum(unrouted) FROM rate_samples GROUP BY service, gateway")
    with database.reading() as session:
        return [tuple(row) for row in session.execute(asked)]
