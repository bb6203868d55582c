"""The helper's socket: who may connect, how fast they may ask, and when the last of them is long enough gone.

The Unix socket has mode 0660, and every peer is checked by what the kernel says of it. A connection has a thread of its
own and is served in order; a client that misbehaves is told once and cut off.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agents.errors import BusyError, ConfigError, NoPermissionError
from agents.helper.desk import Audit, Desk, Peer
from agents.helper.protocol import HelperAnswer, Lines, ProtocolError, decode_request, encode_answer

SOCKET_PATH_BYTES_MAX = 107
RESTORE_RETRY_S = 30.0
TURNED_AWAY_MAX = 16
"""Connections beyond the allowed ones that are at least told why."""
SEND_TIMEOUT_S = 5.0
USED_UP, USED_UP_S = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM), 0.2
"""What a host says that has too little left for another connection, which passes."""
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperRules:
    """Whom the helper serves, and how much of it one may ask."""

    uids: frozenset[int]
    gids: frozenset[int] = frozenset()
    restore_after_s: float = 60.0
    connections_max: int = 64
    line_timeout_s: float = 5.0
    requests_per_s: float = 20.0
    requests_burst: int = 60
    refused_max: int = 200
    """A connection that had this many requests refused for haste is cut off."""

    def admits(self, peer: Peer) -> bool:
        return peer.uid in self.uids or peer.gid in self.gids


def peer_of(connection: socket.socket) -> Peer:
    """Who connected, from the kernel."""
    size = _CREDENTIALS.size
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return Peer(pid, uid, gid)


class Allowance:
    """How often a connection may ask: so many at once, and so many a second in the long run."""

    def __init__(self, rules: HelperRules, now_s: Callable[[], float]) -> None:
        self._per_s, self._burst, self._now_s = rules.requests_per_s, float(rules.requests_burst), now_s
        self._left, self._at_s = self._burst, now_s()

    def take(self) -> bool:
        """Use one up; False when there is none."""
        now_s = self._now_s()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class HelperServer:
    """Listens, serves, and watches over the devices when nobody is there."""

    def __init__(
        self,
        rules: HelperRules,
        desk: Desk,
        audit: Audit,
        now_s: Callable[[], float],
        credentials: Callable[[socket.socket], Peer] = peer_of,
    ) -> None:
        self._rules = rules
        self._desk = desk
        self._audit = audit
        self._now_s = now_s
        self._credentials = credentials
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._threads = threading.BoundedSemaphore(rules.connections_max + TURNED_AWAY_MAX)
        self._clients = 0
        self._closed = False
        self._restore_at_s: float | None = now_s() + rules.restore_after_s
        self.changed = threading.Event()
        """Set when somebody came or went, so that whoever runs `turn` looks again."""

    @property
    def clients(self) -> int:
        return self._clients

    def turn(self) -> float | None:
        """Bring devices back if nobody has been there for long enough; seconds until the next look, None: no need."""
        with self._lock:
            due_s = None if self._clients else self._restore_at_s
        if due_s is None:
            return None
        now_s = self._now_s()
        if now_s < due_s:
            return due_s - now_s
        failed = self._desk.restore(lambda: self._clients == 0) if self._desk.owes() else 0
        with self._lock:
            self._restore_at_s = now_s + RESTORE_RETRY_S if failed else None
        return RESTORE_RETRY_S if failed else None

    def accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if error.errno not in USED_UP:
                    return
                time.sleep(USED_UP_S)
                continue
            if not self._threads.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve_thread, args=(connection,), name="connection", daemon=True).start()
            except RuntimeError:
                # The host has no thread left for it now; whoever asks will ask again.
                self._threads.release()
                connection.close()

    def _serve_thread(self, connection: socket.socket) -> None:
        try:
            self.serve(connection)
        finally:
            self._threads.release()

    def serve(self, connection: socket.socket) -> None:
        """Serve one connection until it ends, and close it."""
        with contextlib.closing(connection):
            try:
                self._serve(connection)
            except OSError:
                return
            finally:
                with self._lock:
                    self._connections.discard(connection)

    def close(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            # Closing alone would not wake the thread that waits for connections.
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket) -> None:
        peer = self._credentials(connection)
        with self._lock:
            if self._closed:
                return
            full = len(self._connections) >= self._rules.connections_max
            if not full:
                self._connections.add(connection)
        if not self._rules.admits(peer):
            self._turn_away(connection, peer, NoPermissionError.code, f"user {peer.uid} may not use this helper")
        elif full:
            self._turn_away(connection, peer, BusyError.code, "too many connections")
        else:
            self._come()
            try:
                self._converse(connection, peer)
            finally:
                self._go()

    def _converse(self, connection: socket.socket, peer: Peer) -> None:
        lines = Lines(connection, self._now_s, self._rules.line_timeout_s)
        allowance, refused = Allowance(self._rules, self._now_s), 0
        while refused < self._rules.refused_max:
            try:
                line = lines.next()
                if line is None:
                    return
                request = decode_request(line)
            except ProtocolError as error:
                self._turn_away(connection, peer, error.code, str(error))
                return
            if allowance.take():
                answer = self._desk.handle(peer, request)
            else:
                refused += 1
                answer = HelperAnswer(number=request.number, code=BusyError.code, message="too many requests")
                self._audit.stranger(peer, answer.message)
            _send(connection, answer)

    def _turn_away(self, connection: socket.socket, peer: Peer, code: str, message: str) -> None:
        self._audit.stranger(peer, f"{code}: {message}")
        _send(connection, HelperAnswer(number=None, code=code, message=message))
        # What the other side still sends is thrown away for a moment: closing on unread bytes would lose the answer.
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            for _ in range(16):
                if not connection.recv(65536):
                    return

    def _come(self) -> None:
        with self._lock:
            self._clients += 1
        self.changed.set()

    def _go(self) -> None:
        with self._lock:
            self._clients -= 1
            if not self._clients:
                self._restore_at_s = self._now_s() + self._rules.restore_after_s
        self.changed.set()


def listen(path: Path) -> socket.socket:
    """A listening socket that its owner and group may use. Raises ConfigError: something else is there, a helper lives
    there already, or the path does not do.
    """
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ConfigError(f"--socket {path}: a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        mask = os.umask(0o117)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from None
    except ConfigError:
        listener.close()
        raise
    return listener


def _clear(path: Path) -> None:
    """Remove what a helper that was killed left behind."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--socket {path}: there is something else")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"a helper already listens on {path}")


def _send(connection: socket.socket, answer: HelperAnswer) -> None:
    connection.settimeout(SEND_TIMEOUT_S)
    connection.sendall(encode_answer(answer))
