"""What the API needs from outside, handed in once by bootstrap, and how endpoints reach it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, cast

from fastapi import Request

from app.api.problems import request_id_of
from app.authority import Authority
from app.clock import SystemClock
from app.logs import EventLog
from app.services.beliefs.beliefs import Beliefs
from app.services.beliefs.completion import Completion
from app.services.beliefs.predictions import Predictions
from app.services.declared.checking import DocumentChecks
from app.services.declared.documents import Documents
from app.services.declared.draining import Draining
from app.services.declared.fleet import Fleet
from app.services.declared.identity import Identities, NodeTls
from app.services.declared.oidc import OidcSignIns, oidc_order
from app.services.declared.sign_ins import SignIns
from app.services.declared.tasks import Tasks
from app.services.declared.tokens import Actor, Deed, Tokens
from app.services.planning.deciding import BARE, Remark, RolledBack
from app.services.planning.plans import Plans, Simulations
from app.services.planning.snapshots import StoreObserver
from app.services.profiles.profiles import Profiles
from app.services.profiles.runs import ProfileRuns
from app.services.seen.history import CostReports, History
from app.services.seen.logs import LogReaders
from app.services.seen.meters import MeterReader
from app.services.seen.routes import RouteTable
from app.services.seen.status import StatusReader
from app.services.seen.telemetry import Heard, Telemetry
from app.settings import Settings
from app.store.engine import Database
from app.store.replica import Reads
from solvers.cycle.attempts import Propose
from solvers.cycle.record import Lane


class PlanningPort(Protocol):
    """Planning on request. Both calls block until done and write their own audit events."""

    def propose(self, lane: Lane, actor: str) -> str:
        """Run one cycle of the lane that changes nothing; the id of the stored plan. Raises EngineError when no planner
        gave a plan, StateError when a lane has no workloads of its own.
        """
        ...

    def apply(self, plan_id: str, actor: str, terms: Remark = BARE) -> int:
        """Make a stored plan the target; the new generation. Raises NotFoundError, PreconditionError, SupersededError
        when the target changes meanwhile, StateError when it may not be applied.
        """
        ...

    def rollback(self, wanted: int | None, hold_s: float, actor: str, terms: Remark = BARE) -> RolledBack:
        """Make the plan of an earlier generation the target again. Raises as `apply`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    settings: Settings
    database: Database
    clock: SystemClock
    planning: PlanningPort
    beliefs: Beliefs
    reads: Reads | None = None
    """None: history is read where everything is."""
    propose: Propose
    """Runs one planner for simulations, apart from this process where that matters."""
    authority: Authority | None = None
    """The control plane's own, where it speaks TLS."""
    log: EventLog = field(default_factory=lambda: EventLog("headroom.api"))


class Services:
    """The use cases behind the routes over one database, built once per application."""

    def __init__(self, context: ApiContext, heard: Heard) -> None:
        database, cluster = context.database, context.settings.cluster
        self.reads = reads = context.reads or Reads(database)
        self.documents = Documents(database, cluster, context.beliefs)
        self.checks = DocumentChecks(database, cluster, context.beliefs)
        tls = node_tls(context.settings, context.authority)
        self.status = StatusReader(database, cluster)
        self.draining = Draining(database, cluster, self.documents, self.status.short)
        self.fleet = Fleet(database, cluster, tls)
        self.identities = Identities(database, cluster, tls)
        self.profiles = Profiles(database)
        self.profile_runs = ProfileRuns(database, cluster)
        self.predictions = Predictions(context.beliefs)
        self.telemetry = Telemetry(database, context.clock, cluster, context.settings.report_clock_skew_s, heard, reads)
        self.logs = LogReaders(database, context.clock, self.telemetry.note_foreign)
        self.tokens = Tokens(database)
        self.sign_ins = SignIns(database)
        order = oidc_order(context.settings)
        self.oidc = None if order is None else OidcSignIns(database, order, context.clock.now_s)
        observer = StoreObserver(database, cluster, Completion(context.beliefs))
        self.plans = Plans(database, cluster, observer)
        self.simulations = Simulations(observer, context.propose)
        self.costs = CostReports(reads)
        self.history = History(database, cluster, reads)
        self.meters = MeterReader(database, cluster)
        self.routes = RouteTable(database, cluster)
        self.tasks = Tasks(database, cluster, self.documents)


def node_tls(settings: Settings, authority: Authority | None) -> NodeTls:
    return NodeTls(
        authority=None if settings.nodes_ca else authority,
        is_on=settings.tls,
        is_required=settings.nodes_tls == "required",
        life_s=settings.node_certificate_days * 86_400.0,
    )


def context_of(request: Request) -> ApiContext:
    return cast("ApiContext", request.app.state.context)


def services_of(request: Request) -> Services:
    return cast("Services", request.app.state.services)


def deed_of(request: Request, actor: Actor) -> Deed:
    return Deed(actor=actor.name, request_id=request_id_of(request.scope))
