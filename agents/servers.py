"""Which of several API processes a node talks to: each node prefers one by its name, so that a fleet spreads evenly
over them without anybody who counts.

What cannot be reached, or cannot serve, is passed over for a while that doubles up to a minute, and asked whether it is
ready before it is used again: a node comes back to its own. Where all are away the one that is due first is tried, at
the pace of whoever calls.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from agents.transport import TIMEOUT_S, HttpAnswer, HttpConnection, StatusError, Tls, UnreachableError

AWAY_S_MIN, AWAY_S_MAX = 5.0, 60.0
ASK_S = 2.0
"""How long a process that was away may take to say that it is back."""
READY = "/v1/ready"
CANNOT_SERVE = frozenset({502, 503, 504})


class Servers:
    """The addresses as one node prefers them: those of the highest weight first, which its name and theirs give
    (rendezvous hashing), so that an address that comes or goes moves no other node. Thread-safe.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        node: str,
        now_s: Callable[[], float] = time.monotonic,
        tls: Tls | None = None,
    ) -> None:
        """Raises ConfigError for what is no address."""
        self.addresses = sorted(
            dict.fromkeys(addresses), key=lambda url: hashlib.sha256(f"{node} {url}".encode()).digest(), reverse=True
        )
        self._tls = tls
        for url in self.addresses:
            self.open(url)
        self._now_s = now_s
        self._jitter = random.Random()
        self._lock = threading.Lock()
        self._away: dict[str, tuple[float, float]] = {}
        """Passed over until when, after which pause."""

    def chosen(self) -> str:
        """The address to use now. One that was away is asked first, by one thread at a time."""
        for url in self.addresses:
            with self._lock:
                until_s, _ = self._away.get(url, (0.0, 0.0))
                if url in self._away and self._now_s() >= until_s and len(self.addresses) > 1:
                    self._pass_over(url)
                    due = True
                else:
                    due = False
            if due and self._is_ready(url):
                self.back(url)
            if url not in self._away:
                return url
        with self._lock:
            return min(self.addresses, key=lambda url: self._away.get(url, (0.0, 0.0)))

    def failed(self, url: str) -> None:
        """It could not be reached, or cannot serve."""
        with self._lock:
            if self._now_s() >= self._away.get(url, (0.0, 0.0))[0]:
                self._pass_over(url)

    def back(self, url: str) -> None:
        with self._lock:
            self._away.pop(url, None)

    def open(self, url: str, timeout_s: float = TIMEOUT_S) -> HttpConnection:
        """A connection to one of them. Raises ConfigError for what is no address."""
        return HttpConnection(url, timeout_s, self._tls)

    def connection(self) -> SpreadConnection:
        """A new connection to whichever is chosen when it is used."""
        return SpreadConnection(self)

    def _is_ready(self, url: str) -> bool:
        connection = self.open(url, ASK_S)
        try:
            return connection.call("GET", READY).ok
        except UnreachableError:
            return False
        finally:
            connection.close()

    def _pass_over(self, url: str) -> None:
        pause_s = min(AWAY_S_MAX, max(AWAY_S_MIN, 2.0 * self._away.get(url, (0.0, 0.0))[1]))
        self._away[url] = (self._now_s() + pause_s * self._jitter.uniform(0.5, 1.5), pause_s)


class SpreadConnection:
    """One connection to the control plane, through whichever of its processes is chosen. Not thread-safe."""

    def __init__(self, servers: Servers) -> None:
        self.token = ""
        self._servers = servers
        self.url = servers.addresses[0]
        self._open = servers.open(self.url)

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> HttpAnswer:
        """One request, see `HttpConnection.call`. After a failure the next one may go elsewhere."""
        self._choose()
        try:
            answer = self._open.call(method, path, body, headers)
        except UnreachableError:
            self._servers.failed(self.url)
            raise
        if answer.status in CANNOT_SERVE:
            self._servers.failed(self.url)
        else:
            self._servers.back(self.url)
        return answer

    def lines(self, path: str, silence_s: float) -> Iterator[bytes]:
        """Lines of an endless answer, see `HttpConnection.lines`, until another address is chosen."""
        self._choose()
        said = False
        try:
            for line in self._open.lines(path, silence_s):
                said = True
                yield line
                if self._servers.chosen() != self.url:
                    raise UnreachableError("another server is chosen")
        except (UnreachableError, StatusError) as error:
            # A stream that spoke and ended says nothing about its server.
            if not said and (not isinstance(error, StatusError) or error.status in CANNOT_SERVE):
                self._servers.failed(self.url)
            raise

    def close(self) -> None:
        self._open.close()

    def _choose(self) -> None:
        url = self._servers.chosen()
        if url != self.url:
            self._open.close()
            self.url, self._open = url, self._servers.open(url)
        self._open.token = self.token
