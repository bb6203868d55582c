"""Profiles: what there is, import in bulk as JSON or any CSV of measurements; runs that measure, and what the node that
carries one out asks and tells; predictions, what-if questions about any configuration.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from agents.wire import ProfileOrder, ProfilePointAsked, encode
from app.api.auth import ClusterReader, ClusterWriter, NodeAgent, SharedReader
from app.api.body import CSV, JSON, RequestBody, json_of, parse, read_body, require_media_type
from app.api.deps import deed_of, services_of
from app.api.forms import BELIEF_HEADER, Name, Page, Paging, Posting, answer, belief_header, once
from app.api.openapi import json_body, request_body, router_of
from app.errors import ForbiddenError
from app.records import record
from app.services.beliefs.predictions import NextPoints, Prediction, PredictionQuery
from app.services.profiles.profiles import Imported, ReadPoints, placed, read_csv, read_list
from app.services.profiles.runs import WantedProfileRun
from app.store.profile_runs import DETAIL_MAX, ProfileRunLine, ProfileRunProgress, RunState
from app.store.profiles import ProfileLine
from solvers.domain.profile import PairPoint, Profile, ProfilePoint
from solvers.domain.value import NAME_PATTERN

profiles_router = router_of("profiles")
Budget = Annotated[int, Query(ge=1, le=256, description="How many measurements at most.")]
SkipBad = Annotated[bool, Query(description="Leave bad rows out, and say which, instead of refusing all.")]
_POINTS = request_body(
    {
        JSON: {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/ProfilePoint"}}},
        CSV: {
            "schema": {
                "type": "string",
                "description": "A header row, then in each row one point (by a point's fields), one measurement of a "
                "model alone (model, gpu_type, batch, share_pct_sm, clock_mhz_sm, latency_ms, …) or one of a pair "
                "(gpu_type, model_a, batch_a, share_pct_a, …).",
            }
        },
    }
)


@profiles_router.get("/v1/profiles", summary="List profiles", response_model=Page[ProfileLine])
def list_profiles(request: Request, actor: ClusterReader, order: Paging) -> Any:
    """What is known, by model and GPU type."""
    return answer(services_of(request).profiles.page(order))


@profiles_router.get("/v1/profiles/{model}/{gpu_type}", summary="Get a profile", response_model=Profile)
def get_profile(request: Request, actor: ClusterReader, model: Name, gpu_type: Name) -> Any:
    """All points of a model on a GPU type."""
    return answer(services_of(request).profiles.get(model, gpu_type))


@profiles_router.get(
    "/v1/profiles/{model}/{gpu_type}/pairs", summary="List measured pairs", response_model=Page[PairPoint]
)
def list_profile_pairs(request: Request, actor: ClusterReader, model: Name, gpu_type: Name, order: Paging) -> Any:
    """What was measured of a model beside another one on the same GPU; members stand in rising order."""
    return answer(services_of(request).profiles.pairs(model, gpu_type, order))


@profiles_router.get(
    "/v1/profiles/{model}/{gpu_type}/next-points",
    summary="Propose measurements",
    response_model=NextPoints,
    responses={200: {"headers": BELIEF_HEADER}},
)
def list_next_points(request: Request, actor: ClusterReader, model: Name, gpu_type: Name, budget: Budget = 16) -> Any:
    """The configurations whose measurement would tell most about a model on a GPU type, in the order in which to
    measure them. Nothing need be known of the model yet. Where the fleet's agents may not set clocks on any of their
    devices of this type, all are at its highest.
    """
    services = services_of(request)
    own_clock = services.profile_runs.own_clock(gpu_type)
    found = services.predictions.next_points(model, gpu_type, budget, own_clock=own_clock)
    return answer(NextPoints(items=found.what), headers=belief_header(found.progress))


@profiles_router.post("/v1/profiles", summary="Import profile points", response_model=Imported, openapi_extra=_POINTS)
def import_profiles(request: Request, actor: ClusterWriter, posted: Posting, skip_bad: SkipBad = False) -> Any:
    """All or nothing, unless bad rows may be skipped; a point of the same configuration replaces the older one."""
    is_csv = require_media_type(request, JSON, CSV) == CSV
    reading = read_csv(posted.body) if is_csv else read_list(parse(tuple[ProfilePoint, ...], posted.body))

    def work() -> Response:
        return answer(services_of(request).profiles.import_points(reading, deed_of(request, actor), skip_bad=skip_bad))

    return once(posted, work)


@profiles_router.delete(
    "/v1/profiles/{model}/{gpu_type}", summary="Delete a profile", status_code=204, response_class=Response
)
def delete_profile(request: Request, actor: ClusterWriter, model: Name, gpu_type: Name) -> Response:
    """Forget all points of a model on a GPU type and the pairs it is part of there."""
    services_of(request).profiles.delete(model, gpu_type, deed_of(request, actor))
    return Response(status_code=204)


# --- Profile runs on the wire: what is ordered, what nodes ask for and hand in


_PART = NAME_PATTERN.strip("^$")
SERVICE_PATTERN = f"^{_PART}/{_PART}$"
POINTS_MAX = 1000
ServiceName = Annotated[str, Field(pattern=SERVICE_PATTERN, description="Id of the service (`project/name`).")]


class NewProfileRun(RequestBody):
    """Measure a service's process on a device of a node."""

    service: ServiceName
    node: Annotated[str, Field(pattern=NAME_PATTERN)]
    budget_s: float = Field(1200.0, ge=10, le=86_400, allow_inf_nan=False, description="How long it may measure.")
    device: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,95}$")] = Field(
        None, description="Which device; without, the node's first free one that the service may use."
    )
    beside: ServiceName | None = Field(None, description="Measure the two side by side.")
    drain: bool = Field(False, description="Take a device with live traffic: it is moved away first.")


