"""What is and what happened: the fleet at a glance, targets, receipts, cycles, audit events, telemetry in even steps,
costs; and whether this process lives, can serve, and its metrics.
"""

from __future__ import annotations

import gzip
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.background import BackgroundTask

from app import kinds
from app.api.auth import (
    CLUSTER_READ,
    ClusterReader,
    CostReader,
    SharedReader,
    bearer,
    identify,
    require_project,
    visible_project,
)
from app.api.body import CSV
from app.api.deps import Services, context_of, services_of
from app.api.exposition import FleetPage
from app.api.forms import HeldTag, Moment, Name, Opaque, Page, Paging, Project, Uuid, answer, etag, tagged, utc
from app.api.live import EventStream, Follower, live_stream
from app.api.openapi import Route, router_of
from app.api.streams import HEARTBEAT, AskingStream, LineStream
from app.errors import ForbiddenError
from app.records import record
from app.services.declared.tokens import Actor
from app.services.planning.reviewing import tag_of
from app.services.seen.feed import topics_of
from app.services.seen.history import Costs, HandedStates
from app.services.seen.logs import LogWish
from app.services.seen.series import SUBJECTS_MAX, Combined, TelemetryAnswer, TelemetryQuery, series
from app.services.seen.status import FleetSummary
from app.services.seen.telemetry import DeviceSeries, ServiceSeries
from app.store.budgets import BudgetForecast
from app.store.cycles import CycleState, CycleSummary, StoredCycle
from app.store.events import EventLine
from app.store.ledger import Accounting, CostBy, CostQuery
from app.store.nodes import ReceiptLine
from app.store.targets import TargetLine
from app.store.telemetry import TelemetryWindow
from app.store.webhooks import Delivery
from solvers.cycle.record import Lane
from solvers.domain.change import Target
from solvers.domain.value import NAME_PATTERN
from solvers.errors import FieldError, NotFoundError, TransientError

history_router = router_of("history")
INT8_MAX = 2**63 - 1
NodeFilter = Annotated[str | None, Query(pattern=NAME_PATTERN, max_length=63, description="Only of this node.")]
ProjectFilter = Annotated[str | None, Query(pattern=NAME_PATTERN, max_length=63, description="Only of this project.")]
SubjectFilter = Annotated[
    str | None, Query(pattern=r"^[\x21-\x7e]+$", max_length=256, description="Only of this, such as `nodes/node-1`.")
]
GenerationFilter = Annotated[int | None, Query(ge=0, le=INT8_MAX, description="Only of this generation.")]


@history_router.get("/v1/targets", summary="List targets", response_model=Page[TargetLine])
def list_targets(request: Request, actor: ClusterReader, order: Paging) -> Any:
    """Every generation there was."""
    return answer(services_of(request).history.targets(order))


@history_router.get(
    "/v1/targets/current",
    summary="What the fleet must hold now",
    response_model=Target,
    responses={304: {"description": "You hold this generation."}},
)
def get_current_target(request: Request, actor: ClusterReader, if_none_match: HeldTag = None) -> Any:
    """Generation 0 is the empty target before the first plan."""
    target = services_of(request).history.target()
    return tagged(request, target, etag(tag_of(target)))


@history_router.get("/v1/receipts", summary="List receipts", response_model=Page[ReceiptLine])
def list_receipts(
    request: Request, actor: ClusterReader, order: Paging, node: NodeFilter = None, generation: GenerationFilter = None
) -> Any:
    """What nodes read back after applying a target."""
    return answer(services_of(request).history.receipts(order, node, generation))


@history_router.get("/v1/cycles", summary="List cycles", response_model=Page[CycleSummary])
def list_cycles(
    request: Request,
    actor: ClusterReader,
    order: Paging,
    lane: Annotated[Lane | None, Query(description="Only of this lane.")] = None,
    state: Annotated[CycleState | None, Query(description="Only what has become so.")] = None,
) -> Any:
    """Planning cycles with their decisions."""
    return answer(services_of(request).history.cycles(order, lane, state))


@history_router.get("/v1/cycles/{cycle_id}", summary="Get a cycle", response_model=StoredCycle)
def get_cycle(request: Request, actor: ClusterReader, cycle_id: Opaque) -> Any:
    """Snapshot, attempts, findings, transition, decision: with its states, all that is needed to replay it."""
    return answer(services_of(request).history.cycle(cycle_id))


