"""The application behind a real socket, for streams that a client in the same process would wait for for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from app.api import reports
from app.api.server import server_of
from tests.integration.api.world import World
from tests.waiting import wait_until

DEADLINE_S = 60.0


@contextmanager
def serving(world: World) -> Iterator[tuple[int, uvicorn.Server]]:
    """Serve on a port of its own: the port, and the server, which may be asked to end before."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = server_of(world.app, world.app.state.context.settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield listening.getsockname()[1], server
    server.should_exit = True
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    listening.close()


def short_ways(patched: pytest.MonkeyPatch) -> list[bool]:
    """Of each report that comes the short way from now on, whether it was answered there."""
    found: list[bool] = []
    take = reports._Delivery.take

    async def noted(delivery: Any, *arguments: Any) -> Any:
        answer = await take(delivery, *arguments)
        found.append(answer is not None)
        return answer

    patched.setattr(reports._Delivery, "take", noted)
    return found
