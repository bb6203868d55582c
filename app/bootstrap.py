"""The only wiring: settings to database, services, API and planner worker.

It waits for a database that is up and whose schema this software knows, and says what is missing.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from app.authority import Authority, authority_file
from app.clock import SystemClock, new_id
from app.logs import EventLog, LogReporter
from app.services.beliefs.beliefs import Beliefs
from app.services.beliefs.learning import Learning
from app.services.planning.planning import Planning, PlanningParts
from app.services.planning.remembering import DemandMemory
from app.settings import Settings, secret_environment
from app.store import migrate, targets
from app.store.embedded import embedded_url
from app.store.engine import Database
from app.store.replica import Reads
from app.workers.children import fit_apart
from app.workers.scheduler import Housekeeping, LeaseKeeper, PlannerWorker, WorkerParts
from app.workers.solve_pool import PoolLimits, SolvePool
from app.workers.told import PlannerTold
from app.workers.webhooks import SigningSecrets, WebhookNetworks, WebhookSender
from solvers.errors import InputError, StateError, TransientError
from solvers.planners import registry
from solvers.version import VERSION

if TYPE_CHECKING:
    from fastapi import FastAPI

    from app.workers.traces import Tracer

WAIT_S = 120.0
"""How long a process waits for its database and for the schema before it gives up."""
WAIT_INTERVAL_S = 0.25
PLANNER_CONNECTIONS = 12
"""Each loop, the lease keeper and those who tell webhooks hold at most one."""
LEADERLESS_S = 60.0
"""After so long without a leading planner an API learns what was measured itself."""
_log = EventLog("headroom.bootstrap")


def build_api(settings: Settings) -> FastAPI:
    """The API over a database that is ready. Raises StateError when none becomes ready in time."""
    from app.api.app import create_app
    from app.api.deps import ApiContext

    database = open_database(settings, "headroom api", settings.pool_size)
    clock = SystemClock()
    # Its child process starts with the first plan somebody asks for.
    pool = _pool(settings, LogReporter(EventLog("headroom.core")))
    started = clock.now()
    beliefs = Beliefs(database, fit_apart, lambda: database.read(targets.leaderless, started, LEADERLESS_S))
    planning = _planning(settings, database, clock, pool, beliefs)
    reads = Reads(database, _replica(settings), settings.read_lag_s_max)
    context = ApiContext(
        settings=settings, database=database, clock=clock, planning=planning, beliefs=beliefs, propose=pool.propose,
        reads=reads, authority=open_authority(settings),
    )  # fmt: skip
    api = create_app(context)
    _close_after(api, pool, database, reads)
    return api


def open_authority(settings: Settings) -> Authority | None:
    """The control plane's own authority, made at the first start; None without TLS, and where nobody needs it. Raises
    InputError.
    """
    if settings.nodes_tls == "required" and not settings.tls:
        raise InputError("HEADROOM_NODES_TLS=required needs TLS: --tls or HEADROOM_TLS=1")
    if not settings.tls or (settings.tls_cert and settings.nodes_ca):
        return None
    authority = Authority(authority_file(settings))
    if authority.create():
        _log.info("authority.made", file=str(authority.file), sha256=authority.fingerprint)
    return authority


def build_planner(settings: Settings) -> PlannerWorker:
    """The planner process over a database that is ready. Raises StateError when none becomes ready in time."""
    database = open_database(settings, "headroom planner", PLANNER_CONNECTIONS)
    clock = SystemClock()
    pool = _pool(settings, LogReporter(EventLog("headroom.core")))
    keeper = LeaseKeeper(database, clock, holder_name(), settings.lease_ttl_s)
    beliefs = Beliefs(database, fit_apart, lambda: keeper.token() is not None)
    return PlannerWorker(
        WorkerParts(
            settings=settings,
            database=database,
            clock=clock,
            keeper=keeper,
            pool=pool,
            planning=_planning(settings, database, clock, pool, beliefs),
            learning=Learning(database, beliefs.current),
            remembering=DemandMemory(database, clock),
            housekeeping=Housekeeping(database, settings, clock),
            told=PlannerTold(lambda: keeper.token() is not None, _tracer(settings, keeper.holder)),
            webhooks=WebhookSender(
                database,
                clock,
                WebhookNetworks(settings.webhook_networks),
                SigningSecrets(settings.webhook_secrets_dir, secret_environment(os.environ)),
            ),
        )
    )


def _tracer(settings: Settings, holder: str) -> Tracer | None:
    if not settings.otlp_endpoint:
        return None
    from app.workers.traces import Tracer

    return Tracer(settings.otlp_endpoint, settings.otlp_headers, holder)


def open_database(settings: Settings, application_name: str, pool_size: int) -> Database:
    """Connections to the database of these settings, once it answers and its schema is at least this software's.
    Without a URL that is the embedded server, started where needed. Raises StateError after `WAIT_S`.
    """
    url = settings.database_url or embedded_url(settings.home)
    direct_url = settings.database_direct_url
    await_schema(lambda: migrate.current(direct_url or url), migrate.head())
    database = Database(
        url,
        direct_url=direct_url,
        pool_size=pool_size,
        application_name=application_name,
        # A process that freezes amid a write loses its locks when a leader loses its lease: its successor needs them.
        idle_in_transaction_s=settings.lease_ttl_s,
    )
    database.require_sessions()
    return database


def _replica(settings: Settings) -> Database | None:
    url = settings.database_read_url
    return Database(url, pool_size=settings.pool_size, application_name="headroom reports") if url else None


def await_schema(current: Callable[[], str | None], wanted: str, wait_s: float = WAIT_S) -> None:
    """Wait until the schema is at `wanted` or newer; migrations only ever add, so newer ones are fine. Raises
    StateError naming what is missing when that takes longer than `wait_s`.
    """
    clock, pause = SystemClock(), threading.Event()
    end_ms = clock.elapsed_ms() + wait_s * 1000.0
    told = ""
    while True:
        try:
            found = current()
        except TransientError as error:
            missing = f"the database does not answer: {error.message}"
        else:
            if found is not None and found >= wanted:
                return
            missing = f"the schema is at {found or 'base'}, but this software needs {wanted}; run: headroom migrate up"
        if clock.elapsed_ms() >= end_ms:
            raise StateError(f"gave up after {wait_s:g} s: {missing}")
        if missing != told:
            _log.info("database.awaited", missing=missing, wait_s_max=wait_s)
            told = missing
        pause.wait(WAIT_INTERVAL_S)


def holder_name() -> str:
    """Name of this process as a holder of the lease: readable, and never the same for two processes."""
    return f"{socket.gethostname()}:{os.getpid()}:{new_id()[:8]}"


def _close_after(api: FastAPI, pool: SolvePool, *connections: Database | Reads) -> None:
    """Close what we opened once the application has ended its own work."""
    serve = api.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with serve(app):
            yield
        pool.close()
        for each in connections:
            each.dispose()

    api.router.lifespan_context = lifespan


def _pool(settings: Settings, reporter: LogReporter) -> SolvePool:
    limits = PoolLimits(grace_s=settings.solve_grace_s, memory_mib=settings.solve_memory_mib)
    return SolvePool(registry.tuned_for, reporter, limits)


def _planning(
    settings: Settings, database: Database, clock: SystemClock, pool: SolvePool, beliefs: Beliefs
) -> Planning:
    return Planning(
        PlanningParts(
            database=database,
            runner=pool,
            clock=clock,
            reporter=LogReporter(EventLog("headroom.core")),
            cluster=settings.cluster,
            software_version=VERSION,
            beliefs=beliefs,
        )
    )
