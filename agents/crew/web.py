"""Asking workers over HTTP, many at once, without waiting for any of them.

One thread asks and turns; a worker that hangs costs its own question and nobody else's. An answer is a status and a
body, bounded both, or why there is none.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

BODY_BYTES_MAX = 5 * 2**20
HEAD_BYTES_MAX = 65536
_CHUNK_BYTES = 65536
_STATUS = re.compile(r"[0-9]{3}(?![^ ])")
_LENGTH = re.compile(r"[0-9]{1,12}")
_SIZE = re.compile(rb"[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    host: str
    port: int
    path: str
    method: str = "GET"
    body: bytes = b""
    content_type: str = "application/json"
    timeout_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAnswer:
    """Status 0: there was none, and `problem` says why."""

    status: int
    body: bytes = b""
    problem: str = ""

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def told(self) -> str:
        return self.problem or f"answered {self.status}"


Then = Callable[[WebAnswer], None]


class AnswerReader:
    """Reads an answer as its bytes come, each of them once: who sends few at a time must not be dear to listen to."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._searched = 0
        """Before here is no line end that is still looked for."""
        self._begin = 0
        """Where the body, or its next chunk, begins; 0 as long as the head is not there."""
        self._status = 0
        self._chunked = False
        self._length: int | None = None
        """Of the body, or of its next chunk; None where that is not told, or not yet."""
        self._chunks = bytearray()

    def take(self, data: bytes, *, ended: bool) -> WebAnswer | None:
        """The answer, None as long as more must come. Interim answers (1xx) nobody asked for."""
        self._received += data
        if len(self._received) > BODY_BYTES_MAX + HEAD_BYTES_MAX:
            return WebAnswer(status=0, problem=f"an answer of more than {BODY_BYTES_MAX} bytes")
        if not self._begin:
            head = self._until(b"\r\n\r\n")
            if head is None:
                if ended or len(self._received) > HEAD_BYTES_MAX:
                    return WebAnswer(status=0, problem="closed without an answer" if ended else "an endless head")
                return None
            if not self._understand(head):
                return WebAnswer(status=0, problem="no HTTP")
        body = self._chunks_joined() if self._chunked else self._body(ended=ended)
        if isinstance(body, WebAnswer):
            return body
        if body is None:
            return WebAnswer(status=0, problem="closed within its answer") if ended else None
        return WebAnswer(status=self._status, body=body)

    def _until(self, mark: bytes) -> bytes | None:
        """What comes before the next mark; then everything goes on behind it."""
        found = self._received.find(mark, max(self._begin, self._searched))
        if found < 0:
            self._searched = len(self._received) - len(mark) + 1
            return None
        text = bytes(self._received[self._begin : found])
        self._begin = self._searched = found + len(mark)
        return text

    def _understand(self, head: bytes) -> bool:
        """Whether this is the head of an answer."""
        lines = head.decode("latin-1").split("\r\n")
        version, _, status = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not _STATUS.match(status):
            return False
        headers = {name.strip().lower(): text.strip() for name, _, text in (line.partition(":") for line in lines[1:])}
        self._status = int(status[:3])
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        if not self._chunked and _LENGTH.fullmatch(headers.get("content-length", "")):
            self._length = int(headers["content-length"])
        return True

    def _body(self, *, ended: bool) -> bytes | None:
        if self._length is None:
            return bytes(self._received[self._begin :]) if ended else None
        end = self._begin + self._length
        return bytes(self._received[self._begin : end]) if len(self._received) >= end else None

    def _chunks_joined(self) -> bytes | WebAnswer | None:
        """A body that comes in chunks, once its last one is there; an answer where they are none."""
        while True:
            if self._length is None:
                line = self._until(b"\r\n")
                if line is None:
                    return None
                size = line.split(b";")[0].strip()
                if not _SIZE.fullmatch(size):
                    return WebAnswer(status=0, problem="a chunk without a size")
                self._length = int(size, 16)
            if self._length == 0:
                return bytes(self._chunks)
            end = self._begin + self._length
            if len(self._received) < end + 2:
                return None
            self._chunks += self._received[self._begin : end]
            self._begin, self._length = end + 2, None


