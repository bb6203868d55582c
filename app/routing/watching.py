"""The newest routes on the gateway's side: a thread that watches the API's stream, and what is believed of it.

Owns reconnecting, and two cautions. While the API is away the last routes stand. When a service that was served is said
to be served by nobody, that is believed only after a while: an API that was away itself says so until its nodes have
reported again. A service that was deleted is believed at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.client import ApiError, Client, Document, UnreachableError
from app.logs import EventLog
from app.routing.routes import ServiceRoutes, read_service
from solvers.errors import InputError

EMPTY_HOLD_S = 15.0
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
        """What was told last."""
        with self._lock:
            return self._routes


class HeldRoutes:
    """What to do of what was told. Not thread-safe."""

    def __init__(self, hold_s: float = EMPTY_HOLD_S) -> None:
        self._hold_s = hold_s
        self._routes: dict[str, ServiceRoutes] = {}
        self._empty_since_s: dict[str, float] = {}

    def believe(self, told: Mapping[str, ServiceRoutes], now_s: float) -> Mapping[str, ServiceRoutes]:
        """The routes to follow now."""
        believed = {}
        for service, routes in told.items():
            before = self._routes.get(service)
            if routes.servers or before is None or not before.servers:
                self._empty_since_s.pop(service, None)
                believed[service] = routes
                continue
            since_s = self._empty_since_s.setdefault(service, now_s)
            believed[service] = before if now_s - since_s < self._hold_s else routes
        self._empty_since_s = {name: since for name, since in self._empty_since_s.items() if name in told}
        self._routes = believed
        return believed


class Watcher:
    """Keeps a board up to date until it is asked to end."""

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
