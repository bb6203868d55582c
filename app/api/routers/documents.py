"""Declarative documents over HTTP: list, get, put, delete, the same for every kind.

Owns the shape of those routes once; what a kind is called, how its key is spelt and who may touch it is data
(`Noun`). It refuses to create without the whole document: the body repeats the key of the path.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from app.api.auth import Rule, access, require_project, visible_project
from app.api.body import parse, read_body, require_key, require_media_type
from app.api.conditional import HeldTag, IfMatch, IfNoneMatch, etag, precondition, tagged
from app.api.deps import deed_of, services_of
from app.api.openapi import json_body
from app.api.paging import Page, Paging, page_of
from app.services.actors import Actor
from app.services.documents import Listing
from app.store.documents import Kind
from solvers.domain.value import NAME_PATTERN

_TAG_HEADER = {"ETag": {"description": "The document's version.", "schema": {"type": "string"}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """One kind of document at the edge."""

    kind: Kind
    model: Any
    route: str
    one: str
    many: str
    path: str
    key: Callable[..., tuple[str, ...]]
    key_fields: tuple[str, ...]
    read: Rule
    write: Rule
    deletable: bool = True

    @property
    def owned(self) -> bool:
        """Whether a project token sees only its own of these."""
        return self.kind.in_project or self.kind is Kind.PROJECT


def _project_filter(
    project: str | None = Query(None, pattern=NAME_PATTERN, max_length=63, description="Only of this project."),
) -> str | None:
    return project


def _no_filter() -> None:
    return None


def _page_model(model: Any) -> Any:
    return Page.__class_getitem__(model)


def documents_router(noun: Noun) -> APIRouter:
    """The routes of one kind."""
    router = APIRouter(tags=[noun.route])
    _add_reads(router, noun)
    _add_put(router, noun)
    if noun.deletable:
        _add_delete(router, noun)
    return router


def _guard_project(noun: Noun, actor: Actor, key: tuple[str, ...]) -> None:
    if noun.owned:
        require_project(actor, key[0])


def _add_reads(router: APIRouter, noun: Noun) -> None:
    guard = access(noun.read)

    @router.get(
        f"/v1/{noun.route}",
        operation_id=f"list_{noun.many}",
        summary=f"List {noun.many.replace('_', ' ')}",
        response_model=_page_model(noun.model),
    )
    def list_documents(
        request: Request,
        order: Paging,
        actor: Actor = Depends(guard),
        wanted: str | None = Depends(_project_filter if noun.kind.in_project else _no_filter),
    ) -> Any:
        project = visible_project(actor, wanted) if noun.owned else None
        listing = Listing(limit=order.limit, cursor=order.cursor, project=project)
        page = services_of(request).documents.page(noun.kind, listing)
        return JSONResponse(page_of([stored.spec for stored in page.items], page.next_cursor))

    @router.get(
        f"/v1/{noun.route}/{noun.path}",
        operation_id=f"get_{noun.one}",
        summary=f"Get a {noun.one.replace('_', ' ')}",
        response_model=noun.model,
        responses={200: {"headers": _TAG_HEADER}, 304: {"description": "You hold this version."}},
    )
    def get_document(
        request: Request,
        actor: Actor = Depends(guard),
        key: tuple[str, ...] = Depends(noun.key),
        if_none_match: HeldTag = None,  # noqa: ARG001 - read by `tagged`, declared for the description
    ) -> Any:
        _guard_project(noun, actor, key)
        stored = services_of(request).documents.get(noun.kind, key)
        return tagged(request, stored.spec, etag(stored.version))


def _add_put(router: APIRouter, noun: Noun) -> None:
    guard = access(noun.write)

    @router.put(
        f"/v1/{noun.route}/{noun.path}",
        operation_id=f"put_{noun.one}",
        summary=f"Create or replace a {noun.one.replace('_', ' ')}",
        response_model=noun.model,
        responses={
            200: {"headers": _TAG_HEADER, "description": "Replaced, or already so."},
            201: {"headers": _TAG_HEADER, "description": "Created.", "model": noun.model},
        },
        openapi_extra=json_body(noun.model),
    )
    def put_document(
        request: Request,
        actor: Actor = Depends(guard),
        key: tuple[str, ...] = Depends(noun.key),
        *,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
        body: bytes = Depends(read_body),
    ) -> Any:
        _guard_project(noun, actor, key)
        require_media_type(request, "application/json")
        document = parse(noun.model, body)
        for field, part in zip(noun.key_fields, key, strict=True):
            require_key(f"/{field}", str(getattr(document, field)), part)
        result = services_of(request).documents.put(
            noun.kind, document, precondition(if_match, if_none_match), deed_of(request, actor)
        )
        tag = etag(result.stored.version)
        return tagged(request, result.stored.spec, tag, 201 if result.created else 200)


def _add_delete(router: APIRouter, noun: Noun) -> None:
    guard = access(noun.write)

    @router.delete(
        f"/v1/{noun.route}/{noun.path}",
        operation_id=f"delete_{noun.one}",
        summary=f"Delete a {noun.one.replace('_', ' ')}",
        status_code=204,
        response_class=Response,
    )
    def delete_document(
        request: Request,
        actor: Actor = Depends(guard),
        key: tuple[str, ...] = Depends(noun.key),
        if_match: IfMatch = None,
    ) -> Response:
        _guard_project(noun, actor, key)
        services_of(request).documents.delete(noun.kind, key, precondition(if_match), deed_of(request, actor))
        return Response(status_code=204)
