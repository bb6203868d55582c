"""What routes say of themselves, and the API's description that `make openapi` made of it: `openapi/openapi.json`,
which wheels carry. A test fails on drift.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from solvers.errors import NotFoundError

REF = "#/components/schemas/{model}"
BODIES: dict[str, Any] = {}
"""What routes decode by themselves, by name."""


def json_body(kind: Any) -> dict[str, Any]:
    """What a route that decodes `kind` by `app.api.body.parse` says of its body."""
    name = kind.__name__
    BODIES[name] = kind
    return request_body({"application/json": {"schema": {"$ref": REF.format(model=name)}}})


def request_body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


class Route(APIRoute):
    """A route whose handler answers by itself: what it answers is derived for whoever asks for the description. For all
    routes that takes as long as half of what a process loads.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **told: Any) -> None:
        super().__init__(path, endpoint, **{**told, "response_model": None, "responses": None})
        self.described = partial(APIRoute, path, endpoint, **told)


def router_of(tag: str) -> APIRouter:
    """An empty router; its operations are called as their handlers are."""
    return APIRouter(tags=[tag], route_class=Route, generate_unique_id_function=lambda route: route.name)


class Described(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The description, read once; to derive it takes seconds. Raises NotFoundError."""
        if self.openapi_schema is None:
            self.openapi_schema = json.loads(_written().read_text("utf-8"))
        return self.openapi_schema


def _written() -> Path:
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "openapi_bundle", package.parent / "openapi"):
        if (folder / "openapi.json").is_file():
            return folder / "openapi.json"
    raise NotFoundError(f"no description of the API beside {package}")
