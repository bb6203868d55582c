"""Preconditions and validators: ETag, If-Match, If-None-Match.

Owns their syntax. A document's tag is its version in quotes; If-Match compares strongly, so a weak tag never matches.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header, Request, Response

from app.api.answers import answer
from app.errors import Fault, FieldsError
from app.store.documents import Precondition

_TAG = re.compile(r'(W/)?"([^"]*)"')
NEVER = -1
"""A version that no document has: If-Match with foreign tags matches nothing."""

IfMatch = Annotated[
    str | None, Header(alias="If-Match", max_length=200, description='Version that must be current, such as `"3"`.')
]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match", max_length=200, description="`*`: only create.")]
HeldTag = Annotated[str | None, Header(alias="If-None-Match", max_length=400, description="Tags you hold.")]


def etag(version: int | str) -> str:
    """The tag of a version."""
    return f'"{version}"'


def precondition(if_match: str | None, if_none_match: str | None = None) -> Precondition:
    """What a write demands.

    Raises FieldsError for anything but one tag in If-Match and `*` in If-None-Match.
    """
    return Precondition(version=_expected(if_match), absent=_absent(if_none_match))


def _expected(if_match: str | None) -> int | None:
    if if_match is None:
        return None
    found = _TAG.fullmatch(if_match.strip())
    if found is None:
        raise _fault("header:If-Match", 'If-Match takes one tag, such as "3"')
    weak, text = found.groups()
    return int(text) if not weak and text.isascii() and text.isdigit() and len(text) < 19 else NEVER


def _absent(if_none_match: str | None) -> bool:
    if if_none_match is None:
        return False
    if if_none_match.strip() != "*":
        raise _fault("header:If-None-Match", "a write takes If-None-Match: *")
    return True


def _fault(pointer: str, detail: str) -> FieldsError:
    return FieldsError((Fault(pointer=pointer, code="value-invalid", detail=detail),))


def held(request: Request, tag: str) -> bool:
    """Whether the caller already holds this representation (GET; weak comparison)."""
    header = request.headers.get("if-none-match")
    if header is None:
        return False
    wanted = tag.removeprefix("W/")
    return header.strip() == "*" or any(f'"{text}"' == wanted for _, text in _TAG.findall(header))


def tagged(request: Request, found: object, tag: str, status: int = 200) -> Response:
    """A JSON answer with its tag, or 304."""
    if request.method == "GET" and held(request, tag):
        return Response(status_code=304, headers={"ETag": tag})
    return answer(found, status, {"ETag": tag})
