"""What a domain value is, and the checks its fields share.

Owns the `value` decorator (frozen, slotted, keyword-only dataclass that edge validators treat as closed: unknown fields
are refused), fields that came late, and the range checks used in `__post_init__`. It refuses silence: NaN, infinities,
wrong signs and empty names raise `FieldError` naming the field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, dataclass_transform

from solvers.errors import FieldError

NAME_PATTERN = r"^[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?$"
_NAME = re.compile(NAME_PATTERN)
T = TypeVar("T")
LATE = "late"
"""Mark of a field that is left out while it has its default."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def value(cls: type[T]) -> type[T]:
    """Make `cls` an immutable value with keyword-only construction and, at the edges, no room for unknown fields."""
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
    """Refuse NaN and infinities."""
    if number is not None and not math.isfinite(number):
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
        raise FieldError(
            field, f"{field} must be 1 to 63 of a-z, 0-9, '.', '_', '-', starting and ending with a letter or digit"
        )


def check_text(field: str, text: str, length_max: int = 256) -> None:
    """Refuse empty or oversize text and control characters."""
    if not text or len(text) > length_max or any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise FieldError(field, f"{field} must be 1 to {length_max} printable characters")


def check_distinct(field: str, items: Iterable[Hashable]) -> None:
    """Refuse repeated items."""
    seen: set[Hashable] = set()
    for item in items:
        if item in seen:
            raise FieldError(field, f"{field} names {item} twice")
        seen.add(item)
