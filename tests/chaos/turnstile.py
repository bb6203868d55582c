"""One operation at a time, and at each of its statements the stream of a seed says who goes on and what breaks.

An operation runs in threads of its own, whose context carries it. It stops at every point (before each statement,
before and after the commit) until it is let go. Who waits for a lock of the database stands aside, which the database
itself tells, and goes on to the end of its statement when that lock is free; nobody is let go before all who can run
have come to their next point. No clock of the machine's has a say: time passes with the steps, in the database, too,
and nobody gives up waiting for a lock: where all wait for each other, that is told. So a seed tells one story on every
machine, however busy.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import select
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from typing import Any

import psycopg
from sqlalchemy import event
from sqlalchemy.orm import Session

from app import clock
from app.store import grouped
from app.store.engine import Database, libpq_url

LOOK_S = 0.02
"""Most come to their next point before the first look, which costs as much as their step."""
STUCK_LOOKS = 10_000
LEAVING_S = 30.0
NO_WAIT = "SET lock_timeout = '10ms'"
"""While everybody stands still, a lock is had at once or not at all."""
EPOCH = datetime(2026, 3, 4, 12, tzinfo=UTC)
"""When histories begin."""
TIMED = (
    f"SET chaos.now = '{EPOCH}'",
    "SET search_path = public, pg_catalog",
    "SET lock_timeout = 0",
    "SET statement_timeout = 0",
    "SET idle_in_transaction_session_timeout = 0",
    "SET deadlock_timeout = '1h'",
)
"""What makes a session go by the steps of a history, where the database has NOW_SQL."""
NOW_SQL = "; ".join(
    f"CREATE FUNCTION public.{name}() RETURNS timestamptz STABLE RETURN current_setting('chaos.now')::timestamptz"
    for name in ("now", "clock_timestamp")
)
FULL = "DO $$ BEGIN RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device'; END $$"
NOW: ContextVar[Operation | None] = ContextVar("operation", default=None)


class Left(BaseException):
    """Raised within an operation that nobody will let go on: neither the application nor a test may answer it."""


class Operation:
    """Something under way."""

    def __init__(self, name: str, work: Callable[[], Any], seed: int) -> None:
        self.name = name
        self.stream = random.Random(f"{seed} {name}")
        """Of ids and secrets."""
        self.answer: Any = None
        self.error: BaseException | None = None
        self.point = ""
        """Where it stands; empty while it runs."""
        self.over = False
        self.aside = False
        """It waits for a lock, or for others with whom it goes together."""
        self.has_waited = False
        """Others went on meanwhile."""
        self.others: Future[bool] | None = None
        """Done when others, with whom it goes together, let it go on."""
        self.backend: int | None = None
        """Its connection, while it has one in a transaction."""
        self.finds_full = False
        """Its next statement finds no room on the database's disk."""
        self.has_written = False
        """Since the promises were asked for."""
        self.steps = 0
        self._work = work
        self._is_left = False
        self._go, self._told = threading.Lock(), threading.Lock()
        """Held until somebody may go on: the operation, and who let it go."""
        self._go.acquire()
        self._told.acquire()
        context = copy_context()
        context.run(NOW.set, self)
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def stop(self, point: str) -> None:
        """Called within the operation: wait here until it is let go."""
        self.point, self.aside, self.has_waited, self.others = point, False, False, None
        self._tell()
        self._go.acquire()
        if self._is_left:
            # For any other thread of it.
            self._go.release()
            raise Left

    def leave(self) -> None:
        """It ends where it stands: its threads and connections would be there for ever."""
        self._is_left = True
        self._go.release()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def let_go(self) -> None:
        self.point, self.steps = "", self.steps + 1
        self._go.release()

    def await_told(self, seconds: float) -> bool:
        return self._told.acquire(timeout=seconds)

    def _tell(self) -> None:
        with suppress(RuntimeError):  # it is told already
            self._told.release()

    def _run(self) -> None:
        try:
            self.stop("begin")
            self.answer = self._work()
        except BaseException as error:  # noqa: BLE001 - told by whoever waits for it
            self.error = error
        self.over, self.aside, self.backend, self.others = True, False, None, None
        self._tell()


