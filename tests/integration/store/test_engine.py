"""Transactions commit or vanish whole, reading sees one moment, and driver errors come out as the core's."""

from __future__ import annotations

import time

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.store import events
from app.store.engine import Database, core_error, libpq_url, normalise_url
from app.store.events import Event
from app.store.pages import PageOrder
from solvers.errors import InputError, StateError, TransientError
from tests.integration.postgres import Server

pytestmark = pytest.mark.integration


def _event(name: str) -> Event:
    return Event(name=name, actor="test", subject="nothing", facts={})


def _ask(database: Database) -> None:
    with database.reading() as session:
        session.execute(text("SELECT 1"))


def _fail_after(session: Session) -> None:
    events.append(session, _event("a.dropped"))
    raise RuntimeError


def _names(database: Database) -> list[str]:
    with database.reading() as session:
        return [stored.name for stored in events.page(session, PageOrder(limit=10)).items]


def test_commits_at_the_end(database: Database) -> None:
    with database.transaction() as session:
        events.append(session, _event("a.happened"))
    assert _names(database) == ["a.happened"]


def test_rolls_back_on_any_exception(database: Database) -> None:
    with pytest.raises(RuntimeError), database.transaction() as session:
        _fail_after(session)
    assert _names(database) == []


def _insert_event(connection: psycopg.Connection, name: str) -> None:
    connection.execute("INSERT INTO events (name, actor, subject) VALUES (%s, 'test', 'nothing')", (name,))
    if name == "a.dropped":
        raise RuntimeError


def test_raw_connection_commits_or_rolls_back(database: Database) -> None:
    with database.raw() as connection:
        _insert_event(connection, "a.kept")
    with pytest.raises(RuntimeError), database.raw() as connection:
        _insert_event(connection, "a.dropped")
    assert _names(database) == ["a.kept"]


def test_whoever_comes_back_after_the_end_is_closed(database: Database) -> None:
    kept = []
    for _ in range(2):
        with database.raw() as connection:
            kept.append(connection)
            database.dispose()
            _insert_event(connection, "a.last")
    assert [connection.closed for connection in kept] == [True, True]
    assert _names(database) == ["a.last", "a.last"]


def test_reading_sees_one_moment_and_writes_nothing(database: Database) -> None:
    with database.reading() as session:
        before = events.page(session, PageOrder(limit=10)).items
        with database.transaction() as other:
            events.append(other, _event("a.happened"))
        assert events.page(session, PageOrder(limit=10)).items == before == ()
    with pytest.raises(DBAPIError, match="read-only transaction"), database.reading() as session:
        events.append(session, _event("a.happened"))


def test_after_reading_the_pool_writes_again(database: Database) -> None:
    for _ in range(10):
        with database.reading() as session:
            session.execute(text("SELECT 1"))
    with database.transaction() as session:
        events.append(session, _event("a.happened"))
    assert _names(database) == ["a.happened"]


def test_lost_connections_are_transient_and_the_pool_recovers(database: Database) -> None:
    _ask(database)
    with pytest.raises(TransientError) as caught, database.transaction() as session:
        session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    assert caught.value.retryable
    _ask(database)


def test_a_pooled_connection_that_died_unnoticed_is_replaced(database: Database, template_server: Server) -> None:
    with database.raw() as connection:
        pid = connection.info.backend_pid
    with psycopg.connect(template_server.url("postgres")) as killer:
        assert killer.execute("SELECT pg_terminate_backend(%s)", (pid,)).fetchone() == (True,)
    _ask(database)
    with database.raw() as connection:
        assert connection.info.backend_pid != pid


def test_a_transaction_in_which_its_process_froze_is_ended_and_transient(database: Database, database_url: str) -> None:
    frozen = Database(database_url, pool_size=1, idle_in_transaction_s=0.05)
    with pytest.raises(TransientError):
        _freeze_in_session(frozen, database_url)
    with pytest.raises(TransientError):
        _freeze_in_raw(frozen, database_url)
    frozen.dispose()
    assert _names(database) == []


def test_a_patient_reader_may_be_slow_where_another_one_is_ended(database_url: str) -> None:
    """It has locked nothing; a picture of much takes a busy machine longer than a leader may stand still."""
    frozen = Database(database_url, pool_size=2, idle_in_transaction_s=1.0)
    with frozen.reading(patient=True) as patient:
        patient.execute(text("SELECT 1"))
        with pytest.raises(TransientError):
            _freeze_in_reading(frozen, database_url)
        assert patient.execute(text("SELECT 1")).scalar_one() == 1
    frozen.dispose()


def _freeze_in_session(frozen: Database, url: str) -> None:
    with frozen.transaction() as session:
        events.append(session, _event("a.dropped"))
        _await_end(url, session.execute(text("SELECT pg_backend_pid()")).scalar_one())
        session.execute(text("SELECT 1"))


