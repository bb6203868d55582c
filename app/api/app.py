"""The application: routers, handlers, middleware and the doorbell's life, put together from what bootstrap hands in."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from app.api import console, problems
from app.api.auth import Authenticator
from app.api.deps import ApiContext, Services
from app.api.doorbell import Hub, Listener
from app.api.metrics import FleetCollector, FleetGauges, IngestMetrics, RequestMetrics, doorbell_metrics, route_metrics
from app.api.middleware import Edge, EdgeOptions
from app.api.openapi import Described
from app.api.route_streams import RouteBoard, RouteReader
from app.api.routers import (
    agent,
    costs,
    doorbell,
    health,
    history,
    plans,
    predictions,
    profile_runs,
    profiles,
    routes,
    simulations,
    status,
    tasks,
    telemetry,
    tokens,
)
from app.api.routers.documents import documents_router
from app.api.shutdown import when_asked_to_end
from app.clock import new_id
from app.logs import EventLog
from app.services.beliefs.predictions import Predictions
from app.services.declared.documents import Documents
from app.services.declared.fleet import Fleet
from app.services.declared.tasks import Tasks
from app.services.declared.tokens import Tokens
from app.services.planning.generations import announcements
from app.services.planning.plans import Plans
from app.services.profiles.profiles import Profiles
from app.services.profiles.runs import ProfileRuns
from app.services.seen.costs import CostReports
from app.services.seen.history import History
from app.services.seen.routes import RouteTable, route_changes
from app.services.seen.status import StatusReader
from app.services.seen.telemetry import Telemetry
from app.services.whatif.simulations import SimulationParts, Simulations
from app.store.ingest import ReportOutcome
from solvers.errors import HeadroomError

THREADS_MAX = 40
"""Requests handled at once. More than the pool's connections: threads that wait for a group commit hold none."""
DESCRIPTION = (
    "Headroom finds the cheapest plan that keeps every SLO on a mixed GPU fleet, explains it and lets agents hold it. "
    "Errors are RFC 9457 problems with stable codes. PUT is declarative and guarded by If-Match; POST takes an "
    "Idempotency-Key; lists are paged by cursor; unknown fields are refused."
)


def create_app(context: ApiContext) -> FastAPI:
    """The application, ready to serve; it opens no connection before its first request or its start."""
    registry = CollectorRegistry()
    services = build_services(context, IngestMetrics(registry))
    hub = Hub(doorbell_metrics(registry))
    cluster = context.settings.cluster
    listener = Listener(hub, lambda: announcements(context.database, cluster), context.log)
    board = RouteBoard(route_metrics(registry))
    reader = RouteReader(board, lambda: route_changes(context.database), services.routes.table, context.log)
    app = Described(
        title="Headroom",
        version=importlib.metadata.version("headroom"),
        summary="An optimising control plane for mixed GPU fleets.",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        lifespan=_lifespan(services, (listener, reader), context.log),
        redirect_slashes=False,
    )
    authenticator = Authenticator(services.tokens, context.clock.elapsed_ms, context.settings.rate_limit_per_s)
    services.tokens.when_revoked(authenticator.forget)
    app.state.context = context
    app.state.services = services
    app.state.authenticator = authenticator
    app.state.hub = hub
    app.state.listener = listener
    app.state.route_board = board
    app.state.metrics = registry
    registry.register(FleetCollector(lambda: _gauges(services.status)))
    problems.install(app)
    _add_routes(app)
    options = EdgeOptions(
        body_bytes_max=context.settings.body_bytes_max,
        new_id=new_id,
        elapsed_ms=context.clock.elapsed_ms,
        metrics=RequestMetrics(registry),
        log=context.log,
    )
    app.add_middleware(Edge, options=options)
    return app


def build_services(context: ApiContext, metrics: IngestMetrics) -> Services:
    """The use cases over one database."""
    database, cluster = context.database, context.settings.cluster
    return Services(
        documents=Documents(database, cluster),
        fleet=Fleet(database, cluster),
        profiles=Profiles(database),
        profile_runs=ProfileRuns(database, cluster),
        predictions=Predictions(context.beliefs),
        telemetry=Telemetry(database, context.clock, context.settings.report_clock_skew_s, _Counting(metrics)),
        tokens=Tokens(database),
        plans=Plans(database),
        simulations=Simulations(
            SimulationParts(
                database=database,
                clock=context.clock,
                cluster=cluster,
                propose=context.propose,
                beliefs=context.beliefs,
            )
        ),
        costs=CostReports(database),
        history=History(database, cluster),
        status=StatusReader(database, cluster),
        routes=RouteTable(database, cluster),
        tasks=Tasks(database, cluster),
    )


def _add_routes(app: FastAPI) -> None:
    app.include_router(documents_router())
    for module in (
        tasks,
        profiles,
        profile_runs,
        predictions,
        plans,
        simulations,
        history,
        status,
        routes,
        telemetry,
        costs,
        tokens,
        agent,
        doorbell,
        health,
    ):
        app.include_router(module.router)
    app.include_router(console.router)


def _lifespan(
    services: Services, listeners: tuple[Listener, RouteReader], voice: EventLog
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    def stop() -> None:
        for listener in listeners:
            listener.stop()

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS_MAX
        try:
            await anyio.to_thread.run_sync(services.fleet.prepare)
        except HeadroomError as error:
            # A database that went away between bootstrap and here comes back; so will the next process's try.
            voice.warning("defaults.postponed", error)
        loop = asyncio.get_running_loop()
        for listener in listeners:
            listener.start(loop)
        try:
            with when_asked_to_end(stop, loop):
                yield
        finally:
            stop()
            for listener in listeners:
                await anyio.to_thread.run_sync(listener.join)

    return life


class _Counting:
    """Turns what was ingested into metrics."""

    def __init__(self, metrics: IngestMetrics) -> None:
        self._metrics = metrics

    def stored(self, batch: Sequence[tuple[int, ReportOutcome]]) -> None:
        """Count one commit."""
        self._metrics.batch.observe(len(batch))
        for rows, outcome in batch:
            self._metrics.reports.labels(outcome.kind.value).inc()
            if outcome.kind == "accepted":
                self._metrics.rows.inc(rows)


def _gauges(reader: StatusReader) -> FleetGauges:
    """The gauges; with the database away, only that it is."""
    try:
        counts = reader.gauges()
    except HeadroomError:
        return FleetGauges(database_up=False)
    return FleetGauges(
        database_up=True,
        generation=counts.generation,
        nodes_up=counts.nodes_up,
        nodes_known=counts.nodes_known,
        devices=counts.devices,
        replicas_ready=counts.replicas_ready,
        replicas_planned=counts.replicas_planned,
        plan_cost_usd_per_h=counts.plan_cost_usd_per_h,
        ledger_age_s=counts.ledger_age_s,
        outcomes_admitted=counts.outcomes_admitted,
        outcomes_rejected=counts.outcomes_rejected,
        beliefs_rebuilt=counts.beliefs_rebuilt,
    )
