"""Declarative documents over HTTP: list, get, put, delete, the same for every kind; offline tasks beside theirs.

What a kind is called, how its key is spelt and who may touch it is data (`app.kinds`). Nothing is created without the
whole document: the body repeats the key of the path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from app import kinds
from app.api import auth, forms
from app.api.auth import (
    PROJECT_WRITE,
    ClusterReader,
    ClusterWriter,
    SharedReader,
    access,
    require_project,
    visible_project,
)
from app.api.body import (
    LABEL_PATTERN,
    RequestBody,
    json_of,
    parse,
    plain_of,
    read_body,
    require_key,
    require_media_type,
    validate,
)
from app.api.deps import deed_of, services_of
from app.api.forms import (
    WARNINGS_HEADER,
    Comment,
    HeldTag,
    IfMatch,
    IfNoneMatch,
    NodeKey,
    Page,
    Paging,
    Posting,
    answer,
    etag,
    once,
    precondition,
    said,
    tagged,
    warnings_header,
)
from app.api.openapi import json_body, request_body, router_of
from app.errors import Fault, FieldsError, MalformedError
from app.kinds import Audience, Kind
from app.services.declared.checking import CheckedDocument, WishedDocument
from app.services.declared.draining import NodeDrain
from app.services.declared.tasks import TaskStatusLine, fresh_name
from app.services.declared.tokens import Actor
from app.store.tasks import TaskListing, TaskState
from solvers.domain.value import NAME_PATTERN, declarable
from solvers.domain.worker import WorkerCommand
from solvers.domain.workload import GPU_TYPES_MAX, Labels, OfflineTask, ServiceMode, Slo, Tolerations
from solvers.errors import FieldError, InputError, NotFoundError

_TAG_HEADER = {"ETag": {"description": "The document's version.", "schema": {"type": "string"}}}
_PUT_HEADERS = _TAG_HEADER | WARNINGS_HEADER


MERGE_PATCH = "application/merge-patch+json"
_Patch = dict[str, Any]
_READ = {Audience.PROJECTS: auth.SHARED_READ, Audience.CLUSTER: auth.CLUSTER_READ}
_WRITE = {
    Audience.PROJECTS: auth.PROJECT_WRITE,
    Audience.CLUSTER: auth.CLUSTER_WRITE,
    Audience.ADMINISTRATORS: auth.CLUSTER_ADMIN,
}


def _project_filter(
    project: str | None = Query(None, pattern=NAME_PATTERN, max_length=63, description="Only of this project."),
) -> str | None:
    return project


def _label_filter(
    label: Annotated[
        list[Annotated[str, Field(pattern=LABEL_PATTERN, max_length=192)]],
        Query(max_length=8, description="Only with this label, `key=value` or `key`; with all of several."),
    ] = [],  # noqa: B006 - the framework copies it
) -> Sequence[str]:
    return label


def router_for(kind: Kind) -> APIRouter:
    router = router_of(kind.plural)
    _add_reads(router, kind)
    _add_put(router, kind)
    _add_patch(router, kind)
    if kind.deletable:
        _add_delete(router, kind)
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
        response_model=Page.__class_getitem__(kind.domain),
    )
    def list_documents(
        request: Request,
        order: Paging,
        actor: Actor = Depends(guard),
        wanted: str | None = Depends(_project_filter if kind.in_project else lambda: None),
        labels: Sequence[str] = Depends(_label_filter if kind.labelled else lambda: ()),
    ) -> Any:
        project = visible_project(actor, wanted) if _is_owned(kind) else None
        documents = services_of(request).documents
        page = documents.page(kind, order, project, labels)
        documents.require_project(wanted, there=bool(page.items))
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
        key: tuple[str, ...] = Depends(forms.BY_PATH[kind.path_key]),
        if_none_match: HeldTag = None,
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
            200: {"headers": _PUT_HEADERS, "description": "Replaced, or already so."},
            201: {"headers": _PUT_HEADERS, "description": "Created.", "model": kind.domain},
        },
        openapi_extra=json_body(kind.domain),
    )
    def put_document(
        request: Request,
        actor: Actor = Depends(guard),
        key: tuple[str, ...] = Depends(forms.BY_PATH[kind.path_key]),
        *,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
        body: bytes = Depends(read_body),
    ) -> Any:
        _guard_project(kind, actor, key)
        require_media_type(request, "application/json")
        document = _read(request, actor, kind, key, body)
        declared, deed = services_of(request).documents, deed_of(request, actor)
        with declared.refusals_noted(kind, key, deed):
            result = declared.put(kind, document, precondition(if_match, if_none_match), deed)
        tag = etag(result.stored.version)
        status = 201 if result.created else 200
        return tagged(request, result.stored.spec, tag, status, warnings_header(result.warnings))


def _read(request: Request, actor: Actor, kind: Kind, key: tuple[str, ...], body: bytes) -> object:
    """The document that a body is. Raises FieldsError with all that is wrong: fields, the key, and names that lead
    nowhere, as far as whoever asks may know.
    """
    try:
        document: object = parse(kind.domain, body)
        for field, part in zip(kind.key, key, strict=True):
            require_key(f"/{field}", str(getattr(document, field)), part)
    except FieldsError as error:
        said = plain_of(body)
        known = isinstance(said, dict) and actor.project in (None, said.get("project"))
        raise FieldsError(services_of(request).documents.faults(kind, said if known else {}, error.faults)) from None
    return document


def _add_patch(router: APIRouter, kind: Kind) -> None:
    guard = access(_WRITE[kind.writers])

    @router.patch(
        _path(kind),
        operation_id=f"patch_{kind.noun}",
        summary=f"Change a part of a {kind.name.replace('-', ' ')}",
        response_model=kind.domain,
        responses={200: {"headers": _PUT_HEADERS, "description": "Changed, or already so."}},
        openapi_extra=request_body({MERGE_PATCH: {"schema": {"type": "object"}}}),
    )
    def patch_document(
        request: Request,
        actor: Actor = Depends(guard),
        key: tuple[str, ...] = Depends(forms.BY_PATH[kind.path_key]),
        *,
        if_match: IfMatch = None,
        body: bytes = Depends(read_body),
    ) -> Any:
        """A merge patch (RFC 7396): what it names is changed, null goes back to the default, lists are replaced whole.
        Nobody's write in between is undone.
        """
        _guard_project(kind, actor, key)
        require_media_type(request, MERGE_PATCH)
        wish = parse(_Patch, body)

        def read(plain: Mapping[str, Any]) -> object:
            return _read(request, actor, kind, key, json.dumps(plain).encode())

        declared, deed = services_of(request).documents, deed_of(request, actor)
        with declared.refusals_noted(kind, key, deed):
            result = declared.patch(kind, key, wish, read, precondition(if_match), deed)
        return tagged(request, result.stored.spec, etag(result.stored.version), 200, warnings_header(result.warnings))


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
        key: tuple[str, ...] = Depends(forms.BY_PATH[kind.path_key]),
        if_match: IfMatch = None,
    ) -> Response:
        _guard_project(kind, actor, key)
        services_of(request).documents.delete(kind, key, precondition(if_match), deed_of(request, actor))
        return Response(status_code=204)


# --- Nodes: out of use for maintenance, and back


class DrainRequest(RequestBody):
    """Why, for those who read the audit later; the body may also be left out."""

    comment: Comment | None = None


drain_router = router_of("nodes")


@drain_router.get("/v1/nodes/{node}/drain", summary="Is a node empty?", response_model=NodeDrain)
def get_drain(request: Request, actor: ClusterReader, node: NodeKey) -> Any:
    """What is planned for it and runs on it, and what keeps it from being empty; `empty`: it is safe to reboot."""
    return answer(services_of(request).draining.progress(node))


@drain_router.post(
    "/v1/nodes/{node}/drain",
    summary="Take a node out of use",
    response_model=NodeDrain,
    openapi_extra=json_body(DrainRequest),
)
def drain_node(request: Request, actor: ClusterWriter, node: NodeKey, posted: Posting) -> Any:
    """No plan uses it any more; what may move leaves with the next one. Answers how far it is; ask again with GET."""
    wish, deed = said(request, posted, DrainRequest), deed_of(request, actor)
    return once(posted, lambda: answer(services_of(request).draining.drain(node, wish.comment, deed)))


@drain_router.post(
    "/v1/nodes/{node}/uncordon",
    summary="Put a node back into use",
    response_model=NodeDrain,
    openapi_extra=json_body(DrainRequest),
)
def uncordon_node(request: Request, actor: ClusterWriter, node: NodeKey, posted: Posting) -> Any:
    """Plans may use it again."""
    wish, deed = said(request, posted, DrainRequest), deed_of(request, actor)
    return once(posted, lambda: answer(services_of(request).draining.uncordon(node, wish.comment, deed)))


# --- Checking documents before they are put


class UncheckedDocument(RequestBody):
    """A document as `PUT` takes it, and of which kind it is."""

    kind: str = Field(max_length=40, description="Such as `service`.")
    document: dict[str, Any]


class DocumentsToCheck(RequestBody):
    """Documents in the order in which they would be put: what others name comes first."""

    documents: tuple[UncheckedDocument, ...] = Field(min_length=1, max_length=kinds.CHECKED_MAX)


class CheckedDocuments(BaseModel):
    """One entry for each document, in the same order."""

    model_config = ConfigDict(extra="forbid")

    items: list[CheckedDocument]


checks_router = router_of("documents")
Declarer = Annotated[Actor, Depends(access(PROJECT_WRITE))]


@checks_router.post(
    "/v1/checks",
    summary="What would putting these documents do?",
    response_model=CheckedDocuments,
    openapi_extra=json_body(DocumentsToCheck),
)
def check_documents(
    request: Request, actor: Declarer, asked: Annotated[DocumentsToCheck, Depends(json_of(DocumentsToCheck))]
) -> Any:
    """Created, updated, unchanged or refused, and why; field by field what would change; and what to warn of. All of
    them are judged together, so that one may name another. Nothing is stored; what asks for more than the bounds of its
    project leaves an event.
    """
    wished = [_wished(actor, item, index) for index, item in enumerate(asked.documents)]
    return answer({"items": services_of(request).checks.check(wished, deed_of(request, actor))})


def _wished(actor: Actor, item: UncheckedDocument, index: int) -> WishedDocument:
    try:
        kind = kinds.named(item.kind)
    except InputError as error:
        raise FieldsError.of(f"/documents/{index}/kind", error.message) from None
    said = [item.document.get(field) for field in kind.key]
    key = tuple(str(part) for part in said) if all(isinstance(part, str) for part in said) else ()
    if not _WRITE[kind.writers].admits(actor):
        fault = Fault(pointer="", code="forbidden", detail=f"this token may not put {kind.plural}")
        return WishedDocument(kind=kind, key=key, faults=(fault,))
    try:
        value: object = validate(kind.domain, json.dumps(item.document).encode())
        _guard_project(kind, actor, _key_of(kind, value))
    except FieldsError as error:
        may_know = actor.project in (None, item.document.get("project"))
        return WishedDocument(kind=kind, key=key, faults=error.faults, said=item.document if may_know else {})
    except (MalformedError, NotFoundError) as error:
        return WishedDocument(kind=kind, key=key, faults=(Fault(pointer="", code=error.code, detail=error.message),))
    return WishedDocument(kind=kind, key=_key_of(kind, value), value=value)


def _key_of(kind: Kind, value: object) -> tuple[str, ...]:
    return tuple(str(getattr(value, field)) for field in kind.key)


# --- Offline tasks: submit one without choosing a key, and ask where they are. Cancelling is deleting the document


_NameText = Annotated[str, Field(pattern=NAME_PATTERN)]


class NewTask(RequestBody):
    """An offline task to be done once. What is left out has the defaults of the declarative document."""

    project: _NameText | None = Field(None, description="Without: the token's own project.")
    name: _NameText | None = Field(None, description="Without: one is made up.")
    model: _NameText
    inputs_total: int = Field(ge=1, le=2**53)
    slo: Slo = Field(description="Of kind `deadline` or `throughput`.")
    class_lambda: float = Field(
        0.3, ge=0, lt=1, allow_inf_nan=False, description="Above 0.5: latency counts more than throughput."
    )
    priority: int = Field(50, ge=0, le=1000)
    gpu_types_allowed: Annotated[tuple[_NameText, ...], declarable(GPU_TYPES_MAX)] = ()
    tolerations: Tolerations = ()
    mode: ServiceMode = ServiceMode.AUTO
    worker: WorkerCommand | None = None
    labels: Labels = ()


tasks_router = router_of("tasks")
ProjectWriter = Annotated[Actor, Depends(access(PROJECT_WRITE))]
_SUBMITTED_HEADERS = {
    "Location": {"description": "The declarative document.", "schema": {"type": "string"}},
    "ETag": {"description": "The document's version.", "schema": {"type": "string"}},
} | WARNINGS_HEADER


@tasks_router.post(
    "/v1/tasks",
    summary="Submit an offline task",
    status_code=201,
    response_model=OfflineTask,
    responses={201: {"headers": _SUBMITTED_HEADERS, "description": "It waits; this is its document."}},
    openapi_extra=json_body(NewTask),
)
def submit_task(
    request: Request, actor: ProjectWriter, posted: Posting, new: Annotated[NewTask, Depends(json_of(NewTask))]
) -> Any:
    """The document can be read, changed and deleted (which cancels the task) where `Location` says."""
    task = _task(new, actor)
    require_project(actor, task.project)
    services, deed = services_of(request), deed_of(request, actor)

    def work() -> Response:
        result = services.tasks.submit(task, deed)
        headers = {"Location": f"/v1/tasks/{task.project}/{task.name}", "ETag": etag(result.stored.version)}
        return answer(result.stored.spec, 201, headers | warnings_header(result.warnings))

    with services.documents.refusals_noted(kinds.TASK, (task.project, task.name), deed):
        return once(posted, work)


@tasks_router.get("/v1/tasks/status", summary="Where offline tasks are", response_model=Page[TaskStatusLine])
def list_task_statuses(
    request: Request,
    actor: SharedReader,
    order: Paging,
    project: Annotated[
        str | None, Query(pattern=NAME_PATTERN, max_length=63, description="Only of this project.")
    ] = None,
    state: Annotated[TaskState | None, Query(description="Only what has become so.")] = None,
) -> Any:
    """By project and name: their place in line or their group, progress, deadline, and what the plan believes."""
    listing = TaskListing(limit=order.limit, cursor=order.cursor, project=visible_project(actor, project), state=state)
    services = services_of(request)
    page = services.tasks.page(listing, actor.project)
    services.documents.require_project(project, there=bool(page.items))
    return answer(page)


@tasks_router.get(
    "/v1/tasks/{project}/{name}/status", summary="Where an offline task is", response_model=TaskStatusLine
)
def get_task_status(
    request: Request, actor: SharedReader, key: tuple[str, str] = Depends(forms.by_project_and_name)
) -> Any:
    """One task."""
    require_project(actor, key[0])
    return answer(services_of(request).tasks.get(*key, actor.project))


def _task(new: NewTask, actor: Actor) -> OfflineTask:
    """The document of what was submitted. Raises FieldsError."""
    said = {name: getattr(new, name) for name in NewTask.model_fields}
    project = new.project or actor.project
    if project is None:
        raise FieldsError.of("/project", "say for which project", "missing")
    try:
        return OfflineTask(**{**said, "project": project, "name": new.name or fresh_name()})
    except FieldError as error:
        raise FieldsError.of(f"/{error.field}", error.message) from None


ROUTERS = (*map(router_for, kinds.KINDS), drain_router, checks_router, tasks_router)
