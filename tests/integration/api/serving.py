"""The application behind a real socket, for streams that a client in the same process would wait for for ever."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from tests.integration.api.world import World

DEADLINE_S = 20.0


@contextmanager
def serving(world: World) -> Iterator[tuple[int, uvicorn.Server]]:
    """Serve on a port of its own: the port, and the server, which may be asked to end before."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(world.app, log_config=None, timeout_graceful_shutdown=5, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    await_true(lambda: server.started)
    yield listening.getsockname()[1], server
    server.should_exit = True
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    listening.close()


def await_true(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, and fail after a while."""
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.02)