def _awaited(future: Future[bool]) -> asyncio.Future[bool]:
    """Who waits for a commit that others lead stands aside, and not by time."""
    operation = NOW.get()
    if operation is not None:
        operation.others = future
    return asyncio.wrap_future(future)


class Drawn:
    """Ids and secrets from the stream of who wants them: rows are locked in the order of ids."""

    def _bytes(self, count: int) -> bytes:
        operation = NOW.get()
        return (random.SystemRandom() if operation is None else operation.stream).randbytes(count)

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._bytes(16), version=4)

    def token_urlsafe(self, count: int) -> str:
        return base64.urlsafe_b64encode(self._bytes(count)).rstrip(b"=").decode()


grouped.wrap_future = _awaited
vars(clock).update(uuid=Drawn(), secrets=Drawn())


def here(point: str) -> None:
    operation = NOW.get()
    if operation is not None:
        operation.stop(point)


class Kept(psycopg.Connection):
    """A connection whose session, where it is closed in good health, serves the next who opens one: a new session costs
    PostgreSQL as much as fifty statements.
    """

    _spare: list[Kept]

    @classmethod
    def to(cls, spare: list[Kept], *arguments: Any, **more: Any) -> Kept:
        made = cls.connect(*arguments, **more)
        made._spare = spare
        return made

    def close(self) -> None:
        """With all that a session ends with."""
        try:
            self.rollback()
            self.autocommit = True
            self.execute("UNLISTEN *; RESET ALL; SELECT pg_advisory_unlock_all()")
            self.autocommit = False
        except psycopg.Error:
            self.end()
        else:
            self._spare.append(self)

    def end(self) -> None:
        super().close()


class WatchedDatabase(Database):
    """Connections whose every statement is a point."""

    def __init__(self, url: str, now: Callable[[], datetime], **more: Any) -> None:
        super().__init__(url, **more)
        self._now = now
        self._spare: list[Kept] = []
        event.listen(self._engine, "do_connect", self._lend)
        event.listen(self._engine, "connect", _time)
        event.listen(self._engine, "begin", lambda connection: self._tell_time(connection.connection.driver_connection))
        event.listen(self._engine, "before_cursor_execute", _statement, retval=True)
        event.listen(self._engine, "after_cursor_execute", _waited)
        event.listen(self._engine, "commit", _commit)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        inner = self._whole.get() is not None
        with super().transaction() as session:
            yield session
        if not inner:
            _ended()

    @contextmanager
    def reading(self, *, patient: bool = False) -> Iterator[Session]:
        with super().reading(patient=patient) as session:
            yield session
        _ended()

    @contextmanager
    def raw(self) -> Iterator[psycopg.Connection]:
        with super().raw() as connection:
            _hold(connection.info.backend_pid)
            self._tell_time(connection)
            here("raw begin")
            if _finds_full():
                connection.execute(FULL)
            yield connection
            _written()
            here("raw commit")
        _ended()

    def disconnect(self) -> None:
        """Close what nobody uses, and go on with new connections."""
        self._engine.dispose()
        while self._spare:
            self._spare.pop().end()

    def dispose(self) -> None:
        super().dispose()
        self.disconnect()

    def _lend(
        self, _dialect: object, _record: object, arguments: list[Any], more: dict[str, Any]
    ) -> psycopg.Connection:
        return self._spare.pop() if self._spare else Kept.to(self._spare, *arguments, **more)

    def _tell_time(self, connection: psycopg.Connection) -> None:
        connection.execute(f"SET LOCAL chaos.now = '{self._now()}'".encode())


def _time(connection: Any, _record: object) -> None:
    connection.autocommit = True
    connection.execute("; ".join(TIMED))
    connection.autocommit = False


def _hold(backend: int | None) -> None:
    operation = NOW.get()
    if operation is not None:
        operation.backend = backend


def _ended() -> None:
    _hold(None)
    here("committed")


