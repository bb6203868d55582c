"""What is committed in `openapi/` is what the code says, and it says enough."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response
from jsonschema import Draft202012Validator

from benchmarks.same import described, meanings
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


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(described.application())


def test_what_servers_tell_is_what_their_routes_would_make(client: TestClient, spec: dict[str, Any]) -> None:
    assert client.get("/v1/openapi.json").json() == spec


@pytest.fixture(scope="module")
def page(client: TestClient) -> Callable[..., Response]:
    """Asks for the page of the reference, as whoever is not signed in."""

    def ask(**headers: str) -> Response:
        return client.get("/docs", headers={name.replace("_", "-"): value for name, value in headers.items()})

    return ask


def test_the_reference_has_every_operation_and_schema(spec: dict[str, Any], page: Callable[..., Response]) -> None:
    answer = page()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    ids = re.findall(r'\sid="([^"]+)"', answer.text)
    assert len(ids) == len(set(ids))
    names = {operation["operationId"] for _, _, operation in _operations(spec)}
    assert names | set(spec["components"]["schemas"]) <= set(ids)
    assert set(re.findall(r'href="#([^"]+)"', answer.text)) <= set(ids)
    told = html.unescape(re.sub(r"<[^>]+>", "", answer.text))
    assert [text for text in meanings.told().values() if text.replace("`", "") not in told] == []
    # It asks nobody for anything, and runs nothing.
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert not re.search(r"<script|\son\w+=|\sstyle=|=\"https?://", answer.text)


def test_the_reference_is_packed_and_told_once(page: Callable[..., Response]) -> None:
    packed, plain = page(accept_encoding="gzip"), page(accept_encoding="identity")
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text
    again = page(if_none_match=plain.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    dark = page(cookie="headroom_theme=dark", if_none_match=plain.headers["etag"])
    assert dark.status_code == 200
    assert 'data-theme="dark"' in dark.text
    assert page(cookie='headroom_theme="><script>').text == plain.text


def test_every_operation_has_an_example_that_is_as_described(spec: dict[str, Any]) -> None:
    """`tests/integration/api/test_examples.py` sends them."""
    for path, method, operation in _operations(spec):
        where = f"{method} {path}"
        named = {item["name"] for item in operation.get("parameters", ()) if "example" in item}
        assert set(re.findall(r"{(\w+)}", path)) <= named, where
        answers = [answer for status, answer in operation["responses"].items() if status < "400"]
        sent = [
            part["example"]
            for part in operation.get("requestBody", {}).get("content", {}).values()
            if "example" in part
        ]
        assert len(sent) == ("requestBody" in operation), where
        shown = [part for answer in answers for part in answer.get("content", {}).values() if "example" in part]
        assert shown or not any("content" in answer for answer in answers), where
        for part in shown:
            schema = {**part["schema"], "components": spec["components"]}
            assert [fault.message for fault in Draft202012Validator(schema).iter_errors(part["example"])] == [], where


def test_every_operation_says_whose_it_is(spec: dict[str, Any]) -> None:
    callers = {operation["operationId"]: operation["x-callers"] for _, _, operation in _operations(spec)}
    assert callers["put_project"] == "tokens of role admin"
    assert callers["get_costs"] == "tokens of role viewer, operator, admin, reporter (also of one project)"
    assert callers["send_edge_reports"] == "tokens of role operator, admin; agent tokens of purpose gateway"
    who = "tokens of role viewer, operator, admin"
    assert callers["get_metrics"] == f"everybody; {who} where HEADROOM_METRICS_PUBLIC is off"
    open_ones = {"get_authorities", "get_health", "get_ready", "get_version"}
    assert {name for name, said in callers.items() if said == "everybody"} == open_ones


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
