"""A thread that follows one connection to the database after the other, for what streams tell.

Owns its life: begin, go on after every broken connection with a growing pause, end. What is read from a connection and
told to the event loop is its owner's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from app.logs import EventLog

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.2, 5.0
Feed = TypeVar("Feed")


class FeedThread(Generic[Feed]):
    """Follows until stopped. `follow(feed)` reads one connection and returns when `closing` is set; what it raises ends
    the connection, not the thread.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], AbstractContextManager[Feed]],
        follow: Callable[[Feed], None],
        log: EventLog,
    ) -> None:
        self.closing = threading.Event()
        self._name = name
        self._connect = connect
        self._follow = follow
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; returns at once, also while PostgreSQL is away."""
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name=f"headroom-{self._name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End at the next look."""
        self.closing.set()

    def join(self) -> None:
        """Wait for the thread to have ended."""
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def tell(self, hear: Callable[..., Any], *news: Any) -> None:
        """Call this on the event loop, while there is one."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(hear, *news)

    def _run(self) -> None:
        backoff_s = BACKOFF_S_MIN
        while not self.closing.is_set():
            begun_s = time.monotonic()
            try:
                with self._connect() as feed:
                    self._follow(feed)
            except Exception as error:  # noqa: BLE001 - whatever broke the connection, the cure is a new one
                if time.monotonic() - begun_s > BACKOFF_S_MAX:
                    backoff_s = BACKOFF_S_MIN
                self._log.warning(f"{self._name}.disconnected", error, backoff_s=backoff_s)
                self.closing.wait(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