def _freeze_in_reading(frozen: Database, url: str) -> None:
    with frozen.reading() as session:
        _await_end(url, session.execute(text("SELECT pg_backend_pid()")).scalar_one())
        session.execute(text("SELECT 1"))


def _freeze_in_raw(frozen: Database, url: str) -> None:
    with frozen.raw() as connection:
        _await_end(url, connection.info.backend_pid)
        connection.execute("SELECT 1")


def _await_end(url: str, pid: int) -> None:
    """Wait until the server has ended a session."""
    end_s = time.monotonic() + 10.0
    with psycopg.connect(url, autocommit=True) as watcher:
        while watcher.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is not None:
            assert time.monotonic() < end_s, "the session goes on"


def test_an_unreachable_server_is_transient() -> None:
    nowhere = Database("postgresql://nobody@/nothing?host=/nonexistent")
    with pytest.raises(TransientError):
        _ask(nowhere)


def test_an_exhausted_pool_is_transient(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.engine.POOL_WAIT_S", 0.05)
    small = Database(database_url, pool_size=1)
    with small.transaction() as session:
        session.execute(text("SELECT 1"))
        with pytest.raises(TransientError):
            _ask(small)
    small.dispose()


@pytest.mark.parametrize("bad", ["nul \x00 inside", "lone surrogate \ud800"])
def test_text_that_no_column_takes_is_the_callers_fault(database: Database, bad: str) -> None:
    with pytest.raises(InputError), database.transaction() as session:
        events.page(session, PageOrder(limit=1), subject=bad)


def test_broken_constraints_are_conflicts(database: Database) -> None:
    with pytest.raises(StateError), database.transaction() as session:
        session.execute(text("INSERT INTO target_history VALUES (2, 'p', 0, now(), 'x', NULL)"))


def test_our_own_mistakes_stay_what_they_are() -> None:
    assert core_error(psycopg.errors.UndefinedTable("no such table")) is None


def test_listening_hears_notifications(database: Database) -> None:
    with database.listening("bell") as connection:
        with database.transaction() as session:
            session.execute(text("SELECT pg_notify('bell', '7')"))
        heard = next(connection.notifies(timeout=10, stop_after=1))
    assert heard.payload == "7"


@pytest.mark.parametrize(
    "given",
    [
        "postgres://u:p%40ss@db.example:5433/headroom?sslmode=require",
        "postgresql://u:p%40ss@db.example:5433/headroom?sslmode=require",
        "postgresql+psycopg2://u:p%40ss@db.example:5433/headroom?sslmode=require",
    ],
)
def test_every_form_of_url_is_understood(given: str) -> None:
    expected = "u:p%40ss@db.example:5433/headroom?client_encoding=utf8&sslmode=require"
    assert normalise_url(given) == f"postgresql+psycopg://{expected}"
    assert libpq_url(given) == f"postgresql://{expected}"


def test_spaces_are_written_as_libpq_reads_them() -> None:
    written = libpq_url("postgresql://u:p%20a+b@/db?host=/my fleet/a%2Bb")
    found = psycopg.conninfo.conninfo_to_dict(written)
    assert (found["password"], found["host"]) == ("p a+b", "/my fleet/a+b")


@pytest.mark.parametrize("given", ["", "nonsense", "mysql://u@h/d"])
def test_other_urls_are_refused(given: str) -> None:
    with pytest.raises(InputError):
        normalise_url(given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("postgresql://u:h@lf-said@db.example/d", "in its user and password, write @ as %40"),
        ("postgresql://u:half-said@db.example/d?sslmod=require", "an option 'sslmod', .*; did you mean sslmode?"),
        ("postgresql://u:half-said@db.example/d?pool_size=5", "an option 'pool_size', which PostgreSQL does not know"),
        ("postgresql://u:half-said@[::1/d", "cannot be read; expected postgresql://"),
        ("postgresql://u:half-said%00@db.example/d", "cannot be read; expected postgresql://"),
    ],
)
def test_what_the_driver_would_refuse_is_told_without_the_password(given: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        normalise_url(given)
    assert "-said" not in caught.value.message


def test_a_database_without_an_encoding_answers_with_text(empty_url: str) -> None:
    with psycopg.connect(libpq_url(empty_url), autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE unencoded ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
    try:
        database = Database(
            make_url(libpq_url(empty_url)).set(database="unencoded").render_as_string(hide_password=False)
        )
        try:
            with database.reading() as session:
                assert session.execute(text("SELECT 'größer'")).scalar_one() == "größer"
        finally:
            database.dispose()
    finally:
        with psycopg.connect(libpq_url(empty_url), autocommit=True) as connection:
            connection.execute("DROP DATABASE unencoded")
