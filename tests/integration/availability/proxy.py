"""A real HAProxy with the configuration that we ship, before API processes of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.routing.haproxy import RuntimeSocket
from benchmarks.gateway.processes import end, haproxy_program, listens
from tests.integration.faults.house import ROOT
from tests.ports import free_port
from tests.waiting import wait_until

SHIPPED = ROOT / "deploy" / "haproxy" / "headroom.cfg"
RUNNING = "2"
"""As HAProxy writes a server's state."""


class Proxy:
    def __init__(self, socket: Path) -> None:
        self._runtime = RuntimeSocket(socket)

    def serving(self) -> set[str]:
        """The servers that get requests, by name."""
        rows = [line.split() for line in self._runtime.ask("show servers state api").splitlines()[2:] if line.strip()]
        return {row[3] for row in rows if row[5] == RUNNING}


@contextmanager
def balancing(folder: Path, port: int, backends: Sequence[int]) -> Iterator[Proxy]:
    """Listen at a port for these; the servers of the file that are left over lead nowhere."""
    socket, more = folder / "haproxy.sock", folder / "socket.cfg"
    more.write_text(f"global\n    stats socket {socket} level admin\n", encoding="utf-8")
    places = [*backends, *(free_port() for _ in range(3 - len(backends)))]
    named = {f"HEADROOM_API_{number}": f"127.0.0.1:{place}" for number, place in enumerate(places, 1)}
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [haproxy_program(), "-db", "-f", str(SHIPPED), "-f", str(more)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, "HEADROOM_BIND": f"127.0.0.1:{port}", **named},
        )  # fmt: skip
    try:
        proxy = Proxy(socket)
        wait_until(lambda: listens(socket) or process.poll() is not None, "the start of haproxy")
        assert process.poll() is None, (folder / "haproxy.log").read_text(encoding="utf-8")
        wanted = {f"api-{number}" for number in range(1, len(backends) + 1)}
        wait_until(lambda: proxy.serving() == wanted, "HAProxy finds every server ready")
        yield proxy
    finally:
        end(process)
