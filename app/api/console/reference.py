"""The API's reference: a page for everybody, made of the API's own description. The documentation's site has the same
parts (`parts`), so that both say it alike.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from markupsafe import Markup, escape

from app.api.console.door import HEADERS, PageRoute, asset, theme_of
from app.api.console.words import environment

router = APIRouter(include_in_schema=False, route_class=PageRoute)
Json = Mapping[str, Any]
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    told: Json


@dataclass(frozen=True, slots=True)
class _PackedPage:
    """A page as browsers take it, and what tells it from any other."""

    packed: bytes
    tag: str


_pages: WeakKeyDictionary[FastAPI, dict[str, _PackedPage]] = WeakKeyDictionary()


@router.get("/docs")
def reference(request: Request) -> Response:
    """The page, made once; without signing in, as the description itself."""
    theme, app = theme_of(request), request.app
    made = _pages.setdefault(app, {})
    if theme not in made:
        made[theme] = _page(app.openapi(), theme)
    found = made[theme]
    headers = {**HEADERS, "cache-control": "no-cache", "etag": found.tag, "vary": "accept-encoding, cookie"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    body = found.packed
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
    else:
        body = gzip.decompress(body)
    return Response(body, media_type="text/html", headers=headers)


def _page(document: Json, theme: str) -> _PackedPage:
    schemas = document["components"]["schemas"]
    body = parts("reference.html", "#").render(
        document=document, subjects=by_subject(document), schemas=schemas, theme=theme, asset=asset
    )
    content = body.encode()
    # Weak: it is of the page, however that is packed.
    return _PackedPage(gzip.compress(content, 9, mtime=0), f'W/"{hashlib.sha256(content).hexdigest()[:16]}"')


def parts(template: str, place: str) -> Any:
    """A template of the reference; `place` is what leads from there to a schema."""
    made = environment().overlay()
    made.filters = {**made.filters, "type": lambda schema: _type(schema, place), "prose": _prose, "examples": _examples}
    return made.get_template(template)


def by_subject(document: Json) -> list[tuple[str, list[Operation]]]:
    """Operations by their tag."""
    found: dict[str, list[Operation]] = defaultdict(list)
    for path, item in document["paths"].items():
        for method, told in item.items():
            found[told["tags"][0]].append(Operation(method, path, told))
    return sorted(found.items())


def _type(schema: Json, place: str) -> Markup:
    """What a value may be, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="{}{}">{}</a>').format(place, name, name)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return Markup(" or ").join(dict.fromkeys(_type(item, place) for item in schema[choice]))
    if "const" in schema or "enum" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        return Markup(", ").join(Markup("<code>{}</code>").format(value) for value in allowed)
    if schema.get("type") == "array":
        return Markup("list of {}").format(_type(schema.get("items", {}), place))
    if isinstance(schema.get("additionalProperties"), Mapping):
        return Markup("map to {}").format(_type(schema["additionalProperties"], place))
    bounds = (f"{words} {schema[key]}" for key, words in _LIMITS.items() if key in schema)
    return escape(" ".join([str(schema.get("type", "any")), *bounds]))


def _prose(text: str) -> Markup:
    """A sentence with what stands between backticks as code."""
    pieces = enumerate(_CODE.split(text))
    return Markup("").join(Markup("<code>{}</code>").format(piece) if at % 2 else piece for at, piece in pieces)


def _examples(content: Json) -> Iterator[str]:
    """The examples of a body, written out."""
    if "example" in content:
        example = content["example"]
        yield example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)
