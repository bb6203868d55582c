"""The doorbell: one thing said to many, "generation N exists". The single asynchronous part of the shell.

Owns one LISTEN connection per process (its own thread, with back-off and a fresh read of the generation after every
reconnect) and the fan-out to any number of open streams on the event loop. It refuses to carry content: who hears the
bell fetches. A stream holds no database connection, and ends by itself after about an hour, so that a revoked token
cannot listen for ever.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.feed_thread import FeedThread
from app.api.metrics import StreamMetrics
from app.logs import EventLog

HEARTBEAT = b": still here\n"
STREAM_S_MAX = 3600.0


class GenerationFeed(Protocol):
    """Where generations come from: a live LISTEN session."""

    def current(self) -> int:
        """The generation now."""
        ...

    def announced(self, timeout_s: float) -> Iterator[int]:
        """Generations announced within the timeout."""
        ...


class Hub:
    """Fan-out on one event loop. Generations (or whatever is counted) only rise."""

    def __init__(self, metrics: StreamMetrics) -> None:
        self.generation = 0
        self._metrics = metrics
        self._bells: set[asyncio.Future[None]] = set()

    def ring(self, generation: int) -> None:
        """Tell everybody, if this is news."""
        if generation <= self.generation:
            return
        self.generation = generation
        self._metrics.rings.inc()
        self.wake()

    def wake(self) -> None:
        """Let every waiting stream look again."""
        bells, self._bells = self._bells, set()
        for bell in bells:
            if not bell.done():
                bell.set_result(None)

    async def wait(self, known: int, timeout_s: float, gone: asyncio.Future[None]) -> None:
        """Return when the generation differs from `known`, after the timeout, or when `gone` is done."""
        if self.generation != known or gone.done():
            return
        loop = asyncio.get_running_loop()
        bell: asyncio.Future[None] = loop.create_future()
        self._bells.add(bell)
        alarm = loop.call_later(timeout_s, _settle, bell)

        def left(_: asyncio.Future[None]) -> None:
            _settle(bell)

        gone.add_done_callback(left)
        try:
            await bell
        finally:
            alarm.cancel()
            gone.remove_done_callback(left)
            self._bells.discard(bell)

    def opened(self) -> None:
        """A stream began."""
        self._metrics.connections.inc()

    def closed(self) -> None:
        """A stream ended."""
        self._metrics.connections.dec()


def _settle(bell: asyncio.Future[None]) -> None:
    if not bell.done():
        bell.set_result(None)


class DoorbellStream(Response):
    """One listener's stream: the current generation first, then every newer one, and a comment line while nothing
    happens.
    """

    media_type = "application/x-ndjson"

    def __init__(self, hub: Hub, heartbeat_s: float, closing: threading.Event) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._hub = hub
        self._heartbeat_s = heartbeat_s
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the ASGI signature
        """Serve until the listener goes, the hour is over or the process ends."""
        loop = asyncio.get_running_loop()
        # Jitter spreads heartbeats and reconnects of a fleet that came up together.
        jitter = random.uniform(0.8, 1.2)
        ends_at = loop.time() + STREAM_S_MAX * jitter
        gone = asyncio.ensure_future(disconnected(receive))
        self._hub.opened()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            known = self._hub.generation
            await self._say(send, _line(known))
            while not gone.done() and not self._closing.is_set() and loop.time() < ends_at:
                await self._hub.wait(known, self._heartbeat_s * jitter, gone)
                if gone.done() or self._closing.is_set():
                    break
                news = self._hub.generation != known
                known = self._hub.generation
                await self._say(send, _line(known) if news else HEARTBEAT)
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            return
        finally:
            gone.cancel()
            self._hub.closed()

    @staticmethod
    async def _say(send: Send, line: bytes) -> None:
        await send({"type": "http.response.body", "body": line, "more_body": True})


async def disconnected(receive: Receive) -> None:
    """Return when the listener is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _line(generation: int) -> bytes:
    return b'{"generation": %d}\n' % generation


class Listener(FeedThread[GenerationFeed]):
    """The thread that hears PostgreSQL and rings the hub."""

    def __init__(
        self,
        hub: Hub,
        connect: Callable[[], AbstractContextManager[GenerationFeed]],
        log: EventLog,
    ) -> None:
        super().__init__("doorbell", connect, self._listen, log)
        self._hub = hub

    def stop(self) -> None:
        """End the thread and let every stream end; called on the event loop."""
        super().stop()
        self._hub.wake()

    def _listen(self, feed: GenerationFeed) -> None:
        """Ring for every generation of one connection."""
        self._ring(feed.current())
        while not self.closing.is_set():
            for generation in feed.announced(0.5):
                self._ring(generation)

    def _ring(self, generation: int) -> None:
        self.tell(self._hub.ring, generation)
