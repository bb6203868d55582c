"""Rows as binary COPY takes them, packed at once: the driver looks at every element by itself, which costs several
times as much. Whatever does not fit its column raises here, before anything is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

import psycopg

Row = tuple[Any, ...]
UNFIT = (struct.error, OverflowError, ValueError, TypeError)
"""What a value that fits no column raises."""
_BEGIN, _END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
_NONE = b"\xff\xff\xff\xff"
_EPOCH, _MICROSECOND = datetime(2000, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_size = struct.Struct(">i").pack
_head = struct.Struct(">iiiiii").pack
"""Of an array: bytes, dimensions, whether some are missing, what they are, how many, from which number on."""


def _text(value: str) -> bytes:
    raw = value.encode()
    if b"\0" in raw:
        raise ValueError("a text holds the character U+0000")
    return _size(len(raw)) + raw


def _uuid(value: UUID) -> bytes:
    return _size(16) + value.bytes


def _moment(value: datetime) -> bytes:
    return struct.pack(">iq", 8, (value - _EPOCH) // _MICROSECOND)


@dataclass(frozen=True, slots=True)
class _Number:
    """Packs one number, which is as long as all of its type."""

    code: str

    def __call__(self, value: float) -> bytes:
        return struct.pack(f">i{self.code}", struct.calcsize(f">{self.code}"), value)


@cache
def _layout(code: str, count: int) -> tuple[struct.Struct, list[Any]]:
    """How so many numbers are packed, and their sizes with room for them between."""
    return struct.Struct(">" + f"i{code}" * count), [struct.calcsize(f">{code}")] * (2 * count)


@dataclass(frozen=True, slots=True)
class _Array:
    """Packs an array; `code` of numbers, which go together."""

    oid: int
    element: Callable[[Any], bytes]
    code: str = ""

    def __call__(self, values: Sequence[Any]) -> bytes:
        count = len(values)
        if not count:
            return struct.pack(">iiii", 12, 0, 0, self.oid)
        missing = None in values
        if self.code and not missing:
            packs, room = _layout(self.code, count)
            sized = room.copy()
            sized[1::2] = values
            packed = packs.pack(*sized)
        else:
            packed = b"".join(_NONE if value is None else self.element(value) for value in values)
        return _head(20 + len(packed), 1, missing, self.oid, count, 1) + packed


_KINDS: Mapping[str, Callable[[Any], bytes]] = {
    "text": _text,
    "uuid": _uuid,
    "timestamptz": _moment,
    "float8": _Number("d"),
    "int4": _Number("i"),
    "int8": _Number("q"),
    "text[]": _Array(25, _text),
    "bool[]": _Array(16, _Number("?"), "?"),
    "float8[]": _Array(701, _Number("d"), "d"),
    "int4[]": _Array(23, _Number("i"), "i"),
    "int8[]": _Array(20, _Number("q"), "q"),
}


class Packed:
    """Rows of a table, of which these columns are given, with their types."""

    def __init__(self, table: str, types: Mapping[str, str]) -> None:
        self._statement = f"COPY {table} ({', '.join(types)}) FROM STDIN (FORMAT binary)".encode()
        self._packers = [_KINDS[kind] for kind in types.values()]
        self._count = struct.pack(">h", len(types))

    def row(self, values: Row) -> bytes:
        """Raises what is UNFIT."""
        pairs = zip(values, self._packers, strict=True)
        return self._count + b"".join(_NONE if value is None else pack(value) for value, pack in pairs)

    def copy(self, connection: psycopg.Connection, rows: Sequence[bytes]) -> None:
        if rows:
            with connection.cursor() as cursor, cursor.copy(self._statement) as stream:
                stream.write(b"".join((_BEGIN, *rows, _END)))
