"""Applications that are called without sockets, all on one event loop, which an operation's context goes along to.

Starlette's own client begins a loop and a dozen threads' hand-overs for each request, which cost more than the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from typing import Any

import httpx
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Of this process. It runs a task that never ends, for helpers' threads end with the outermost task."""
    loop = asyncio.new_event_loop()
    forever = loop.create_future()
    threading.Thread(target=loop.run_until_complete, args=(forever,), name="requests", daemon=True).start()
    return loop


class _Direct(httpx.BaseTransport):
    def __init__(self, app: ASGIApp, hidden: type[Exception] | tuple[()]) -> None:
        self._app = app
        self._hidden = hidden

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(self._ask(request), _loop()).result()

    async def _ask(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        unread = iter([*request.stream, b""])
        sent: list[Message] = []

        async def receive() -> Message:
            for part in unread:
                return {"type": "http.request", "body": part, "more_body": bool(part)}
            return await asyncio.get_running_loop().create_future()

        async def send(message: Message) -> None:
            sent.append(message)

        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("testclient", 50000),
            "server": ("testserver", 80),
            "state": {},
        }
        with contextlib.suppress(self._hidden):
            await self._app(scope, receive, send)
        start, *parts = sent
        body = b"".join(part.get("body", b"") for part in parts if request.method != "HEAD")
        return httpx.Response(start["status"], headers=start["headers"], content=body)


def client_of(app: ASGIApp, *, raising: bool = False) -> TestClient:
    """A client to which an error is an answer, unless `raising`. As with any client that is not entered, the
    application's life is not begun.
    """
    client = TestClient(app)
    client._transport = _Direct(app, () if raising else Exception)
    return client
