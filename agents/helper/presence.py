"""Being there: one connection that an agent holds as long as it lives, so that the helper leaves devices as they are.

Owns a thread that waits for the connection's end and makes a new one, more patiently each time it fails. It asks for
nothing, and costs nothing while the helper lives.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

RETRY_S_MIN, RETRY_S_MAX = 0.5, 15.0
"""Well below the time after which a helper restores."""


class Presence:
    """Held from the start until closed. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._hold, name="helper-presence", daemon=True)
        self._thread.start()

    @property
    def held(self) -> bool:
        """Whether the helper is there now."""
        return self._connection is not None

    def close(self) -> None:
        """Leave."""
        with self._lock:
            self._ended.set()
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    # Closing alone would not wake the thread that waits for its end.
                    self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _hold(self) -> None:
        retry_s = RETRY_S_MIN
        while not self._ended.is_set():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                if self._connect(connection):
                    retry_s = RETRY_S_MIN
                    self._outlast(connection)
            self._ended.wait(retry_s)
            retry_s = min(RETRY_S_MAX, 2.0 * retry_s)

    def _connect(self, connection: socket.socket) -> bool:
        try:
            connection.connect(str(self._path))
        except OSError:
            return False
        with self._lock:
            if self._ended.is_set():
                return False
            self._connection = connection
        return True

    def _outlast(self, connection: socket.socket) -> None:
        """Wait until the other side ends it. Whatever it says first is a refusal, which its end follows."""
        try:
            while connection.recv(4096):
                pass
        except OSError:
            pass
        with self._lock:
            self._connection = None
