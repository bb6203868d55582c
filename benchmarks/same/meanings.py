"""What every property of the API's description means: the docstring beside the field where it is written; else, for
fields that mean the same wherever they stand, one line of `meanings.yaml`, as `field` or `Schema.field`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from pydantic import BaseModel

_OURS = ("app.", "agents.", "solvers.")


def describe(schemas: Mapping[str, Any], kinds: Iterable[Any]) -> None:
    """Describe the properties of `schemas` that are not yet, where these are of what `kinds` are made of."""
    written, lines = _classes(kinds), told()
    for name, schema in schemas.items():
        beside = _beside(written[name]) if name in written else {}
        for field, found in schema.get("properties", {}).items():
            meaning = beside.get(field) or lines.get(f"{name}.{field}") or lines.get(field)
            if meaning is not None:
                found.setdefault("description", meaning)


@cache
def told() -> Mapping[str, str]:
    """The lines by what they are about."""
    found: Mapping[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return found


def _classes(kinds: Iterable[Any]) -> dict[str, type]:
    """Classes with fields by name, of everything that `kinds` are made of."""
    found: dict[str, type] = {}
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        waiting.extend(get_args(kind))
        if not isinstance(kind, type) or kind.__name__ in found:
            continue
        if issubclass(kind, BaseModel):
            found[kind.__name__] = kind
            waiting.extend(field.annotation for field in kind.model_fields.values())
        elif is_dataclass(kind):
            found[kind.__name__] = kind
            waiting.extend(get_type_hints(kind).values())
    return found


def _beside(kind: type) -> dict[str, str]:
    """Docstrings of a class's fields, those that it inherits among them."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith(_OURS):
            found |= _written(each.__module__).get(each.__qualname__, {})
    return found


@cache
def _written(module: str) -> Mapping[str, Mapping[str, str]]:
    """Docstrings of fields by class, as a module has them."""
    found: dict[str, dict[str, str]] = {}
    for part in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(part, ast.ClassDef):
            found[part.name] = dict(_fields(part.body))
    return found


def _fields(body: list[ast.stmt]) -> Iterable[tuple[str, str]]:
    for field, beside in pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(beside, ast.Expr) and isinstance(beside.value, ast.Constant) and type(beside.value.value) is str:
            yield field.target.id, " ".join(beside.value.value.split())
