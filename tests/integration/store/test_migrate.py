"""Migrations go up, down and up again on both servers, and leave what the tables module describes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from alembic.config import CommandLine
from psycopg.types.json import Jsonb
from sqlalchemy import inspect

from app.cli.output import Exit
from app.cli.program import run
from app.store import ingest, migrate
from app.store.engine import Database
from app.store.tables import metadata
from solvers.errors import TransientError
from tests.integration.store.samples import device_report, put_node, replica_report, report

pytestmark = pytest.mark.integration

OBJECTS = """
SELECT c.relkind::text || ' ' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relname NOT LIKE 'schema_version%' AND c.relkind <> 't'
UNION ALL SELECT 'function ' || p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = 'public' ORDER BY 1
"""

DEFINITIONS = """
SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT pg_get_viewdef(oid) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'v'
UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1
"""


def _objects(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(OBJECTS)]


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("revision", ["bogus", "99", "+1", "", "0001:0002"])
def test_a_revision_that_there_is_none_of_is_one_line(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: str, revision: str
) -> None:
    monkeypatch.setenv("HEADROOM_DATABASE_URL", migrated_url)
    assert run(["migrate", way, revision]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert f"revisions are 0001 to {migrate.head()}" in said.err
    assert migrate.current(migrated_url) == migrate.head()


@pytest.mark.parametrize("revision", ["base", "0030"])
@pytest.mark.parametrize("command", ["restore --new-epoch", "token bootstrap", "token seed"])
def test_an_older_schema_is_told_in_one_line(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, revision: str
) -> None:
    monkeypatch.setenv("HEADROOM_DATABASE_URL", empty_url)
    monkeypatch.setenv("HEADROOM_ADMIN_TOKEN", "hr_" + "a" * 43)
    if revision != "base":
        migrate.upgrade(empty_url, revision)
    assert run(command.split()) != 0
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert f"schema is at {revision}, this software needs {migrate.head()}; run: headroom migrate up" in said.err


def test_up_down_and_up_again(empty_url: str) -> None:
    assert migrate.current(empty_url) is None
    migrate.upgrade(empty_url)
    assert migrate.current(empty_url) == migrate.head()
    first = _objects(empty_url)
    assert {"p node_samples", "v device_samples", "r services", "function headroom_ensure_partitions"} <= set(first)
    migrate.downgrade(empty_url, "base")
    assert migrate.current(empty_url) is None
    assert _objects(empty_url) == []
    migrate.upgrade(empty_url)
    assert _objects(empty_url) == first


def test_going_down_a_step_keeps_what_lies_below(migrated_url: str) -> None:
    with psycopg.connect(migrated_url) as connection:
        connection.execute("INSERT INTO projects (name, spec) VALUES ('vision', '{}')")
        connection.execute("INSERT INTO leases (name, holder, token, expires_at) VALUES ('planner', 'me', 7, now())")
    migrate.downgrade(migrated_url, "0002")
    migrate.upgrade(migrated_url)
    with psycopg.connect(migrated_url) as connection:
        assert connection.execute("SELECT name FROM projects").fetchall() == [("vision",)]
        assert connection.execute("SELECT token FROM leases").fetchall() == [(7,)]


def test_nobody_goes_down_under_processes_that_need_what_is_above(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADROOM_DATABASE_URL", migrated_url)
    with psycopg.connect(migrated_url) as connection:
        connection.execute(
            "INSERT INTO leases (name, holder, token, expires_at)"
            " VALUES ('planner', 'me', 7, now() + interval '1 hour')"
        )
    assert run(["migrate", "down", "0001"]) == Exit.CONFLICT
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("headroom: planner me holds the lease until ")
    assert said.err.endswith(": stop planners and API first, or say --force\n")
    assert migrate.current(migrated_url) == migrate.head()
    assert run(["migrate", "down", "0001", "--force"]) == Exit.OK
    # So early there is no lease, and then nothing at all.
    for revision in ("base", "base"):
        assert run(["migrate", "down", revision]) == Exit.OK
    assert migrate.current(migrated_url) is None


def test_a_cluster_that_stands_gets_an_id_of_its_own_in_its_first_epoch(empty_url: str) -> None:
    migrate.upgrade(empty_url, "0032")
    with psycopg.connect(empty_url) as connection:
        connection.execute("INSERT INTO cluster_state (cluster, generation) VALUES ('one', 12), ('two', 3)")
    migrate.upgrade(empty_url)
    with psycopg.connect(empty_url) as connection:
        found = connection.execute(
            "SELECT generation, epoch, cluster_id FROM cluster_state ORDER BY cluster"
        ).fetchall()
    assert [row[:2] for row in found] == [(12, 1), (3, 1)]
    assert found[0][2] != found[1][2]


def test_samples_stay_when_their_partitions_change(empty_url: str) -> None:
    row = (
        "INSERT INTO device_samples (received_at, observed_at, node_id, boot_id, sequence, interval_s, uuid, power_w,"
        " energy_j, utilisation_pct, memory_mib_used, clock_mhz_sm, share_pct_sm_total, throttle, healthy)"
        " SELECT now() - n * interval '3 hours', now(), 'n', 'b', n, 5, 'g', 1, 5, 1, 1, 1, 1, '', true"
        " FROM generate_series(0, 3) n"
    )
    migrate.upgrade(empty_url, "0035")
    with psycopg.connect(empty_url) as connection:
        connection.execute(row)
        before = connection.execute("SELECT * FROM device_samples ORDER BY sequence").fetchall()
    for move in (partial(migrate.upgrade, empty_url), partial(migrate.downgrade, empty_url, "0035")) * 2:
        move()
        with psycopg.connect(empty_url) as connection:
            assert connection.execute("SELECT * FROM device_samples ORDER BY sequence").fetchall() == before
            # A row of the coming day finds its place either way, by what every release asks for.
            connection.execute("SELECT headroom_ensure_partitions(7)")
            connection.execute(row.replace("now() - n", "now() + n").replace("'g', 1", "'later', 1"))
            rows = "device_samples" if migrate.current(empty_url) == "0035" else "device_sample_rows"
            waiting = connection.execute(f"SELECT count(*) FROM {rows}_default WHERE uuid = 'later'").fetchone()
            assert waiting == (0,)
            connection.rollback()


def test_rows_of_reports_become_rows_of_samples_and_stay(migrated_url: str) -> None:
    queries = (
        "SELECT * FROM device_samples ORDER BY received_at, sequence, uuid",
        "SELECT * FROM replica_samples ORDER BY received_at, sequence, replica",
    )
    database = Database(migrated_url)
    with database.transaction() as session:
        put_node(session, "n1")
    hot = replace(device_report("GPU-2", 30.0), temperature_c=71.5, throttle="thermal", healthy=False)
    both = [replica_report("vision/a#0", "GPU-1"), replica_report("vision/a#1", "GPU-2", latency_ms_p50=None)]
    with database.raw() as connection:
        ingest.ingest(connection, [report("n1", 1, devices=[device_report("GPU-1"), hot], replicas=both)])
        ingest.ingest(connection, [report("n1", 2, devices=[device_report("GPU-1")])])
        ingest.ingest(connection, [report("n1", 3, replicas=both[:1])])
    database.dispose()
    with psycopg.connect(migrated_url) as connection:
        before = [connection.execute(query).fetchall() for query in queries]
    assert [len(rows) for rows in before] == [3, 3]
    for move in (partial(migrate.downgrade, migrated_url, "0051"), partial(migrate.upgrade, migrated_url)) * 2:
        move()
        with psycopg.connect(migrated_url) as connection:
            assert [connection.execute(query).fetchall() for query in queries] == before
            kept = connection.execute("SELECT count(*) FROM report_log").fetchone()
            assert kept == (3,)


def test_fields_that_are_no_more_leave_stored_documents(migrated_url: str) -> None:
    migrate.downgrade(migrated_url, "0029")
    kept = {"name": "t4", "architecture": "Turing", "l2_mib": 4, "clocks_mhz_memory": [405]}
    promises = [{"slo": {"scope": scope}, "rest": 1} for scope in ("window", "execution")]
    with psycopg.connect(migrated_url) as connection:
        connection.execute("INSERT INTO gpu_types (name, spec) VALUES ('t4', %s)", [Jsonb(kept)])
        connection.execute("INSERT INTO projects (name, spec) VALUES ('p', '{}')")
        for number, spec in enumerate(promises):
            connection.execute(
                "INSERT INTO services (project, name, spec) VALUES ('p', %s, %s)", [str(number), Jsonb(spec)]
            )
    migrate.upgrade(migrated_url)
    with psycopg.connect(migrated_url) as connection:
        assert connection.execute("SELECT spec FROM gpu_types").fetchall() == [({"name": "t4"},)]
        scopes = connection.execute(
            "SELECT spec #>> '{slo,scope}', spec -> 'rest' FROM services ORDER BY name"
        ).fetchall()
    assert scopes == [("end_to_end", 1), ("execution", 1)]


def test_the_newest_file_of_each_name_is_the_definition_in_force(migrated_url: str) -> None:
    newest = {path.stem[5:]: path for path in sorted((migrate.scripts_path() / "sql").iterdir())}
    with psycopg.connect(migrated_url) as connection:
        before = connection.execute(DEFINITIONS).fetchall()
        for path in sorted(newest.values()):
            connection.execute(path.read_bytes())
        assert connection.execute(DEFINITIONS).fetchall() == before
    assert len(before) > 30


def test_upgrading_twice_changes_nothing(migrated_url: str) -> None:
    before = _objects(migrated_url)
    migrate.upgrade(migrated_url)
    assert _objects(migrated_url) == before


def test_a_schema_of_newer_software_stays_as_it_is(migrated_url: str) -> None:
    """So that what migrates before it starts can be put back."""
    with psycopg.connect(migrated_url) as connection:
        connection.execute("UPDATE schema_version SET version_num = '9001'")
    migrate.upgrade(migrated_url)
    assert migrate.current(migrated_url) == "9001"


def test_rival_migrators_wait_for_each_other(empty_url: str) -> None:
    with psycopg.connect(empty_url) as connection, ThreadPoolExecutor(1) as pool:
        connection.execute("SELECT pg_advisory_lock(6843712905)")
        connection.commit()
        rival = pool.submit(migrate.upgrade, empty_url)
        _wait_for_a_waiter(connection)
        assert migrate.current(empty_url) is None
        connection.execute("SELECT pg_advisory_unlock(6843712905)")
        connection.commit()
        rival.result(timeout=60)
    assert migrate.current(empty_url) == migrate.head()


def _wait_for_a_waiter(connection: psycopg.Connection, kind: str = "advisory") -> None:
    deadline = time.monotonic() + 30
    waiting = "SELECT FROM pg_locks WHERE locktype = %s AND NOT granted"
    while connection.execute(waiting, (kind,)).fetchone() is None:
        connection.rollback()
        assert time.monotonic() < deadline, "the migrator did not wait for the lock"


@pytest.mark.parametrize(
    ("at", "first", "then"),
    [("0055", "cluster_state", "ledger_hours"), ("0055", "ledger_hours", "device_bill_hours")],
    ids=["two revisions", "one revision"],
)
def test_a_migrator_and_a_server_that_read_in_another_order_both_come_to_their_end(
    empty_url: str, at: str, first: str, then: str
) -> None:
    migrate.upgrade(empty_url, at)
    with psycopg.connect(empty_url) as server, psycopg.connect(empty_url) as other, ThreadPoolExecutor(1) as pool:
        # The first to wait so long is who is ended.
        server.execute("SET deadlock_timeout = '1min'")
        server.commit()
        server.execute(f"SELECT FROM {first}")
        migrator = pool.submit(migrate.upgrade, empty_url)
        _wait_for_a_waiter(other, "relation")
        server.execute(f"SELECT FROM {then}")
        server.commit()
        migrator.result(timeout=60)
    assert migrate.current(empty_url) == migrate.head()


def test_a_migrator_that_waits_for_ever_says_for_what(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "ATTEMPTS_MAX", 1)
    migrate.downgrade(migrated_url, "0059")
    with psycopg.connect(migrated_url) as server:
        server.execute("SELECT FROM cluster_state")
        with pytest.raises(TransientError, match="lock timeout, 1 times; others hold what is to be changed"):
            migrate.upgrade(migrated_url)
    migrate.upgrade(migrated_url)
    assert migrate.current(migrated_url) == migrate.head()


def test_the_alembic_command_works_by_itself(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_DATABASE_URL", empty_url)
    CommandLine(prog="alembic").main(["-c", str(migrate.scripts_path() / "alembic.ini"), "upgrade", "head"])
    assert migrate.current(empty_url) == migrate.head()


def test_the_reader_role_may_not_write(migrated_url: str) -> None:
    with psycopg.connect(migrated_url) as connection:
        connection.execute("SET ROLE headroom_reader")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("INSERT INTO projects (name, spec) VALUES ('vision', '{}')")


def test_without_the_right_to_make_roles_all_else_is_made(empty_url: str) -> None:
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE tenant LOGIN NOCREATEROLE")
        connection.execute("GRANT ALL ON SCHEMA public TO tenant")
        if connection.execute("SELECT FROM pg_roles WHERE rolname = 'headroom_reader'").fetchone() is not None:
            connection.execute("ALTER ROLE headroom_reader RENAME TO headroom_reader_elsewhere")
    try:
        url = empty_url.replace("://headroom@", "://tenant@")
        migrate.upgrade(url)
        assert migrate.current(url) == migrate.head()
        migrate.downgrade(url, "base")
    finally:
        with psycopg.connect(empty_url, autocommit=True) as connection:
            connection.execute("DROP OWNED BY tenant")
            connection.execute("DROP ROLE tenant")
            # A row without columns is there, and false.
            if connection.execute("SELECT FROM pg_roles WHERE rolname = 'headroom_reader_elsewhere'").rowcount:
                connection.execute("ALTER ROLE headroom_reader_elsewhere RENAME TO headroom_reader")


def test_tables_are_what_the_code_describes(database: Database) -> None:
    with database.reading() as session:
        found = inspect(session.connection())
        for table in metadata.sorted_tables:
            described = {
                column.name: (str(column.type), column.nullable, column.primary_key) for column in table.columns
            }
            key = found.get_pk_constraint(table.name)["constrained_columns"]
            stored = {
                column["name"]: (str(column["type"]), column["nullable"], column["name"] in key)
                for column in found.get_columns(table.name)
            }
            assert _named_alike(described) == _named_alike(stored), table.name


def _named_alike(columns: dict[str, tuple[str, bool, bool]]) -> dict[str, tuple[str, bool, bool]]:
    names = {"DATETIME": "TIMESTAMP", "BLOB": "BYTEA", "DOUBLE": "DOUBLE PRECISION"}
    names |= {"DOUBLE[]": "DOUBLE PRECISION[]"}
    return {name: (names.get(kind, kind), nullable, key) for name, (kind, nullable, key) in columns.items()}
