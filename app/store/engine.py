"""The way to PostgreSQL: pooled sessions, raw connections for COPY and LISTEN, and what its errors mean to the core."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Concatenate, ParamSpec, TypeVar, cast

import psycopg
from psycopg import sql
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from solvers.errors import HeadroomError, InputError, StateError, TransientError, did_you_mean

P = ParamSpec("P")
T = TypeVar("T")

DRIVER = "postgresql+psycopg"
POOL_WAIT_S = 10.0
CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_MS = 60_000
IDLE_IN_TRANSACTION_S = 60.0
LOCK_TIMEOUT_MS = 15_000
PROBE = "headroom.probe"
WHOLE_IDLE_S = 900
"""A plan on request thinks between two statements."""
_PATIENT = f"SET LOCAL idle_in_transaction_session_timeout = '{WHOLE_IDLE_S}s'"

# Trying again may cure these: broken connections, serialization failures, deadlocks, exhausted or cancelled servers,
# and the end of a transaction in which this process froze.
_RETRYABLE = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout)
# What the caller sent does not fit into a column: NUL characters, numbers out of range.
_CALLER_WRONG = (psycopg.DataError,)


_UNREADABLE = "the database URL cannot be read; expected postgresql://user:password@host:port/database"


def normalise_url(url: str) -> str:
    """Any PostgreSQL URL (`postgres:`, `postgresql:`, `postgresql+driver:`) as SQLAlchemy with psycopg 3 wants it."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InputError(_UNREADABLE) from None
    if parsed.drivername.partition("+")[0] not in ("postgres", "postgresql"):
        raise InputError(f"the database must be PostgreSQL, not {parsed.drivername}")
    _check(parsed)
    # A server whose databases have no encoding (SQL_ASCII) would otherwise answer with bytes instead of text.
    encoded = parsed.set(drivername=DRIVER).update_query_dict({"client_encoding": "utf8"})
    return _written(encoded)


def _check(url: URL) -> None:
    """Raise InputError for what the driver would refuse, or show in its own words: a part of the password."""
    if "@" in (url.host or ""):
        raise InputError("the database URL cannot be read: in its user and password, write @ as %40")
    if "%00" in url.render_as_string(hide_password=False):
        raise InputError(_UNREADABLE)
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    for name in url.query:
        if name not in known:
            near = did_you_mean(name, known)
            raise InputError(f"the database URL has an option {name!r}, which PostgreSQL does not know{near}")


def libpq_url(url: str) -> str:
    """The same URL for psycopg and other libpq clients."""
    return _written(make_url(normalise_url(url)).set(drivername="postgresql"))


def _written(url: URL) -> str:
    """As libpq reads it, too: a `+` is no space to it, and a space is nothing that it takes."""
    head, mark, query = url.render_as_string(hide_password=False).partition("?")
    return head.replace(" ", "%20") + mark + query.replace("+", "%20")


def core_error(error: psycopg.Error, *, writes: bool = True) -> HeadroomError | None:
    """What a driver error means to the core; None when it is a bug of ours, as a write where none was meant."""
    # A standby, as after a failover, takes no writes: the statement's fault, or that of the transaction's beginning.
    standby = writes and isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
    standby = standby or (isinstance(error, psycopg.errors.FeatureNotSupported) and "recovery" in str(error))
    if standby or isinstance(error, _RETRYABLE):
        return TransientError(f"database: {_first_line(error)}", sqlstate=error.sqlstate)
    if isinstance(error, psycopg.errors.CheckViolation) and error.diag.constraint_name is None:
        # No rule of ours: a partition was made for a row that was on its way to the default one.
        return TransientError(f"database: {_first_line(error)}", sqlstate=error.sqlstate)
    if isinstance(error, _CALLER_WRONG):
        return InputError(f"a value does not fit into the database: {_first_line(error)}", sqlstate=error.sqlstate)
    if isinstance(error, psycopg.IntegrityError):
        return StateError(f"the change conflicts with what is stored: {_first_line(error)}", sqlstate=error.sqlstate)
    return None


def notified(connection: psycopg.Connection, timeout_s: float) -> Iterator[psycopg.Notify]:
    """What a listening connection hears within this time, as soon as there is something; waiting itself, the driver
    wakes ten times a second.
    """
    heard = select.poll()  # for a process has more files than select can ask about
    heard.register(connection.fileno(), select.POLLIN)
    if heard.poll(1000 * timeout_s):
        yield from connection.notifies(timeout=0.0)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def translated(*, writes: bool = True) -> Iterator[None]:
    """Raise core errors in place of the driver's."""
    try:
        yield
    except PoolTimeoutError:
        raise TransientError("database: no connection became free in time") from None
    except DBAPIError as error:
        known = core_error(error.orig, writes=writes) if isinstance(error.orig, psycopg.Error) else None
        if known is None:
            raise
        raise known from error
    except psycopg.Error as error:
        known = core_error(error, writes=writes)
        if known is None:
            raise
        raise known from error
    except UnicodeEncodeError as error:
        raise InputError("text must be valid Unicode without lone surrogates") from error


def _options(rules: Mapping[str, str]) -> str:
    return " ".join(f"-c {name}={value}" for name, value in rules.items())


