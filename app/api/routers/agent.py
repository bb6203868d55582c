"""What agents and gateways call: join, fetch the target, deliver reports, receipts and offered load."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request

from agents.wire import NodeTarget
from app.api import wire
from app.api.answers import answer
from app.api.body import read_body, require_media_type
from app.api.conditional import HeldTag, etag, tagged
from app.api.deps import context_of, deed_of, services_of
from app.api.keys import NodeKey
from app.api.openapi import REF, request_body
from app.api.rules import EdgeReporter, Joiner, NodeAgent
from app.errors import ForbiddenError
from app.records import record
from app.services.declared.tokens import Actor
from app.services.seen.telemetry import Acknowledged
from solvers.errors import NotFoundError

router = APIRouter(tags=["agent"])


@record
class Admitted:
    """The node's own token and its interval. An agent that came with that token gets it back."""

    node: str
    token: str
    report_interval_s: float
    generation: int


@record
class ReceiptTaken:
    """Whether the receipt was new."""

    new: bool


def _message(name: str, many: bool = False) -> dict[str, Any]:
    one = {"$ref": REF.format(model=name)}
    schema = {"anyOf": [one, {"type": "array", "minItems": 1, "items": one}]} if many else one
    return request_body({"application/json": {"schema": schema}})


@router.post(
    "/v1/agent/join",
    operation_id="join_node",
    summary="Become a node",
    response_model=Admitted,
    openapi_extra=_message("Join"),
)
def join(request: Request, actor: Joiner, body: bytes = Depends(read_body)) -> Any:
    """Registers the node and its devices and issues the node's token; the tokens it had before end."""
    require_media_type(request, "application/json")
    wanted = wire.JOIN.decode(body)
    services = services_of(request)
    admission = services.fleet.join(wanted, actor, deed_of(request, actor))
    services.telemetry.registry.forget(wanted.node)
    presented = request.headers["authorization"].partition(" ")[2].strip()
    return answer(
        Admitted(
            node=wanted.node,
            token=admission.secret if admission.secret is not None else presented,
            report_interval_s=context_of(request).settings.report_interval_s,
            generation=admission.generation,
        )
    )


@router.get(
    "/v1/agent/nodes/{node}/target",
    operation_id="get_node_target",
    summary="What this node must hold",
    response_model=NodeTarget,
    responses={304: {"description": "You hold this generation."}},
)
def node_target(
    request: Request,
    actor: NodeAgent,
    node: NodeKey,
    if_none_match: HeldTag = None,  # noqa: ARG001 - read by `tagged`, declared for the description
) -> Any:
    """The node's own target, whole; the tag is its generation."""
    if actor.subject != node:
        raise NotFoundError(f"there is no node {node}")
    target = services_of(request).fleet.node_target(node)
    return tagged(request, target, etag(target["generation"]))


@router.post(
    "/v1/agent/reports",
    operation_id="send_reports",
    summary="Deliver reports",
    response_model=Acknowledged,
    openapi_extra=_message("Report", many=True),
)
def send_reports(request: Request, actor: NodeAgent, body: bytes = Depends(read_body)) -> Any:
    """One report or several, oldest first. Answered after they are on disk; a repeat is acknowledged again."""
    require_media_type(request, "application/json")
    reports = wire.decode_reports(body)
    for report in reports:
        _require_own(actor, report.node, "node")
    return answer(services_of(request).telemetry.accept_reports(reports, many=_is_list(body)))


@router.post(
    "/v1/agent/receipts",
    operation_id="send_receipt",
    summary="Deliver a receipt",
    response_model=ReceiptTaken,
    openapi_extra=_message("NodeReceipt"),
)
def send_receipt(request: Request, actor: NodeAgent, body: bytes = Depends(read_body)) -> Any:
    """What the node read back after applying a target."""
    require_media_type(request, "application/json")
    receipt = wire.RECEIPT.decode(body)
    _require_own(actor, receipt.node, "node")
    return answer(ReceiptTaken(new=services_of(request).telemetry.accept_receipt(receipt)))


@router.post(
    "/v1/agent/edge-reports",
    operation_id="send_edge_reports",
    summary="Deliver offered load",
    response_model=Acknowledged,
    openapi_extra=_message("EdgeReport", many=True),
)
def send_edge_reports(request: Request, actor: EdgeReporter, body: bytes = Depends(read_body)) -> Any:
    """Arrivals at the edge, whether or not anybody served them."""
    require_media_type(request, "application/json")
    reports = wire.decode_edge_reports(body)
    for report in reports:
        _require_own(actor, report.gateway, "gateway")
    return answer(services_of(request).telemetry.accept_edge_reports(reports, many=_is_list(body)))


def _is_list(body: bytes) -> bool:
    return body.lstrip()[:1] == b"["


def _require_own(actor: Actor, named: str, word: str) -> None:
    if actor.subject is not None and actor.subject != named:
        raise ForbiddenError(f"this token is for {word} {actor.subject}, the message is of {named}")
