"""Load on a worker: so many requests at a time, or so many a second, over plain HTTP.

Owns connections, pacing and the latencies it saw. Closed loop: so many clients, each sends when it has its answer.
Open loop: arrivals at random moments of a given rate, whether or not earlier ones are answered, up to a bound; latency
counts from the moment a request was due, so that a slow worker cannot hide its queue. It refuses to retry: what fails
is counted.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
CLIENTS_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent: POST with a body, GET without."""

    path: str
    body: bytes = b""
    content_type: str = "application/json"


@dataclass(slots=True)
class Seen:
    """What came back in a stretch of time."""

    latencies_ms: list[float] = field(default_factory=list)
    failed: int = 0
    first_failure: str = ""


class Load:
    """Clients in threads until stopped."""

    def __init__(self, base_url: str, request: Request, now_s: Callable[[], float] = time.monotonic) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._request = request
        self._now_s = now_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._seen = Seen()
        self._threads: list[threading.Thread] = []

    def closed(self, concurrency: int) -> None:
        """Start that many clients."""
        for _ in range(min(concurrency, CLIENTS_MAX)):
            self._begin(self._client)

    def open(self, rate_rps: float, draw: random.Random, clients: int = 64) -> None:
        """Start arrivals at that rate; at most `clients` requests are under way at a time, the others wait their turn
        with their clocks running.
        """
        due = threading.Semaphore(0)
        moments: list[float] = []
        for _ in range(min(clients, CLIENTS_MAX)):
            self._begin(lambda: self._server_of(due, moments))
        self._begin(lambda: self._arrive(rate_rps, draw, due, moments))

    def take(self) -> Seen:
        """What was seen since the last call."""
        with self._lock:
            seen, self._seen = self._seen, Seen()
        return seen

    def close(self) -> None:
        """Stop; requests under way are waited for."""
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="load", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _client(self) -> None:
        connection = self._connection()
        while not self._stop.is_set():
            connection = self._one(connection, self._now_s())
        connection.close()

    def _server_of(self, due: threading.Semaphore, moments: list[float]) -> None:
        connection = self._connection()
        while not self._stop.is_set():
            if due.acquire(timeout=0.1):
                with self._lock:
                    moment = moments.pop(0)
                connection = self._one(connection, moment)
        connection.close()

    def _arrive(self, rate_rps: float, draw: random.Random, due: threading.Semaphore, moments: list[float]) -> None:
        next_s = self._now_s()
        while not self._stop.is_set():
            next_s += draw.expovariate(rate_rps)
            self._stop.wait(max(0.0, next_s - self._now_s()))
            with self._lock:
                moments.append(next_s)
            due.release()

    def _one(self, connection: http.client.HTTPConnection, since_s: float) -> http.client.HTTPConnection:
        """Send one request; the connection to use for the next one."""
        problem = ""
        try:
            if self._request.body:
                headers = {"Content-Type": self._request.content_type}
                connection.request("POST", self._request.path, self._request.body, headers)
            else:
                connection.request("GET", self._request.path)
            response = connection.getresponse()
            response.read()
            if response.status >= 400:
                problem = f"status {response.status}"
        except (OSError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
            connection.close()
            connection = self._connection()
            # A worker that refuses connections must not be asked thousands of times a second.
            self._stop.wait(0.05)
        took_ms = 1000.0 * (self._now_s() - since_s)
        with self._lock:
            if problem:
                self._seen.failed += 1
                self._seen.first_failure = self._seen.first_failure or problem
            else:
                self._seen.latencies_ms.append(took_ms)
        return connection

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