@dataclass(slots=True, eq=False)
class _WebExchange:
    question: Question
    then: Then
    deadline_s: float
    socket: socket.socket
    unsent: memoryview
    reader: AnswerReader = field(default_factory=AnswerReader)


class SocketWeb:
    """Non-blocking sockets, one connection for each question. All but `wake` from one thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._selector = selectors.DefaultSelector()
        self._open: set[_WebExchange] = set()
        self._failed: list[tuple[Then, WebAnswer]] = []
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def ask(self, question: Question, then: Then) -> None:
        """Send it; `then` is called from a later `turn`, once."""
        try:
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            self._failed.append((then, _no_answer(error)))
            return
        connection.setblocking(False)
        try:
            # Refusals of the loopback interface come at once, others through the selector.
            connection.connect((question.host, question.port))
        except BlockingIOError:
            pass
        except OSError as error:
            connection.close()
            self._failed.append((then, _no_answer(error)))
            return
        deadline_s = self._now_s() + question.timeout_s
        exchange = _WebExchange(question, then, deadline_s, connection, memoryview(_request_bytes(question)))
        self._open.add(exchange)
        self._selector.register(connection, selectors.EVENT_WRITE, exchange)

    def turn(self, timeout_s: float) -> None:
        """Wait for answers at most so long, and hand over those that came."""
        nearest_s = min((exchange.deadline_s for exchange in self._open), default=float("inf")) - self._now_s()
        wait_s = 0.0 if self._failed else max(0.0, min(timeout_s, nearest_s))
        failed, self._failed = self._failed, []
        done: list[tuple[_WebExchange, WebAnswer]] = []
        for key, events in self._selector.select(wait_s):
            if key.fileobj is self._woken:
                self._drain_waker()
                continue
            answer = self._progress(key.data, events)
            if answer is not None:
                done.append((key.data, answer))
        now_s = self._now_s()
        finished = {exchange for exchange, _ in done}
        done += [
            (exchange, WebAnswer(status=0, problem=f"no answer within {exchange.question.timeout_s:g} s"))
            for exchange in self._open - finished
            if now_s >= exchange.deadline_s
        ]
        for exchange, _ in done:
            self._forget(exchange)
        for then, answer in (*failed, *((exchange.then, answer) for exchange, answer in done)):
            then(answer)

    def wake(self) -> None:
        """End a `turn` of another thread."""
        try:
            self._waker.send(b"!")
        except OSError:
            # Full: it is being woken already. Closed: nobody sleeps.
            return

    def close(self) -> None:
        """Give up all that is under way, without answers."""
        for exchange in tuple(self._open):
            self._forget(exchange)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _drain_waker(self) -> None:
        try:
            while self._woken.recv(4096):
                pass
        except BlockingIOError:
            return

    def _forget(self, exchange: _WebExchange) -> None:
        self._open.discard(exchange)
        self._selector.unregister(exchange.socket)
        exchange.socket.close()

    def _progress(self, exchange: _WebExchange, events: int) -> WebAnswer | None:
        try:
            if events & selectors.EVENT_WRITE:
                sent = exchange.socket.send(exchange.unsent)
                exchange.unsent = exchange.unsent[sent:]
                if not exchange.unsent:
                    self._selector.modify(exchange.socket, selectors.EVENT_READ, exchange)
                return None
            data = exchange.socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            return _no_answer(error)
        return exchange.reader.take(data, ended=not data)


def fetch(question: Question, now_s: Callable[[], float] = time.monotonic) -> WebAnswer:
    """Ask one question and wait for its answer; for threads of their own."""
    answers: list[WebAnswer] = []
    web = SocketWeb(now_s)
    try:
        web.ask(question, answers.append)
        while not answers:
            web.turn(1.0)
    finally:
        web.close()
    return answers[0]


def _request_bytes(question: Question) -> bytes:
    head = [f"{question.method} {question.path} HTTP/1.1", f"Host: {question.host}:{question.port}"]
    head += ["Connection: close", "Accept: */*"]
    if question.method != "GET":
        head += [f"Content-Type: {question.content_type}", f"Content-Length: {len(question.body)}"]
    return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1", "replace") + question.body


def _no_answer(error: OSError) -> WebAnswer:
    return WebAnswer(status=0, problem=error.strerror or str(error))
