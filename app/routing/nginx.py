"""nginx upstreams: a file to include, with a block for each service, and the follower that keeps it new.

A service that nobody serves has one server that is down, because nginx refuses empty upstreams: its requests get 502.
nginx has no runtime API in its free form, so every change is a new file and a command that has it read: not more often
than nginx can start new workers, and again until it has worked. The command is a program with arguments; no shell sees
it.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.client.held import HeldRoutes
from app.logs import EventLog
from app.routing.haproxy import Balance
from app.routing.routes import NewestRoutes, ServiceRoutes, write_whole
from solvers.errors import InputError

HEADER = "# Written by headroom routes; changes are lost.\n"


def upstreams(services: Iterable[ServiceRoutes], balance: Balance = Balance.LEASTCONN) -> str:
    """Upstream blocks of these services. Raises InputError when two of them would have one name."""
    names: dict[str, str] = {}
    text = HEADER
    for routes in services:
        # nginx takes a slash for a path and a colon for a port.
        name = routes.service.replace("/", ".")
        if names.setdefault(name, routes.service) != routes.service:
            raise InputError(f"{names[name]} and {routes.service} would both be the upstream {name}")
        text += "\n" + "\n".join(_block(name, routes, balance)) + "\n"
    return text


def _block(name: str, routes: ServiceRoutes, balance: Balance) -> Iterator[str]:
    yield f"upstream {name} {{"
    # Without a zone every worker process of nginx would count for itself.
    yield f"    zone {name} 64k;"
    yield "    random two least_conn;" if balance is Balance.RANDOM else "    least_conn;"
    for server in routes.servers:
        yield f"    server {server.address} weight={server.weight} max_fails=2 fail_timeout=2s;"
    if not routes.servers:
        yield "    server 127.0.0.1:1 down;"
    yield "}"


TICK_S = 1.0
RELOAD_EVERY_S = 2.0
RELOAD_S_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NginxOrder:
    """Where the file is and how nginx reads it anew. `services` empty: all."""

    out: Path
    reload_command: tuple[str, ...]
    services: Sequence[str] = ()
    balance: Balance = Balance.LEASTCONN


class NginxFollower:
    def __init__(self, order: NginxOrder, log: EventLog) -> None:
        self._order = order
        self._log = log
        # The one who wrote the file last may have ended before nginx read it.
        self._unread = True
        self._reload_after_s = 0.0

    def run(self, board: NewestRoutes, ending: threading.Event) -> None:
        """Follow until asked to end. Raises OSError when the file cannot be written or the command not be run."""
        held = HeldRoutes[ServiceRoutes]()
        while not ending.is_set():
            board.news.clear()
            now_s = time.monotonic()
            self.follow(held.believe(board.routes(), now_s), now_s)
            board.news.wait(TICK_S)

    def follow(self, routes: Mapping[str, ServiceRoutes], now_s: float) -> None:
        """One round. Raises as `run` does."""
        order = self._order
        wanted = order.services or sorted(routes)
        shown = [routes.get(name, ServiceRoutes(service=name, servers=())) for name in wanted]
        if write_whole(order.out, upstreams(shown, order.balance)):
            self._unread = True
            self._log.info(
                "routes.written",
                file=str(order.out),
                servers=" ".join(server.address for each in shown for server in each.servers),
            )
        if self._unread and now_s >= self._reload_after_s:
            self._reload_after_s = now_s + RELOAD_EVERY_S
            self._unread = not self._reload()

    def _reload(self) -> bool:
        command = self._order.reload_command
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=RELOAD_S_MAX, check=False
            )
        except subprocess.TimeoutExpired as error:
            self._log.warning("nginx.not_reloaded", error)
            return False
        if done.returncode != 0:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()
            reason = said.splitlines()[-1] if said else ""
            self._log.warning("nginx.not_reloaded", status=done.returncode, reason=reason)
            return False
        self._log.info("nginx.reloaded", command=command[0])
        return True
