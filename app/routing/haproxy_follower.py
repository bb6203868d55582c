"""Follows routes in a running HAProxy: no reload, and nothing commanded that is so already.

Owns the rhythm. Whenever there is news, and every second, HAProxy is asked what it has, and only what differs is
commanded: so a HAProxy that was reloaded gets its servers back, and two followers do not fight. It refuses to go on
without a usable socket for longer than a reload takes.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from app.logs import EventLog
from app.routing.routes import Server, ServiceRoutes, label_of
from app.routing.runtime import RuntimeSocket, SocketError
from app.routing.slots import Command, Slot, changes, read_slots
from app.routing.watching import Board, Held

TICK_S = 1.0
PATIENCE_S = 10.0
"""How long the socket may be away, as it is while HAProxy is reloaded."""
NAME_KEPT_S = 30.0


class Names:
    """Host names as addresses, remembered for a while; the last known one where nobody answers."""

    def __init__(self, log: EventLog, resolve: Callable[[str], str]) -> None:
        self._log = log
        self._resolve = resolve
        self._known: dict[str, tuple[str, float]] = {}

    def address(self, host: str, now_s: float) -> str | None:
        """The address of a host; None when it was never known."""
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            pass
        known = self._known.get(host)
        if known is not None and now_s < known[1]:
            return known[0]
        try:
            found = self._resolve(host)
        except OSError as error:
            self._log.warning("route.name_unknown", error, host=host)
            return known[0] if known is not None else None
        self._known[host] = (found, now_s + NAME_KEPT_S)
        return found


def resolve(host: str) -> str:
    """The first address of a name. Raises OSError."""
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


class HaproxyFollower:
    """Makes one HAProxy's backends hold the routes of their services."""

    def __init__(self, runtime: RuntimeSocket, services: Sequence[str], log: EventLog) -> None:
        """`services`: those that must have a backend; empty: whichever has one."""
        self._runtime = runtime
        self._services = frozenset(services)
        self._followed: frozenset[str] = frozenset()
        self._log = log
        self._names = Names(log, resolve)
        self._lacking: frozenset[str] = frozenset()
        self._homeless: dict[str, tuple[str, ...]] = {}

    def check(self) -> None:
        """Raise SocketError when the socket will not do, or lacks a backend that must be there."""
        # A command that needs level admin and changes nothing.
        self._runtime.ask("set server headroom:none/none state ready")
        backends = self._slots()
        lacking = [label_of(service) for service in sorted(self._services) if label_of(service) not in backends]
        if lacking:
            raise SocketError(f"{self._runtime.path}: HAProxy has no backend {lacking[0]}")

    def run(self, board: Board, ending: threading.Event) -> None:
        """Follow until asked to end. Raises SocketError when the socket stays away."""
        held, away_since_s = Held(), None
        while not ending.is_set():
            board.news.clear()
            now_s = time.monotonic()
            try:
                self.follow(held.believe(board.routes(), now_s), now_s)
                away_since_s = None
            except SocketError as error:
                away_since_s = now_s if away_since_s is None else away_since_s
                if now_s - away_since_s >= PATIENCE_S:
                    raise
                self._log.warning("haproxy.away", error)
            board.news.wait(TICK_S)

    def follow(self, routes: Mapping[str, ServiceRoutes], now_s: float) -> int:
        """One round; the number of changes. Raises SocketError."""
        backends = self._slots()
        known = self._services or (self._followed | routes.keys())
        named = {service: routes.get(service, ServiceRoutes(service=service, servers=())) for service in sorted(known)}
        # A service that is deleted is followed to its end.
        self._followed = frozenset(known)
        self._tell_lacking(frozenset(label_of(service) for service in named) - backends.keys())
        done = 0
        for service, found in named.items():
            backend = label_of(service)
            if backend in backends:
                done += self._adjust(backend, self._placed(found.servers, now_s), backends[backend])
        return done

    def _slots(self) -> Mapping[str, tuple[Slot, ...]]:
        states = self._runtime.ask("show servers state")
        try:
            return read_slots(states, self._runtime.ask("show servers conn"))
        except (ValueError, KeyError) as error:
            raise SocketError(f"{self._runtime.path}: not an answer of HAProxy 2.2 or newer: {error}") from error

    def _placed(self, servers: Sequence[Server], now_s: float) -> list[Server]:
        placed = []
        for server in servers:
            address = self._names.address(server.host, now_s)
            if address is not None:
                placed.append(replace(server, host=address))
        return placed

    def _adjust(self, backend: str, servers: Sequence[Server], slots: Sequence[Slot]) -> int:
        wanted = changes(servers, slots)
        homeless = tuple(server.address for server in wanted.homeless)
        if homeless != self._homeless.get(backend, ()):
            self._homeless[backend] = homeless
            if homeless:
                self._log.error("route.no_slot", backend=backend, servers=" ".join(homeless), slots=len(slots))
        refused: set[str] = set()
        done = 0
        for command in wanted.commands:
            if command.slot not in refused and not self._command(backend, command):
                refused.add(command.slot)
            else:
                done += command.slot not in refused
        return done

    def _command(self, backend: str, command: Command) -> bool:
        answer = self._runtime.ask(f"set server {backend}/{command.slot} {command.words}")
        if not answer or (command.must_say and command.must_say in answer):
            weight = {} if command.weight is None else {"weight": command.weight}
            self._log.info(command.event, backend=backend, slot=command.slot, server=command.server, **weight)
            return True
        # What comes after it for this slot must not happen: a slot with a wrong address would become ready.
        facts = {"backend": backend, "slot": command.slot, "command": command.words, "answer": answer}
        self._log.error("route.command_refused", None, **facts)
        return False

    def _tell_lacking(self, lacking: frozenset[str]) -> None:
        for backend in sorted(lacking - self._lacking):
            self._log.warning("route.no_backend", backend=backend)
        self._lacking = lacking
