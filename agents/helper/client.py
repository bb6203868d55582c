"""The agent's side of the privileged helper: setters whose writes are done by another process.

There is one connection for each device, so that writes to one device keep their order and devices do not wait for each
other. It reconnects by itself; where no helper answers, every verb is refused with that reason.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

from agents.devices.parts import SETTINGS, ComputeMode
from agents.errors import BusyError, DeviceError, DeviceTimeoutError, DriverError, NoPermissionError
from agents.helper.protocol import (
    ANSWER_BYTES_MAX,
    HelperAnswer,
    HelperRequest,
    Lines,
    ProtocolError,
    SlowLineError,
    Value,
    Verb,
    decode_answer,
    encode_request,
)

# --- Being there: one connection that an agent holds as long as it lives, so that the helper leaves devices as they are
#
# It asks for nothing, and costs nothing while the helper lives.


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
        return self._connection is not None

    def close(self) -> None:
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


CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0


class _Line:
    def __init__(self, path: Path, now_s: Callable[[], float], timeout_s: float) -> None:
        self.lock = threading.Lock()
        self._path, self._now_s, self._timeout_s = path, now_s, timeout_s
        self._connection: socket.socket | None = None
        self._lines: Lines | None = None

    def ask(self, request: HelperRequest) -> HelperAnswer:
        """Send and wait; once more on a new connection when the old one had died meanwhile."""
        if self._connection is not None:
            with contextlib.suppress(OSError, EOFError):
                return self._exchange(request)
        self.close()
        self._connect()
        try:
            return self._exchange(request)
        except EOFError:
            self.close()
            raise DriverError(f"the helper at {self._path} closed the connection") from None
        except OSError as error:
            self.close()
            raise DriverError(f"the helper at {self._path} does not answer: {error}") from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._lines = None

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_TIMEOUT_S)
        try:
            connection.connect(str(self._path))
        except BlockingIOError:
            connection.close()
            raise BusyError(f"the helper at {self._path} has too many waiting connections") from None
        except OSError as error:
            connection.close()
            reason = error.strerror or str(error)
            raise NoPermissionError(
                f"agent runs without privilege and no helper answers at {self._path}: {reason}"
            ) from None
        self._connection = connection
        # The helper says nothing before it has done what was asked, which is not a line once begun.
        self._lines = Lines(connection, self._now_s, self._timeout_s, ANSWER_BYTES_MAX)

    def _exchange(self, request: HelperRequest) -> HelperAnswer:
        connection, lines = self._connection, self._lines
        if connection is None or lines is None:
            raise EOFError
        connection.settimeout(self._timeout_s)
        # One that closed may have said why before; what it said is read below.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(encode_request(request))
        try:
            line = lines.next(self._timeout_s)
            if line is None:
                raise EOFError
            answer = decode_answer(line)
        except ProtocolError as error:
            self.close()
            kind = DeviceTimeoutError if isinstance(error, SlowLineError) else DriverError
            raise kind(f"the helper at {self._path}: {error}") from None
        if answer.number not in (None, request.number):
            self.close()
            raise DriverError(f"the helper at {self._path} answered something that was not asked")
        if answer.number is None:
            self.close()
        return answer


class HelperSetters:
    """`Setters` through the helper's socket. Thread-safe. From the first call until it is closed it also holds a
    connection for its own sake: as long as this agent is, the helper leaves devices as they are.
    """

    def __init__(
        self, socket_path: Path, now_s: Callable[[], float] = time.monotonic, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self._path = socket_path
        self._now_s = now_s
        self._timeout_s = timeout_s
        self._numbers: Iterator[int] = count(1)
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()
        self._presence: Presence | None = None

    def lock_clock(self, uuid: str, clock_mhz_sm: int | None) -> None:
        self._set(Verb.LOCK_CLOCK, uuid, clock_mhz_sm)

    def limit_power(self, uuid: str, power_limit_w: float | None) -> None:
        self._set(Verb.LIMIT_POWER, uuid, power_limit_w)

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._set(Verb.SET_COMPUTE_MODE, uuid, mode.value)

    def set_persistence(self, uuid: str, on: bool) -> None:
        self._set(Verb.SET_PERSISTENCE, uuid, on)

    def refusals(self) -> Mapping[str, str]:
        """Where the helper cannot be asked, that is the reason for every verb."""
        try:
            answer = self._ask(HelperRequest(number=next(self._numbers), verb=Verb.REFUSALS))
        except DeviceError as error:
            return dict.fromkeys(SETTINGS, str(error))
        return {verb: reason for verb, reason in (answer.refusals or {}).items() if verb in SETTINGS and reason}

    @property
    def present(self) -> bool:
        presence = self._presence
        return presence is not None and presence.held

    def close(self) -> None:
        """Let go of the helper, which restores the originals after a while."""
        with self._lock:
            lines, presence = list(self._lines.values()), self._presence
            self._presence = None
        for line in lines:
            with line.lock:
                line.close()
        if presence is not None:
            presence.close()

    def _set(self, verb: Verb, uuid: str, value: Value) -> None:
        self._ask(HelperRequest(number=next(self._numbers), verb=verb, device=uuid, value=value))

    def _ask(self, request: HelperRequest) -> HelperAnswer:
        line = self._line(request.device)
        with line.lock:
            answer = line.ask(request)
        if answer.code:
            raise error_of(answer)
        return answer

    def _line(self, uuid: str) -> _Line:
        with self._lock:
            if self._presence is None:
                self._presence = Presence(self._path)
            if uuid not in self._lines:
                self._lines[uuid] = _Line(self._path, self._now_s, self._timeout_s)
            return self._lines[uuid]


def error_of(answer: HelperAnswer) -> DeviceError:
    """The error a helper's code stands for; what is not of devices becomes a driver's."""
    known, waiting = {}, [DeviceError]
    while waiting:
        kind = waiting.pop()
        known[kind.code] = kind
        waiting += kind.__subclasses__()
    if answer.code not in known:
        return DriverError(f"{answer.code}: {answer.message}")
    return known[answer.code](answer.message)
