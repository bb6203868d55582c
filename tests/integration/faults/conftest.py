"""A server for all fault tests, a house for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.integration.faults.invariants")

from tests.integration.faults.house import House, Postgres  # noqa: E402 - after the line above, which must come first


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL that nobody else uses, because it will crash."""
    server = Postgres()
    try:
        yield server
    finally:
        server.end()


@pytest.fixture
def house(postgres: Postgres) -> Iterator[House]:
    """An empty control plane; nothing runs yet."""
    found = House(postgres)
    try:
        yield found
    finally:
        found.close()