class ProfileOrders(RequestBody):
    """What a node has to measure, in this order."""

    items: list[ProfileOrder]


class PointsAsked(RequestBody):
    """What a run shall measure next, the most useful first."""

    items: list[ProfilePointAsked]


class RunNews(RequestBody):
    """How far a node got, and what it measured since it last told. Counts are totals of the run."""

    state: RunState
    measured: int = Field(ge=0, le=1_000_000)
    doubtful: int = Field(ge=0, le=1_000_000)
    detail: str = Field("", max_length=DETAIL_MAX)
    points: list[ProfilePoint] = Field(default_factory=list, max_length=POINTS_MAX)
    pairs: list[PairPoint] = Field(default_factory=list, max_length=POINTS_MAX)


@record
class RunGoesOn:
    """Whether the node shall go on."""

    going_on: bool


# --- Profile runs


profile_runs_router = router_of("profile-runs")
POINTS_ASKED = 16
RunKey = Annotated[int, Path(ge=1, le=2**63 - 1, description="Id of the run.")]


@profile_runs_router.get("/v1/profile-runs", summary="List profile runs", response_model=Page[ProfileRunLine])
def list_profile_runs(request: Request, actor: ClusterReader, order: Paging) -> Any:
    """The newest first."""
    return answer(services_of(request).profile_runs.page(order))


@profile_runs_router.get("/v1/profile-runs/{run}", summary="Get a profile run", response_model=ProfileRunLine)
def get_profile_run(request: Request, actor: ClusterReader, run: RunKey) -> Any:
    """One run and how it goes."""
    return answer(services_of(request).profile_runs.get(run))


@profile_runs_router.post(
    "/v1/profile-runs",
    summary="Order a profile run",
    status_code=201,
    response_model=ProfileRunLine,
    openapi_extra=json_body(NewProfileRun),
)
def create_profile_run(
    request: Request,
    actor: ClusterWriter,
    posted: Posting,
    wanted: Annotated[NewProfileRun, Depends(json_of(NewProfileRun))],
) -> Any:
    """Nothing is planned on the device until the run has ended. Its node begins within half a minute."""

    def work() -> Response:
        order = WantedProfileRun(**wanted.model_dump())
        run = services_of(request).profile_runs.order(order, deed_of(request, actor))
        return answer(run, 201, {"Location": f"/v1/profile-runs/{run.id}"})

    return once(posted, work)


@profile_runs_router.delete(
    "/v1/profile-runs/{run}", summary="Cancel a profile run", status_code=204, response_class=Response
)
def delete_profile_run(request: Request, actor: ClusterWriter, run: RunKey) -> Response:
    """The device is free for plans at once; what was measured stays."""
    services_of(request).profile_runs.cancel(run, deed_of(request, actor))
    return Response(status_code=204)


