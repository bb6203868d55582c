"""What routes have in common: keys in paths, pages, moments, tags and preconditions, repeated POSTs, answers.

A document's tag is its version in quotes; If-Match compares strongly, so a weak tag never matches. Under an
Idempotency-Key the first request does the work and repeats get its answer: successes and refusals that would be the
same again are kept, failures of ours give the key back, so that the repeat may succeed. Secrets are never kept: a
repeat of a request that made one gets the answer without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from app.api.body import JSON, PLAN_PATTERN, RequestBody, parse, read_body, require_media_type
from app.api.deps import context_of
from app.errors import Fault, FieldsError
from app.records import plain
from app.services.beliefs.beliefs import Progress
from app.services.declared.tokens import Actor
from app.store import idempotency
from app.store.documents import Precondition
from app.store.idempotency import StoredAnswer
from app.store.pages import PageOrder
from solvers.domain.device import PowerScope
from solvers.domain.value import LINES_PATTERN, NAME_PATTERN
from solvers.errors import FieldError


def answer(found: object, status: int = 200, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A record, a page of them, or a value of the core."""
    return JSONResponse(plain(found), status_code=status, headers=dict(headers or {}))


BELIEF_HEADER_NAME = "Headroom-Belief"
BELIEF_HEADER: dict[str, Any] = {
    BELIEF_HEADER_NAME: {
        "schema": {"type": "string", "enum": [item.value for item in Progress]},
        "description": "`learned`: from everything that is stored; `learning`: from what was learned before, while the "
        "rest is being learned; `failed`: the same, because no model copes with what is stored.",
    }
}


def belief_header(progress: Progress) -> dict[str, str]:
    """Says how far what is believed has come with what is stored."""
    return {BELIEF_HEADER_NAME: progress.value}


WARNINGS_HEADER_NAME = "Headroom-Warnings"
WARNINGS_HEADER: dict[str, Any] = {
    WARNINGS_HEADER_NAME: {
        "schema": {"type": "string"},
        "description": "What was stored although it can hardly be meant: a JSON list of faults, as problems have them.",
    }
}


def warnings_header(warnings: tuple[Fault, ...]) -> dict[str, str]:
    """What to warn of, where there is anything."""
    return {WARNINGS_HEADER_NAME: json.dumps(plain(warnings))} if warnings else {}


# --- Keys in paths: which parts a document has, and what each may look like


ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"

Name = Annotated[str, Path(pattern=NAME_PATTERN, max_length=63, description="Name, as in the document.")]
Project = Annotated[str, Path(pattern=NAME_PATTERN, max_length=63, description="Project of the document.")]
NodeKey = Annotated[str, Path(pattern=NAME_PATTERN, max_length=63, description="Node id.")]
Uuid = Annotated[str, Path(pattern=ID_PATTERN, max_length=96, description="GPU or MIG UUID.")]
PlanText = Annotated[
    str,
    Path(pattern=PLAN_PATTERN, description="Plan id, the digest of its canonical form, or how its 64 digits begin."),
]
Opaque = Annotated[str, Path(pattern=ID_PATTERN, max_length=96, description="Id, as the API gave it.")]
Scope = Annotated[PowerScope, Path(description="What the cap covers.")]
Subject = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$", max_length=96, description="What is capped.")]


def by_name(name: Name) -> tuple[str, ...]:
    return (name,)


def by_project_and_name(project: Project, name: Name) -> tuple[str, ...]:
    return (project, name)


def by_node(node: NodeKey) -> tuple[str, ...]:
    return (node,)


def by_uuid(uuid: Uuid) -> tuple[str, ...]:
    return (uuid,)


def by_scope_and_subject(scope: Scope, subject: Subject) -> tuple[str, ...]:
    """Key of a power cap."""
    return (scope.value, subject)


BY_PATH: Mapping[tuple[str, ...], Callable[..., tuple[str, ...]]] = {
    ("name",): by_name,
    ("project", "name"): by_project_and_name,
    ("node",): by_node,
    ("uuid",): by_uuid,
    ("scope", "subject"): by_scope_and_subject,
}
"""How a key is read by what its parts are called in the path."""


Comment = Annotated[
    str, Field(max_length=2000, pattern=LINES_PATTERN, description="For those who read the audit later.")
]

# --- Pages. Cursors are the store's; the limit is capped here


T = TypeVar("T")
PAGE_SIZE = 100


class Page(BaseModel, Generic[T]):
    """Items and where to go on; a null cursor ends the list."""

    model_config = ConfigDict(extra="forbid")

    items: list[T]
    next_cursor: str | None


def page_order(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1_000_000, description="Most items; capped by the server.")] = PAGE_SIZE,
    cursor: Annotated[
        str | None, Query(max_length=2000, pattern=r"^[A-Za-z0-9_-]+$", description="`next_cursor` of the page before.")
    ] = None,
) -> PageOrder:
    cap: int = request.app.state.context.settings.page_size_max
    return PageOrder(limit=min(limit, cap), cursor=cursor)


Paging = Annotated[PageOrder, Depends(page_order)]


