"""Tokens: list, issue, revoke. Admins only."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Response
from pydantic import Field

from app.api.auth import ClusterAdmin
from app.api.body import RequestBody, json_of
from app.api.deps import deed_of, services_of
from app.api.forms import Opaque, Page, Paging, Posting, answer, once
from app.api.openapi import json_body, router_of
from app.services.declared.tokens import IssuedToken, TokenRequest
from app.store.tokens import Purpose, Role, Token
from solvers.domain.value import NAME_PATTERN

Word = Annotated[str, Field(pattern=NAME_PATTERN, max_length=63)]
USES_MAX = 100_000
TTL_S_MAX = 10 * 365 * 86_400.0


class NewToken(RequestBody):
    """A token somebody wants. Agent tokens have a purpose, and a subject unless they are for joining."""

    name: str = Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")
    role: Role
    purpose: Purpose | None = None
    project: Word | None = Field(default=None, description="Only this project; null is the whole cluster.")
    subject: Word | None = Field(default=None, description="The node or gateway an agent token speaks for.")
    ttl_s: float | None = Field(
        default=None, ge=1, le=TTL_S_MAX, description="Seconds until it expires; null: never, a join token in an hour."
    )
    uses_max: int | None = Field(
        default=None, ge=1, le=USES_MAX, description="Of a join token: so many nodes may join with it; null: one."
    )


tokens_router = router_of("tokens")


@tokens_router.get("/v1/tokens", summary="List tokens", response_model=Page[Token])
def list_tokens(request: Request, actor: ClusterAdmin, order: Paging) -> Any:
    """Revoked and expired ones too; never a secret."""
    return answer(services_of(request).tokens.page(order))


@tokens_router.get("/v1/tokens/{token_id}", summary="Get a token", response_model=Token)
def get_token(request: Request, actor: ClusterAdmin, token_id: Opaque) -> Any:
    """One token without its secret."""
    return answer(services_of(request).tokens.get(token_id))


@tokens_router.post(
    "/v1/tokens",
    summary="Issue a token",
    status_code=201,
    response_model=IssuedToken,
    openapi_extra=json_body(NewToken),
)
def create_token(
    request: Request, actor: ClusterAdmin, posted: Posting, wanted: Annotated[NewToken, Depends(json_of(NewToken))]
) -> Any:
    """The secret is in this answer and nowhere else."""

    def work() -> Response:
        asked = TokenRequest.counted(TokenRequest(**wanted.model_dump()))
        issued = services_of(request).tokens.issue(asked, deed_of(request, actor))
        return answer(issued, 201, {"Location": f"/v1/tokens/{issued.id}"})

    return once(posted, work, secret_field="secret")


@tokens_router.delete("/v1/tokens/{token_id}", summary="Revoke a token", status_code=204, response_class=Response)
def revoke_token(request: Request, actor: ClusterAdmin, token_id: Opaque) -> Response:
    """Works within seconds on every API process; its entry stays for the audit."""
    services_of(request).tokens.revoke(token_id, deed_of(request, actor))
    return Response(status_code=204)


ROUTERS = (tokens_router,)
