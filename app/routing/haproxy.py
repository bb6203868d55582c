"""HAProxy: backends with a fixed number of server slots for each service, and following routes in a running one.

Slots beyond the present servers are written disabled, so that a follower can fill them over the runtime API without a
reload. Requests to a server that cannot be connected to go to another one; what may have been executed already is never
sent twice. Whenever there is news, and every second, HAProxy is asked what it has, and only what differs is commanded:
so a HAProxy that was reloaded gets its servers back, and two followers do not fight. A server that is new gets a free
slot (address and weight while the slot is in maintenance, then ready); one that left is drained, gets no new requests
and finishes what it has, and when its last connection is gone its slot is free. Answers are not interpreted, but for
the two that mean that this socket will never do: no permission, and a command that HAProxy does not know. Without a
usable socket for longer than a reload takes, following ends. What services are asked for is read at the same times.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from app.client.held import HeldRoutes
from app.logs import EventLog
from app.routing.offered import ASKED, OfferedLoad, read_asked
from app.routing.routes import NewestRoutes, RouteServer, ServiceRoutes, address_of, label_of
from solvers.errors import HeadroomError, InputError

SLOTS = 16
NOWHERE = "127.0.0.1:1"
"""The address of a slot that has never been used."""
HEADER = "# Written by headroom routes render; changes are lost.\n"


class Balance(StrEnum):
    """How HAProxy picks a server: fewest open requests by weight, or the better of two drawn by weight."""

    LEASTCONN = "leastconn"
    RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class HaproxyStyle:
    slots: int = SLOTS
    balance: Balance = Balance.LEASTCONN


def backends(services: Iterable[ServiceRoutes], style: HaproxyStyle) -> str:
    """Backend sections of these services. Raises InputError when the slots do not suffice."""
    return HEADER + "".join("\n" + "\n".join(_section(routes, style)) + "\n" for routes in services)


def _section(routes: ServiceRoutes, style: HaproxyStyle) -> Iterator[str]:
    if len(routes.servers) > style.slots:
        raise InputError(f"{routes.service} has {len(routes.servers)} servers, but --slots is {style.slots}")
    yield f"backend {label_of(routes.service)}"
    yield "    mode http"
    yield f"    balance {'random(2)' if style.balance is Balance.RANDOM else 'leastconn'}"
    # A connection that a worker closes while it idles is a request lost; a fresh one for each cannot be.
    yield "    option http-server-close"
    yield "    timeout connect 1s"
    yield "    timeout check 2s"
    yield "    retries 3"
    yield "    option redispatch 1"
    yield "    retry-on conn-failure"
    if routes.ready_path is not None:
        yield "    option httpchk"
        yield f"    http-check send meth GET uri {_quoted(routes.ready_path)}"
        yield "    http-check expect status 200-299"
    yield "    default-server check inter 1s fastinter 250ms fall 2 rise 1 init-addr last,libc,none"
    for position, name in enumerate(f"slot{number}" for number in range(1, style.slots + 1)):
        yield f"    {_line(name, routes.servers[position] if position < len(routes.servers) else None)}"


def _line(name: str, server: RouteServer | None) -> str:
    if server is None:
        return f"server {name} {NOWHERE} weight 1 disabled"
    return f"server {name} {server.address} weight {server.weight}"


def _quoted(path: str) -> str:
    """A word of a HAProxy configuration in strong quotes, in which nothing but the quote means anything."""
    return "'" + path.replace("'", "'\\''") + "'"


# --- Following routes in a running HAProxy: no reload, and nothing commanded that is so already


TIMEOUT_S = 3.0
ANSWER_BYTES_MAX = 2**26
_USELESS = {"permission denied": "the stats socket needs `level admin`", "unknown command": "HAProxy is older than 2.2"}


class SocketError(HeadroomError):
    """The socket does not answer, or not as HAProxy's does at level admin."""

    code = "haproxy-socket"


