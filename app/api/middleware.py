"""The outermost layer of the API, plain ASGI: request id, body limit, last resort against crashes, request metrics.

Owns what must hold for every request whatever route it takes, the streams included. It refuses to look into bodies or
tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.metrics import RequestMetrics
from app.api.problems import of_crash, of_error
from app.errors import BodyTooLargeError
from app.logs import EventLog
from solvers.errors import HeadroomError

_REQUEST_ID = re.compile(r"^[A-Za-z0-9._:-]{8,80}$")
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeOptions:
    """What the layer needs to know."""

    body_bytes_max: int
    new_id: Callable[[], str]
    elapsed_ms: Callable[[], float]
    metrics: RequestMetrics
    log: EventLog


class Edge:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, options: EdgeOptions) -> None:
        self._app = app
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _Exchange(self._app, self._options, scope, receive, send).serve()


class _Exchange:
    """One request and its answer."""

    __slots__ = ("_app", "_options", "_read", "_receive", "_scope", "_send", "_started_ms", "request_id", "status")

    def __init__(self, app: ASGIApp, options: EdgeOptions, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._options = options
        self._scope = scope
        self._receive = receive
        self._send = send
        self._read = 0
        self._started_ms = options.elapsed_ms()
        self.request_id = _header(scope, b"x-request-id")
        self.status = 0
        if not _REQUEST_ID.match(self.request_id):
            self.request_id = options.new_id()
        scope.setdefault("state", {})["request_id"] = self.request_id

    async def serve(self) -> None:
        """Run the application; whatever escapes it becomes a problem."""
        length = _header(self._scope, b"content-length")
        if length.isdigit() and int(length[:20]) > self._options.body_bytes_max:
            await of_error(self.request_id, self._too_large())(self._scope, self._receive, self.send)
            return
        receive = self._receive if self._scope["method"] in _BODILESS and not length else self.receive
        try:
            await self._app(self._scope, receive, self.send)
        except Exception as error:  # noqa: BLE001 - the last resort: nothing may reach the server as a traceback
            facts = {"request_id": self.request_id, "method": self._scope["method"], "path": self._scope["path"]}
            self._options.log.error("request.crashed", error, **facts)
            if self.status == 0:
                await self._crash_answer(error)(self._scope, self._receive, self.send)

    def _crash_answer(self, error: Exception) -> ASGIApp:
        return of_error(self.request_id, error) if isinstance(error, HeadroomError) else of_crash(self.request_id)

    async def receive(self) -> Message:
        """Count the body, however it is chunked."""
        message = await self._receive()
        self._read += len(message.get("body", b""))
        if self._read > self._options.body_bytes_max:
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        """Stamp the answer with the request's id and count it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), (b"x-request-id", self.request_id.encode())]
            self._options.metrics.observe(
                self._scope["method"],
                _route_of(self._scope),
                self.status,
                (self._options.elapsed_ms() - self._started_ms) / 1000.0,
            )
        await self._send(message)

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the body exceeds {self._options.body_bytes_max} bytes")


def _header(scope: Scope, name: bytes) -> str:
    for key, found in scope["headers"]:
        if key == name:
            text: str = found.decode("latin-1")
            return text
    return ""


def _route_of(scope: Scope) -> str:
    route: Any = scope.get("route")
    return str(getattr(route, "path_format", getattr(route, "path", "unmatched")))
