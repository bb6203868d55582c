"""Tokens: list, issue, revoke. Admins only."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.answers import answer
from app.api.body import parse, read_body, require_media_type
from app.api.deps import deed_of, services_of
from app.api.idempotency import IdempotencyKey, Posted, once
from app.api.keys import Opaque
from app.api.openapi import json_body
from app.api.paging import Page, Paging
from app.api.rules import ClusterAdmin
from app.api.schemas.tokens import NewToken
from app.services.declared.tokens import IssuedToken, TokenRequest
from app.store.tokens import Token

router = APIRouter(tags=["tokens"])


@router.get("/v1/tokens", operation_id="list_tokens", summary="List tokens", response_model=Page[Token])
def list_tokens(request: Request, actor: ClusterAdmin, order: Paging) -> Any:  # noqa: ARG001 - the actor is the guard
    """Revoked and expired ones too; never a secret."""
    page = services_of(request).tokens.page(order)
    return answer(page)


@router.get("/v1/tokens/{token_id}", operation_id="get_token", summary="Get a token", response_model=Token)
def get_token(request: Request, actor: ClusterAdmin, token_id: Opaque) -> Any:  # noqa: ARG001 - the actor is the guard
    """One token without its secret."""
    return answer(services_of(request).tokens.get(token_id))


@router.post(
    "/v1/tokens",
    operation_id="create_token",
    summary="Issue a token",
    status_code=201,
    response_model=IssuedToken,
    openapi_extra=json_body(NewToken),
)
def create_token(
    request: Request, actor: ClusterAdmin, idempotency_key: IdempotencyKey = None, body: bytes = Depends(read_body)
) -> Any:
    """The secret is in this answer and nowhere else."""
    require_media_type(request, "application/json")
    wanted = parse(NewToken, body)

    def work() -> Response:
        issued = services_of(request).tokens.issue(TokenRequest(**wanted.model_dump()), deed_of(request, actor))
        return answer(issued, 201, {"Location": f"/v1/tokens/{issued.id}"})

    return once(Posted(request, actor, idempotency_key, body), work, secret_field="secret")


@router.delete(
    "/v1/tokens/{token_id}",
    operation_id="revoke_token",
    summary="Revoke a token",
    status_code=204,
    response_class=Response,
)
def revoke_token(request: Request, actor: ClusterAdmin, token_id: Opaque) -> Response:
    """Works within seconds on every API process; its entry stays for the audit."""
    services_of(request).tokens.revoke(token_id, deed_of(request, actor))
    return Response(status_code=204)
