"""Tokens: list, issue, revoke, by admins only. Whom nodes are to believe, which keys are theirs, turning one out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Response
from pydantic import Field

from app.api.auth import ClusterAdmin, ClusterReader, ClusterWriter, SharedReader
from app.api.body import RequestBody, json_of, parse, require_media_type
from app.api.deps import deed_of, services_of
from app.api.forms import NodeKey, Opaque, Page, Paging, Posting, answer, once
from app.api.openapi import json_body, router_of
from app.services.declared.identity import TrustTold
from app.services.declared.sign_ins import SignInLink
from app.services.declared.tokens import IssuedToken, TokenRequest
from app.store.nodes import NodeIdentity
from app.store.tokens import Purpose, Role, Token
from solvers.domain.value import NAME_PATTERN, SHOWN_PATTERN

Word = Annotated[str, Field(pattern=NAME_PATTERN, max_length=63)]
USES_MAX = 100_000
TTL_S_MAX = 10 * 365 * 86_400.0


class NewToken(RequestBody):
    """A token somebody wants. Agent tokens have a purpose, and a subject unless they are for joining."""

    name: str = Field(min_length=1, max_length=128, pattern=SHOWN_PATTERN)
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


class LinkRequest(RequestBody):
    """Nothing to say; the body may also be left out."""


@tokens_router.post(
    "/v1/sign-in-links",
    summary="Ask for a link to the console",
    status_code=201,
    response_model=SignInLink,
    openapi_extra=json_body(LinkRequest),
)
def create_sign_in_link(request: Request, actor: SharedReader, posted: Posting) -> Any:
    """Whoever opens it within a minute, once, is signed in at the console as the token that asked."""
    require_media_type(request, "application/json")
    if posted.body.strip():
        parse(LinkRequest, posted.body)

    def work() -> Response:
        return answer(services_of(request).sign_ins.link(actor), 201)

    return once(posted, work, secret_field="path")


# --- Who nodes are


identities_router = router_of("nodes")


@identities_router.get("/v1/authorities", summary="How nodes prove who they are", response_model=TrustTold)
def get_authorities(request: Request) -> Any:
    """The authorities to trust, for whoever knows the fingerprint of one or trusts this connection already."""
    return answer(services_of(request).identities.trust())


@identities_router.get("/v1/identities", summary="List nodes' keys", response_model=Page[NodeIdentity])
def list_identities(request: Request, actor: ClusterReader, order: Paging) -> Any:
    """Which key speaks for each node, and until when; ended ones too."""
    return answer(services_of(request).identities.page(order))


@identities_router.delete(
    "/v1/nodes/{node}/identity", summary="Turn a node out", status_code=204, response_class=Response
)
def revoke_node(request: Request, actor: ClusterWriter, node: NodeKey) -> Response:
    """Ends its tokens and keys, within seconds on every API process. It comes back by a join token alone that is made
    for its name afterwards.
    """
    services_of(request).identities.revoke(node, deed_of(request, actor))
    request.app.state.authenticator.forget()
    return Response(status_code=204)


ROUTERS = (tokens_router, identities_router)
