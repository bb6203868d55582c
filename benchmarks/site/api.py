"""The API's reference as two pages, from its OpenAPI document: operations by subject, and what bodies are made of."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]


def pages(document: Path) -> dict[str, str]:
    """Both pages by their place in the site."""
    api = json.loads(document.read_text(encoding="utf-8"))
    return {
        "api/operations.md": "\n".join(_operations(api)),
        "api/schemas.md": "\n".join(_schemas(api["components"]["schemas"])),
    }


def _operations(api: Json) -> Iterator[str]:
    by_tag: dict[str, list[tuple[str, str, Json]]] = defaultdict(list)
    for path, item in api["paths"].items():
        for method, operation in item.items():
            by_tag[operation.get("tags", ["others"])[0]].append((method, path, operation))
    yield "# Operations of the API\n"
    yield f"{api['info']['description']} Every server tells this of itself at `/v1/openapi.json`.\n"
    for tag in sorted(by_tag):
        yield f"## {tag.capitalize()}\n"
        for method, path, operation in by_tag[tag]:
            yield from _operation(method, path, operation)


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f"### {operation['summary']} {{ #{operation['operationId']} }}\n"
    yield f"`{method.upper()} {path}`\n"
    if operation.get("description"):
        yield f"{operation['description']}\n"
    if operation.get("parameters"):
        yield "| parameter | in | type | |\n|---|---|---|---|"
        for item in operation["parameters"]:
            name = f"`{item['name']}`{'' if item.get('required') else ' (optional)'}"
            yield f"| {name} | {item['in']} | {_type(item['schema'])} | {_cell(item.get('description', ''))} |"
        yield ""
    if "requestBody" in operation:
        yield f"Sent: {_content(operation['requestBody'])}\n"
        yield from _examples(operation["requestBody"])
    refused = []
    for status, answer in operation["responses"].items():
        if int(status) >= 400:
            refused.append(f"`{status}`")
        else:
            yield f"`{status}`: {_content(answer) or 'no body'}\n"
            yield from _examples(answer)
    if refused:
        yield f"Refused with a [Problem](schemas.md#problem): {', '.join(refused)}\n"


def _content(body: Json) -> str:
    return " or ".join(
        f"{_type(found.get('schema', {}))} as `{kind}`" for kind, found in body.get("content", {}).items()
    )


def _examples(body: Json) -> Iterator[str]:
    for kind, found in body.get("content", {}).items():
        told = [found["example"]] if "example" in found else []
        for example in [*told, *(item.get("value") for item in found.get("examples", {}).values())]:
            text = example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)
            yield f"```{'json' if 'json' in kind else 'text'}\n{text}\n```\n"


def _schemas(schemas: Mapping[str, Json]) -> Iterator[str]:
    yield "# Schemas of the API\n"
    for name in sorted(schemas):
        schema = schemas[name]
        yield f"## {name} {{ #{name.lower()} }}\n"
        if schema.get("description"):
            yield f"{schema['description']}\n"
        if "properties" not in schema:
            yield f"{_type(schema)}\n"
            continue
        yield "| property | type | |\n|---|---|---|"
        for field, found in schema["properties"].items():
            optional = "" if field in schema.get("required", ()) else " (optional)"
            yield f"| `{field}`{optional} | {_type(found)} | {_cell(found.get('description', ''))} |"
        yield ""


def _type(schema: Json) -> str:
    """What a value may be, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](schemas.md#{name.lower()})"
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(_type(item) for item in schema[choice]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"map to {_type(schema['additionalProperties'])}"
    bounds = [
        f"{words} {schema[key]}"
        for key, words in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if key in schema
    ]
    return " ".join([str(schema.get("type", "any")), *bounds])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
