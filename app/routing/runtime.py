"""HAProxy's runtime API: one command over its Unix socket, one answer.

Owns the socket. It refuses to interpret answers, but for the two that mean that this socket will never do: no
permission, and a command that HAProxy does not know.
"""

from __future__ import annotations

import socket
from pathlib import Path

from solvers.errors import HeadroomError

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
