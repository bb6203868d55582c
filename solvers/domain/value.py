"""What a domain value is, and what its fields may be.

A value is a frozen, slotted, keyword-only dataclass that edge validators treat as closed: unknown fields are refused.
What one field may be stands beside its type, `share_pct: Annotated[int, within(1, 100)]`; what several say together, in
`__post_init__`, or in `_rules`, which yields, where all of it should be told at once. NaN, infinities, wrong signs and
empty names raise `FieldError` naming the field.
"""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast, dataclass_transform

from solvers.errors import FieldError

NAME_PATTERN = r"^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?$"
_UNSEEN = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNSHOWN = rf"\x00-\x1f{_UNSEEN}"
SHOWN_PATTERN = f"^[^{_UNSHOWN}]+$"
LINES_PATTERN = rf"^[^\x00-\x08\x0b-\x1f{_UNSEEN}]*$"
"""The same with tabs and ends of lines; or nothing."""
SHOWN_WORDS = "must be printable characters, without marks that turn the direction of text"
NAME_WORDS = "must be 1 to 63 of a-z, 0-9, '.', '_', '-', starting and ending with a letter or digit"
_NAME = re.compile(NAME_PATTERN)
_MARK = re.compile(f"[{_UNSHOWN}]")
T = TypeVar("T")
LATE = "late"
"""Mark of a field that is left out while it has its default."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def value(cls: type[T]) -> type[T]:
    """Make `cls` an immutable value with keyword-only construction and, at the edges, no room for unknown fields."""
    kinds = (kind for one in cls.__mro__[:-1] for kind in inspect.get_annotations(one).values())
    if any("Annotated[" in str(kind) for kind in kinds) or "_rules" in vars(cls):
        _limit(cls)
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    marked: Any = made
    marked.__pydantic_config__ = {"extra": "forbid"}
    return made


def late(default: T) -> T:
    """Default of a field that values written down earlier do not have: while it says nothing it is left out of the
    canonical form, so what was written before keeps its digest.
    """
    made: Any = field(default=default, metadata={LATE: True})
    return cast("T", made)


def check_finite(field: str, number: float | None) -> None:
    if number is not None and not abs(number) < math.inf:
        raise FieldError(field, f"{field} must be a finite number")


def check_positive(field: str, number: float | None) -> None:
    """Refuse zero, negatives, NaN and infinities; None passes."""
    check_finite(field, number)
    if number is not None and number <= 0:
        raise FieldError(field, f"{field} must be greater than 0, got {number}")


def check_not_negative(field: str, number: float | None) -> None:
    """Refuse negatives, NaN and infinities; None passes."""
    check_finite(field, number)
    if number is not None and number < 0:
        raise FieldError(field, f"{field} must not be negative, got {number}")


def check_range(field: str, number: float | None, low: float, high: float) -> None:
    """Refuse anything outside [low, high]; None passes."""
    check_finite(field, number)
    if number is not None and not low <= number <= high:
        raise FieldError(field, f"{field} must lie between {low} and {high}, got {number}")


def check_name(field: str, name: str) -> None:
    """Refuse names that could not stand in a URL path, a metric label or a file name."""
    if not _NAME.fullmatch(name):
        raise FieldError(field, f"{field} {NAME_WORDS}")


def check_text(field: str, text: str, length_max: int = 256) -> None:
    """Refuse empty or oversize text and control characters."""
    if not text or len(text) > length_max or any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise FieldError(field, f"{field} must be 1 to {length_max} printable characters")


def check_shown(field: str, text: str) -> None:
    """Refuse control characters of any kind, and those by which another text would be seen than is there."""
    if _MARK.search(text):
        raise FieldError(field, f"{field} {SHOWN_WORDS}")


def check_distinct(field: str, items: Iterable[Hashable]) -> None:
    seen: set[Hashable] = set()
    for item in items:
        if item in seen:
            raise FieldError(field, f"{field} names {item} twice")
        seen.add(item)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a field may be, told beside its type; `check` takes the field's name and raises FieldError."""

    check: Callable[[str, Any], None]
    items_max: int | None = None

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """A list's most is described, too."""
        return handler(core) | ({} if self.items_max is None else {"maxItems": self.items_max})


@dataclass(frozen=True, slots=True)
class Declarable(Limit):
    """What a field may be in a document that is declared from now on (`overlong`); one that was stored before, or a
    snapshot, may be more and is still to be read.
    """


@dataclass(frozen=True, slots=True)
class Text(Limit):
    """A text for people; where a document is put, without what they cannot see (`check_shown`)."""


NAME, TEXT, DISTINCT = Limit(check_name), Text(check_text), Limit(check_distinct)
SHOWN = Declarable(check_shown)
POSITIVE, NOT_NEGATIVE = Limit(check_positive), Limit(check_not_negative)


