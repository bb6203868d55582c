"""Canonical JSON of domain values: encode, decode, digest.

One form per value: keys sorted, no white space, enums as their values, tuples as lists, every field present (but for
late ones that have their default), whole numbers without a fraction, other floats as the shortest text that reads back
the same, NaN refused. Decoding is strict: unknown keys and wrong types raise `FieldError` with a JSON pointer. Fields
missing from older documents take their defaults; those that a class has RETIRED are read over.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TypeVar, cast

from solvers.domain.ids import Digest
from solvers.domain.value import LATE
from solvers.errors import FieldError

T = TypeVar("T")
_AS_IS = frozenset({type(None), bool, int, str})
_NUMBERS: Mapping[object, frozenset[type]] = {int: frozenset({int}), float: frozenset({int, float})}
"""What plain data of a number's type may be; a flag is no number."""
Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def to_plain(item: object) -> Plain:
    # Exact types first: a snapshot has hundreds of thousands of numbers and its digest is taken in every cycle.
    kind: type = type(item)
    if kind in _AS_IS:
        return cast("Plain", item)
    if isinstance(item, float):
        # 5 and 5.0 (and -0.0 and 0) are the same number, so they share one text.
        return int(item) if item.is_integer() and abs(item) < 2**53 else float(item)
    if isinstance(item, Enum):
        return cast("Plain", item.value)
    if isinstance(item, tuple | list):
        return _list_of(item)
    if is_dataclass(item) and not isinstance(item, type):
        plain = {name: to_plain(getattr(item, name)) for name in _field_names(kind)}
        for name, default in _late_fields(kind):
            told = getattr(item, name)
            if told != default:
                plain[name] = to_plain(told)
        return plain
    raise FieldError("", f"{kind.__name__} has no canonical form")


def _list_of(items: Sequence[object]) -> list[Plain]:
    """Long lists are of numbers: whole tables of what was measured."""
    kinds = set(map(type, items))
    if kinds <= _AS_IS:
        return cast("list[Plain]", list(items))
    if kinds == {float}:
        numbers = cast("Sequence[float]", items)
        return [int(number) if number.is_integer() and abs(number) < 2**53 else number for number in numbers]
    return [to_plain(part) for part in items]


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if LATE not in field.metadata)


@cache
def _late_fields(kind: type) -> tuple[tuple[str, object], ...]:
    return tuple((field.name, field.default) for field in fields(kind) if LATE in field.metadata)


def canonical_json(item: object) -> str:
    """The one JSON text of a value."""
    return json.dumps(to_plain(item), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(item: object) -> Digest:
    return Digest("sha256:" + hashlib.sha256(canonical_json(item).encode()).hexdigest())


class LatestDigest:
    """The digest of the one picture that a cycle's steps ask about again and again. Values are immutable, so the very
    same object has the same digest.
    """

    def __init__(self) -> None:
        self._latest: tuple[object, Digest] | None = None

    def __call__(self, item: object) -> Digest:
        """As `digest`; found once while the same object is asked about."""
        latest = self._latest
        if latest is None or latest[0] is not item:
            latest = item, digest(item)
            self._latest = latest
        return latest[1]


picture_digest = LatestDigest()


def bytes_digest(data: bytes) -> Digest:
    """`sha256:` of bytes that have no canonical JSON, such as a planner's state."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def from_json(cls: type[T], text: str | bytes) -> T:
    return from_plain(cls, json.loads(text))


def from_plain(cls: type[T], plain: Plain) -> T:
    return cast("T", _decode(cls, plain, ""))


@cache
def _hints(cls: type) -> dict[str, object]:
    return typing.get_type_hints(cls)


def _fail(pointer: str, wanted: str, got: object) -> FieldError:
    return FieldError(pointer or "/", f"{pointer or '/'}: expected {wanted}, got {type(got).__name__}")


def _decode(kind: object, plain: Plain, pointer: str) -> object:
    if isinstance(kind, typing.NewType):
        return _decode(kind.__supertype__, plain, pointer)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(kind), plain, pointer)
    if origin is tuple:
        if not isinstance(plain, list):
            raise _fail(pointer, "a list", plain)
        item_kind = typing.get_args(kind)[0]
        if item_kind in _NUMBERS and _NUMBERS[item_kind].issuperset(map(type, plain)):
            return tuple(map(item_kind, plain))
        return tuple(_decode(item_kind, item, f"{pointer}/{index}") for index, item in enumerate(plain))
    if isinstance(kind, type):
        return _decode_class(kind, plain, pointer)
    raise FieldError(pointer, f"{pointer}: no decoder for {kind!r}")


def _decode_union(kinds: tuple[object, ...], plain: Plain, pointer: str) -> object:
    if plain is None and type(None) in kinds:
        return None
    failure: FieldError | None = None
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _decode(kind, plain, pointer)
        except FieldError as error:
            failure = error
    raise failure or _fail(pointer, "a value", plain)


def _decode_class(kind: type, plain: Plain, pointer: str) -> object:
    if is_dataclass(kind):
        return _decode_value(kind, plain, pointer)
    if issubclass(kind, Enum):
        try:
            return kind(plain)
        except ValueError:
            raise FieldError(pointer, f"{pointer}: {plain!r} is not one of {[item.value for item in kind]}") from None
    if kind is float and isinstance(plain, int | float) and not isinstance(plain, bool):
        return float(plain)
    if kind in (bool, int, str) and isinstance(plain, kind) and (kind is bool or not isinstance(plain, bool)):
        return plain
    raise _fail(pointer, kind.__name__, plain)


def _decode_value(kind: type, plain: Plain, pointer: str) -> object:
    if not isinstance(plain, dict):
        raise _fail(pointer, "an object", plain)
    hints = _hints(kind)
    known = {field.name for field in fields(kind)}
    for name in plain:
        if name not in known and name not in getattr(kind, "RETIRED", ()):
            raise FieldError(f"{pointer}/{name}", f"{pointer}/{name}: unknown field")
    arguments = {name: _decode(hints[name], item, f"{pointer}/{name}") for name, item in plain.items() if name in known}
    for field in fields(kind):
        if field.name not in arguments and field.default is MISSING and field.default_factory is MISSING:
            raise FieldError(f"{pointer}/{field.name}", f"{pointer}/{field.name}: missing")
    try:
        return kind(**arguments)
    except FieldError as error:
        raise FieldError(f"{pointer}/{error.field}", error.message) from error
