"""Keyset pages: a bounded list of items and the opaque cursor after the last of them.

A cursor of another list, and one that was edited, is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from app.records import record
from solvers.errors import FieldError

T = TypeVar("T")
Key = tuple[str | int, ...]
CHECK_BYTES = 6
WHOLE_LIMIT = 1000


@record
class StoredPage(Generic[T]):
    """Items in order, and where to go on; None at the end."""

    items: tuple[T, ...]
    next_cursor: str | None


@record
class PageOrder:
    """What of a list is wanted: how many items at most, and after which cursor."""

    limit: int
    cursor: str | None = None


def whole(page: Callable[[PageOrder], StoredPage[T]]) -> Iterator[T]:
    """All of a list, page after page."""
    cursor = None
    while True:
        found = page(PageOrder(limit=WHOLE_LIMIT, cursor=cursor))
        yield from found.items
        cursor = found.next_cursor
        if cursor is None:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """A list by the columns that name its rows, from the highest down if `newest_first`, and what is made of a row."""

    name: str
    by: Sequence[Any]
    made: Callable[[Row[Any]], T]
    newest_first: bool = False


def read_page(
    session: Session,
    listing: Listing[T],
    query: Select[Any],
    order: PageOrder,
    where: Mapping[Any, object] | None = None,
) -> StoredPage[T]:
    """A page of what a query finds; `where`: columns with the value wanted, None for any. Raises FieldError for a
    cursor of another list.
    """
    by, down = listing.by, listing.newest_first
    query = query.where(*(column == value for column, value in (where or {}).items() if value is not None))
    query = query.order_by(*(column.desc() if down else column for column in by)).limit(order.limit + 1)
    if order.cursor is not None:
        kinds = [column.type.python_type for column in by]
        key = decode_cursor(listing.name, order.cursor, tuple(int if kind is int else str for kind in kinds))
        after = tuple_(*(_READ.get(kind, kind)(part) for kind, part in zip(kinds, key, strict=True)))
        query = query.where(tuple_(*by) < after if down else tuple_(*by) > after)
    found = session.execute(query).all()
    page = cut(listing.name, found, order.limit, lambda row: tuple(_part(row._mapping[column]) for column in by))
    return StoredPage(items=tuple(listing.made(row) for row in page.items), next_cursor=page.next_cursor)


_READ: dict[type, Callable[[Any], Any]] = {datetime: datetime.fromisoformat}
"""Types that a cursor holds as text which they do not read themselves."""


def _part(value: Any) -> str | int:
    """A part of a key as cursors hold it: moments and fractions as text."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str | int) else repr(value)


def encode_cursor(listing: str, key: Key) -> str:
    text = json.dumps([listing, *key], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_check(text) + text).decode().rstrip("=")


def decode_cursor(listing: str, cursor: str, kinds: tuple[type[str] | type[int], ...]) -> Key:
    """The key inside a cursor of this listing. Raises FieldError for what `encode_cursor` did not make."""
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        check, text = data[:CHECK_BYTES], data[CHECK_BYTES:]
        found = json.loads(text) if check == _check(text) else None
    except (binascii.Error, ValueError):
        found = None
    if isinstance(found, list) and found[:1] == [listing] and [type(part) for part in found[1:]] == list(kinds):
        key = tuple(found[1:])
        if encode_cursor(listing, key) == cursor:
            return key
    raise FieldError("cursor", "cursor must be the next_cursor of an earlier page of this list")


def cut(listing: str, found: Sequence[T], limit: int, key: Callable[[T], Key]) -> StoredPage[T]:
    """A page of up to `limit` items out of up to `limit + 1` found ones."""
    items = tuple(found[:limit])
    return StoredPage(items=items, next_cursor=encode_cursor(listing, key(items[-1])) if len(found) > limit else None)


def _check(text: bytes) -> bytes:
    return hashlib.sha256(b"headroom cursor:" + text).digest()[:CHECK_BYTES]