# --- Moments in queries: always with a zone in the end, and within the years that anybody can mean


Moment = datetime | None
YEAR_MIN = 2000
YEAR_MAX = 2199


def utc(name: str, moment: datetime | None) -> datetime | None:
    """The moment in UTC; one without a zone is taken as UTC. Raises FieldError for years that nobody can mean."""
    if moment is None:
        return None
    if not YEAR_MIN <= moment.year <= YEAR_MAX:
        raise FieldError(f"query:{name}", f"`{name}` must lie between the years {YEAR_MIN} and {YEAR_MAX}")
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


# --- Preconditions and validators: ETag, If-Match, If-None-Match


_TAG = re.compile(r'(W/)?"([^"]*)"')
NEVER = -1
"""A version that no document has: If-Match with foreign tags matches nothing."""

IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=200,
        description='Version that must be current, such as `"3"`; `*`: any that stands.',
    ),
]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match", max_length=200, description="`*`: only create.")]
HeldTag = Annotated[str | None, Header(alias="If-None-Match", max_length=400, description="Tags you hold.")]


def etag(version: int | str) -> str:
    return f'"{version}"'


def precondition(if_match: str | None, if_none_match: str | None = None) -> Precondition:
    """What a write demands.

    Raises FieldsError for anything but one tag or `*` in If-Match and `*` in If-None-Match.
    """
    if demands_any(if_match):
        return Precondition(present=True, absent=_absent(if_none_match))
    return Precondition(version=_expected(if_match), absent=_absent(if_none_match))


def demands_any(if_match: str | None) -> bool:
    """Whether it only has to stand."""
    return if_match is not None and if_match.strip() == "*"


def _expected(if_match: str | None) -> int | None:
    if if_match is None:
        return None
    found = _TAG.fullmatch(if_match.strip())
    if found is None:
        raise FieldsError.of("header:If-Match", 'If-Match takes one tag, such as "3", or *')
    weak, text = found.groups()
    return int(text) if not weak and text.isascii() and text.isdigit() and len(text) < 19 else NEVER


def _absent(if_none_match: str | None) -> bool:
    if if_none_match is None:
        return False
    if if_none_match.strip() != "*":
        raise FieldsError.of("header:If-None-Match", "a write takes If-None-Match: *")
    return True


def held(request: Request, tag: str) -> bool:
    """Whether the caller already holds this representation (GET; weak comparison)."""
    header = request.headers.get("if-none-match")
    if header is None:
        return False
    wanted = tag.removeprefix("W/")
    return header.strip() == "*" or any(f'"{text}"' == wanted for _, text in _TAG.findall(header))


def tagged(
    request: Request, found: object, tag: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer with its tag, or 304."""
    if request.method == "GET" and held(request, tag):
        return Response(status_code=304, headers={"ETag": tag})
    return answer(found, status, {"ETag": tag, **(headers or {})})


# --- POSTs that may be sent again


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=128,
        pattern=r"^[\x21-\x7e]+$",
        description="Repeats of the request with this key get the first answer.",
    ),
]
REPLAYED = "idempotency-replayed"
B = TypeVar("B", bound=RequestBody)
_KEPT_HEADERS = ("content-type", "etag", "location", WARNINGS_HEADER_NAME.lower())


@dataclass(frozen=True, slots=True)
class Posted:
    request: Request
    key: str | None
    body: bytes


def posted(request: Request, key: IdempotencyKey = None, body: bytes = Depends(read_body)) -> Posted:
    """A dependency: the request with what makes it repeatable."""
    return Posted(request, key, body)


Posting = Annotated[Posted, Depends(posted)]


def once(
    posted: Posted, work: Callable[[], Response], secret_field: str | None = None, *, apart: bool = False
) -> Response:
    """Do the work and keep its answer in one transaction, or answer as the first request with this key was answered.
    Work that stands `apart` has transactions of its own, and only its answer is kept whole.

    Raises KeyReusedError for another request under the key, InProgressError while the first one runs.
    """
    request, key = posted.request, posted.key
    actor: Actor = request.state.actor
    if key is None:
        return work()
    database = context_of(request).database
    claim = idempotency.Request(
        token_id=actor.token_id, key=key, method=request.method, path=request.url.path, body=posted.body
    )
    with database.whole(apart=apart) as session:
        before = idempotency.answered(session, claim)
        if before is not None:
            return Response(before.body, status_code=before.status, headers={**before.headers, REPLAYED: "true"})
        response = work()
        kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        shown = _without(bytes(response.body), secret_field)
        idempotency.keep(session, claim, StoredAnswer(status=response.status_code, headers=kept, body=shown))
    return response


def said(request: Request, posted: Posted, kind: type[B]) -> B:
    """What the body of a POST says; all of it may be left out."""
    require_media_type(request, JSON)
    return parse(kind, posted.body) if posted.body.strip() else kind()


def _without(body: bytes, secret_field: str | None) -> bytes:
    if secret_field is None:
        return body
    plain = json.loads(body)
    plain[secret_field] = None
    return json.dumps(plain).encode()
