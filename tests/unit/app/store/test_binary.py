"""Rows are packed to the byte as the driver packs them, and what fits no column is told before anything is sent."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.adapt import Transformer
from psycopg.pq import Format

from app.store.binary import UNFIT, Packed

KINDS: dict[str, list[Any]] = {
    "text": ["", "plain", "größer \U0001f642"],
    "uuid": [UUID(int=0), UUID(int=2**128 - 1)],
    "timestamptz": [
        datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=UTC),
        datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 3, 4, tzinfo=timezone(timedelta(hours=2))),
    ],
    "float8": [0.0, -1.5, 1e300, math.inf],
    "int4": [0, -(2**31), 2**31 - 1],
    "int8": [0, -(2**63), 2**63 - 1],
    "text[]": [["a", "", "b"], [None, "b"]],
    "bool[]": [[True, False], [None, True]],
    "float8[]": [[1.0, 2.5], [None, 2.5], [1, 2]],
    "int4[]": [[1, -2], [None, 3]],
    "int8[]": [[2**40, -2], [None, 3]],
}


def _driven(kind: str, value: object) -> bytes:
    """As the driver packs it."""
    transformer = Transformer()
    transformer.set_dumper_types([psycopg.adapters.types.get_oid(kind)], Format.BINARY)
    (found,) = transformer.dump_sequence([value], [psycopg.adapt.PyFormat.BINARY])
    assert found is not None
    return len(found).to_bytes(4, "big") + bytes(found)


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in KINDS.items() for value in values])
def test_a_value_is_packed_as_the_driver_packs_it(kind: str, value: Any) -> None:
    if kind == "float8[]":
        value = [None if each is None else float(each) for each in value]
    assert Packed("t", {"c": kind}).row((value,)) == b"\0\1" + _driven(kind, value)


def test_nothing_and_no_elements() -> None:
    assert Packed("t", {"a": "text", "b": "int4"}).row((None, 7)) == bytes.fromhex("0002 ffffffff 00000004 00000007")
    assert Packed("t", {"a": "int4[]"}).row(([],)) == bytes.fromhex("0001 0000000c 00000000 00000000 00000017")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("text", "a\0b"),
        ("text", "\ud800"),
        ("text[]", ["a", "\0"]),
        ("int4", 2**31),
        ("int4[]", [1, 2**31]),
        ("int4[]", [None, 2**31]),
        ("int8", 2**63),
        ("int8[]", [-(2**63) - 1]),
        ("float8[]", [10**400]),
        ("float8", "1"),
        ("int4[]", 7),
    ],
)
def test_what_fits_no_column_is_told(kind: str, value: object) -> None:
    with pytest.raises(UNFIT):
        Packed("t", {"c": kind}).row((value,))
