"""The API's own description: what FastAPI derives, made true.

The framework cannot know some parts: bodies that are decoded by our own reader, problem answers instead of
the framework's default, the schemas of the agents' messages with their ranges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from app.api import messages
from app.api.auth import RULES
from app.api.body import adapter_of
from app.api.openapi import BODIES, REF, Route
from app.api.problems import Problem
from benchmarks.same.meanings import describe

_PROBLEMS: Mapping[str, str] = {
    "401": "No valid token.",
    "403": "The token may not do this.",
    "404": "There is no such thing, or the token may not know of it.",
    "409": "The current state does not allow it.",
    "412": "The stored version is another one.",
    "413": "The body is too large.",
    "415": "The media type is not read here.",
    "422": "Something in the request is invalid; `errors` point to it.",
    "408": "The request came too slowly.",
    "429": "Too many requests; see Retry-After.",
    "431": "The request's head is too large.",
    "500": "The server failed.",
    "503": "Try again shortly; see Retry-After.",
}
_METHODS = ("get", "put", "patch", "post", "delete")


def describe_api(app: FastAPI) -> dict[str, Any]:
    """Everything that an application answers."""
    routes = [route.described() if isinstance(route, Route) else route for route in app.routes]
    spec = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=routes,
        separate_input_output_schemas=False,
        tags=app.openapi_tags,
    )
    schemas: dict[str, Any] = spec.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name, schema in _body_schemas().items():
        schemas.setdefault(name, schema)
    schemas.update(_messages())
    answered = [route.response_model for route in routes if isinstance(route, APIRoute)]
    describe(schemas, [*answered, *BODIES.values(), Problem, *(message.kind for message in messages.MESSAGES.values())])
    examples = json.loads(Path(__file__).with_name("examples.json").read_text("utf-8"))
    guards = {route.operation_id or route.unique_id: _guard(route) for route in routes if isinstance(route, APIRoute)}
    for path, operations in spec["paths"].items():
        for method in _METHODS:
            if method in operations:
                name = operations[method]["operationId"]
                operations[method].setdefault("x-callers", guards[name])
                _add_example(operations[method], examples.get(name, {}))
                _add_problems(path, method, operations[method])
    return dict(spec)


def _guard(route: APIRoute) -> str:
    """Whose tokens are let in."""
    rules = [str(RULES[each.call]) for each in route.dependant.dependencies if each.call in RULES]
    return next(iter(rules), "everybody")


def _body_schemas() -> dict[str, Any]:
    inputs = [(kind, "validation", adapter_of(kind)) for kind in BODIES.values()]
    found: dict[str, Any] = {}
    for kind, _, adapter in inputs:
        schema = adapter.json_schema(ref_template=REF)
        found.update(schema.pop("$defs", {}))
        found[kind.__name__] = schema
    _, definitions = models_json_schema([(Problem, "validation")], ref_template=REF)
    return {**found, **definitions["$defs"]}


def _messages() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, message in messages.MESSAGES.items():
        schema = message.json_schema(REF)
        found.update(schema.pop("$defs", {}))
        found[name] = schema
    return found


def _add_example(operation: dict[str, Any], example: Mapping[str, Any]) -> None:
    """What a test sends, and how that is answered."""
    for item in operation.get("parameters", ()):
        if item["name"] in example.get("parameters", {}):
            item["example"] = example["parameters"][item["name"]]
    answer = operation["responses"].get(str(example.get("status")), {})
    for told, part in ((operation.get("requestBody", {}), "body"), (answer, "answer")):
        content = next(iter(told.get("content", {}).values()), None)
        if content is not None and part in example:
            content["example"] = example[part]


def _add_problems(path: str, method: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    codes = {"408", "422", "431", "500", "503"}
    if "security" in operation:
        codes |= {"401", "403", "429"}
    if "{" in path or any(item["name"] == "project" for item in operation.get("parameters", ())):
        codes.add("404")
    if "requestBody" in operation:
        codes |= {"413", "415"}
    if method != "get":
        codes |= {"409", "404"}
    if any(item.get("name") == "If-Match" for item in operation.get("parameters", ())):
        codes.add("412")
    shown = {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}
    for code in sorted(codes):
        if code == "422" or code not in responses:
            responses[code] = {"description": _PROBLEMS[code], "content": shown}
    operation["responses"] = dict(sorted(responses.items()))
