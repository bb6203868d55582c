"""HTTP to the control plane with the standard library: one connection, over TLS where its address says so, a bearer
token, JSON bodies.

Statuses are not interpreted and nothing is tried again; callers decide.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from agents.errors import AgentError, ConfigError

TIMEOUT_S = 10.0
AFTER_S_MAX = 300.0
BODY_BYTES_MAX = 32 * 2**20
LINE_BYTES_MAX = 64 * 2**10


Tls = Callable[[], ssl.SSLContext]
"""What a connection is to use when it is opened; another one later closes it."""


class UnreachableError(AgentError):
    """The control plane could not be reached, hung up in the middle of an answer, or said nothing for too long."""

    code = "unreachable"
    retryable = True
    is_silence = False
    """Whatever else is asked there at once would wait as long."""

    @classmethod
    def of(cls, error: Exception) -> UnreachableError:
        found = cls(f"{type(error).__name__}: {error}")
        found.is_silence = isinstance(error, TimeoutError)
        return found


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer. Header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def later(self) -> bool:
        """Says nothing about the message itself: it may be sent again."""
        return self.status >= 500 or self.status in (408, 425, 429)

    @property
    def after_s(self) -> float | None:
        """When a server that has too much to do wants to be asked again."""
        told = self.headers.get("retry-after", "")
        return min(float(told), AFTER_S_MAX) if self.status == 429 and told.isdecimal() else None

    def json(self) -> object:
        """The decoded body. Raises UnreachableError when it is not JSON: something else answered."""
        try:
            found: object = json.loads(self.body)
        except ValueError as error:
            raise UnreachableError(f"the answer is not JSON: {error}") from None
        return found

    def reason(self) -> str:
        """A short account for logs: the problem's detail, or the status."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return f"status {self.status}"
        detail = found.get("detail") or found.get("title") if isinstance(found, dict) else None
        return f"status {self.status}: {detail}" if detail else f"status {self.status}"


class HttpConnection:
    """One keep-alive connection to the server at `base_url`. Not thread-safe."""

    def __init__(self, base_url: str, timeout_s: float = TIMEOUT_S, tls: Tls | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{base_url!r} is not an http:// or https:// address")
        self._tls = (tls or _trusted_here()) if parts.scheme == "https" else None
        self._context: ssl.SSLContext | None = None
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._open: http.client.HTTPConnection | None = None
        self.token = ""

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> HttpAnswer:
        """One request; a body of bytes goes out as it is, under the caller's Content-Type. A kept connection that the
        server has closed meanwhile is opened anew once, before anything was answered on it. Raises UnreachableError.
        """
        kept = self._open is not None
        try:
            return self._exchange(method, path, body, headers)
        except UnreachableError as error:
            if not kept or error.is_silence:
                raise
            return self._exchange(method, path, body, headers)

    def lines(self, path: str, silence_s: float) -> Iterator[bytes]:
        """Lines of an endless answer, empty ones included. Raises UnreachableError when it ends, breaks, or is silent
        for `silence_s`; a status other than 200 comes as StatusError.
        """
        self.close()
        try:
            response = self._send("GET", path, None, None)
            if response.status != 200:
                raise StatusError(response.status)
            if self._open is not None and self._open.sock is not None:
                self._open.sock.settimeout(silence_s)
            while True:
                line = response.readline(LINE_BYTES_MAX)
                if not line:
                    raise UnreachableError("the stream ended")
                yield line
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError.of(error) from None
        finally:
            self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _opened(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        self._context = self._tls()
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._context)

    def _exchange(self, method: str, path: str, body: object, headers: dict[str, str] | None) -> HttpAnswer:
        try:
            response = self._send(method, path, body, headers)
            content = response.read(BODY_BYTES_MAX + 1)
            if len(content) > BODY_BYTES_MAX:
                raise UnreachableError("the answer is too long")
        except UnreachableError:
            self.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnreachableError.of(error) from None
        if response.will_close:
            self.close()
        return HttpAnswer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)

    def _send(self, method: str, path: str, body: object, headers: dict[str, str] | None) -> http.client.HTTPResponse:
        if self._context is not None and self._tls is not None and self._tls() is not self._context:
            # There is another certificate to show.
            self.close()
        if self._open is None:
            self._open = self._opened()
        sent = {"Authorization": f"Bearer {self.token}", "Accept": "application/json", **(headers or {})}
        content = None
        if isinstance(body, bytes):
            content = body
        elif body is not None:
            content = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
            sent["Content-Type"] = "application/json"
        self._open.request(method, self._prefix + path, body=content, headers=sent)
        return self._open.getresponse()


def _trusted_here() -> Tls:
    context = ssl.create_default_context()
    return lambda: context


class StatusError(AgentError):
    code = "status"

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status