class Database:
    """One process's connections to one PostgreSQL database."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 5,
        application_name: str = "headroom",
        idle_in_transaction_s: float = IDLE_IN_TRANSACTION_S,
        direct_url: str = "",
    ) -> None:
        """`direct_url` is PostgreSQL itself where `url` leads to a pooler, which may hand each transaction to another
        session: then every transaction says how it is to run.
        """
        self.url = normalise_url(url)
        self.direct_url = normalise_url(direct_url or url)
        self._rules = {
            "timezone": "UTC",
            "lock_timeout": str(LOCK_TIMEOUT_MS),
            "statement_timeout": str(STATEMENT_TIMEOUT_MS),
            "idle_in_transaction_session_timeout": str(round(1000 * idle_in_transaction_s)),
        }
        self._pooled = bool(direct_url)
        # A statement that was prepared in one session is unknown in the next.
        kept = {"prepare_threshold": None} if self._pooled else {"options": _options(self._rules)}
        self._whole: ContextVar[Session | None] = ContextVar("whole", default=None)
        self._engine: Engine = create_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_WAIT_S,
            pool_pre_ping=True,
            connect_args={
                "application_name": application_name,
                "connect_timeout": CONNECT_TIMEOUT_S,
                **kept,
            },
        )
        event.listen(self._engine, "checkin", self._close_late)
        self._disposed = False
        if self._pooled:
            event.listen(self._engine, "begin", lambda connection: connection.exec_driver_sql(self._local()))

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end, or rolls back on any exception; a part of the `whole` that it is in.

        Raises TransientError when the database cannot be reached or asks for a retry, InputError for values that fit no
        column.
        """
        outer = self._whole.get()
        if outer is not None:
            with translated(), outer.begin_nested():
                yield outer
            return
        with translated(), Session(self._engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def whole(self, *, apart: bool = False) -> Iterator[Session]:
        """A transaction that takes in those opened within it by this thread, unless they stand `apart`; it may be idle
        for long.
        """
        with self.transaction() as session:
            session.execute(text(_PATIENT))
            token = self._whole.set(None if apart else session)
            try:
                yield session
            finally:
                self._whole.reset(token)

    @contextmanager
    def reading(self, *, patient: bool = False) -> Iterator[Session]:
        """A read-only session that sees one moment of the database throughout, and nothing that is not committed. It
        locks nothing that others want: who reads much, and is slow to take it in, may be `patient`.
        """
        with translated(writes=False), Session(self._engine, expire_on_commit=False) as session:
            session.connection(execution_options={"isolation_level": "REPEATABLE READ", "postgresql_readonly": True})
            if patient:
                session.execute(text(_PATIENT))
            yield session

    def read(self, query: Callable[Concatenate[Session, P], T], *args: P.args, **more: P.kwargs) -> T:
        """What one query finds in a moment of its own."""
        with self.reading() as session:
            return query(session, *args, **more)

    @contextmanager
    def raw(self) -> Iterator[psycopg.Connection]:
        """A pooled psycopg connection in one transaction: committed at the end, rolled back on any exception."""
        with translated():
            pooled = self._engine.raw_connection()
            connection = cast("psycopg.Connection", pooled.driver_connection)
            try:
                with connection.transaction():
                    self._rule(connection)
                    yield connection
            except psycopg.Error as error:
                # What the server broke must not be rolled back and lent again.
                if connection.broken:
                    pooled.invalidate(error)
                raise
            finally:
                pooled.close()

    @contextmanager
    def listening(self, *channels: str) -> Iterator[psycopg.Connection]:
        """A connection of its own, outside the pool, in autocommit and subscribed to notification channels."""
        with (
            translated(),
            psycopg.connect(
                libpq_url(self.direct_url),
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="headroom listener",
            ) as connection,
        ):
            for channel in channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            yield connection

    def require_sessions(self) -> None:
        """Raise InputError where what should be PostgreSQL itself is a pooler: it forgets settings and notifications.
        TransientError when nobody answers.
        """
        address, kept = libpq_url(self.direct_url), _options({PROBE: "kept"})
        try:
            with (
                translated(),
                psycopg.connect(address, options=kept, connect_timeout=CONNECT_TIMEOUT_S) as connection,
            ):
                row = connection.execute("SELECT current_setting(%s, true)", (PROBE,)).fetchone()
        except TransientError as error:
            if "startup parameter" not in error.message:
                raise
            row = None
        if row != ("kept",):
            raise InputError(
                "the database URL leads to a pooler such as pgbouncer, which keeps neither a session's settings nor"
                " LISTEN: name PostgreSQL's own address in HEADROOM_DATABASE_DIRECT_URL"
            )

    def _rule(self, connection: psycopg.Connection) -> None:
        if self._pooled:
            connection.execute(self._local().encode())

    def _local(self) -> str:
        return "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in self._rules.items())

    def dispose(self) -> None:
        """Close every pooled connection: those that threads still have, as soon as they give them back."""
        self._disposed = True
        self._engine.dispose()

    def _close_late(self, _: object, record: ConnectionPoolEntry) -> None:
        if self._disposed:
            record.invalidate()