@profile_runs_router.get(
    "/v1/agent/profile-runs", summary="What this node has to measure", response_model=ProfileOrders, tags=["agent"]
)
def list_node_profile_runs(request: Request, actor: NodeAgent) -> Any:
    """Orders of the token's own node, the oldest first."""
    orders = services_of(request).profile_runs.orders_of(_node(actor.subject))
    return JSONResponse({"items": [encode(order) for order in orders]})


@profile_runs_router.get(
    "/v1/agent/profile-runs/{run}/points",
    summary="What a run shall measure next",
    response_model=PointsAsked,
    tags=["agent"],
)
def list_profile_run_points(request: Request, actor: NodeAgent, run: RunKey) -> Any:
    """The most useful first, knowing everything that was handed in."""
    services = services_of(request)
    about = services.profile_runs.asked_about(_node(actor.subject), run)
    found = services.predictions.next_points(about.model, about.gpu_type, POINTS_ASKED, own_clock=about.own_clock)
    points = [
        ProfilePointAsked(batch=item.batch, share_pct_sm=item.share_pct_sm, clock_mhz_sm=item.clock_mhz_sm)
        for item in found.what
    ]
    return JSONResponse({"items": [encode(point) for point in points]})


@profile_runs_router.post(
    "/v1/agent/profile-runs/{run}",
    summary="Tell of a profile run",
    response_model=RunGoesOn,
    openapi_extra=json_body(RunNews),
    tags=["agent"],
)
def tell_profile_run(
    request: Request, actor: NodeAgent, run: RunKey, news: Annotated[RunNews, Depends(json_of(RunNews))]
) -> Any:
    """How far the node got, with what it measured since. The answer says whether to go on."""
    node = _node(actor.subject)
    services, deed = services_of(request), deed_of(request, actor)
    rows = placed(news.points, "/points") + placed(news.pairs, "/pairs")
    services.profile_runs.check_handed_in(node, run, rows)
    if rows:
        services.profiles.import_points(lambda _: ReadPoints(rows=rows), deed)
    told = ProfileRunProgress(state=news.state, measured=news.measured, doubtful=news.doubtful, detail=news.detail)
    return answer(RunGoesOn(going_on=services.profile_runs.hear(node, run, told, deed)))


def _node(subject: str | None) -> str:
    if subject is None:
        raise ForbiddenError("this token is for no node")
    return subject


# --- Predictions. Nothing is stored


predictions_router = router_of("predictions")
_PREDICTED: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {CSV: {"schema": {"type": "string"}}},
        "description": "In the form in which it was asked.",
        "headers": BELIEF_HEADER,
    }
}
_QUERY = json_body(PredictionQuery)["requestBody"]["content"][JSON]["schema"]
_QUESTIONS = request_body(
    {
        JSON: {"schema": {"type": "array", "items": _QUERY}},
        CSV: {
            "schema": {
                "type": "string",
                "description": "A header row, then one question in each row: model, gpu_type, batch, share_pct_sm, "
                "clock_mhz_sm, or gpu_type, model_a, batch_a, share_pct_a, model_b, batch_b, share_pct_b.",
            }
        },
    }
)


@predictions_router.post(
    "/v1/predictions",
    summary="Ask what is believed",
    response_model=list[Prediction],
    responses=_PREDICTED,
    openapi_extra=_QUESTIONS,
)
def predict(request: Request, actor: SharedReader, body: bytes = Depends(read_body)) -> Any:
    """One answer for each question, in their order: mean, standard deviation, where it comes from and how far the
    question lies from anything that was seen. CSV is answered as CSV.
    """
    predictions = services_of(request).predictions
    if require_media_type(request, JSON, CSV) == CSV:
        text = predictions.answer_csv(body)
        return Response(text.what, media_type=CSV, headers=belief_header(text.progress))
    found = predictions.answer(parse(tuple[PredictionQuery, ...], body))
    return answer(found.what, headers=belief_header(found.progress))


ROUTERS = (profiles_router, profile_runs_router, predictions_router)
