"""The API's reference as two pages, in the parts that servers show at `/docs`: operations by subject, and schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.api.console.reference import Json, by_subject, parts


def pages(document: Path) -> dict[str, str]:
    """Both pages by their place in the site."""
    api = json.loads(document.read_text(encoding="utf-8"))
    macros = parts("reference_parts.html", "schemas.html#").module
    return {
        "api/operations.md": "\n".join(_operations(api, macros)),
        "api/schemas.md": "\n".join(_schemas(api["components"]["schemas"], macros)),
    }


def _operations(api: Json, macros: Any) -> Iterator[str]:
    yield "# Operations of the API\n"
    yield f"{api['info']['description']} Servers show this at `/docs`, and tell it programs at `/v1/openapi.json`.\n"
    for subject, operations in by_subject(api):
        yield f"## {subject.capitalize()}\n"
        yield from (macros.operation(each) for each in operations)


def _schemas(schemas: Json, macros: Any) -> Iterator[str]:
    yield "# Schemas of the API\n"
    yield from (macros.schema(name, schemas[name]) for name in sorted(schemas))
