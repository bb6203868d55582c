"""Applications that are called without sockets, all on one event loop, which an operation's context goes along to.

Starlette's own client begins a loop and a dozen threads' hand-overs for each request, which cost more than the request.
"""

from __future__ import annotations

import asyncio
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
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(self._ask(request), _loop()).result()

    async def _ask(self, request: httpx.Request) -> httpx.Response:
        unread: list[Message] = [{"type": "http.request", "body": request.read(), "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Message:
            if not unread:
                await asyncio.get_running_loop().create_future()
            return unread.pop()

        async def send(message: Message) -> None:
            sent.append(message)

        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("testclient", 50000),
            "server": ("testserver", 80),
            "state": {},
        }
        await self._app(scope, receive, send)
        start, *parts = sent
        return httpx.Response(
            start["status"], headers=start["headers"], content=b"".join(part.get("body", b"") for part in parts)
        )


def client_of(app: ASGIApp) -> TestClient:
    """A client as the tests' worlds have it."""
    client = TestClient(app, raise_server_exceptions=False)
    client._transport = _Direct(app)
    return client
