"""A PostgreSQL that somebody else runs: the role owns its database and may do nothing else. On both versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from app.store import ledger
from app.store.engine import Database
from app.store.migrate import head, upgrade
from tests.integration.availability.houses import Cloned
from tests.integration.faults.fleet import DEVICES, seed
from tests.integration.faults.house import House
from tests.integration.faults.invariants import behind, check_afterwards
from tests.integration.postgres import Server, debian_binaries, embedded_binaries, running

pytestmark = pytest.mark.integration

MAY = "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication FROM pg_roles WHERE rolname = current_user"
FOREIGN = """
SELECT nspname, relname, pg_get_userbyid(relowner) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = 'public' AND relowner <> (SELECT oid FROM pg_roles WHERE rolname = current_user)
"""


class Managed(Cloned):
    """Hands out databases of a role without any right beyond them."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._execute("CREATE ROLE tenant LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE")

    def fresh(self) -> str:
        self._execute("CREATE DATABASE tenants OWNER tenant")
        url = self._server.url("tenants").replace("//headroom@", "//tenant@")
        upgrade(url)
        return url

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._server.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())


@pytest.fixture(params=[embedded_binaries, debian_binaries], ids=["18", "15"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    binaries: Callable[[], Path] = request.param
    with running(binaries()) as server:
        managed = Managed(server)
        found = House(managed, {"HEADROOM_RETENTION_INTERVAL_S": "1"})
        try:
            yield found
        finally:
            found.close()
            managed.end()


def test_a_role_that_owns_its_database_is_enough_for_everything(house: House) -> None:
    assert house.rows(MAY) == [(False, False, False, False)]
    api = house.start_api()
    assert house.run("token", "bootstrap").stdout.startswith("hr_")
    with house.client() as client:
        seed(client)
    house.start_agent("node-a", DEVICES)
    planner = house.start_planner()
    house.await_true("the first plan is applied", lambda: house.generation() > 0 and not behind(house, "node-a"))
    house.await_true("old data is looked for", lambda: "retention.applied" in planner.log.read_text())
    database = Database(house.url, pool_size=1)
    with database.transaction() as session:
        assert ledger.account(session, datetime.now(UTC) + timedelta(minutes=3)).minutes_new > 0
    database.dispose()
    with house.client() as client:
        assert client.call("GET", "/v1/costs").status == 200
    said = planner.log.read_text() + api.log.read_text()
    assert "permission denied" not in said
    assert "loop.failed" not in said
    check_afterwards(house)
    planner.terminate()
    api.terminate()
    restored = house.run("restore", "--new-epoch")
    assert restored.returncode == 0, restored.stderr
    for revision in (f"{int(head()) - 1:04}", "head"):
        moved = house.run("migrate", "up" if revision == "head" else "down", revision)
        assert moved.returncode == 0, moved.stderr
    assert house.rows(FOREIGN) == []


def test_what_a_migration_may_not_make_is_said(house: House) -> None:
    lacking = "headroom: role headroom_reader was not created: insufficient privilege\n"
    house.run("migrate", "down", "base")
    assert lacking in house.run("migrate", "up").stderr
    house.run("migrate", "down", "base")
    said = house.run("up", "--no-demo").stderr
    assert house.run("down").returncode == 0
    assert lacking in said
