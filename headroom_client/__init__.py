"""Headroom's API for Python programs, as the command line itself calls it: with retries, idempotency keys and one
exception type that carries the server's problem.

    from headroom_client import ApiError, Client

    with Client("http://127.0.0.1:8080", token) as headroom:
        headroom.put("service", {"project": "default", "name": "resnet50", ...})
        print(headroom.fleet())

Programs that await have the same methods in `AsyncClient`. It needs httpx and nothing of the server.
"""

from __future__ import annotations

from headroom_client.client import AsyncClient, Client
from headroom_client.wire import (
    ApiAnswer,
    ApiError,
    ClientError,
    Document,
    UnreachableError,
    WrongUseError,
    key_of,
)

__all__ = [
    "ApiAnswer",
    "ApiError",
    "AsyncClient",
    "Client",
    "ClientError",
    "Document",
    "UnreachableError",
    "WrongUseError",
    "key_of",
]
