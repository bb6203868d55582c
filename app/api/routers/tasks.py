"""Offline tasks beside their documents: submit one without choosing a key, and ask where they are.

Cancelling is deleting the document.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from app.api import keys
from app.api.answers import answer
from app.api.auth import access, require_project, visible_project
from app.api.body import parse, read_body, require_media_type
from app.api.conditional import etag
from app.api.deps import deed_of, services_of
from app.api.idempotency import IdempotencyKey, Posted, once
from app.api.openapi import json_body
from app.api.paging import Page, Paging
from app.api.rules import PROJECT_WRITE, SharedReader
from app.api.schemas.tasks import NewTask
from app.errors import Fault, FieldsError
from app.services.declared.tasks import TaskStatusLine, fresh_name
from app.services.declared.tokens import Actor
from app.store.tasks import TaskListing, TaskState
from solvers.domain.ids import GpuTypeName, ModelName, ProjectName
from solvers.domain.value import NAME_PATTERN
from solvers.domain.workload import OfflineTask
from solvers.errors import FieldError

router = APIRouter(tags=["tasks"])
ProjectWriter = Annotated[Actor, Depends(access(PROJECT_WRITE))]
_CREATED_HEADERS = {
    "Location": {"description": "The declarative document.", "schema": {"type": "string"}},
    "ETag": {"description": "The document's version.", "schema": {"type": "string"}},
}


@router.post(
    "/v1/tasks",
    operation_id="submit_task",
    summary="Submit an offline task",
    status_code=201,
    response_model=OfflineTask,
    responses={201: {"headers": _CREATED_HEADERS, "description": "It waits; this is its document."}},
    openapi_extra=json_body(NewTask),
)
def submit_task(
    request: Request, actor: ProjectWriter, idempotency_key: IdempotencyKey = None, body: bytes = Depends(read_body)
) -> Any:
    """The document can be read, changed and deleted (which cancels the task) where `Location` says."""
    require_media_type(request, "application/json")
    task = _task(parse(NewTask, body), actor)
    require_project(actor, task.project)

    def work() -> Response:
        stored = services_of(request).tasks.submit(task, deed_of(request, actor))
        headers = {"Location": f"/v1/tasks/{task.project}/{task.name}", "ETag": etag(stored.version)}
        return answer(stored.spec, 201, headers)

    return once(Posted(request, actor, idempotency_key, body), work)


@router.get(
    "/v1/tasks/status",
    operation_id="list_task_statuses",
    summary="Where offline tasks are",
    response_model=Page[TaskStatusLine],
)
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
    page = services_of(request).tasks.page(listing)
    return answer(page)


@router.get(
    "/v1/tasks/{project}/{name}/status",
    operation_id="get_task_status",
    summary="Where an offline task is",
    response_model=TaskStatusLine,
)
def get_task_status(
    request: Request, actor: SharedReader, key: tuple[str, str] = Depends(keys.by_project_and_name)
) -> Any:
    """One task."""
    require_project(actor, key[0])
    return answer(services_of(request).tasks.get(*key))


def _task(new: NewTask, actor: Actor) -> OfflineTask:
    """The document of what was submitted. Raises FieldsError."""
    project = new.project or actor.project
    if project is None:
        raise FieldsError((Fault(pointer="/project", code="missing", detail="say for which project"),))
    try:
        return OfflineTask(
            project=ProjectName(project),
            name=new.name or fresh_name(),
            model=ModelName(new.model),
            inputs_total=new.inputs_total,
            slo=new.slo,
            class_lambda=new.class_lambda,
            priority=new.priority,
            gpu_types_allowed=tuple(GpuTypeName(item) for item in new.gpu_types_allowed),
            tolerations=new.tolerations,
            mode=new.mode,
            worker=new.worker,
        )
    except FieldError as error:
        fault = Fault(pointer=f"/{error.field}", code="value-invalid", detail=error.message)
        raise FieldsError((fault,)) from None