@history_router.get(
    "/v1/cycles/{cycle_id}/states", summary="What a cycle's planners were handed", response_model=HandedStates
)
def list_cycle_states(request: Request, actor: ClusterReader, cycle_id: Opaque) -> Any:
    """What each attempt's planner had kept from earlier cycles, by the digest that the attempt names. The newest state
    of a planner is always kept, older ones as far as there is room.
    """
    return answer(services_of(request).history.states(cycle_id))


@history_router.get("/v1/events", summary="List audit events", response_model=Page[EventLine])
def list_events(
    request: Request, actor: ClusterReader, order: Paging, subject: SubjectFilter = None, project: ProjectFilter = None
) -> Any:
    """Who did what to what."""
    services = services_of(request)
    page = services.history.events(order, subject, project)
    services.documents.require_project(project, there=bool(page.items))
    return answer(page)


@history_router.get(
    "/v1/webhooks/{name}/deliveries", summary="List what a webhook is told", response_model=Page[Delivery]
)
def list_deliveries(request: Request, actor: ClusterReader, name: Name, order: Paging) -> Any:
    """What waits, what arrived, what was given up and why; the last week."""
    return answer(services_of(request).history.deliveries(name, order))


LOG_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Lines of JSON with `node`, `replica` and `line`, or `problem` where a node has none to tell; "
        "lines beginning with `:` are heartbeats.",
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
    }
}


WantedReplica = Annotated[str | None, Query(max_length=200, description="Only this one, also when it is gone.")]
WantedLines = Annotated[int, Query(ge=1, le=1000, description="Last lines of each replica to begin with.")]
WantedOn = Annotated[bool, Query(description="Go on with what comes, also from replicas that come.")]


@history_router.get(
    "/v1/logs/{project}/{name}",
    summary="Read what workers write",
    status_code=200,
    response_class=LineStream,
    responses=LOG_STREAM,
)
def read_logs(
    request: Request,
    actor: SharedReader,
    project: Project,
    name: Name,
    *,
    replica: WantedReplica = None,
    tail: WantedLines = 100,
    follow: WantedOn = False,
) -> Any:
    """Of a service, job or task, as its nodes hand it over while you read; nothing of it is kept. Ends with your token,
    and without `follow` when every node has told or ten seconds have passed.
    """
    require_project(actor, project)
    wish = LogWish(workload=f"{project}/{name}", replica=replica, lines=tail, follow=follow)
    return log_stream(request, actor, wish, HEARTBEAT)


def log_stream(request: Request, actor: Actor, wish: LogWish, beat: bytes) -> AskingStream:
    """What somebody reads who may."""
    reading, hub = services_of(request).logs.open(wish), request.app.state.log_hub
    return AskingStream(request.app.state.streams, actor, hub, reading, beat)


EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events named as their topics. `data` has `set` (fields by thing), `gone` (things) "
        "and `whole` where it is everything; `away` tells that there is nothing new to be had for now.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
WantedTopics = Annotated[
    str | None, Query(max_length=200, description="Topics with commas between them; default: all that one may follow.")
]
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", max_length=64, description="The last event that you heard.")
]


@history_router.get(
    "/v1/events/stream",
    summary="Follow what changes",
    status_code=200,
    response_class=EventStream,
    responses=EVENT_STREAM,
)
async def follow_events(
    request: Request, actor: SharedReader, topics: WantedTopics = None, last_event_id: LastEventId = None
) -> Any:
    """Everything of the topics first, then what differs; with the last event's id only what was missed, where that is
    still known. Of a project's token: `services` and `work`. The stream ends with its token.
    """
    return follow(request, actor, topics, last_event_id)


def follow(request: Request, actor: Actor, topics: str | None, last_id: str | None) -> EventStream:
    """The stream for somebody. Raises FieldError for topics that they cannot follow."""
    state = request.app.state
    follower = Follower(state.live_board, topics_of(topics, actor.project), actor.project, last_id)
    heartbeat_s = context_of(request).settings.doorbell_heartbeat_s
    return live_stream(state.streams, actor, state.live_board, follower, heartbeat_s)


# --- The fleet at a glance


fleet_router = router_of("fleet")


@fleet_router.get("/v1/fleet", summary="The fleet at a glance", response_model=FleetSummary)
def get_fleet(request: Request, actor: SharedReader) -> Any:
    """Nodes, devices with their shares, services with SLO attainment of the last five minutes, dollars per hour."""
    return answer(services_of(request).status.fleet(actor.project))


