"""The application: routers, handlers, middleware and the doorbell's life, put together from what bootstrap hands in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio.to_thread
from fastapi import FastAPI
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.api.admission import LANES, Door, Lanes, RequestPlace, Shares, TurnQueue, request_id_of
from app.api.auth import PLACE, Authenticator
from app.api.console import catalogue, door, machines, money, overview, reference, sources, workloads
from app.api.console import plans as plan_pages
from app.api.deps import ApiContext, Services
from app.api.exposition import FleetPage
from app.api.live import LiveBoard, LiveReader
from app.api.metrics import (
    IngestMetrics,
    QueueCollector,
    ReplicaCollector,
    RequestMetrics,
    doorbell_metrics,
    live_metrics,
    log_metrics,
    route_metrics,
)
from app.api.openapi import Described
from app.api.problems import escaped, of_error
from app.api.reports import PATH, ShortWay
from app.api.routers import agent, documents, plans, profiles, seen, tokens
from app.api.streams import (
    ASKING_MAX,
    FeedThread,
    Hub,
    Listener,
    ReplicaWatch,
    RouteBoard,
    RouteReader,
    StreamRegistry,
)
from app.clock import new_id
from app.errors import BodyTooLargeError
from app.logs import EventLog
from app.registry import process_registry
from app.services.seen.feed import FollowedFleet
from app.services.seen.history import announcements
from app.services.seen.routes import route_changes
from app.signals import asked_to_end
from app.store.replica import LAGS_S
from solvers.errors import HeadroomError
from solvers.version import VERSION

# --- The outermost layer of the API, plain ASGI: request id, body limit, last resort against crashes, request metrics


_BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeOptions:
    body_bytes_max: int
    new_id: Callable[[], str]
    elapsed_ms: Callable[[], float]
    metrics: RequestMetrics
    log: EventLog
    lane_of: Callable[[str, str, str], TurnQueue | None] = lambda *_: None
    is_ending: Callable[[], bool] = lambda: False
    shares: Shares = field(default_factory=Shares)


class Edge:
    def __init__(self, app: ASGIApp, options: EdgeOptions) -> None:
        self._app = app
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _Exchange(self._app, self._options, scope, receive, send).serve()


class _Exchange:
    __slots__ = (
        "_app",
        "_headers",
        "_lags_s",
        "_method",
        "_options",
        "_read",
        "_receive",
        "_scope",
        "_send",
        "_started_ms",
        "request_id",
        "status",
    )

    def __init__(self, app: ASGIApp, options: EdgeOptions, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._options = options
        self._method = scope["method"]
        # What HEAD asks for is what GET would be told, without the body.
        self._scope = {**scope, "method": "GET"} if self._method == "HEAD" else scope
        self._receive = receive
        self._send = send
        self._read = 0
        self._lags_s: list[float] = []
        self._started_ms = options.elapsed_ms()
        # Of a field that stands twice the first counts, as for whoever is asked who this is.
        self._headers = dict(reversed(scope["headers"]))
        self.request_id = request_id_of(self._headers, options.new_id)
        self.status = 0
        self._scope.setdefault("state", {})["request_id"] = self.request_id

    async def serve(self) -> None:
        """Run the application; whatever escapes it becomes a problem."""
        LAGS_S.set(self._lags_s)
        length = self._header(b"content-length")
        if length.isdigit() and int(length[:20]) > self._options.body_bytes_max:
            await of_error(self.request_id, self._too_large())(self._scope, self._receive, self.send)
            return
        receive = self._receive if self._scope["method"] in _BODILESS and not length else self.receive
        lane = self._options.lane_of(self._scope["method"], self._scope["path"], self._header(b"authorization"))
        try:
            if lane is None:
                await self._in_turn(receive)
            else:
                await lane.serve(self._app, self._scope, receive, self.send)
        except ClientDisconnect:
            # There is nobody to answer; nginx's number for it.
            self._count(499)
        except Exception as error:  # noqa: BLE001 - the last resort: nothing may reach the server as a traceback
            method, path = self._scope["method"], self._scope["path"]
            told = escaped(self._options.log, error, request_id=self.request_id, method=method, path=path)
            if self.status == 0:
                await told(self._scope, self._receive, self.send)

    async def _in_turn(self, receive: Receive) -> None:
        """Run the application, which takes one of the places of a token once it knows whose it is; a stream goes on
        without.
        """
        place = self._scope["state"][PLACE] = RequestPlace(self._options.shares)
        try:
            await self._app(self._scope, receive, self.send)
        finally:
            place.leave()

    async def receive(self) -> Message:
        """Count the body, however it is chunked."""
        message = await self._receive()
        self._read += len(message.get("body", b""))
        if self._read > self._options.body_bytes_max:
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        """Stamp the answer with the request's id, and count it; its connection ends where the process does."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), (b"x-request-id", self.request_id.encode())]
            if self._lags_s:
                message["headers"].append((b"headroom-read-lag-s", b"%.1f" % max(self._lags_s)))
            if self._options.is_ending():
                # The next request of a kept connection belongs to another process.
                message["headers"].append((b"connection", b"close"))
            self._count(self.status)
        if self._method == "HEAD":
            if message["type"] != "http.response.start":
                return
            await self._send(message)
            # At once, for a stream has no end.
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    def _count(self, status: int) -> None:
        taken_s = (self._options.elapsed_ms() - self._started_ms) / 1000.0
        self._options.metrics.observe(self._method, _route_of(self._scope), status, taken_s)

    def _header(self, name: bytes) -> str:
        return str(self._headers.get(name, b"").decode("latin-1"))

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the body exceeds {self._options.body_bytes_max} bytes")