class RuntimeSocket:
    """Talks to one HAProxy; a connection for each command, as the API wants it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ask(self, command: str) -> str:
        """The answer to a command, without white space around it. Raises SocketError."""
        try:
            answer = self._exchange(command.encode() + b"\n").decode(errors="replace").strip()
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise SocketError(f"{self.path}: {reason[:1].lower()}{reason[1:]}") from error
        for beginning, reason in _USELESS.items():
            if answer.lower().startswith(beginning):
                raise SocketError(f"{self.path}: {beginning}: {reason}")
        return answer

    def _exchange(self, sent: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(TIMEOUT_S)
            line.connect(str(self.path))
            line.sendall(sent)
            parts, size = [], 0
            while part := line.recv(65536):
                parts.append(part)
                size += len(part)
                if size > ANSWER_BYTES_MAX:
                    raise OSError(f"the answer exceeds {ANSWER_BYTES_MAX} bytes")
            return b"".join(parts)


FORCED_MAINTENANCE, FORCED_DRAIN = 0x01, 0x08
IN_MAINTENANCE = 0x01 | 0x02 | 0x20
DRAINING = 0x08 | 0x10


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A server of a backend as HAProxy has it. `used` counts connections that carry a request."""

    name: str
    host: str
    port: int
    weight: int
    admin_state: int
    used: int = 0

    @property
    def in_maintenance(self) -> bool:
        return bool(self.admin_state & IN_MAINTENANCE)

    @property
    def draining(self) -> bool:
        return not self.in_maintenance and bool(self.admin_state & DRAINING)

    @property
    def ready(self) -> bool:
        """Whether it takes requests, as far as anybody commanded."""
        return not self.admin_state & (IN_MAINTENANCE | DRAINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, what it is called in the log, and the server it is about."""

    event: str
    slot: str
    server: str
    words: str
    weight: int | None = None
    must_say: str = ""
    """What the answer contains when it worked; empty: the answer is empty, too."""


@dataclass(frozen=True, slots=True)
class SlotChanges:
    """Commands in order, and servers for which no slot was free."""

    commands: tuple[Command, ...]
    homeless: tuple[RouteServer, ...]


def changes(wanted: Iterable[RouteServer], slots: Sequence[Slot]) -> SlotChanges:
    """What to command. Hosts of servers are addresses, as HAProxy writes them."""
    by_place = {(server.host, server.port): server for server in wanted}
    held: dict[tuple[str, int], Slot] = {}
    spare: list[Slot] = []
    for slot in sorted(slots, key=lambda each: not each.ready):
        place = (slot.host, slot.port)
        if place in by_place and place not in held:
            held[place] = slot
        else:
            spare.append(slot)
    commands: list[Command] = []
    homeless = []
    # Even a used one may be filled: requests that it carries keep their connections.
    free = sorted(spare, key=lambda slot: (not slot.in_maintenance, slot.ready, slot.used))
    taken = set()
    for place, server in by_place.items():
        if place in held:
            commands += _keep(held[place], server)
        elif free:
            slot = free.pop(0)
            taken.add(slot.name)
            commands += _fill(slot, server)
        else:
            homeless.append(server)
    # New ones first: the old go on until the new take requests.
    for slot in spare:
        if slot.name not in taken:
            commands += _empty(slot)
    return SlotChanges(tuple(commands), tuple(homeless))


def _keep(slot: Slot, server: RouteServer) -> Iterator[Command]:
    if slot.weight != server.weight:
        yield _weight(slot, server)
    if not slot.ready:
        yield _state("route.server_ready", slot, server.address, "ready")


def _fill(slot: Slot, server: RouteServer) -> Iterator[Command]:
    if not slot.in_maintenance:
        yield _state("route.slot_freed", slot, address_of(slot.host, slot.port), "maint")
    yield Command(
        event="route.server_placed",
        slot=slot.name,
        server=server.address,
        words=f"addr {server.host} port {server.port}",
        weight=server.weight,
        must_say="chang",
    )
    if slot.weight != server.weight:
        yield _weight(slot, server)
    yield _state("route.server_ready", slot, server.address, "ready")


def _empty(slot: Slot) -> Iterator[Command]:
    if slot.ready:
        yield _state("route.server_drained", slot, address_of(slot.host, slot.port), "drain")
    elif slot.draining and slot.used == 0:
        yield _state("route.slot_freed", slot, address_of(slot.host, slot.port), "maint")


def _weight(slot: Slot, server: RouteServer) -> Command:
    return Command(
        event="route.weight_set",
        slot=slot.name,
        server=server.address,
        words=f"weight {server.weight}",
        weight=server.weight,
    )


def _state(event: str, slot: Slot, server: str, state: str) -> Command:
    return Command(event=event, slot=slot.name, server=server, words=f"state {state}")


def read_slots(states: str, connections: str) -> Mapping[str, tuple[Slot, ...]]:
    """Slots by backend from `show servers state` and `show servers conn`. Raises ValueError for any other text."""
    used = {}
    for row in _rows(connections, "bkname/svname"):
        used[row["bkname/svname"]] = int(row["used_cur"])
    found: dict[str, list[Slot]] = {}
    for row in _rows(states, "be_id"):
        backend = row["be_name"]
        found.setdefault(backend, []).append(
            Slot(
                name=row["srv_name"],
                host=row["srv_addr"],
                port=int(row["srv_port"]),
                weight=int(row["srv_uweight"]),
                admin_state=int(row["srv_admin_state"]),
                used=used.get(f"{backend}/{row['srv_name']}", 0),
            )
        )
    return {backend: tuple(slots) for backend, slots in found.items()}


def _rows(text: str, first: str) -> Iterator[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.strip()]
    heads = [position for position, line in enumerate(lines) if line.startswith(f"# {first} ")]
    if not heads:
        raise ValueError(f"no table of {first}: {text.strip()[:200]!r}")
    names = lines[heads[0]].removeprefix("# ").split()
    for line in lines[heads[0] + 1 :]:
        yield dict(zip(names, line.split(), strict=False))


TICK_S = 1.0
PATIENCE_S = 10.0
"""How long the socket may be away, as it is while HAProxy is reloaded."""
NAME_KEPT_S = 30.0


class ResolvedNames:
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

    def __init__(
        self, runtime: RuntimeSocket, services: Sequence[str], log: EventLog, offered: OfferedLoad | None = None
    ) -> None:
        """`services`: those that must have a backend; empty: whichever has one. `offered` None: nobody counts."""
        self._runtime = runtime
        self._offered = offered
        self._services = frozenset(services)
        self._followed: frozenset[str] = frozenset()
        self._log = log
        self._names = ResolvedNames(log, resolve)
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

    def run(self, board: NewestRoutes, ending: threading.Event) -> None:
        """Follow until asked to end. Raises SocketError when the socket stays away."""
        held, away_since_s = HeldRoutes[ServiceRoutes](), None
        while not ending.is_set():
            board.news.clear()
            now_s = time.monotonic()
            try:
                routes = held.believe(board.routes(), now_s)
                self.follow(routes, now_s)
                self.count(routes, time.monotonic(), time.time())
                away_since_s = None
            except SocketError as error:
                away_since_s = now_s if away_since_s is None else away_since_s
                if now_s - away_since_s >= PATIENCE_S:
                    raise
                self._log.warning("haproxy.away", error)
            board.news.wait(TICK_S)
        with suppress(SocketError):
            self.count(board.routes(), time.monotonic(), time.time())

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

    def count(self, services: Iterable[str], now_s: float, wall_s: float) -> None:
        """Read what those of these services that are followed were asked for. Raises SocketError."""
        if self._offered is None:
            return
        with self._understood():
            asked = read_asked(self._runtime.ask(ASKED))
        followed = [service for service in services if not self._services or service in self._services]
        self._offered.take(asked, followed, now_s, wall_s)

    def _slots(self) -> Mapping[str, tuple[Slot, ...]]:
        with self._understood():
            return read_slots(self._runtime.ask("show servers state"), self._runtime.ask("show servers conn"))

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError) as error:
            raise SocketError(f"{self._runtime.path}: not an answer of HAProxy 2.2 or newer: {error}") from error

    def _placed(self, servers: Sequence[RouteServer], now_s: float) -> list[RouteServer]:
        placed = []
        for server in servers:
            address = self._names.address(server.host, now_s)
            if address is not None:
                placed.append(replace(server, host=address))
        return placed

    def _adjust(self, backend: str, servers: Sequence[RouteServer], slots: Sequence[Slot]) -> int:
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