# --- Telemetry


telemetry_router = router_of("telemetry")
SERIES_SPAN = timedelta(hours=1)


def window(
    request: Request,
    start: Annotated[Moment, Query(alias="from", description="Default: an hour before `to`.")] = None,
    end: Annotated[Moment, Query(alias="to", description="Default: now.")] = None,
    step_s: Annotated[float, Query(ge=1, le=86_400, allow_inf_nan=False, description="Seconds per step.")] = 60.0,
) -> TelemetryWindow:
    until = utc("to", end) or context_of(request).clock.now()
    since = utc("from", start) or until - SERIES_SPAN
    try:
        return TelemetryWindow(since=since, until=until, step_s=step_s)
    except FieldError as error:
        raise FieldError(f"query:{error.field}", error.message) from None


@telemetry_router.get(
    "/v1/telemetry/services/{project}/{name}", summary="A service over time", response_model=ServiceSeries
)
def get_service_telemetry(
    request: Request, actor: SharedReader, project: Project, name: Name, wanted: TelemetryWindow = Depends(window)
) -> Any:
    """Offered load, what was served, latencies, shares. Steps without a report are left out."""
    require_project(actor, project)
    services = services_of(request)
    services.documents.get(kinds.SERVICE, (project, name))
    return answer(services.telemetry.service_series(f"{project}/{name}", wanted))


@telemetry_router.get("/v1/telemetry/devices/{uuid}", summary="A device over time", response_model=DeviceSeries)
def get_device_telemetry(
    request: Request, actor: ClusterReader, uuid: Uuid, wanted: TelemetryWindow = Depends(window)
) -> Any:
    """Power, energy, utilisation, memory, clock. Steps without a report are left out."""
    services = services_of(request)
    services.documents.get(kinds.DEVICE, (uuid,))
    return answer(services.telemetry.device_series(uuid, wanted))


def telemetry_query(
    subject: Annotated[
        list[str],
        Query(
            max_length=SUBJECTS_MAX,
            description="`services/PROJECT/NAME` or `devices/UUID`; several times for several of them.",
        ),
    ],
    field: Annotated[
        list[str], Query(max_length=16, description="A field of their series, such as `offered_rps` or `power_w`.")
    ],
    together: Annotated[Combined, Query(description="Each subject for itself, or all put together.")] = Combined.EACH,
    wanted: TelemetryWindow = Depends(window),
) -> TelemetryQuery:
    return TelemetryQuery(
        subjects=tuple(dict.fromkeys(subject)), fields=tuple(dict.fromkeys(field)), window=wanted, together=together
    )


def answer_telemetry(services: Services, actor: Actor, query: TelemetryQuery) -> TelemetryAnswer:
    """What somebody may see of it. Raises NotFoundError for what is not theirs, or does not exist."""
    for subject in query.subjects:
        kind, *key = subject.split("/")
        if kind == "devices" and not CLUSTER_READ.admits(actor):
            raise NotFoundError(f"there is no {subject}")
        if kind == "services":
            require_project(actor, key[0])
        services.documents.get(kinds.SERVICE if kind == "services" else kinds.DEVICE, tuple(key))
    return series(services.reads, query)


@telemetry_router.get("/v1/telemetry", summary="Many series at once", response_model=TelemetryAnswer)
def query_telemetry(
    request: Request, actor: SharedReader, query: Annotated[TelemetryQuery, Depends(telemetry_query)]
) -> Any:
    """Fields of many services and devices over the same steps, at most 2,000. A project's token sees its services."""
    return answer(answer_telemetry(services_of(request), actor, query))


# --- What was spent, by whom, under which accounting


costs_router = router_of("costs")
COSTS_SPAN = timedelta(hours=24)


def costs_span(
    request: Request,
    start: Annotated[Moment, Query(alias="from", description="Default: 24 hours before `to`.")] = None,
    end: Annotated[Moment, Query(alias="to", description="Default: now.")] = None,
) -> tuple[datetime, datetime]:
    """From when to when."""
    until = utc("to", end) or context_of(request).clock.now()
    return utc("from", start) or until - COSTS_SPAN, until


