"""The served cluster: one of its own for every test, and one for a module's tests that leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from app.store.engine import Database
from tests.integration.api.routes import Requests, requests_of
from tests.integration.api.world import World, build_world
from tests.integration.postgres import Server

TEMPLATE = "headroom_template"
_numbers = count(1)


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    """The application over a database of this test's own."""
    made = build_world(database)
    yield made
    made.client.close()


@pytest.fixture
def requests(world: World) -> Requests:
    """Requests to every route, all past validation."""
    return requests_of(world)


@pytest.fixture(scope="module")
def refusing_world(template_server: Server) -> Iterator[World]:
    """The application for tests in which everything is refused, so that they may share it."""
    name = f"refusing_{next(_numbers)}"
    database = Database(template_server.create(name, TEMPLATE), pool_size=8)
    made = build_world(database)
    yield made
    made.client.close()
    database.dispose()
    template_server.drop(name)
