"""A helper that listens on a real socket in a folder with a short name."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.helper.desk import Peer
from agents.helper.server import HelperRules, HelperServer, listen, peer_of
from tests.unit.agents.helper.doubles import Office
from tests.waiting import wait_until

US = Peer(pid=1, uid=1001, gid=1001)


class Listening:
    """An office behind a socket, until closed. Who connects is who `credentials` says."""

    def __init__(
        self, folder: Path, rules: HelperRules, credentials: Callable[[socket.socket], Peer], now_s: Callable[[], float]
    ) -> None:
        self.office = Office(folder)
        self.path = folder / "helper.sock"
        self.server = HelperServer(rules, self.office.desk, self.office.audit, now_s, credentials)
        self.listener = listen(self.path)
        self._accepting = threading.Thread(target=self.server.accept, args=(self.listener,))
        self._accepting.start()

    def close(self) -> None:
        self.server.close(self.listener)
        self._accepting.join(timeout=20)
        assert not self._accepting.is_alive()
        wait_until(lambda: not any(thread.name == "connection" for thread in threading.enumerate()))

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(20)
        connection.connect(str(self.path))
        return connection


Opener = Callable[..., Listening]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Sockets' paths are short."""
    with tempfile.TemporaryDirectory(prefix="hr-") as path:
        yield Path(path)


@pytest.fixture
def listening(folder: Path) -> Iterator[Opener]:
    """Opens helpers and closes them in the end."""
    opened: list[Listening] = []

    def open_one(
        rules: HelperRules | None = None,
        credentials: Callable[[socket.socket], Peer] = peer_of,
        now_s: Callable[[], float] = time.monotonic,
    ) -> Listening:
        mine = HelperRules(uids=frozenset({US.uid}), line_timeout_s=5.0)
        opened.append(Listening(folder, rules or mine, credentials, now_s))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()
