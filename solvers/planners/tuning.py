"""Tuning parameters of planners: declared once beside their type, published as a table, set by name, strictly.

A planner that can be tuned is a frozen dataclass with a field `parameters`: a record whose fields are annotated with
`Tune`. Owns the reading of named settings into such a record and the one check of types and ranges, also for records
that code makes. It refuses unknown names, wrong types and numbers out of range, saying what there is.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from functools import cache
from typing import Protocol, Self, TypeVar, runtime_checkable

from solvers.domain.value import check_finite, value
from solvers.errors import FieldError

Scalar = bool | int | float | str
"""A setting as people write it."""
R = TypeVar("R")


class ValueKind(StrEnum):
    FLAG = "flag"
    WHOLE = "whole"
    NUMBER = "number"
    CHOICE = "choice"
    WHOLES = "wholes"
    """Several rising whole numbers, written `20,40,100`."""
    COUNTS = "counts"
    """A whole number for each name, written `resnet50=8,bert=2`."""


class Counts(str):
    """A whole number from 1 on for each name, as text. Raises ValueError for other text."""

    __slots__ = ()

    def __new__(cls, text: str = "") -> Self:
        """Read it once, so that what is wrong is found where it is set."""
        made = super().__new__(cls, text)
        if any(count < 1 for count in made.by_name.values()):
            raise ValueError("counts start at 1")
        return made

    @property
    def by_name(self) -> dict[str, int]:
        parts = [part.partition("=") for part in self.split(",")] if self else []
        found = {name.strip(): int(count) for name, _, count in parts}
        if len(found) < len(parts) or not all(found):
            raise ValueError("every name is counted once")
        return found


@dataclass(frozen=True, slots=True)
class Tune:
    """Stands in a field's annotation: what it means and what it may be. Bounds are inclusive."""

    meaning: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    """Of text; an enumeration brings its own."""


@value
class Parameter:
    """One tuning parameter as it is published. `default` is written as it can be set."""

    name: str
    kind: ValueKind
    default: bool | float | str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    meaning: str

    @property
    def allowed(self) -> str:
        """Type and range in words."""
        if self.kind is ValueKind.FLAG:
            return "true or false"
        if self.kind is ValueKind.CHOICE:
            return "one of " + ", ".join(self.choices)
        if self.kind is ValueKind.COUNTS:
            return "names with whole numbers, as in resnet50=8,bert=2"
        noun = {ValueKind.WHOLE: "a whole number", ValueKind.NUMBER: "a number"}.get(
            self.kind, "rising whole numbers, as in 20,40"
        )
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low:g} to {self.high:g}"
        return noun if self.low is None else f"{noun} from {self.low:g} on"


@runtime_checkable
class Tunable(Protocol):
    @property
    def parameters(self) -> object: ...


def parameters_of(record: object) -> tuple[Parameter, ...]:
    """What a record of parameters publishes, in its own order; its values are told as the defaults."""
    kind: type = type(record)
    declared = _declared(kind)
    return tuple(_published(name, getattr(record, name), *declared[name]) for name in declared)


def check_tuned(record: object) -> None:
    """Refuse a record with a parameter out of its range; for `__post_init__`."""
    kind: type = type(record)
    for name, (_, tune) in _declared(kind).items():
        _check(name, getattr(record, name), tune)


class TunedRecord:
    """A record of parameters that checks nothing beside them."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_tuned(self)


def tuned(default: R, settings: Mapping[str, Scalar], owner: str) -> R:
    """The record with these settings. Raises FieldError that names the setting and says what there is; `owner` is whose
    parameters they are.
    """
    record: type = type(default)
    known = {} if default is None else _declared(record)
    changes: dict[str, object] = {}
    for name in sorted(settings):
        if name not in known:
            listed = f"it has {', '.join(known)}" if known else "it has none"
            raise FieldError(name, f"{owner} has no parameter {name}; {listed}")
        kind, tune = known[name]
        published = _published(name, getattr(default, name), kind, tune)
        try:
            changes[name] = _read(settings[name], kind)
            _check(name, changes[name], tune)
        except (TypeError, ValueError) as error:
            said = f"{owner}'s parameter {name} must be {published.allowed}, got {settings[name]!r}"
            raise FieldError(name, said) from error
    return typing.cast("R", _replaced(default, changes)) if changes else default


def _replaced(record: object, changes: dict[str, object]) -> object:
    held: typing.Any = record
    return replace(held, **changes)


@cache
def _declared(record: type) -> dict[str, tuple[type, Tune]]:
    """By name: the type of a parameter (`tuple` for several whole numbers) and what it may be."""
    found: dict[str, tuple[type, Tune]] = {}
    for name, hint in typing.get_type_hints(record, include_extras=True).items():
        kind, *notes = typing.get_args(hint)
        found[name] = (typing.get_origin(kind) or kind, next(note for note in notes if isinstance(note, Tune)))
    return found


def _published(name: str, default: object, kind: type, tune: Tune) -> Parameter:
    kinds = {
        bool: ValueKind.FLAG,
        int: ValueKind.WHOLE,
        float: ValueKind.NUMBER,
        tuple: ValueKind.WHOLES,
        Counts: ValueKind.COUNTS,
    }
    choices = tuple(str(item.value) for item in kind) if issubclass(kind, Enum) else tune.choices
    return Parameter(
        name=name,
        kind=kinds.get(kind, ValueKind.CHOICE),
        default=_written(default),
        low=tune.low,
        high=tune.high,
        choices=choices,
        meaning=tune.meaning,
    )


def _written(item: object) -> bool | float | str:
    if isinstance(item, Enum):
        return str(item.value)
    if isinstance(item, tuple):
        return ",".join(map(str, item))
    return item if isinstance(item, bool | float) else float(item) if isinstance(item, int) else str(item)


def _read(setting: Scalar, kind: type) -> object:
    """The setting as the parameter's type. Raises ValueError and TypeError."""
    if kind is bool:
        if not isinstance(setting, bool):
            raise TypeError
        return setting
    if kind in (int, float):
        if isinstance(setting, bool | str) or not math.isfinite(setting) or kind(setting) != setting:
            raise TypeError
        return kind(setting)
    if kind is tuple and isinstance(setting, int | float):
        return (_read(setting, int),)
    if not isinstance(setting, str):
        raise TypeError
    if kind is tuple:
        return tuple(int(part) for part in setting.split(","))
    return kind(setting)


def _check(name: str, item: object, tune: Tune) -> None:
    """Raises FieldError, which is a ValueError."""
    if tune.choices and item not in tune.choices:
        raise FieldError(name, f"{name} must be one of {', '.join(tune.choices)}, got {item}")
    numbers = item if isinstance(item, tuple) else (item,)
    if isinstance(item, tuple) and (not item or list(item) != sorted(set(item))):
        raise FieldError(name, f"{name} must list rising numbers, got {_written(item)}")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        check_finite(name, number)
        if (tune.low is not None and number < tune.low) or (tune.high is not None and number > tune.high):
            raise FieldError(name, f"{name} must lie between {tune.low} and {tune.high}, got {number}")
