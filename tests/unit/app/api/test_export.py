"""What is committed in `openapi/` is what the code says, and it says enough."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.api import meanings
from benchmarks.same import described
from solvers.domain.codec import to_plain
from tests import builders

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def fresh() -> dict[str, str]:
    """What the code says, by the file it belongs into."""
    return described.files()


@pytest.fixture(scope="module")
def spec(fresh: dict[str, str]) -> dict[str, Any]:
    """The API's description."""
    found: dict[str, Any] = json.loads(fresh["openapi.json"])
    return found


def _operations(spec: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_the_committed_files_are_up_to_date(fresh: dict[str, str]) -> None:
    committed = {str(path.relative_to(ROOT / "openapi")) for path in (ROOT / "openapi").rglob("*.json")}
    assert committed == set(fresh), "run `make openapi`"
    for name, text in fresh.items():
        assert (ROOT / "openapi" / name).read_text(encoding="utf-8") == text, f"{name} drifted: run `make openapi`"


def test_every_operation_is_described(spec: dict[str, Any]) -> None:
    operations = list(_operations(spec))
    names = [operation["operationId"] for _, _, operation in operations]
    assert len(names) == len(set(names)) > 60
    for path, method, operation in operations:
        assert operation["summary"], (method, path)
        assert operation["tags"], (method, path)
        problems = [code for code in operation["responses"] if int(code) >= 400]
        assert "500" in problems, (method, path)
        for code in problems:
            assert list(operation["responses"][code]["content"]) == ["application/problem+json"], (method, path, code)
        if path not in ("/v1/health", "/v1/ready", "/v1/version", "/metrics", "/v1/authorities"):
            assert operation["security"] == [{"bearer": []}], (method, path)
            assert {"401", "403", "429"} <= set(operation["responses"]), (method, path)
        if method in ("put", "post"):
            assert "requestBody" in operation, (method, path)


def _parts(part: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the document with its place in it."""
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    if isinstance(part, dict):
        yield place, part
    for key, each in inner:
        yield from _parts(each, f"{place}/{key}")


def test_every_property_and_parameter_is_described(spec: dict[str, Any]) -> None:
    told = {}
    for place, part in _parts(spec):
        if place.endswith("/properties"):
            told |= {f"{place}/{name}": found.get("description", "") for name, found in part.items()}
        elif "in" in part and "schema" in part:
            told[place] = part.get("description", "")
    assert len(told) > 1700
    # A sentence, which says more than the name does.
    assert [place for place, text in told.items() if not text.endswith((".", "`")) or len(text.split()) < 2] == []


def test_every_meaning_is_used_and_none_is_told_twice(spec: dict[str, Any]) -> None:
    """A line of a field that has a docstring, or that no schema has, is unused."""
    told = meanings.told()
    used = set()
    for name, schema in spec["components"]["schemas"].items():
        for field, found in schema.get("properties", {}).items():
            line = f"{name}.{field}" if f"{name}.{field}" in told else field
            if told.get(line) == found["description"]:
                used.add(line)
    assert sorted(set(told) - used) == []
    assert [line for line, text in told.items() if told.get(line.partition(".")[2]) == text] == []
    written = Path(meanings.__file__).with_suffix(".yaml").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[0].strip("'") for line in written if not line.startswith("#")]
    assert names == sorted(told)


def test_the_frameworks_own_problem_is_gone(spec: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in json.dumps(spec)


def test_every_reference_leads_somewhere(spec: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in spec["components"]["schemas"]}

    def walk(part: object) -> Iterator[str]:
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            for inner in part.values():
                yield from walk(inner)
        elif isinstance(part, list):
            for inner in part:
                yield from walk(inner)

    references = set(walk(spec))
    assert len(references) > 50
    assert references <= known


def test_schemas_accept_what_the_codec_writes(fresh: dict[str, str]) -> None:
    snapshot = to_plain(builders.lab([builders.service()]))
    schema = json.loads(fresh["schemas/Snapshot.json"])
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(snapshot)
    assert isinstance(snapshot, dict)
    with pytest.raises(Exception, match="extra"):
        Draft202012Validator(schema).validate({**snapshot, "extra": 1})
