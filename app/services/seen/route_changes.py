"""When routes may have changed: the database's end of their streams.

Owns what is listened to: read-backs that came in, and promotions. It refuses to say what changed; whoever hears reads
the routes again. What comes without a notification (reports, silence, deleted services) is found by asking in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from app.store import read_backs, targets
from app.store.engine import Database

Changed = Callable[[float], bool]
"""Waits so many seconds at most; tells whether anything was announced."""


@contextmanager
def route_changes(database: Database) -> Iterator[Changed]:
    """Listen. Raises TransientError when the database goes away."""
    with database.listening(read_backs.CHANNEL) as connection:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(targets.CHANNEL)))
        yield lambda timeout_s: _announced(connection, timeout_s)


def _announced(connection: psycopg.Connection, timeout_s: float) -> bool:
    return any(True for _ in connection.notifies(timeout=timeout_s, stop_after=1))
