"""Load on a worker: so many requests at a time over plain HTTP.

Owns connections and the latencies it saw. The loop is closed: each of its clients sends when it has its answer, so that
a worker is as busy as it can be and no queue grows without end. It refuses to retry: what fails is counted.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
CLIENTS_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What is sent: POST with a body, GET without."""

    path: str
    body: bytes = b""
    content_type: str = "application/json"


@dataclass(slots=True)
class LoadSeen:
    """What came back in a stretch of time."""

    latencies_ms: list[float] = field(default_factory=list)
    failed: int = 0
    first_failure: str = ""


class ClientLoad:
    """Clients in threads until stopped."""

    def __init__(self, base_url: str, request: LoadRequest, now_s: Callable[[], float] = time.monotonic) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._request = request
        self._now_s = now_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._seen = LoadSeen()
        self._threads: list[threading.Thread] = []

    def closed(self, concurrency: int) -> None:
        """Start that many clients."""
        for _ in range(min(concurrency, CLIENTS_MAX)):
            self._begin(self._client)

    def take(self) -> LoadSeen:
        """What was seen since the last call."""
        with self._lock:
            seen, self._seen = self._seen, LoadSeen()
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
