"""An `AsyncClient` for tests that do not await: its calls one by one, its streams whole."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from headroom_client import AsyncClient


class Awaited:
    """Has what the methods of a client find, as if it were a `Client`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._runner = asyncio.Runner()

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **terms: Any) -> Any:
            found = getattr(self._client, name)(*args, **terms)
            return self._runner.run(_whole(found) if inspect.isasyncgen(found) else found)

        return call


async def _whole(stream: Any) -> list[Any]:
    return [item async for item in stream]
