"""A node whose workers write: the parts of an agent that hear of readers and hand over lines."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

from agents.devices.base import LogRead
from agents.log import Log
from agents.loop.uplink import Mailbox, Tails, listen
from agents.servers import Servers
from tests.integration.api.world import NODE
from tests.waiting import wait_until


class Written:
    """A node's devices, as far as logs go: a list of lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.asked: list[str] = []

    def read_log(self, replica: str, lines: int, places: Mapping[str, int] | None) -> LogRead:
        self.asked.append(replica)
        begin = max(0, len(self.lines) - lines) if places is None else places["w"]
        return LogRead(lines=tuple(self.lines[begin:]), places={"w": len(self.lines)})


@contextmanager
def writing(address: str, token: str) -> Iterator[Written]:
    """What the node's replicas write, for as long as the block lasts."""
    written, stop, mailbox = Written(), threading.Event(), Mailbox(mock.Mock())
    servers = Servers((address,), NODE)
    log = Log(NODE, mock.Mock())
    tails = Tails(written, servers.connection(), lambda: token, log)
    joined = threading.Event()
    joined.set()
    uplink = mock.Mock(servers=servers, joined=joined, token=token)
    threads = [
        threading.Thread(target=tails.run, args=(stop, mailbox.logs_wanted), daemon=True),
        threading.Thread(target=listen, args=(uplink, mailbox, stop, log), daemon=True),
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: mailbox.rung() > 0)
    yield written
    stop.set()
    mailbox.logs_wanted.set()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive()
