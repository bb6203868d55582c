"""Routes as a gateway needs them, addresses with whole-number weights: read from the API's answer, watched, and
written to files that others read.

Replicas under one address count as one server with the sum of their weights; those without an address cannot be reached
and are left out. What a plain HTTP gateway cannot forward to, other schemes and paths, is refused. While the API is
away the last routes stand.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.logs import EventLog
from headroom_client import ApiError, Client, Document, UnreachableError
from solvers.errors import InputError

WEIGHT_MAX = 100
"""Weight of a service's heaviest server; HAProxy takes 256 at most, nginx any."""


def address_of(host: str, port: int) -> str:
    """A host and a port as gateways write them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RouteServer:
    """Where a ready process answers. `host` is an address or a name."""

    host: str
    port: int
    weight: int
    replicas: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        return address_of(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRoutes:
    """One service's servers, by address. `ready_path` is where the service said that it can be asked for readiness."""

    service: str
    servers: tuple[RouteServer, ...]
    ready_path: str | None = None

    def __len__(self) -> int:
        return len(self.servers)


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
    return tuple(read_service(item) for item in plain["items"])


def _whole(weight: float, heaviest: float) -> int:
    return max(1, round(WEIGHT_MAX * weight / heaviest)) if heaviest > 0 else WEIGHT_MAX


def label_of(service: str) -> str:
    """`project/name` as gateways write it: HAProxy separates backend and server by the slash."""
    return service.replace("/", ":")


# --- Files


def write_whole(path: Path, text: str) -> bool:
    """Make a file hold this text; False when it does already. Mode 0644, or the one that it had. Raises OSError."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
        mode = path.stat().st_mode & 0o777
    except (FileNotFoundError, UnicodeDecodeError):
        mode = 0o644
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        Path(scratch).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(scratch).unlink()
        raise
    return True


# --- Watching: a thread that follows the API's stream


_BACKOFF_S_MIN, _BACKOFF_S_MAX = 0.2, 5.0
Watch = Callable[[str], Iterator[Document]]


class NewestRoutes:
    """The newest routes by service, as told. Thread-safe."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._routes: dict[str, ServiceRoutes] = {}
        self.news = threading.Event()

    def tell(self, items: list[Mapping[str, Any]]) -> None:
        """Take the whole of what is served over; services that are not in it are gone."""
        told: dict[str, ServiceRoutes] = {}
        with self._lock:
            before = self._routes
        for item in items:
            service = str(item["service"])
            try:
                told[service] = read_service(item)
            except InputError as error:
                self._log.warning("routes.unusable", error, service=service)
                if service in before:
                    told[service] = before[service]
        with self._lock:
            self._routes = told
        self.news.set()

    def routes(self) -> Mapping[str, ServiceRoutes]:
        with self._lock:
            return self._routes


class Watcher:
    def __init__(self, client: Client, service: str, board: NewestRoutes, log: EventLog) -> None:
        """`service`: `project/name`, empty for all. The client is the watcher's alone."""
        self._client = client
        self._service = service
        self._board = board
        self._log = log
        self.ending = threading.Event()
        """Once set, the thread ends when its stream says something or breaks."""

    def start(self) -> None:
        """Read once, so that a wrong address or token is an error at once, then go on watching. Raises as `Client`."""
        self._tell(self._client.routes(service=self._service).body)
        threading.Thread(target=self._run, name="routes", daemon=True).start()

    def _run(self) -> None:
        backoff_s = _BACKOFF_S_MIN
        while not self.ending.is_set():
            heard = self._watch()
            # Also a stream that ended as it should is not opened again at once: the next may end as quickly.
            backoff_s = _BACKOFF_S_MIN if heard else min(2 * backoff_s, _BACKOFF_S_MAX)
            self.ending.wait(backoff_s)

    def _watch(self) -> bool:
        """Pass on one stream to its end; whether it said anything."""
        heard = False
        try:
            for body in self._client.watch_routes(self._service):
                if self.ending.is_set():
                    break
                self._tell(body)
                heard = True
        except (ApiError, UnreachableError, ValueError) as error:
            if isinstance(error, ApiError) and error.status == 404:
                self._board.tell([])
            self._log.warning("routes.unavailable", error)
        return heard

    def _tell(self, body: Document) -> None:
        self._board.tell(body.get("items", [body]))
