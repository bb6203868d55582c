"""One migrated database on each server for all money tests, and one transaction per test that is rolled back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from app.store.engine import Database
from tests.integration.money.telemetry import Fleet, migrated
from tests.integration.postgres import Server


@pytest.fixture(scope="session", params=["embedded_server", "debian_server"])
def server(request: pytest.FixtureRequest) -> Server:
    """Both servers in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Server)
    return found


@pytest.fixture(scope="session")
def money(server: Server) -> Iterator[Database]:
    """A migrated database; nothing is ever committed to it."""
    with migrated(server, "money") as opened:
        yield opened


@pytest.fixture
def session(money: Database) -> Iterator[Session]:
    """A session whose work nobody else sees."""
    with money.transaction() as session:
        yield session
        session.rollback()


@pytest.fixture
def fleet(session: Session) -> Fleet:
    """Writes into the same session."""
    return Fleet(session)
