"""A control plane whose work goes through pgbouncer, which lends a session for one transaction at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from app.store.engine import IDLE_IN_TRANSACTION_S, LOCK_TIMEOUT_MS, Database
from solvers.errors import InputError
from tests.integration.availability.houses import Cloned
from tests.integration.availability.pooler import SESSIONS_MAX, pooling, through
from tests.integration.faults.bells import Listener
from tests.integration.faults.fleet import DEVICES, busy, seed
from tests.integration.faults.house import House
from tests.integration.faults.invariants import behind, check_afterwards, meets
from tests.integration.postgres import Server, embedded_binaries, running

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "availability.md"
NODES = ("node-a", "node-b")
RULES = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
NAMES = ["TimeZone", "lock_timeout", "idle_in_transaction_session_timeout"]
WANTED = {
    ("TimeZone", "UTC"),
    ("lock_timeout", str(LOCK_TIMEOUT_MS)),
    ("idle_in_transaction_session_timeout", str(round(1000 * IDLE_IN_TRANSACTION_S))),
}
SESSIONS = """
SELECT count(DISTINCT pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name IN
('headroom api', 'headroom planner')
"""


@pytest.fixture
def house(template_server: Server) -> Iterator[House]:
    server = Cloned(template_server)
    found = House(server)
    try:
        yield found
    finally:
        found.close()
        server.end()


def test_every_transaction_says_how_it_runs_and_leaves_nothing_to_the_next(
    template_server: Server, database_url: str
) -> None:
    with pooling(template_server) as port:
        database = Database(through(port, database_url), direct_url=database_url)
        with database.transaction() as session:
            assert _rules(session.connection().connection.driver_connection) == WANTED
        with database.reading() as session:
            assert session.execute(text("SHOW transaction_read_only")).scalar_one() == "on"
            assert session.execute(text("SHOW transaction_isolation")).scalar_one() == "repeatable read"
            assert _rules(session.connection().connection.driver_connection) == WANTED
        with database.raw() as connection:
            assert _rules(connection) == WANTED
        with psycopg.connect(through(port, database_url), prepare_threshold=None) as connection:
            assert ("lock_timeout", "0") in _rules(connection), "the session that was lent is as it was"
        for _ in range(20):  # the driver would have prepared it by now
            with database.transaction() as session:
                session.execute(text("SELECT :value"), {"value": 1})
        database.dispose()


def _rules(connection: object) -> set[tuple[str, str]]:
    assert isinstance(connection, psycopg.Connection)
    return {(name, setting) for name, setting in connection.execute(RULES, (NAMES,), prepare=False).fetchall()}


@pytest.mark.parametrize("more", ["", "ignore_startup_parameters = options"])
def test_a_pooler_alone_is_refused_in_words(template_server: Server, house: House, more: str) -> None:
    with pooling(template_server, more) as port:
        pooled = through(port, house.url)
        with pytest.raises(InputError, match="HEADROOM_DATABASE_DIRECT_URL"):
            Database(pooled).require_sessions()
        with pytest.raises(InputError, match="HEADROOM_DATABASE_DIRECT_URL"):
            Database(pooled, direct_url=pooled).require_sessions()
        Database(pooled, direct_url=house.url).require_sessions()
        commands = ("serve", "planner", "migrate up", "migrate down base", "restore --new-epoch", "token bootstrap")
        for command in commands:
            done = house.run(*command.split(), database_url=pooled)
            assert done.returncode == 2, (command, done.stderr)
            assert "HEADROOM_DATABASE_DIRECT_URL" in done.stderr
            assert "Traceback" not in done.stderr
        done = house.run("doctor", "--json", database_url=pooled)
        lines = {line["check"]: line for line in json.loads(done.stdout)}
        told = lines["notifications" if more else "database"]
        assert (told["state"], "HEADROOM_DATABASE_DIRECT_URL" in told["found"]) == ("wrong", True)
        done = house.run("doctor", "--json", database_url=pooled, database_direct_url=house.url)
        lines = {line["check"]: line for line in json.loads(done.stdout)}
        assert (lines["database"]["state"], lines["notifications"]["state"]) == ("well", "well")


def test_it_asks_for_a_password_as_the_page_sets_it_up() -> None:
    """On a server that asks for it, too; and after a change of the password, as soon as it has read its file again."""
    with running(embedded_binaries()) as server, psycopg.connect(server.url("postgres"), autocommit=True) as owner:
        rules = server.sockets / "data" / "pg_hba.conf"
        rules.write_text(f"local all keeper scram-sha-256\n{rules.read_text()}")
        users = server.sockets / "userlist.txt"

        def change(password: str) -> str:
            owner.execute(f"ALTER ROLE keeper PASSWORD '{password}'".encode())
            users.write_text(f'"keeper" "{password}"\n')
            return f"//keeper:{password}@"

        owner.execute("CREATE ROLE keeper LOGIN")
        owner.execute("SELECT pg_reload_conf()")
        before = change("before")
        page = PAGE.read_text(encoding="utf-8").partition("```ini\n")[2].partition("```")[0]
        for told, here in {"etc/pgbouncer/userlist.txt": str(users)[1:], "host=127.0.0.1": "host={sockets}",
                           "headroom =": "postgres =", "6432": "{port}"}.items():  # fmt: skip
            assert told in page
            page = page.replace(told, here)
        more = "unix_socket_dir =\nadmin_users = keeper"
        direct = server.url("postgres")
        with pooling(server, configuration=f"{page}\n{more}\n") as port:
            pooled = through(port, direct)
            console = pooled.replace("//headroom@", before).replace("/postgres", "/pgbouncer")
            with psycopg.connect(console, autocommit=True) as admin:
                for password in ("before", "after"):
                    known = change(password)
                    admin.execute("RELOAD")
                    ways = [url.replace("//headroom@", known) for url in (pooled, direct)]
                    database = Database(ways[0], direct_url=ways[1])
                    database.require_sessions()
                    with database.transaction() as session:
                        assert session.execute(text("SELECT current_user")).scalar_one() == "keeper"
                    database.dispose()
            with pytest.raises(psycopg.OperationalError, match="authentication failed"):
                psycopg.connect(pooled.replace("//headroom@", before))


def test_a_control_plane_plans_rings_stores_and_fences_through_it(template_server: Server, house: House) -> None:
    with pooling(template_server) as port:
        ways = {"database_url": through(port, house.url), "database_direct_url": house.url}
        assert house.run("migrate", "up", **ways).returncode == 0
        house.start_api(**ways)
        with house.client() as client:
            seed(client)
        for node in NODES:
            house.start_agent(node, DEVICES)
        planners = [house.start_planner(**ways) for _ in range(2)]
        with Listener(house) as bell:
            house.await_true("the first plan is applied", lambda: house.generation() > 0 and not behind(house, *NODES))
            house.await_true("the doorbell rang", lambda: bell.knows(house.generation))
            token = house.one("SELECT token FROM leases")
            holder = house.one("SELECT holder FROM leases")
            leader = next(each for each in planners if f":{each.pid}:" in holder)
            leader.freeze()
            with house.client() as client:
                busy(client, "labels")
            house.await_true("another leads", lambda: house.one("SELECT token FROM leases") > token)
            house.await_true("the target meets busy labels", partial(meets, house, "labels"))
            leader.thaw()
            with house.client() as client:
                busy(client, "search")
            house.await_true("the target meets busy search", partial(meets, house, "search"))
            house.await_true("all nodes hold the target", lambda: not behind(house, *NODES))
            house.await_true("the doorbell rang", lambda: bell.knows(house.generation))
        assert 0 < house.one(SESSIONS) <= SESSIONS_MAX, "clients shared its sessions"
        check_afterwards(house)