def _written() -> None:
    """What it does from here on may show."""
    operation = NOW.get()
    if operation is not None:
        operation.has_written = True


def _finds_full() -> bool:
    """Whether what comes now finds the disk full; told once."""
    operation = NOW.get()
    full = operation is not None and operation.finds_full
    if operation is not None:
        operation.finds_full = False
    return full


def _statement(
    connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool
) -> tuple[str, Any]:
    _hold(connection.connection.driver_connection.info.backend_pid)
    here(f"statement {statement.split(maxsplit=1)[0]}")
    if not statement.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")) and _finds_full():
        return FULL, [()] if many else ()
    return statement, parameters


def _waited(*_: Any) -> None:
    """Who set it free comes to its next point alone."""
    operation = NOW.get()
    if operation is not None and operation.has_waited:
        operation.stop("waited")


def _commit(connection: Any) -> None:
    _written()
    _hold(connection.connection.driver_connection.info.backend_pid)
    here("commit")


@contextmanager
def _process(number: int) -> Iterator[int]:
    process = os.pidfd_open(number)
    try:
        yield process
    finally:
        os.close(process)


class Turnstile:
    """Operations under way on one database."""

    def __init__(self, url: str) -> None:
        self.under_way: list[Operation] = []
        self._control = psycopg.connect(libpq_url(url), autocommit=True, application_name="turnstile")
        self._control.execute(NO_WAIT)

    def close(self) -> None:
        """With what is still under way, as where a promise was seen to be broken."""
        for operation in self.under_way:
            operation.leave()
            if operation.aside:
                self.cut(operation)
        for operation in self.under_way:
            operation.join(LEAVING_S)
        self._control.close()

    def begin(self, operation: Operation) -> None:
        self.under_way.append(operation)
        operation.begin()
        self._settle()

    @property
    def ready(self) -> list[Operation]:
        return [operation for operation in self.under_way if operation.point]

    def advance(self, operation: Operation) -> None:
        """One step of one operation, and of those that it set free."""
        operation.let_go()
        self._settle()

    def cut(self, operation: Operation) -> bool:
        """Break its connection, as a killed process or a network does; False where it has none."""
        if operation.backend is None:
            return False
        with suppress(ProcessLookupError), _process(operation.backend) as process:
            self._control.execute("SELECT pg_terminate_backend(%s)", (operation.backend,))
            ended = select.poll()  # for a long run has more files than select can ask about
            ended.register(process, select.POLLIN)
            assert ended.poll(1000 * LEAVING_S), f"connection {operation.backend} does not end"
        return True

    def ended(self) -> list[Operation]:
        """Those that are over, told once."""
        over = [operation for operation in self.under_way if operation.over]
        self.under_way = [operation for operation in self.under_way if not operation.over]
        return over

    def change(self, statement: str) -> None:
        """Something happens to the world."""
        self._control.execute(statement.encode())

    def rows(self, query: str, *values: Any) -> list[Any]:
        return self._control.execute(query.encode(), values or None, prepare=True).fetchall()

    def _settle(self) -> None:
        """Until everybody stands at a point, is over, or waits for what somebody else holds."""
        for _ in range(STUCK_LOOKS):
            for operation in self._running():
                if not operation.aside and not operation.await_told(LOOK_S):
                    operation.aside = self._waits(operation)
            running = self._running()
            # Whoever came to a point since may have set free who stood aside.
            for operation in running:
                operation.aside = operation.aside and self._waits(operation)
            left = sum(not operation.over for operation in self.under_way)
            if all(operation.aside for operation in running) and len(running) < max(1, left):
                for operation in running:
                    operation.has_waited = True
                return
        raise AssertionError(f"all wait for each other: {[operation.name for operation in self.under_way]}")

    def _running(self) -> list[Operation]:
        return [operation for operation in self.under_way if not (operation.point or operation.over)]

    def _waits(self, operation: Operation) -> bool:
        if operation.others is not None:
            return not operation.others.done()
        return bool(self.rows("SELECT unnest(pg_blocking_pids(%s))", operation.backend))
