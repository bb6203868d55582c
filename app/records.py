"""Records of the shell that leave it as they are: what a service found is what the API describes and answers.

Here are the `record` decorator, the JSON form of records, and records made of others. A value of the core inside a
record has its canonical form; the record itself keeps its numbers as they are, and its moments with their offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

from solvers.domain.codec import to_plain

T = TypeVar("T")
_records: set[type] = set()
_AS_IS = frozenset({type(None), bool, int, float, str})


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """Make `cls` an immutable record that the API may describe: its docstring, its fields, and no others."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    marked: Any = made
    marked.__pydantic_config__ = {"extra": "forbid"}
    _records.add(made)
    return made


def plain(item: object) -> Any:
    """A record, or what records are made of, as JSON data."""
    kind: type = type(item)
    if kind in _AS_IS:
        return item
    # Most parts are as they are: a call for each would be most of what a large fleet costs.
    if kind in _records:
        found = dict(zip(_names(kind), _values(kind)(item), strict=True))
        for name, part in found.items():
            if type(part) not in _AS_IS:
                found[name] = plain(part)
        return found
    if kind is dict or isinstance(item, Mapping):
        parts: Any = item
        return {str(name): part if type(part) in _AS_IS else plain(part) for name, part in parts.items()}
    if isinstance(item, tuple | list):
        return [part if type(part) in _AS_IS else plain(part) for part in item]
    if is_dataclass(item):
        return to_plain(item)
    if isinstance(item, Enum):
        return item.value
    return item.isoformat() if isinstance(item, datetime) else item


def record_of(kind: type[T], item: object, /, **more: object) -> T:
    """A record of `kind`: each of its fields that `item` (a record, a row, a mapping) says under the same name, and
    more.
    """
    wanted: type = kind
    names = [name for name in _names(wanted) if name not in more]
    if isinstance(item, Mapping):
        return kind(**{name: item[name] for name in names if name in item}, **more)
    given: type = type(item)
    if is_dataclass(given):
        shared, values = _shared(wanted, given, tuple(more))
        return kind(**dict(zip(shared, values(item), strict=True)), **more)
    return kind(**{name: getattr(item, name) for name in names if hasattr(item, name)}, **more)


_Reads = Callable[[object], tuple[Any, ...]]


@cache
def _names(kind: type) -> tuple[str, ...]:
    made: Any = kind
    return tuple(field.name for field in fields(made))


@cache
def _values(kind: type) -> _Reads:
    """All fields of a record in one call."""
    return _reading(_names(kind))


def _reading(names: tuple[str, ...]) -> _Reads:
    return attrgetter(*names) if len(names) > 1 else lambda item: tuple(getattr(item, name) for name in names)


@cache
def _shared(kind: type, other: type, but: tuple[str, ...]) -> tuple[tuple[str, ...], _Reads]:
    """Names that both have, and what reads them."""
    own = set(_names(other))
    names = tuple(name for name in _names(kind) if name not in but and (name in own or hasattr(other, name)))
    return names, _reading(names)
