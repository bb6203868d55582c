"""Where requests may go, once or as a stream."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from app.api.auth import require_project
from app.api.conditional import HeldTag, etag, tagged
from app.api.deps import context_of, services_of
from app.api.keys import Name, Project
from app.api.route_streams import RouteBoard, RouteStream
from app.api.rules import RoutesReader
from app.records import plain
from app.services.seen.routes import Route, Routes
from solvers.errors import NotFoundError

router = APIRouter(tags=["fleet"])
Watch = Annotated[
    bool,
    Query(description="Answer with a stream: a line of JSON now and after every change, comment lines between them."),
]
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}},
    304: {"description": "Nothing changed."},
}


@router.get(
    "/v1/routes",
    operation_id="get_routes",
    summary="Ready replicas and their weights",
    response_model=Routes,
    responses=_ANSWERS,
)
async def routes(
    request: Request,
    actor: RoutesReader,
    *,
    watch: Watch = False,
    if_none_match: HeldTag = None,  # noqa: ARG001 - read by `tagged`, declared for the description
) -> Any:
    """For gateways. Of every service, the replicas that are ready, with planned capacity as weight."""
    if watch:
        return await _stream(request, None, actor.project)
    found = await run_in_threadpool(services_of(request).routes.every, actor.project)
    return _answer(request, found)


@router.get(
    "/v1/routes/{project}/{name}",
    operation_id="get_service_routes",
    summary="Ready replicas of a service",
    response_model=Route,
    responses=_ANSWERS,
)
async def service_routes(
    request: Request,
    actor: RoutesReader,
    project: Project,
    name: Name,
    *,
    watch: Watch = False,
    if_none_match: HeldTag = None,  # noqa: ARG001 - read by `tagged`, declared for the description
) -> Any:
    """One service's part of all routes. The stream ends when the service is deleted."""
    require_project(actor, project)
    if watch:
        return await _stream(request, f"{project}/{name}", actor.project)
    return _answer(request, await run_in_threadpool(services_of(request).routes.one, project, name))


def _answer(request: Request, found: Route | Routes) -> Any:
    body = plain(found)
    tag = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:24]
    return tagged(request, body, etag(tag))


async def _stream(request: Request, service: str | None, project: str | None) -> RouteStream:
    """A stream that begins with what is true now."""
    board: RouteBoard = request.app.state.route_board
    board.opened()
    try:
        ticket = board.ticket()
        board.publish(ticket, await run_in_threadpool(services_of(request).routes.table))
        if board.line(service, project) is None:
            raise NotFoundError(f"there is no service {service}")
    except BaseException:
        board.closed()
        raise
    return RouteStream(board, (service, project), context_of(request).settings.doorbell_heartbeat_s)
