"""Databases for integration tests: a migrated one for each, cloned from a template, and both servers for migrations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from app.store.engine import Database
from tests.integration.postgres import TEMPLATE, Server, debian_binaries, embedded_binaries, running

_numbers = count(1)


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[Server]:
    """The PostgreSQL 18 that the installation brings."""
    with running(embedded_binaries(), migrated=True) as server:
        yield server


@pytest.fixture(scope="session")
def debian_server() -> Iterator[Server]:
    """Debian's PostgreSQL 15, with a migrated database to clone."""
    with running(debian_binaries(), migrated=True) as server:
        yield server


@pytest.fixture(params=["embedded_server", "debian_server"])
def pg_server(request: pytest.FixtureRequest) -> Server:
    """Both servers in turn."""
    server = request.getfixturevalue(request.param)
    assert isinstance(server, Server)
    return server


@pytest.fixture
def empty_url(pg_server: Server) -> Iterator[str]:
    """A fresh, empty database on each server in turn."""
    name = f"empty_{next(_numbers)}"
    yield pg_server.create(name)
    pg_server.drop(name)


@pytest.fixture
def migrated_url(pg_server: Server) -> Iterator[str]:
    """A fresh, migrated database on each server in turn."""
    name = f"migrated_{next(_numbers)}"
    yield pg_server.create(name, TEMPLATE)
    pg_server.drop(name)


@pytest.fixture(scope="session")
def template_server(embedded_server: Server) -> Server:
    """The embedded server, for its migrated database to clone."""
    return embedded_server


@pytest.fixture
def database_url(template_server: Server) -> Iterator[str]:
    """A migrated database of this test's own."""
    name = f"test_{next(_numbers)}"
    yield template_server.create(name, TEMPLATE)
    template_server.drop(name)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Connections to a migrated database of this test's own."""
    opened = Database(database_url, pool_size=8)
    yield opened
    opened.dispose()
