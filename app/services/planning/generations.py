"""Generations of the target as they are announced: the database's end of the doorbell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from app.store import targets
from app.store.engine import Database

CHANNEL = "headroom_generation"


class Announcements:
    """One live LISTEN session. Subscribed before it is asked for the current generation, so none is missed."""

    def __init__(self, database: Database, cluster: str, connection: psycopg.Connection) -> None:
        self._database = database
        self._cluster = cluster
        self._connection = connection

    def current(self) -> int:
        """The generation now."""
        with self._database.reading() as session:
            return targets.generation(session, self._cluster)

    def announced(self, timeout_s: float) -> Iterator[int]:
        """Generations announced within the timeout."""
        for notification in self._connection.notifies(timeout=timeout_s, stop_after=64):
            if notification.payload.isdigit():
                yield int(notification.payload)


@contextmanager
def announcements(database: Database, cluster: str) -> Iterator[Announcements]:
    """Listen for generations. Raises TransientError when the database goes away."""
    with database.listening(CHANNEL) as connection:
        yield Announcements(database, cluster, connection)
