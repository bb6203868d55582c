"""A process that was asked to end: what it says of itself, of its connections, and to whoever streams."""

from __future__ import annotations

import httpx
import pytest

from app.store.engine import Database
from tests.integration.api.serving import DEADLINE_S, serving
from tests.integration.api.world import build_world

pytestmark = pytest.mark.integration


def test_a_process_that_ends_is_not_ready_serves_on_and_keeps_no_connection(database: Database) -> None:
    world = build_world(database)
    ready = world.call("GET", "/v1/ready", None)
    assert (ready.status_code, ready.headers.get("connection")) == (200, None)
    world.app.state.ending.set()
    ready = world.call("GET", "/v1/ready", None)
    assert (ready.status_code, ready.json()["code"], ready.headers["connection"]) == (503, "transient", "close")
    served = world.call("PUT", "/v1/projects/late", plain={"name": "late"})
    assert (served.status_code, served.headers["connection"]) == (201, "close")
    assert world.call("GET", "/v1/health", None).status_code == 200
    world.client.close()


def test_the_consoles_stream_ends_with_when_to_come_again_and_not_with_the_session(database: Database) -> None:
    world = build_world(database)
    with serving(world) as (port, _), httpx.Client(timeout=DEADLINE_S) as client:
        cookie = world.cookie("viewer")
        with client.stream("GET", f"http://127.0.0.1:{port}/console/events", headers=cookie) as stream:
            lines = stream.iter_lines()
            hint = next(lines)
            world.app.state.streams.closing.set()
            assert "event: end" not in list(lines)
    field, _, milliseconds = hint.partition(": ")
    assert field == "retry"
    assert 200 <= int(milliseconds) <= 2000
    world.client.close()
