"""Pages of lists: a limit and an opaque cursor that names the last key seen, so that pages neither skip nor repeat
when rows come and go.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ConfigDict

from app.errors import FieldFault, FieldsError

T = TypeVar("T")
PAGE_SIZE = 100
_PART_LENGTH_MAX = 512


class Page(BaseModel, Generic[T]):
    """Items and where to go on; a null cursor ends the list."""

    model_config = ConfigDict(extra="forbid")

    items: list[T]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOrder:
    """What of a list is wanted: how many, and after which key."""

    limit: int
    after: tuple[str, ...] | None


def page_order(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1_000_000, description="Most items; capped by the server.")] = PAGE_SIZE,
    cursor: Annotated[str | None, Query(max_length=2000, description="`next_cursor` of the page before.")] = None,
) -> PageOrder:
    """Read limit and cursor."""
    cap: int = request.app.state.context.settings.page_size_max
    return PageOrder(limit=min(limit, cap), after=decode_cursor(cursor) if cursor is not None else None)


Paging = Annotated[PageOrder, Depends(page_order)]


def encode_cursor(key: Sequence[str]) -> str:
    """An opaque cursor for a key."""
    return base64.urlsafe_b64encode(json.dumps(list(key)).encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> tuple[str, ...]:
    """The key in a cursor. Raises FieldsError when it is none of ours."""
    try:
        parts = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise _invalid() from None
    if not isinstance(parts, list) or not 1 <= len(parts) <= 6:
        raise _invalid()
    for part in parts:
        if not isinstance(part, str) or len(part) > _PART_LENGTH_MAX or not part.isprintable():
            raise _invalid()
    return tuple(parts)


def whole_cursor(after: tuple[str, ...] | None) -> int | None:
    """The cursor of a list ordered by a whole number. Raises FieldsError when it is another list's."""
    if after is None:
        return None
    if len(after) != 1 or not after[0].isdigit() or len(after[0]) > 18:
        raise _invalid()
    return int(after[0])


def _invalid() -> FieldsError:
    return FieldsError(
        (FieldFault(pointer="query:cursor", code="cursor-invalid", detail="this is no cursor of this list"),)
    )


def page_of(items: list[object], next_cursor: str | None) -> dict[str, object]:
    """The plain form of a page."""
    return {"items": items, "next_cursor": next_cursor}
