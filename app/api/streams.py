"""Streams: the doorbell, one thing said to many, "generation N exists", and routes, for whoever watches a service. The
single asynchronous part of the shell.

A thread for each of the two follows one connection to the database after the other and tells the event loop, which fans
out to any number of open streams. The doorbell carries no content: who hears it fetches. Routes are read while somebody
watches (when the database tells of a read-back or a promotion, and every second for what nobody tells); every line is
the whole state, so that a reader that was slow, or away, needs no other. A stream holds no database connection. It ends
within seconds after its token: the registry of open streams asks for all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, Protocol, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.auth import PLACE
from app.api.metrics import StreamMetrics
from app.errors import RateLimitedError
from app.logs import EventLog
from app.records import plain
from app.services.declared.tokens import Actor
from app.services.seen.history import Announcements
from app.services.seen.routes import Changed, Route
from app.store.replica import MEASURE_EVERY_S
from app.store.tokens import Purpose
from solvers.errors import TransientError

HEARTBEAT = b": still here\n"
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.2, 5.0
LOOK_EVERY_S, BEAT_EVERY_S = 0.5, 10.0
ASKING_MAX = 64
"""Streams of this kind per process."""
Feed = TypeVar("Feed")


class Hub:
    """Fan-out on one event loop. Generations (or whatever is counted) only rise."""

    def __init__(self, metrics: StreamMetrics, listeners_max: float = math.inf) -> None:
        self.generation = self.listeners = 0
        self.wanted: Counter[str] = Counter()
        """How often somebody wanted to read a node's logs."""
        self._metrics = metrics
        self._listeners_max = listeners_max
        self._bells: set[asyncio.Future[None]] = set()

    def ring(self, generation: int) -> None:
        """Tell everybody, if this is news."""
        if generation <= self.generation:
            return
        self.generation = generation
        self._metrics.rings.inc()
        self.wake()

    def want(self, node: str) -> None:
        """Have a node hear that somebody reads its logs."""
        self.wanted[node] += 1
        self.wake()

    def wake(self) -> None:
        """Let every waiting stream look again."""
        bells, self._bells = self._bells, set()
        for bell in bells:
            _settle(bell)

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

    @contextmanager
    def listened(self) -> Iterator[None]:
        """While somebody listens. Raises TransientError when too many do."""
        if self.listeners >= self._listeners_max:
            raise TransientError(f"{self.listeners} such streams are open here already")
        self.listeners += 1
        self._metrics.connections.inc()
        try:
            yield
        finally:
            self.listeners -= 1
            self._metrics.connections.dec()


def _settle(bell: asyncio.Future[None]) -> None:
    if not bell.done():
        bell.set_result(None)


class OpenStream:
    """Who listens, and whether that is over; `wake` lets the stream look."""

    def __init__(self, actor: Actor, wake: Callable[[], object] = lambda: None) -> None:
        self.actor = actor
        self.over = False
        self._wake = wake

    def end(self) -> None:
        self.over = True
        self._wake()