@costs_router.get("/v1/costs", summary="Cost report", response_model=Costs)
def get_costs(
    request: Request,
    actor: CostReader,
    *,
    by: Annotated[CostBy, Query(description="What to group by.")] = CostBy.SERVICE,
    accounting: Annotated[Accounting, Query(description="How to split a device's bill.")] = Accounting.SHARE,
    project: ProjectFilter = None,
    label: Annotated[
        str | None, Query(pattern=NAME_PATTERN, max_length=63, description="With by=label: the key to group by.")
    ] = None,
    wanted: tuple[datetime, datetime] = Depends(costs_span),
) -> Any:
    """To the minute; where minutes are not kept any more, whole hours around it. A project's token sees its own
    project. A workload's label is the one it has, or had when it was deleted, else its project's.
    """
    start, end = wanted
    query = CostQuery(
        by=by, accounting=accounting, start=start, end=end, project=visible_project(actor, project), label=label
    )
    services = services_of(request)
    found = services.costs.report(query)
    services.documents.require_project(query.project, there=bool(found.items))
    return answer(found)


@costs_router.get(
    "/v1/costs/focus",
    summary="The ledger as FOCUS",
    response_class=Response,
    responses={200: {"content": {CSV: {"schema": {"type": "string"}}}, "description": "CSV with a header."}},
)
def get_focus(
    request: Request,
    actor: CostReader,
    project: ProjectFilter = None,
    wanted: tuple[datetime, datetime] = Depends(costs_span),
) -> Any:
    """The hours that begin in the span, in the columns of FOCUS 1.2 as the view `cost_focus` has them, and up to
    when all is accounted (`x_AccountedUntil`). A project's token sees its own project.
    """
    found = services_of(request).costs.focus(*wanted, visible_project(actor, project))
    return StreamingResponse(found, media_type=CSV, background=BackgroundTask(found.close))


@record
class BudgetForecasts:
    """Of the running month."""

    items: tuple[BudgetForecast, ...]


@costs_router.get("/v1/budget-forecasts", summary="Will budgets be kept?", response_model=BudgetForecasts)
def list_budget_forecasts(request: Request, actor: ClusterReader) -> Any:
    """Every budget: what this month has cost it, and what that comes to at its end at the rate of the last week."""
    return answer(BudgetForecasts(items=services_of(request).costs.budgets()))


# --- This process


# Whoever looks after processes may add what they like.
health_router = router_of("health", Route)


@record
class Health:
    """The process answers."""

    status: str


@record
class Version:
    """What runs here."""

    version: str
    cluster: str


@health_router.get("/v1/health", summary="Is the process alive?", response_model=Health)
def get_health() -> Any:
    """Touches nothing outside the process."""
    return answer(Health(status="ok"))


@health_router.get("/v1/ready", summary="Can it serve?", response_model=Health)
def get_ready(request: Request) -> Any:
    """200 when the database answers, takes writes and carries the schema this release needs; 503 otherwise."""
    if request.app.state.ending.is_set():
        raise TransientError("this process is about to end")
    services_of(request).fleet.require_ready()
    return answer(Health(status="ok"))


@health_router.get("/v1/version", summary="What runs here?", response_model=Version)
def get_version(request: Request) -> Any:
    """Release and cluster."""
    return answer(Version(version=request.app.version, cluster=context_of(request).settings.cluster))


async def _allowed(request: Request, credentials: HTTPAuthorizationCredentials | None = Depends(bearer)) -> None:
    if context_of(request).settings.metrics_public:
        return
    actor = await identify(request, credentials)
    if not CLUSTER_READ.admits(actor):
        whose = f" of project {actor.project}" if actor.project is not None else ""
        raise ForbiddenError(f"a token with role {actor.role.value}{whose} may not read metrics")


@health_router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    dependencies=[Depends(_allowed)],
    openapi_extra={"x-callers": f"everybody; {CLUSTER_READ} where HEADROOM_METRICS_PUBLIC is off"},
)
def get_metrics(request: Request) -> Response:
    """Base units; public unless `HEADROOM_METRICS_PUBLIC` is off."""
    registry: CollectorRegistry = request.app.state.metrics
    page: FleetPage = request.app.state.fleet_page
    text = generate_latest(registry) + page.text()
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(text, media_type=CONTENT_TYPE_LATEST)
    # Of a large fleet a twentieth of the bytes.
    told = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(gzip.compress(text, 1), media_type=CONTENT_TYPE_LATEST, headers=told)


ROUTERS = (history_router, fleet_router, telemetry_router, costs_router, health_router)
