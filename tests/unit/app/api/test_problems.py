"""What is wrong with an address is told with what stood there: nobody looks a pointer up in what they typed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from app.api import problems
from app.api.forms import Name


@pytest.fixture
def edge() -> FastAPI:
    edge = FastAPI()
    problems.install(edge)

    @edge.get("/things/{name}")
    def found(name: Name, many: int = 0) -> dict[str, Any]:
        return {"name": name, "many": many}

    router = APIRouter()

    @router.put("/things/{name}")
    @router.delete("/things/{name}")
    def changed(name: Name) -> str:
        return name

    edge.include_router(router)
    return edge


async def _asked(edge: FastAPI, method: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(edge), base_url="http://here") as client:
        return await client.request(method, path)


def _errors(edge: FastAPI, path: str) -> list[dict[str, Any]]:
    answer = asyncio.run(_asked(edge, "GET", path))
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
    (fault,) = _errors(edge, path)
    assert fault["pointer"] == pointer
    assert fault["detail"].startswith(beginning)


@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
def test_a_method_that_is_not_taken_is_told_with_all_that_are(edge: FastAPI, method: str) -> None:
    answer = asyncio.run(_asked(edge, method, "/things/a"))
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, PUT, DELETE"
    assert answer.json()["detail"] == f"{method} is not taken at /things/a, but GET, HEAD, PUT, DELETE"
