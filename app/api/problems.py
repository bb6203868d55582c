"""Error answers (RFC 9457): every failure leaves as problem+json with a stable code and the request's id, never with a
stack trace.

Database failures arrive here as they left the store and are told apart only by whether trying again can help.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app.api.body import pointer_of, told
from app.errors import (
    FRAMEWORK_STATUSES,
    Fault,
    FieldsError,
    MalformedError,
    RateLimitedError,
    UnauthenticatedError,
    status_of,
)
from app.logs import EventLog
from app.records import plain
from solvers.errors import FieldError, HeadroomError, InvariantError


class Problem(BaseModel):
    """Problem details. `code` is stable; `detail` is for people and may change."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="`/problems/` and the code.")
    title: str
    status: int
    detail: str
    code: str
    errors: list[Fault]
    request_id: str


MEDIA_TYPE = "application/problem+json"
NO_STATE = "-"
_SAID_MAX = 80


def install(app: FastAPI) -> None:
    app.add_exception_handler(HeadroomError, _headroom)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _framework)


def request_id_of(scope: Mapping[str, Any]) -> str:
    return str(scope.get("state", {}).get("request_id", NO_STATE))


def problem(
    request_id: str,
    *,
    status: int,
    code: str,
    title: str,
    detail: str,
    errors: Sequence[Fault] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    body = {
        "type": f"/problems/{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "errors": plain(tuple(errors)),
        "request_id": request_id,
    }
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def of_error(request_id: str, raised: Exception, *, bodiless: bool = False) -> JSONResponse:
    """The problem of an error; of one that nobody expected no more than that. In a `bodiless` request a bare field name
    is one of the query.
    """
    error = raised if isinstance(raised, HeadroomError) else InvariantError("unexpected")
    entry = status_of(error)
    headers: dict[str, str] = {}
    if isinstance(error, UnauthenticatedError):
        headers["WWW-Authenticate"] = 'Bearer realm="headroom"'
    if isinstance(error, RateLimitedError):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif entry.status == 503:
        headers["Retry-After"] = "1"
    internal = entry.status == 500
    return problem(
        request_id,
        status=entry.status,
        code="internal" if internal else error.code,
        title=entry.title,
        # What broke inside is in the log under the request's id; the caller can do nothing with it.
        detail="the server failed to handle this request" if internal else error.message,
        errors=_faults(error, "query:" if bodiless else "/"),
        headers=headers,
    )


def escaped(voice: EventLog, error: Exception, *, request_id: str, method: str, path: str) -> JSONResponse:
    """The last resort: what nobody expected is told to the log, and nothing reaches the server as a traceback."""
    if not isinstance(error, HeadroomError):
        voice.error("request.crashed", error, request_id=request_id, method=method, path=path)
    return of_error(request_id, error)


def _faults(error: HeadroomError, place: str) -> tuple[Fault, ...]:
    if isinstance(error, FieldsError):
        return error.faults
    if isinstance(error, FieldError):
        pointer = error.field if error.field.startswith(("/", "query:", "path:", "header:")) else place + error.field
        return (Fault(pointer=pointer, code="value-invalid", detail=error.message),)
    if isinstance(error, MalformedError):
        return (Fault(pointer="", code=error.code, detail=error.message),)
    return ()


async def _headroom(request: Request, error: Exception) -> JSONResponse:
    return of_error(request_id_of(request.scope), error, bodiless=request.method in ("GET", "HEAD"))


async def _validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = []
    for item in error.errors():
        place, *rest = item["loc"]
        pointer = pointer_of(rest) if place == "body" else f"{place}:{'.'.join(str(part) for part in rest)}"
        said = item.get("input")
        # A body's pointer leads there; what stands in an address is told, shortened.
        quoted = f"{said[:_SAID_MAX]!r} " if place != "body" and isinstance(said, str) else ""
        faults.append(Fault(pointer=pointer, code=str(item["type"]).replace("_", "-"), detail=quoted + told(item)))
    return of_error(request_id_of(request.scope), FieldsError(tuple(faults)))


async def _framework(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code, title = FRAMEWORK_STATUSES.get(error.status_code, (f"http-{error.status_code}", str(error.detail)))
    method, path, detail, headers = request.method, request.url.path, str(error.detail), error.headers
    if error.status_code == 404:
        detail = f"{method} {path} is not here"
    elif error.status_code == 405:
        taken = ", ".join(_taken(request))
        detail, headers = f"{method} is not taken at {path}, but {taken}", {"Allow": taken}
    return problem(
        request_id_of(request.scope), status=error.status_code, code=code, title=title, detail=detail, headers=headers
    )


def _taken(request: Request) -> Iterator[str]:
    """The methods of all routes of an address; the framework names those of the first one alone."""
    for method in ("GET", "PUT", "PATCH", "POST", "DELETE"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            yield from ("GET", "HEAD") if method == "GET" else (method,)
