"""What agents and gateways call: join, fetch the target, deliver reports, receipts and offered load, hear of new
generations, and where requests may go, once or as a stream.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from agents.wire import AUTHORITY, HISTORY, READS, LogRequest, NodeTarget
from app.api.auth import (
    DoorbellListener,
    EdgeReporter,
    Joiner,
    NodeAgent,
    RoutesReader,
    certificate_of,
    require_project,
)
from app.api.body import RequestBody, json_of, read_body, require_media_type
from app.api.deps import context_of, deed_of, services_of
from app.api.forms import HeldTag, Name, NodeKey, Project, answer, etag, tagged
from app.api.messages import CSR_LENGTH_MAX, JOIN, LOG_PIECE, RECEIPT, decode_edge_reports, decode_reports
from app.api.openapi import REF, json_body, request_body, router_of
from app.api.streams import LineStream, RouteBoard, doorbell_stream
from app.errors import ForbiddenError
from app.records import plain, record, record_of
from app.services.declared.identity import Certified
from app.services.declared.tokens import Actor
from app.services.seen.routes import Route, Routes
from app.services.seen.telemetry import Acknowledged, OfferedAcknowledged, Telemetry
from solvers.errors import NotFoundError

agent_router = router_of("agent")
Reads = Annotated[
    str | None, Header(alias=READS, max_length=200, description="`history`: tell of which cluster and epoch it is.")
]


@record
class Admitted:
    """The node's own token and its interval. An agent that came with that token gets it back."""

    node: str
    token: str
    report_interval_s: float
    generation: int
    cluster_id: str | None
    epoch: int | None
    certificate: str | None = None
    """For the key in `csr`, where there was one (PEM)."""
    authorities: str | None = None
    """All to trust from now on, the one that signs first."""
    certificate_s: float | None = None


class CertificateWanted(RequestBody):
    """A node's next key, in a request that it signed."""

    csr: str = Field(max_length=CSR_LENGTH_MAX, pattern=r"^[\n\r -~]+$", description="The signing request (PEM).")


@record
class LogRequests:
    """What somebody reads now."""

    items: tuple[LogRequest, ...]


@record
class ReceiptTaken:
    """Whether the receipt was new."""

    new: bool


LogRequestId = Annotated[int, Path(ge=1, le=2**63 - 1, description="As `request` in what is wanted.")]


def _message(name: str, many: bool = False) -> dict[str, Any]:
    one = {"$ref": REF.format(model=name)}
    schema = {"anyOf": [one, {"type": "array", "minItems": 1, "items": one}]} if many else one
    return request_body({"application/json": {"schema": schema}})


@agent_router.post("/v1/agent/join", summary="Become a node", response_model=Admitted, openapi_extra=_message("Join"))
def join_node(request: Request, actor: Joiner, body: bytes = Depends(read_body)) -> Any:
    """Registers the node and its devices and issues the node's token; the tokens it had before end."""
    require_media_type(request, "application/json")
    wanted = JOIN.decode(body)
    services = services_of(request)
    admission = services.fleet.join(wanted, actor, deed_of(request, actor), certificate_of(request))
    services.telemetry.registry.forget(wanted.node)
    presented = request.headers["authorization"].partition(" ")[2].strip()
    certified = plain(admission.certified) if admission.certified is not None else {}
    return answer(
        record_of(
            Admitted,
            admission.standing,
            **certified,
            node=wanted.node,
            token=admission.secret if admission.secret is not None else presented,
            report_interval_s=context_of(request).settings.report_interval_s,
        )
    )


@agent_router.post(
    "/v1/agent/nodes/{node}/certificates",
    summary="Have a node's next key signed",
    response_model=Certified,
    openapi_extra=json_body(CertificateWanted),
)
def certify_node(
    request: Request,
    actor: NodeAgent,
    node: NodeKey,
    wanted: Annotated[CertificateWanted, Depends(json_of(CertificateWanted))],
) -> Any:
    """A certificate for another key, beside those that the node has; each is good until it expires."""
    if actor.subject != node:
        raise NotFoundError(f"there is no node {node}")
    return answer(services_of(request).identities.certify(node, wanted.csr, deed_of(request, actor)))


@agent_router.get(
    "/v1/agent/nodes/{node}/target",
    summary="What this node must hold",
    response_model=NodeTarget,
    responses={304: {"description": "You hold this generation."}},
)
def get_node_target(
    request: Request, actor: NodeAgent, node: NodeKey, *, reads: Reads = None, if_none_match: HeldTag = None
) -> Any:
    """The node's own target, whole; the tag is its generation, with epoch and cluster where those are told."""
    if actor.subject != node:
        raise NotFoundError(f"there is no node {node}")
    target = services_of(request).fleet.node_target(node, history=reads == HISTORY)
    place = (target["generation"], target.get("epoch"), target.get("cluster_id"))
    told = tagged(request, target, etag("/".join(str(part) for part in place if part is not None)))
    signer = services_of(request).identities.signer()
    if signer is not None:
        told.headers[AUTHORITY] = signer
    return told


@agent_router.post(
    "/v1/agent/reports",
    summary="Deliver reports",
    response_model=Acknowledged,
    openapi_extra=_message("Report", many=True),
)
async def send_reports(request: Request, actor: NodeAgent, body: bytes = Depends(read_body)) -> Any:
    """One report or several, oldest first. Answered after they are on disk; a repeat is acknowledged again."""
    require_media_type(request, "application/json")
    return answer(await stored(services_of(request).telemetry, actor, body))


