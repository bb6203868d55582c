"""Streams of routes: whoever watches a service hears of every change of its routes within a second.

Owns one thread per process that reads the routes while somebody watches (when the database tells of a read-back or a
promotion, and every second for what nobody tells), the newest table, and the fan-out to a bounded number of streams.
Every line is the whole state, so that a reader that was slow, or away, needs no other. A stream holds no database
connection, and ends by itself after about an hour, as the doorbell's do.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.doorbell import HEARTBEAT, STREAM_S_MAX, Hub, disconnected
from app.api.feed_thread import FeedThread
from app.api.metrics import StreamMetrics
from app.logs import EventLog
from app.records import plain
from app.services.seen.routes import Changed, Route
from solvers.errors import TransientError

STREAMS_MAX = 512
"""Per process; whoever comes then is told to try again."""
READ_EVERY_S = 1.0
PAUSE_S = 0.05
"""Between two reads at least, however often something is announced."""
LEISURE = 4.0
"""A large fleet takes longer to read; unasked it is read only after so many times as long."""
LISTEN_S = 0.5
Table = Mapping[str, Route]


class RouteBoard:
    """The newest routes and who waits for newer ones. Everything but `ticket` and `watched` is the event loop's."""

    def __init__(self, metrics: StreamMetrics, streams_max: int = STREAMS_MAX) -> None:
        self.hub = Hub(metrics)
        self.watched = 0
        self._streams_max = streams_max
        self._tickets = itertools.count(1)
        self._newest = 0
        self._table: Table = {}
        self._plain: dict[str, Any] = {}
        """The same as JSON data, made once for all who watch."""

    def ticket(self) -> int:
        """Taken before a read, so that of two that overlap the later one counts."""
        return next(self._tickets)

    def publish(self, ticket: int, table: Table) -> None:
        """Take a read over and wake whoever waits if it says something new."""
        if ticket < self._newest:
            return
        self._newest = ticket
        if table != self._table:
            self._table = table
            self._plain = plain(table)
            self.hub.ring(self.hub.generation + 1)

    def line(self, service: str | None, project: str | None) -> bytes | None:
        """What a stream of a service says now, or of all services that a project's token sees; None: no such one."""
        if service is not None:
            found = self._plain.get(service)
            return None if found is None else _line(found)
        prefix = "" if project is None else f"{project}/"
        return _line({"items": [route for name, route in self._plain.items() if name.startswith(prefix)]})

    def opened(self) -> None:
        """A stream begins. Raises TransientError when there are too many."""
        if self.watched >= self._streams_max:
            raise TransientError(f"{self.watched} streams of routes are open here already")
        self.watched += 1
        self.hub.opened()

    def closed(self) -> None:
        """A stream ended."""
        self.watched -= 1
        self.hub.closed()


def _line(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, sort_keys=True, separators=(",", ":")).encode() + b"\n"


class RouteStream(Response):
    """One watcher's stream: the routes as they are, every change, and a comment line while nothing happens."""

    media_type = "application/x-ndjson"

    def __init__(self, board: RouteBoard, wanted: tuple[str | None, str | None], heartbeat_s: float) -> None:
        """`wanted`: service and project as `RouteBoard.line` takes them. The board counts the stream already."""
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._board = board
        self._wanted = wanted
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the watcher goes, the service is deleted, the hour is over or the process ends."""
        gone = asyncio.ensure_future(disconnected(receive))
        closing: threading.Event = scope["app"].state.listener.closing
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._tell(send, gone, closing)
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            return
        finally:
            gone.cancel()
            self._board.closed()

    async def _tell(self, send: Send, gone: asyncio.Future[None], closing: threading.Event) -> None:
        loop, hub = asyncio.get_running_loop(), self._board.hub
        # Jitter spreads heartbeats and reconnects of gateways that came up together.
        jitter = random.uniform(0.8, 1.2)
        ends_at, due_at, said = loop.time() + STREAM_S_MAX * jitter, 0.0, b""
        while True:
            seen = hub.generation
            line = self._board.line(*self._wanted)
            if line is None:
                return
            if line != said or loop.time() >= due_at:
                body, said = (HEARTBEAT if line == said else line), line
                due_at = loop.time() + self._heartbeat_s * jitter
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if gone.done() or closing.is_set() or loop.time() >= ends_at:
                return
            await hub.wait(seen, max(0.0, due_at - loop.time()), gone)


class RouteReader(FeedThread[Changed]):
    """The thread that reads routes for the board while somebody watches."""

    def __init__(
        self,
        board: RouteBoard,
        connect: Callable[[], AbstractContextManager[Changed]],
        read: Callable[[], Table],
        log: EventLog,
    ) -> None:
        super().__init__("routes", connect, self._watch, log)
        self._board = board
        self._read = read

    def stop(self) -> None:
        """End the thread and wake every stream; called on the event loop."""
        super().stop()
        self._board.hub.wake()

    def _watch(self, changed: Changed) -> None:
        self._publish()
        read_at_s, took_s = time.monotonic(), 0.0
        while not self.closing.is_set():
            news = changed(LISTEN_S)
            due_s = read_at_s + max(READ_EVERY_S, LEISURE * took_s)
            if self._board.watched and (news or time.monotonic() >= due_s):
                read_at_s = time.monotonic()
                self._publish()
                took_s = time.monotonic() - read_at_s
                self.closing.wait(max(PAUSE_S, took_s / 2.0))

    def _publish(self) -> None:
        if not self._board.watched:
            return
        ticket = self._board.ticket()
        self.tell(self._board.publish, ticket, self._read())
