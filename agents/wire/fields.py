"""Strict reading of decoded JSON into records: the way back of `encode`.

A flag is no number, and a text none either; a whole number may stand where a fraction is expected. Unknown fields are
refused. Fields that are missing take their defaults (older senders do not know them), or None where that is allowed.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TypeVar, cast

T = TypeVar("T")
_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class WireError(ValueError):
    """A message that does not follow this package."""


def decode(kind: type[T], plain: object) -> T:
    """A record of this kind. Raises WireError naming the field."""
    return cast("T", _read(kind, plain, kind.__name__))


def decode_items(kind: type[T], plain: object) -> tuple[T, ...]:
    """The records that an answer lists as `items`; none where it is no object at all."""
    listed = _listed(tuple, (kind, ...), plain.get("items"), "items") if isinstance(plain, dict) else ()
    return cast("tuple[T, ...]", listed)


def mirrored(kind: type[T], /, *sources: object, **own: object) -> T:
    """A record of what others hold under the same names, the first that has it, and of values of its own."""
    values, known = dict(own), cast("type", kind)
    for name in _fields(known):
        holder = next((source for source in sources if hasattr(source, name)), None)
        if holder is not None:
            values.setdefault(name, getattr(holder, name))
    return kind(**values)


def _read(kind: object, plain: object, name: str) -> object:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (known,) = (each for each in inner if each is not types.NoneType)
        return None if plain is None else _read(known, plain, name)
    if origin in (tuple, frozenset):
        return _listed(origin, inner, plain, name)
    if origin is dict:
        if not isinstance(plain, dict):
            raise WireError(f"{name}: expected an object")
        return {_read(str, key, name): _read(inner[1], value, f"{name}/{key}") for key, value in plain.items()}
    assert isinstance(kind, type)
    if is_dataclass(kind):
        return _record(kind, plain)
    if issubclass(kind, Enum):
        try:
            return kind(plain)
        except ValueError:
            raise WireError(f"{name}: expected one of {', '.join(str(each.value) for each in kind)}") from None
    fits = isinstance(plain, (int, float) if kind is float else kind) and not isinstance(plain, Enum)
    if not fits or (isinstance(plain, bool) and kind is not bool):
        raise WireError(f"{name}: expected {_WORDS[kind]}")
    return float(cast("float", plain)) if kind is float else plain


def _listed(origin: object, inner: tuple[object, ...], plain: object, name: str) -> object:
    if not isinstance(plain, list | tuple):
        raise WireError(f"{name}: expected a list")
    if origin is frozenset:
        return frozenset(_read(inner[0], item, name) for item in plain)
    if inner[-1] is Ellipsis:
        return tuple(_read(inner[0], item, name) for item in plain)
    if len(plain) != len(inner):
        raise WireError(f"{name}: expected {len(inner)} items together")
    return tuple(_read(each, item, name) for each, item in zip(inner, plain, strict=True))


def _record(kind: type, plain: object) -> object:
    if not isinstance(plain, Mapping):
        raise WireError(f"{kind.__name__}: expected an object")
    known = _fields(kind)
    unknown = set(plain) - set(known)
    if unknown:
        raise WireError(f"{kind.__name__}: unknown fields {sorted(unknown)}")
    return kind(
        **{
            name: _read(form, plain.get(name), name)
            for name, (form, has_default) in known.items()
            if name in plain or not has_default
        }
    )


@cache
def _fields(kind: type) -> dict[str, tuple[object, bool]]:
    """The form of each field, and whether it has a default."""
    forms = typing.get_type_hints(kind)
    return {
        field.name: (forms[field.name], field.default is not MISSING or field.default_factory is not MISSING)
        for field in fields(kind)
    }