async def stored(telemetry: Telemetry, actor: Actor, body: bytes) -> Acknowledged:
    """What a node is told whose reports are on disk."""
    reports = decode_reports(body)
    for report in reports:
        _require_own(actor, report.node, "node")
    return await telemetry.accept_reports(reports, many=_is_list(body))


@agent_router.post(
    "/v1/agent/receipts",
    summary="Deliver a receipt",
    response_model=ReceiptTaken,
    openapi_extra=_message("NodeReceipt"),
)
def send_receipt(request: Request, actor: NodeAgent, body: bytes = Depends(read_body)) -> Any:
    """What the node read back after applying a target."""
    require_media_type(request, "application/json")
    receipt = RECEIPT.decode(body)
    _require_own(actor, receipt.node, "node")
    peer = request.client.host if request.client is not None else ""
    return answer(ReceiptTaken(new=services_of(request).telemetry.accept_receipt(receipt, peer)))


@agent_router.get("/v1/agent/log-requests", summary="What people want to read here", response_model=LogRequests)
def list_log_requests(request: Request, actor: NodeAgent) -> Any:
    """Replicas of this node whose logs somebody reads now; asked for when the doorbell's `logs` changes."""
    return answer(LogRequests(items=services_of(request).logs.wanted_of(actor.subject or "")))


@agent_router.post(
    "/v1/agent/log-requests/{log_request}",
    summary="Hand over what workers wrote",
    status_code=204,
    response_class=Response,
    openapi_extra=_message("LogPiece"),
)
def hand_over_log(
    request: Request, actor: NodeAgent, log_request: LogRequestId, body: bytes = Depends(read_body)
) -> Response:
    """The last lines first, then what came since; no control characters. 404 when nobody reads it any more."""
    require_media_type(request, "application/json")
    services_of(request).logs.hand_over(log_request, actor.subject or "", LOG_PIECE.decode(body))
    return Response(status_code=204)


@agent_router.post(
    "/v1/agent/edge-reports",
    summary="Deliver offered load",
    response_model=OfferedAcknowledged,
    openapi_extra=_message("EdgeReport", many=True),
)
async def send_edge_reports(request: Request, actor: EdgeReporter, body: bytes = Depends(read_body)) -> Any:
    """Arrivals at the edge, whether or not anybody served them."""
    require_media_type(request, "application/json")
    reports = decode_edge_reports(body)
    for report in reports:
        _require_own(actor, report.gateway, "gateway")
    return answer(await services_of(request).telemetry.accept_edge_reports(reports, many=_is_list(body)))


def _is_list(body: bytes) -> bool:
    return body.lstrip()[:1] == b"["


def _require_own(actor: Actor, named: str, word: str) -> None:
    if actor.subject is not None and actor.subject != named:
        raise ForbiddenError(f"this token is for {word} {actor.subject}, the message is of {named}")


# --- The doorbell


doorbell_router = router_of("agent")


@doorbell_router.get(
    "/v1/doorbell",
    summary="Hear of new generations",
    status_code=200,
    response_class=LineStream,
    responses={
        200: {
            "description": 'Lines `{"generation": n}`, the current one first; lines beginning with `:` are heartbeats.',
            "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
        }
    },
)
async def listen_doorbell(request: Request, actor: DoorbellListener) -> Any:
    """An endless stream, which ends with its token."""
    state = request.app.state
    return doorbell_stream(state.streams, actor, state.hub, context_of(request).settings.doorbell_heartbeat_s)


# --- Routes


routes_router = router_of("fleet")
Watch = Annotated[
    bool,
    Query(description="Answer with a stream: a line of JSON now and after every change, comment lines between them."),
]
_ROUTED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}},
    304: {"description": "Nothing changed."},
}


@routes_router.get("/v1/routes", summary="Ready replicas and their weights", response_model=Routes, responses=_ROUTED)
async def get_routes(
    request: Request, actor: RoutesReader, *, watch: Watch = False, if_none_match: HeldTag = None
) -> Any:
    """For gateways. Of every service, the replicas that are ready, with planned capacity as weight."""
    if watch:
        return await _stream(request, None, actor)
    found = await run_in_threadpool(services_of(request).routes.every, actor.project)
    return _routed(request, found)


@routes_router.get(
    "/v1/routes/{project}/{name}", summary="Ready replicas of a service", response_model=Route, responses=_ROUTED
)
async def get_service_routes(
    request: Request,
    actor: RoutesReader,
    project: Project,
    name: Name,
    *,
    watch: Watch = False,
    if_none_match: HeldTag = None,
) -> Any:
    """One service's part of all routes. The stream ends when the service is deleted."""
    require_project(actor, project)
    if watch:
        return await _stream(request, f"{project}/{name}", actor)
    return _routed(request, await run_in_threadpool(services_of(request).routes.one, project, name))


def _routed(request: Request, found: Route | Routes) -> Any:
    body = plain(found)
    tag = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:24]
    return tagged(request, body, etag(tag))


async def _stream(request: Request, service: str | None, actor: Actor) -> LineStream:
    """A stream that begins with what is true now."""
    board: RouteBoard = request.app.state.route_board
    ticket = board.ticket()
    board.publish(ticket, await run_in_threadpool(services_of(request).routes.table))
    line = partial(board.line, service, actor.project)
    if line() is None:
        raise NotFoundError(f"there is no service {service}")
    heartbeat_s = context_of(request).settings.doorbell_heartbeat_s
    return LineStream(request.app.state.streams, actor, board.hub, line, heartbeat_s)


ROUTERS = (agent_router, doorbell_router, routes_router)