class LineStream(Response):
    """What somebody listens to: a line of JSON as things are, another when they changed, and a comment line while
    nothing happens.
    """

    media_type = "application/x-ndjson"

    def __init__(
        self, registry: StreamRegistry, actor: Actor, hub: Hub, line: Callable[[], bytes | None], heartbeat_s: float
    ) -> None:
        """`line` None ends the stream."""
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._registry = registry
        self._opened = OpenStream(actor, hub.wake)
        self._hub = hub
        self._line = line
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the listener or its token goes, there is nothing to hear any more or the process ends. Raises
        RateLimitedError or TransientError when too many streams are open.
        """
        with self._registry.holding(self._opened), self._hub.listened():
            if place := scope.get("state", {}).get(PLACE):
                place.leave()
            gone = asyncio.ensure_future(_disconnected(receive))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._tell(send, gone)
                if not gone.done():
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            except OSError:
                return
            finally:
                gone.cancel()

    async def _tell(self, send: Send, gone: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        # Jitter spreads heartbeats of a fleet that came up together.
        jitter = random.uniform(0.8, 1.2)
        due_at, said = 0.0, b""
        while not self._opened.over:
            seen = self._hub.generation
            line = self._line()
            if line is None:
                return
            if line != said or loop.time() >= due_at:
                body, said = (HEARTBEAT if line == said else line), line
                due_at = loop.time() + self._heartbeat_s * jitter
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if gone.done() or self._registry.closing.is_set():
                return
            await self._hub.wait(seen, max(0.0, due_at - loop.time()), gone)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class NewsSource(Protocol):
    """What one reader of a stream asks, and lets go of at its end."""

    def news(self) -> bytes | None: ...

    def close(self) -> None: ...


class AskingStream(LineStream):
    """A stream that asks for its news itself, in a thread: empty while there are none, None when that was all.

    `beat` is said while there are none, if anything.
    """

    def __init__(self, registry: StreamRegistry, actor: Actor, hub: Hub, reading: NewsSource, beat: bytes) -> None:
        super().__init__(registry, actor, hub, reading.news, BEAT_EVERY_S)
        self._close, self._beat = reading.close, beat

    async def _tell(self, send: Send, gone: asyncio.Future[None]) -> None:
        loop, beat_s = asyncio.get_running_loop(), 0.0
        self._hub.ring(self._hub.generation + 1)
        try:
            while not (gone.done() or self._opened.over or self._registry.closing.is_set()):
                news = await run_in_threadpool(self._line)
                if news is None:
                    return
                if not news and loop.time() >= beat_s:
                    news = self._beat
                if news:
                    await send({"type": "http.response.body", "body": news, "more_body": True})
                    beat_s = loop.time() + self._heartbeat_s
                await self._hub.wait(self._hub.generation, LOOK_EVERY_S, gone)
        finally:
            await run_in_threadpool(self._close)


class FeedThread(Generic[Feed]):
    """Follows feeds of the database until stopped, a new one after every broken connection, with a growing pause.

    `follow(feed)` reads one connection and returns when `closing` is set; what it raises ends the connection, not the
    thread.
    """

    def __init__(
        self,
        name: str,
        hub: Hub,
        connect: Callable[[], AbstractContextManager[Feed]],
        follow: Callable[[Feed], None],
        log: EventLog,
    ) -> None:
        self.closing = threading.Event()
        self._name = name
        self._hub = hub
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
        """End at the next look, and let every stream look; called on the event loop."""
        self.closing.set()
        self._hub.wake()

    def join(self) -> None:
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


class ReplicaWatch(FeedThread[None]):
    """Measures, once a second, how far the replica is from which history is read."""

    def __init__(self, hub: Hub, measure: Callable[[], None], log: EventLog) -> None:
        super().__init__("replica", hub, nullcontext, self._follow_it, log)
        self._measure = measure

    def _follow_it(self, _: None) -> None:
        while True:
            self._measure()
            if self.closing.wait(MEASURE_EVERY_S):
                return


# --- Who listens


PER_TOKEN_MAX, PER_NODE_MAX = 16, 4
ASK_EVERY_S = 2.0


class StreamRegistry(FeedThread[None]):
    """The open streams of this process by whose they are. Its thread asks of all at once whose tokens have ended, or
    are not what they were; everything else is the event loop's.
    """

    def __init__(self, hub: Hub, ended: Callable[[list[Actor]], Collection[Actor]], log: EventLog) -> None:
        super().__init__("streams", hub, nullcontext, self._ask, log)
        self._ended = ended
        self.open: defaultdict[Actor, dict[OpenStream, None]] = defaultdict(dict)

    @contextmanager
    def holding(self, stream: OpenStream) -> Iterator[None]:
        """While a stream is open. A node's newest ends its oldest where there are too many; others' raise
        RateLimitedError.
        """
        actor = stream.actor
        going = [other for other in self.open.get(actor, ()) if not other.over]
        if actor.purpose is Purpose.NODE and len(going) >= PER_NODE_MAX:
            going[0].end()
        elif len(going) >= PER_TOKEN_MAX:
            raise RateLimitedError(f"{len(going)} streams of this token are open here already", retry_after_s=10.0)
        self.open[actor][stream] = None
        try:
            yield
        finally:
            del self.open[actor][stream]
            if not self.open[actor]:
                del self.open[actor]

    def _ask(self, _: None) -> None:
        while not self.closing.wait(ASK_EVERY_S):
            # One step of the interpreter, so that the event loop cannot change it meanwhile.
            if actors := list(self.open):
                self.tell(self._end, self._ended(actors))

    def _end(self, ended: Collection[Actor]) -> None:
        for stream in [stream for actor in ended for stream in self.open.get(actor, ())]:
            stream.end()


# --- The doorbell


def doorbell_stream(registry: StreamRegistry, actor: Actor, hub: Hub, heartbeat_s: float) -> LineStream:
    """One listener's stream: the current generation first, then every newer one; a node's own also rings, with another
    number of `logs`, when somebody wants to read what its workers write.
    """

    def line() -> bytes:
        logs = hub.wanted.get(actor.subject or "", 0) if actor.purpose is Purpose.NODE else 0
        return b'{"generation": %d%s}\n' % (hub.generation, b', "logs": %d' % logs if logs else b"")

    return LineStream(registry, actor, hub, line, heartbeat_s)


class Listener(FeedThread[Announcements]):
    """The thread that hears PostgreSQL and rings the hub."""

    def __init__(self, hub: Hub, connect: Callable[[], AbstractContextManager[Announcements]], log: EventLog) -> None:
        super().__init__("doorbell", hub, connect, self._listen, log)

    def _listen(self, feed: Announcements) -> None:
        self.tell(self._hub.ring, feed.current())
        while not self.closing.is_set():
            for news in feed.announced(0.5):
                self.tell(self._hub.want if isinstance(news, str) else self._hub.ring, news)


# --- Routes


STREAMS_MAX = 512
"""Of routes, per process; whoever comes then is told to try again."""
READ_EVERY_S = 1.0
PAUSE_S = 0.05
"""Between two reads at least, however often something is announced."""
LEISURE = 4.0
"""A large fleet takes longer to read; unasked it is read only after so many times as long."""
LISTEN_S = 0.5
RouteLines = Mapping[str, Route]


class RouteBoard:
    """The newest routes and who waits for newer ones. Everything but `ticket` is the event loop's."""

    def __init__(self, metrics: StreamMetrics) -> None:
        self.hub = Hub(metrics, STREAMS_MAX)
        self._tickets = itertools.count(1)
        self._newest = 0
        self._table: RouteLines = {}
        self._plain: dict[str, Any] = {}
        """The same as JSON data, made once for all who watch."""

    def ticket(self) -> int:
        """Taken before a read, so that of two that overlap the later one counts."""
        return next(self._tickets)

    def publish(self, ticket: int, table: RouteLines) -> None:
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
        told = self._plain.get(service) if service is not None else self._of_project(project)
        return None if told is None else json.dumps(told, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    def _of_project(self, project: str | None) -> dict[str, Any]:
        prefix = "" if project is None else f"{project}/"
        return {"items": [route for name, route in self._plain.items() if name.startswith(prefix)]}


class RouteReader(FeedThread[Changed]):
    """The thread that reads routes for the board while somebody watches."""

    def __init__(
        self,
        board: RouteBoard,
        connect: Callable[[], AbstractContextManager[Changed]],
        read: Callable[[], RouteLines],
        log: EventLog,
    ) -> None:
        super().__init__("routes", board.hub, connect, self._watch, log)
        self._board = board
        self._read = read

    def _watch(self, changed: Changed) -> None:
        self._publish()
        read_at_s, took_s = time.monotonic(), 0.0
        while not self.closing.is_set():
            news = changed(LISTEN_S)
            due_s = read_at_s + max(READ_EVERY_S, LEISURE * took_s)
            if self._hub.listeners and (news or time.monotonic() >= due_s):
                read_at_s = time.monotonic()
                self._publish()
                took_s = time.monotonic() - read_at_s
                self.closing.wait(max(PAUSE_S, took_s / 2.0))

    def _publish(self) -> None:
        if not self._hub.listeners:
            return
        ticket = self._board.ticket()
        self.tell(self._board.publish, ticket, self._read())
