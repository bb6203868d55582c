"""How requests are made, and how long is waited before the next: at once, or for whoever awaits it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

from headroom_client.way import way
from headroom_client.wire import ApiError, WrongUseError, problem_of

STREAM_SILENT_S = 60.0
"""A stream that does not even beat for this long is dead."""
PORT_MAX = 65_535
_PATIENCE = httpx.Timeout(10.0, read=STREAM_SILENT_S)


def terms(server: str, token: str, timeout_s: float, transport: object | None) -> dict[str, Any]:
    """What either of httpx' clients is told."""
    address = _address(server)
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise WrongUseError("the token holds what no token does: spaces, line breaks, or characters that are not ASCII")
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        taken = way(address) if transport is None else {}
    except ValueError as error:
        raise WrongUseError(str(error)) from None
    return {"base_url": address, "headers": headers, "timeout": timeout_s, **taken}


def _address(server: str) -> httpx.URL:
    """What nothing can be asked at is told before anything is sent. A path may stay: a proxy's."""
    if not server.lower().startswith(("http://", "https://")):
        raise WrongUseError(f"the server address {server!r} must start with http:// or https://")
    try:
        address = httpx.URL(server)
    except httpx.InvalidURL as error:
        raise WrongUseError(f"the server address {server!r} cannot be read: {str(error).rstrip('.')}") from None
    if address.userinfo:
        raise WrongUseError(f"the server address of {address.host} holds a user or a password; tokens are given apart")
    if any(character.isspace() for character in server):
        raise WrongUseError(f"the server address {server!r} has a blank in it")
    if not address.host:
        raise WrongUseError(f"the server address {server!r} names no host")
    try:
        address.host.encode("idna")
    except UnicodeError:
        raise WrongUseError(f"the server address {server!r} names a host that no machine can have") from None
    if address.port is not None and not 1 <= address.port <= PORT_MAX:
        raise WrongUseError(f"the server address {server!r} names port {address.port}; ports are 1 to {PORT_MAX}")
    if address.query or address.fragment:
        raise WrongUseError(f"the server address {server!r} has more behind its path")
    return address


class Blocking:
    """Never makes anybody wait for an event loop: what awaits it is done when it was begun."""

    def __init__(self, own: httpx.Client) -> None:
        self.own = own

    async def request(self, method: str, path: str, told: Mapping[str, Any]) -> httpx.Response:
        return self.own.request(method, path, **told)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  (no event loop has this)

    async def lines(self, path: str, asked: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        with self.own.stream("GET", path, params=asked, timeout=_PATIENCE) as answer:
            if not answer.is_success:
                answer.read()
                raise ApiError(answer.status_code, problem_of(answer))
            for line in answer.iter_lines():
                yield line


class Awaiting:
    """Lets others of its event loop go on meanwhile."""

    def __init__(self, own: httpx.AsyncClient) -> None:
        self.own = own

    async def request(self, method: str, path: str, told: Mapping[str, Any]) -> httpx.Response:
        return await self.own.request(method, path, **told)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def lines(self, path: str, asked: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        async with self.own.stream("GET", path, params=asked, timeout=_PATIENCE) as answer:
            if not answer.is_success:
                await answer.aread()
                raise ApiError(answer.status_code, problem_of(answer))
            async for line in answer.aiter_lines():
                yield line