def within(low: float, high: float) -> Limit:
    """From `low` to `high`; None passes."""
    return Limit(lambda name, number: check_range(name, number, low, high))


def text(length_max: int) -> Limit:
    """So many printable characters at most, and one at least."""
    return Text(lambda name, told: check_text(name, told, length_max))


def at_most(count: int) -> Limit:
    def check(name: str, items: Sized) -> None:
        if len(items) > count:
            raise FieldError(name, f"{name} may list {count:,} at most, got {len(items)}")

    return Limit(check, count)


def declarable(count: int) -> Limit:
    """So many items at most, where a document is put."""
    return Declarable(at_most(count).check, count)


def declarable_within(low: float, high: float) -> Limit:
    """From `low` to `high`, where a document is put; None passes."""
    return Declarable(within(low, high).check)


def distinct(*by: str) -> Limit:
    """No two items with the same attributes of these names."""
    key = attrgetter(*by)
    return Limit(lambda name, items: check_distinct(name, map(key, items)))


def rising(high: float = math.inf) -> Limit:
    """Rising whole numbers from 1 to `high`."""

    def check(name: str, numbers: tuple[int, ...]) -> None:
        if not numbers or list(numbers) != sorted(set(numbers)) or numbers[0] < 1:
            raise FieldError(name, f"{name} must list rising whole numbers from 1")
        check_range(name, numbers[-1], 1, high)

    return Limit(check)


def each(limit: Limit) -> Limit:
    def check(name: str, items: Iterable[Any]) -> None:
        for item in items:
            limit.check(name, item)

    return Limit(check)


def _limit(cls: Any) -> None:
    """Check the limits of its fields before what it checks by itself."""
    own: Callable[[Any], None] | None = getattr(cls, "__post_init__", None)
    rules: Callable[[Any], Iterable[FieldError]] | None = getattr(cls, "_rules", None)

    def check(self: Any) -> None:
        kind: type = type(self)
        for name, refuse in _checks(kind):
            refuse(name, getattr(self, name))
        if own is not None:
            own(self)
        for error in rules(self) if rules is not None else ():
            raise error

    cls.__post_init__ = check


def limits_broken(kind: type, said: Mapping[str, object]) -> Iterator[FieldError]:
    """Every limit that the fields which could be read do not keep, first each by itself; making a value stops at the
    first.
    """
    known: Any = object.__new__(kind)
    told = [item for item in _checks(kind) if item[0] in said]
    broken = {name: error for name, refuse in reversed(told) for error in refusals(refuse, name, said[name])}
    yield from reversed(broken.values())
    for name in said.keys() - broken.keys():
        object.__setattr__(known, name, said[name])
    try:
        yield from getattr(kind, "_rules", lambda _: ())(known)
    except FieldError as error:
        yield error
    except (AttributeError, LookupError, TypeError, ValueError):
        return  # A rule about what could not be read, or is wrong by itself.


def overlong(item: object) -> Iterator[FieldError]:
    """What of a value, and of the values in it, is longer, more or other than may be declared; fields as pointers."""
    kind: type = type(item)
    for name, limits in _limits(kind):
        told = getattr(item, name)
        checks = [
            SHOWN.check if isinstance(limit, Text) else limit.check for limit in limits if isinstance(limit, _PUT)
        ]
        found = [error for check in checks for error in refusals(check, name, told)]
        yield from found
        # What is in an endless list is not looked at.
        for place, part in () if found else _values_in(name, told):
            yield from (FieldError(f"{place}/{error.field}", error.message) for error in overlong(part))


_PUT = (Declarable, Text)


def _values_in(name: str, told: object) -> Iterator[tuple[str, object]]:
    """A field's value that is one of ours, or those in its list, with where they stand."""
    if is_dataclass(told):
        yield name, told
    elif isinstance(told, tuple) and told and is_dataclass(told[0]):
        yield from ((f"{name}/{number}", part) for number, part in enumerate(told))


def refusals(check: Callable[..., None], *terms: Any) -> Iterator[FieldError]:
    """What a check raises, for rules that go on."""
    try:
        check(*terms)
    except FieldError as error:
        yield error


@cache
def _checks(kind: type) -> tuple[tuple[str, Callable[[str, Any], None]], ...]:
    return tuple(
        (name, item.check) for name, limits in _limits(kind) for item in limits if not isinstance(item, Declarable)
    )


@cache
def _limits(kind: type) -> tuple[tuple[str, tuple[Limit, ...]], ...]:
    # Found when the first value is made: types may name what stands below them in their module.
    hints = typing.get_type_hints(kind, include_extras=True)
    told = ((name, getattr(hint, "__metadata__", ())) for name, hint in hints.items())
    return tuple((name, tuple(item for item in limits if isinstance(item, Limit))) for name, limits in told)
