"""Keyset pages: a bounded list of items and the opaque cursor after the last of them.

Owns the cursor's form. It refuses cursors of another list and cursors that were edited.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from app.records import record
from solvers.errors import FieldError

T = TypeVar("T")
Key = tuple[str | int, ...]
CHECK_BYTES = 6


@record
class StoredPage(Generic[T]):
    """Items in order, and where to go on; None at the end."""

    items: tuple[T, ...]
    next_cursor: str | None


def encode_cursor(listing: str, key: Key) -> str:
    """The cursor that continues `listing` after `key`."""
    text = json.dumps([listing, *key], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_check(text) + text).decode().rstrip("=")


def decode_cursor(listing: str, cursor: str, kinds: tuple[type[str] | type[int], ...]) -> Key:
    """The key inside a cursor of this listing.

    Raises FieldError for anything that `encode_cursor` did not make for it.
    """
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