def _route_of(scope: Scope) -> str:
    route: Any = scope.get("route")
    path = scope["path"] if scope["path"] in LANES else "unmatched"
    return str(getattr(route, "path_format", getattr(route, "path", path)))


# --- The application


ROUTERS = (
    *documents.ROUTERS,
    *profiles.ROUTERS,
    *plans.ROUTERS,
    *seen.ROUTERS,
    *tokens.ROUTERS,
    *agent.ROUTERS,
    door.router,
    overview.router,
    workloads.router,
    plan_pages.router,
    machines.router,
    money.router,
    catalogue.router,
    sources.router,
    reference.router,
)
THREADS_MAX = 40
"""Requests handled at once. More than the pool's connections: threads that wait for a group commit hold none."""
DESCRIPTION = (
    "Headroom finds the cheapest plan that keeps every SLO on a mixed GPU fleet, explains it and lets agents hold it. "
    "Errors are RFC 9457 problems with stable codes. PUT is declarative and guarded by If-Match; POST takes an "
    "Idempotency-Key; lists are paged by cursor; unknown fields and parameters of the query are refused. HEAD is "
    "answered where GET is."
)


def create_app(context: ApiContext) -> FastAPI:
    """The application, ready to serve; it opens no connection before its first request or its start."""
    registry = process_registry()
    metrics = RequestMetrics(registry)
    services = Services(context, IngestMetrics(registry).stored)
    hub = Hub(doorbell_metrics(registry))
    listener = Listener(hub, lambda: announcements(context.database, context.settings.cluster), context.log)
    board = RouteBoard(route_metrics(registry))
    reader = RouteReader(board, lambda: route_changes(context.database), services.routes.table, context.log)
    streams = StreamRegistry(hub, services.tokens.ended, context.log)
    live_board = LiveBoard(live_metrics(registry))
    live = LiveReader(live_board, FollowedFleet(services.status, services.history), context.log)
    feeds: list[FeedThread[Any]] = [listener, reader, streams, live]
    if context.reads is not None and context.reads.has_replica:
        feeds.append(ReplicaWatch(hub, context.reads.measure, context.log))
        registry.register(ReplicaCollector(context.reads))
    app = Described(
        title="Headroom",
        version=VERSION,
        summary="An optimising control plane for mixed GPU fleets.",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        lifespan=_lifespan(services, feeds, context.log, drain_s=context.settings.drain_s),
        redirect_slashes=False,
        # As they are: routers that are included make each route anew, in every application.
        routes=[route for router in ROUTERS for route in router.routes],
    )
    authenticator = Authenticator(
        services.tokens.actors_of,
        context.clock.elapsed_ms,
        context.settings.rate_limit_per_s,
        services.tokens.ended_of_used,
        services.identities,
    )
    services.tokens.when_revoked(authenticator.forget)
    app.state.context, app.state.services, app.state.ending = context, services, threading.Event()
    app.state.authenticator = authenticator
    app.state.metrics, app.state.hub = registry, hub
    app.state.streams, app.state.route_board, app.state.live_board = streams, board, live_board
    app.state.log_hub = Hub(log_metrics(registry), ASKING_MAX)
    app.state.shares = Shares()
    app.state.admission = Lanes(authenticator, context.settings.report_interval_s, context.clock.elapsed_ms)
    app.state.fleet_page = FleetPage(services.meters.look, context.clock.elapsed_ms, context.settings.metrics_fresh_s)
    registry.register(QueueCollector(app.state.admission.ages_s))
    problems.install(app)
    app.router.default = door.not_here(app.router.default)
    _add_edge(app, context, metrics)
    return app


def _add_edge(app: FastAPI, context: ApiContext, metrics: RequestMetrics) -> None:
    """What a request meets first: the door, while its head is read, and the outermost layer."""
    elapsed_ms, is_ending = context.clock.elapsed_ms, app.state.ending.is_set
    short_way = ShortWay(
        authenticator=app.state.authenticator,
        telemetry=app.state.services.telemetry,
        metrics=metrics,
        elapsed_ms=elapsed_ms,
        is_ending=is_ending,
        log=context.log,
        body_bytes_max=context.settings.body_bytes_max,
    )
    errands = {PATH: short_way.errand}
    app.state.door = Door(app.state.admission, is_ending, new_id, metrics.observe, errands)
    options = EdgeOptions(
        body_bytes_max=context.settings.body_bytes_max,
        new_id=new_id,
        elapsed_ms=elapsed_ms,
        metrics=metrics,
        log=context.log,
        lane_of=app.state.admission.lane_of,
        is_ending=is_ending,
        shares=app.state.shares,
    )
    app.add_middleware(Edge, options=options)


def _lifespan(
    services: Services, listeners: Sequence[FeedThread[Any]], voice: EventLog, *, drain_s: float
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    def stop() -> None:
        for listener in listeners:
            listener.stop()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS_MAX
        try:
            await anyio.to_thread.run_sync(services.fleet.prepare)
        except HeadroomError as error:
            # A database that went away between bootstrap and here comes back; so will the next process's try.
            voice.warning("defaults.postponed", error)
        loop = asyncio.get_running_loop()
        for listener in listeners:
            listener.start(loop)
        ending: threading.Event = app.state.ending
        hurry = threading.Event()

        def end() -> None:
            """Serve on while whoever balances load finds out, unless asked twice; then end the streams, for which the
            server would wait.
            """
            if ending.is_set():
                hurry.set()
            ending.set()
            voice.info("api.ending", drain_s=drain_s)
            hurry.wait(drain_s)
            loop.call_soon_threadsafe(stop)

        try:
            with asked_to_end(end, pass_on=True):
                yield
        finally:
            stop()
            for listener in listeners:
                await anyio.to_thread.run_sync(listener.join)

    return life
