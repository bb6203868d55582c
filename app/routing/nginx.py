"""nginx upstreams: a file to include, with a block for each service.

Owns the text. A service that nobody serves has one server that is down, because nginx refuses empty upstreams: its
requests get 502. nginx has no runtime API in its free form, so every change is a new file and a reload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.routing.haproxy import Balance
from app.routing.routes import ServiceRoutes
from solvers.errors import InputError

HEADER = "# Written by headroom routes; changes are lost.\n"


def upstreams(services: Iterable[ServiceRoutes], balance: Balance = Balance.LEASTCONN) -> str:
    """Upstream blocks of these services. Raises InputError when two of them would have one name."""
    names: dict[str, str] = {}
    text = HEADER
    for routes in services:
        name = upstream_name(routes.service)
        if names.setdefault(name, routes.service) != routes.service:
            raise InputError(f"{names[name]} and {routes.service} would both be the upstream {name}")
        text += "\n" + "\n".join(_block(name, routes, balance)) + "\n"
    return text


def upstream_name(service: str) -> str:
    """`project/name` with a dot: nginx takes a slash for a path and a colon for a port."""
    return service.replace("/", ".")


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
