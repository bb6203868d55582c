"""Strict reading of single fields out of decoded JSON.

Owns what may stand for a text, a number or a list; a flag is no number. Whoever finds something else gets a WireError
naming the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum


class WireError(ValueError):
    """A message that does not follow this package."""


def object_of(plain: object, kind: type) -> Mapping[str, object]:
    if not isinstance(plain, dict):
        raise WireError(f"{kind.__name__}: expected an object")
    unknown = set(plain) - {field.name for field in fields(kind)}
    if unknown:
        raise WireError(f"{kind.__name__}: unknown fields {sorted(unknown)}")
    return plain


def items_of(item: Mapping[str, object], name: str) -> list[object]:
    found = item.get(name)
    if not isinstance(found, list):
        raise WireError(f"{name}: expected a list")
    return found


def text_of(item: Mapping[str, object], name: str) -> str:
    return plain_text(item.get(name), name)


def flag_of(item: Mapping[str, object], name: str) -> bool:
    found = item.get(name, False)
    if not isinstance(found, bool):
        raise WireError(f"{name}: expected true or false")
    return found


def optional_text_of(item: Mapping[str, object], name: str) -> str | None:
    return None if item.get(name) is None else text_of(item, name)


def whole_of(item: Mapping[str, object], name: str) -> int:
    found = item.get(name)
    if isinstance(found, bool) or not isinstance(found, int):
        raise WireError(f"{name}: expected a whole number")
    return found


def number_of(item: Mapping[str, object], name: str) -> float:
    found = item.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise WireError(f"{name}: expected a number")
    return float(found)


def optional_number_of(item: Mapping[str, object], name: str) -> float | None:
    return None if item.get(name) is None else number_of(item, name)


def plain_text(found: object, name: str) -> str:
    if isinstance(found, Enum) or not isinstance(found, str):
        raise WireError(f"{name}: expected text")
    return found
