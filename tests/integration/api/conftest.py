"""The served cluster: one of its own for every test, and one for a module's tests that leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

from app.cli.program import run
from app.store.engine import Database
from headroom_client import Client
from tests.integration.api.routes import Requests, requests_of
from tests.integration.api.world import Headroom, World, build_world, settled_clone
from tests.integration.postgres import Server

_numbers = count(1)


@pytest.fixture
def database_url(template_server: Server) -> Iterator[str]:
    """A database of this test's own that begins as every world does."""
    name = f"settled_{next(_numbers)}"
    yield settled_clone(template_server, name)
    template_server.drop(name)


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
    database = Database(settled_clone(template_server, name), pool_size=8)
    made = build_world(database)
    yield made
    made.client.close()
    database.dispose()
    template_server.drop(name)


@pytest.fixture
def headroom(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headroom:
    """Exit status, standard output and standard error of a command of the administrator."""
    transport: Any = world.client._transport
    monkeypatch.setattr("app.cli.options.Client", partial(Client, transport=transport, attempts_max=1))
    monkeypatch.setenv("HEADROOM_SERVER", "http://control.test")
    monkeypatch.setenv("HEADROOM_TOKEN", world.secrets["admin"])

    def command(*words: str) -> tuple[int, str, str]:
        status = run(words)
        said = capsys.readouterr()
        return status, said.out, said.err

    return command
