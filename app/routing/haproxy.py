"""HAProxy backends: a section with a fixed number of server slots for each service.

Owns the text. Slots beyond the present servers are written disabled, so that a follower can fill them over the runtime
API without a reload. Requests to a server that cannot be connected to go to another one; what may have been executed
already is never sent twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from app.routing.routes import RouteServer, ServiceRoutes, label_of
from solvers.errors import InputError

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
    """What an operator chooses."""

    slots: int = SLOTS
    balance: Balance = Balance.LEASTCONN


def backends(services: Iterable[ServiceRoutes], style: HaproxyStyle) -> str:
    """Backend sections of these services. Raises InputError when the slots do not suffice."""
    return HEADER + "".join("\n" + "\n".join(_section(routes, style)) + "\n" for routes in services)


def slot_names(slots: int) -> tuple[str, ...]:
    """Names of a backend's servers."""
    return tuple(f"slot{number}" for number in range(1, slots + 1))


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
    for position, name in enumerate(slot_names(style.slots)):
        yield f"    {_line(name, routes.servers[position] if position < len(routes.servers) else None)}"


def _line(name: str, server: RouteServer | None) -> str:
    if server is None:
        return f"server {name} {NOWHERE} weight 1 disabled"
    return f"server {name} {server.address} weight {server.weight}"


def _quoted(path: str) -> str:
    """A word of a HAProxy configuration in strong quotes, in which nothing but the quote means anything."""
    return "'" + path.replace("'", "'\\''") + "'"
