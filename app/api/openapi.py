"""What routes say of themselves, and the API's description that `make openapi` made of it: `openapi/openapi.json`,
which wheels carry. A test fails on drift.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_origin

from fastapi import APIRouter, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_dependant
from fastapi.routing import APIRoute

from app.api.body import FAULTS_MAX
from app.errors import Fault, FieldsError
from solvers.errors import NotFoundError, did_you_mean

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


class StrictRoute(Route):
    """Who may ask is refused what is not asked for here: whoever misspells a filter is not told everything."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **told: Any) -> None:
        super().__init__(path, endpoint, **told)
        asked = {field.alias: field.field_info for part in _parts(self.dependant) for field in part.query_params}
        self._asked = frozenset(asked)
        self._several = frozenset(name for name, told in asked.items() if get_origin(told.annotation) is list)
        # The last: who may not ask is told that first.
        self.dependant.dependencies.append(get_dependant(path=path, call=self._refuse_unknown))

    async def _refuse_unknown(self, request: Request) -> None:
        """Raises FieldsError for names in the query that this route does not know, or that say two things at once."""
        given = Counter(name for name, _ in request.query_params.multi_items())
        wrong = tuple(
            name
            for name, times in given.items()
            if name not in self._asked or (times > 1 and name not in self._several)
        )
        if wrong:
            raise FieldsError(tuple(map(self._fault, wrong[:FAULTS_MAX])))

    def _fault(self, name: str) -> Fault:
        if name in self._asked:
            return Fault(pointer=f"query:{name}", code="repeated-parameter", detail=f"{name} may be given only once")
        told = f"there is no parameter {name[:60]}{did_you_mean(name[:60], self._asked, all_known=True)}"
        return Fault(pointer=f"query:{name[:60]}", code="unknown-parameter", detail=told)


def _parts(dependant: Dependant) -> Iterator[Dependant]:
    """What a route reads, and all that this depends on."""
    yield dependant
    for inner in dependant.dependencies:
        yield from _parts(inner)


def router_of(tag: str, route_class: type[Route] = StrictRoute) -> APIRouter:
    """An empty router; its operations are called as their handlers are."""
    return APIRouter(tags=[tag], route_class=route_class, generate_unique_id_function=lambda route: route.name)


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
