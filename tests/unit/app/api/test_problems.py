"""What is wrong with an address is told with what stood there: nobody looks a pointer up in what they typed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.api import problems
from app.api.forms import Name


@pytest.fixture
def edge() -> FastAPI:
    edge = FastAPI()
    problems.install(edge)

    @edge.get("/things/{name}")
    def found(name: Name, many: int = 0) -> dict[str, Any]:
        return {"name": name, "many": many}

    return edge


async def _errors(edge: FastAPI, path: str) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(edge), base_url="http://here") as client:
        answer = await client.get(path)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == problems.MEDIA_TYPE
    errors: list[dict[str, Any]] = answer.json()["errors"]
    return errors


@pytest.mark.parametrize(
    ("path", "pointer", "beginning"),
    [
        ("/things/%252e%252e", "path:name", "'%2e%2e' must be 1 to 63 of a-z"),
        ("/things/a%20b", "path:name", "'a b' must be 1 to 63 of a-z"),
        ("/things/a?many=x%0Ay", "query:many", r"'x\ny' must be a valid integer"),
        ("/things/" + "a" * 300, "path:name", f"'{'a' * 80}' must have at most 63 characters"),
    ],
)
def test_a_wrong_part_of_an_address_is_told_with_what_it_was(
    edge: FastAPI, path: str, pointer: str, beginning: str
) -> None:
    (fault,) = asyncio.run(_errors(edge, path))
    assert fault["pointer"] == pointer
    assert fault["detail"].startswith(beginning)
