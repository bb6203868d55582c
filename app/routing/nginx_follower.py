"""Follows routes for nginx: a new file after every change, and a command that has it read.

Owns when that happens: not more often than nginx can start new workers, and again until the command has worked. The
command is a program with arguments; no shell sees it.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.logs import EventLog
from app.routing.files import write_whole
from app.routing.haproxy import Balance
from app.routing.nginx import upstreams
from app.routing.routes import ServiceRoutes
from app.routing.watching import Board, Held

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
    """Keeps one file current."""

    def __init__(self, order: NginxOrder, log: EventLog) -> None:
        self._order = order
        self._log = log
        # The one who wrote the file last may have ended before nginx read it.
        self._unread = True
        self._reload_after_s = 0.0

    def run(self, board: Board, ending: threading.Event) -> None:
        """Follow until asked to end. Raises OSError when the file cannot be written or the command not be run."""
        held = Held()
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
