"""Declarative documents over HTTP: list, get, put, delete, the same for every kind.

Owns the shape of those routes once; what a kind is called, how its key is spelt and who may touch it is data
(`app.kinds`). It refuses to create without the whole document: the body repeats the key of the path.
"""

from typing import Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from app import kinds
from app.api import keys, rules
from app.api.auth import access, require_project, visible_project
from app.api.body import parse, read_body, require_key, require_media_type
from app.api.conditional import HeldTag, IfMatch, IfNoneMatch, etag, precondition, tagged
from app.api.deps import deed_of, services_of
from app.api.openapi import json_body
from app.api.paging import Page, Paging
from app.kinds import Audience, Kind
from app.services.declared.tokens import Actor
from solvers.domain.value import NAME_PATTERN

_TAG_HEADER = {"ETag": {"description": "The document's version.", "schema": {"type": "string"}}}


_READ = {Audience.PROJECTS: rules.SHARED_READ, Audience.CLUSTER: rules.CLUSTER_READ}
_WRITE = {
    Audience.PROJECTS: rules.PROJECT_WRITE,
    Audience.CLUSTER: rules.CLUSTER_WRITE,
    Audience.ADMINISTRATORS: rules.CLUSTER_ADMIN,
}


def _project_filter(
    project: str | None = Query(None, pattern=NAME_PATTERN, max_length=63, description="Only of this project."),
) -> str | None:
    return project


def _no_filter() -> None:
    return None


def _page_model(model: Any) -> Any:
    return Page.__class_getitem__(model)


def documents_router() -> APIRouter:
    """The routes of all kinds."""
    router = APIRouter()
    for kind in kinds.KINDS:
        part = APIRouter(tags=[kind.plural])
        _add_reads(part, kind)
        _add_put(part, kind)
        if kind.deletable:
            _add_delete(part, kind)
        router.include_router(part)
    return router


def _path(kind: Kind) -> str:
    return "/".join((f"/v1/{kind.plural}", *(f"{{{part}}}" for part in kind.path_key)))


def _is_owned(kind: Kind) -> bool:
    """Whether a project token sees only its own of these."""
    return kind.in_project or kind is kinds.PROJECT


def _guard_project(kind: Kind, actor: Actor, key: tuple[str, ...]) -> None:
    if _is_owned(kind):
        require_project(actor, key[0])


def _add_reads(router: APIRouter, kind: Kind) -> None:
    guard = access(_READ[kind.readers])

    @router.get(
        f"/v1/{kind.plural}",
        operation_id=f"list_{kind.table}",
        summary=f"List {kind.plural.replace('-', ' ')}",
        response_model=_page_model(kind.domain),
    )
    def list_documents(
        request: Request,
        order: Paging,
        actor: Actor = Depends(guard),
        wanted: str | None = Depends(_project_filter if kind.in_project else _no_filter),
    ) -> Any:
        project = visible_project(actor, wanted) if _is_owned(kind) else None
        page = services_of(request).documents.page(kind, order, project)
        return JSONResponse({"items": [stored.spec for stored in page.items], "next_cursor": page.next_cursor})

    @router.get(
        _path(kind),
        operation_id=f"get_{kind.noun}",
        summary=f"Get a {kind.name.replace('-', ' ')}",
        response_model=kind.domain,
        responses={200: {"headers": _TAG_HEADER}, 304: {"description": "You hold this version."}},
    )
    def get_document(
        request: Request,
        actor: Actor = Depends(guard),
        key: tuple[str, ...] = Depends(keys.BY_PATH[kind.path_key]),
        if_none_match: HeldTag = None,  # noqa: ARG001 - read by `tagged`, declared for the description
    ) -> Any:
        _guard_project(kind, actor, key)
        stored = services_of(request).documents.get(kind, key)
        return tagged(request, stored.spec, etag(stored.version))


def _add_put(router: APIRouter, kind: Kind) -> None:
    guard = access(_WRITE[kind.writers])

    @router.put(
        _path(kind),
        operation_id=f"put_{kind.noun}",
        summary=f"Create or replace a {kind.name.replace('-', ' ')}",
        response_model=kind.domain,
        responses={
            200: {"headers": _TAG_HEADER, "description": "Replaced, or already so."},
            201: {"headers": _TAG_HEADER, "description": "Created.", "model": kind.domain},
        },
        openapi_extra=json_body(kind.domain),
    )
    def put_document(
        request: Request,
        actor: Actor = Depends(guard),
        key: tuple[str, ...] = Depends(keys.BY_PATH[kind.path_key]),
        *,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
        body: bytes = Depends(read_body),
    ) -> Any:
        _guard_project(kind, actor, key)
        require_media_type(request, "application/json")
        document: object = parse(kind.domain, body)
        for field, part in zip(kind.key, key, strict=True):
            require_key(f"/{field}", str(getattr(document, field)), part)
        result = services_of(request).documents.put(
            kind, document, precondition(if_match, if_none_match), deed_of(request, actor)
        )
        tag = etag(result.stored.version)
        return tagged(request, result.stored.spec, tag, 201 if result.created else 200)


def _add_delete(router: APIRouter, kind: Kind) -> None:
    guard = access(_WRITE[kind.writers])

    @router.delete(
        _path(kind),
        operation_id=f"delete_{kind.noun}",
        summary=f"Delete a {kind.name.replace('-', ' ')}",
        status_code=204,
        response_class=Response,
    )
    def delete_document(
        request: Request,
        actor: Actor = Depends(guard),
        key: tuple[str, ...] = Depends(keys.BY_PATH[kind.path_key]),
        if_match: IfMatch = None,
    ) -> Response:
        _guard_project(kind, actor, key)
        services_of(request).documents.delete(kind, key, precondition(if_match), deed_of(request, actor))
        return Response(status_code=204)
