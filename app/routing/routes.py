"""Routes as a gateway needs them: of a service, addresses with whole-number weights.

Owns the reading of the API's answer and the translation of weights. Replicas under one address count as one server with
the sum of their weights; those without an address cannot be reached and are left out. It refuses what a plain HTTP
gateway cannot forward to: other schemes and paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from solvers.errors import InputError

WEIGHT_MAX = 100
"""Weight of a service's heaviest server; HAProxy takes 256 at most, nginx any."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RouteServer:
    """Where a ready process answers. `host` is an address or a name."""

    host: str
    port: int
    weight: int
    replicas: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Host and port as configurations write them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRoutes:
    """One service's servers, by address. `ready_path` is where the service said that it can be asked for readiness."""

    service: str
    servers: tuple[RouteServer, ...]
    ready_path: str | None = None


def read_service(plain: Mapping[str, Any]) -> ServiceRoutes:
    """Routes of a service from the API's answer. Raises InputError for endpoints that no gateway can forward to."""
    weights: dict[tuple[str, int], float] = {}
    replicas: dict[tuple[str, int], list[str]] = {}
    for item in plain["replicas"]:
        if item["host"] is None or item["port"] is None:
            continue
        parts = urlsplit(item["endpoint"])
        if parts.scheme != "http" or parts.path.strip("/"):
            raise InputError(
                f"{item['replica']} answers under {item['endpoint']}, but servers behind a gateway are plain http:// "
                "without a path"
            )
        place = (str(item["host"]), int(item["port"]))
        weights[place] = weights.get(place, 0.0) + float(item["weight"])
        replicas.setdefault(place, []).append(str(item["replica"]))
    heaviest = max(weights.values(), default=0.0)
    return ServiceRoutes(
        service=str(plain["service"]),
        ready_path=plain.get("ready_path"),
        servers=tuple(
            RouteServer(host=host, port=port, weight=_whole(weight, heaviest), replicas=tuple(replicas[host, port]))
            for (host, port), weight in sorted(weights.items())
        ),
    )


def read_services(plain: Mapping[str, Any]) -> tuple[ServiceRoutes, ...]:
    """Routes of all services from the API's answer."""
    return tuple(read_service(item) for item in plain["items"])


def _whole(weight: float, heaviest: float) -> int:
    return max(1, round(WEIGHT_MAX * weight / heaviest)) if heaviest > 0 else WEIGHT_MAX


def label_of(service: str) -> str:
    """`project/name` as gateways write it: HAProxy separates backend and server by the slash."""
    return service.replace("/", ":")
