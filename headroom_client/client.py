"""The two clients: one whose methods are done when they return, and one whose methods are awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx

from headroom_client.calls import ATTEMPTS_MAX, Async, Calls, Sync
from headroom_client.connection import Awaiting, Blocking, terms
from headroom_client.wire import ObjectHook


class Client(Calls, Sync):
    """A connection to one control plane with one token, for one thread; close it or use it as a context manager.

    `object_hook` is what `json.loads` calls so: what becomes of each object of an answer.
    """

    def __init__(
        self,
        server: str,
        token: str,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        attempts_max: int = ATTEMPTS_MAX,
        object_hook: ObjectHook = None,
    ) -> None:
        self._own = httpx.Client(transport=transport, **terms(server, token, timeout_s, transport))
        super().__init__(server.rstrip("/"), Blocking(self._own), attempts_max, object_hook)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._own.close()

    @staticmethod
    def _found(call: Any) -> Any:
        return _walked(call) if isinstance(call, AsyncGenerator) else _done(call)


class AsyncClient(Calls, Async):
    """The same for programs that await: every method of `Client`, for the tasks of one event loop."""

    def __init__(
        self,
        server: str,
        token: str,
        *,
        timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
        attempts_max: int = ATTEMPTS_MAX,
        object_hook: ObjectHook = None,
    ) -> None:
        self._own = httpx.AsyncClient(transport=transport, **terms(server, token, timeout_s, transport))
        super().__init__(server.rstrip("/"), Awaiting(self._own), attempts_max, object_hook)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._own.aclose()

    @staticmethod
    def _found(call: Any) -> Any:
        return call


def _done(call: Any) -> Any:
    """The result of what never waits for an event loop."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a call of a Client has waited")


def _walked(stream: AsyncGenerator[Any, None]) -> Iterator[Any]:
    try:
        while True:
            yield _done(anext(stream))
    except StopAsyncIteration:
        return
    finally:
        _done(stream.aclose())
