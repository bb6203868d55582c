"""Asking over real sockets: answers in every form, time-outs, bounds."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.crew.web import AnswerReader, Question, SocketWeb, WebAnswer, fetch


@pytest.mark.parametrize(
    ("received", "ended", "answer"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", False, WebAnswer(status=200, body=b"ok")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more", False, WebAnswer(status=200, body=b"ok")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", False, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no", True,
         WebAnswer(status=0, problem="closed within its answer")),
        (b"HTTP/1.0 503 No\r\n\r\nbusy", False, None),
        (b"HTTP/1.0 503 No\r\n\r\nbusy", True, WebAnswer(status=503, body=b"busy")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", False,
         WebAnswer(status=200, body=b"abcde")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", False, None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n", False,
         WebAnswer(status=0, problem="a chunk without a size")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Enc", False, None),
        (b"", True, WebAnswer(status=0, problem="closed without an answer")),
        (b"SSH-2.0-x\r\n\r\n", False, WebAnswer(status=0, problem="no HTTP")),
        (b"HTTP/1.1 20\xb2 OK\r\n\r\n", False, WebAnswer(status=0, problem="no HTTP")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n", True, WebAnswer(status=200)),
        (b"HTTP/1.1 abc\r\n\r\n", False, WebAnswer(status=0, problem="no HTTP")),
        (b"x" * 70000, False, WebAnswer(status=0, problem="an endless head")),
    ],
)  # fmt: skip
def test_bytes_are_an_answer_or_not_yet(received: bytes, ended: bool, answer: WebAnswer | None) -> None:
    assert AnswerReader().take(received, ended=ended) == answer


@given(
    st.binary(max_size=200),
    st.booleans(),
    st.sampled_from([b"", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n\r\n"]),
)
def test_no_bytes_break_it(noise: bytes, ended: bool, header: bytes) -> None:
    for received in (noise, b"HTTP/1.1 " + noise, b"HTTP/1.1 200 OK\r\n" + header + noise):
        answer = AnswerReader().take(received, ended=ended)
        assert answer is None or answer.status == 0 or 0 <= answer.status <= 999
        assert answer is not None or not ended


@given(st.lists(st.binary(max_size=9), max_size=9), st.booleans(), st.integers(1, 9))
def test_pieces_are_the_answer_that_the_whole_is(chunks: list[bytes], by_length: bool, size: int) -> None:
    body = b"".join(chunks)
    sent = b"HTTP/1.1 200 OK\r\n"
    if by_length:
        sent += b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:
        sent += b"Transfer-Encoding: chunked\r\n\r\n"
        sent += b"".join(b"%x;x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks if chunk) + b"0\r\n\r\n"
    reader = AnswerReader()
    answers = [reader.take(sent[at : at + size], ended=False) for at in range(0, len(sent), size)]
    whole = WebAnswer(status=200, body=body)
    assert AnswerReader().take(sent, ended=False) == whole
    assert next(answer for answer in answers if answer is not None) == whole


@contextmanager
def listening(*replies: bytes | None) -> Iterator[tuple[int, list[bytes]]]:
    """A server that answers its connections one after the other with fixed bytes; None: never."""
    heard: list[bytes] = []
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for reply in replies:
                connection, _ = server.accept()
                heard.append(connection.recv(65536))
                kept.append(connection)
                if reply is not None:
                    connection.sendall(reply)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        thread.join(10.0)
    for connection in kept:
        connection.close()


def test_a_question_is_sent_and_its_answer_read() -> None:
    with listening(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as (port, heard):
        asked = Question(host="127.0.0.1", port=port, path="/p?q=1", method="POST", body=b"{}", content_type="a/b")
        assert fetch(asked) == WebAnswer(status=200, body=b"ok")
    head, _, body = heard[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /p?q=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Content-Length: 2" in head
    assert body == b"{}"


def test_an_answer_in_small_pieces_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.crew.web._CHUNK_BYTES", 16)
    once, twice = lines_run_for(100), lines_run_for(200)
    assert twice < 3 * once


def lines_run_for(chunks: int) -> int:
    """How many lines of code read an answer in so many chunks; it would be four times as many for twice the chunks if
    each piece had everything read anew.
    """
    run = [0]

    def count(frame: FrameType, event: str, _: object) -> Any:
        run[0] += event == "line" and frame.f_globals["__name__"] == SocketWeb.__module__
        return count

    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with listening(head + b"1\r\na\r\n" * chunks + b"0\r\n\r\n") as (port, _):
        before = sys.gettrace()
        sys.settrace(count)
        try:
            answer = fetch(Question(host="127.0.0.1", port=port, path="/", timeout_s=60.0))
        finally:
            sys.settrace(before)
    assert answer == WebAnswer(status=200, body=b"a" * chunks)
    return run[0]


def test_an_answer_that_drips_has_its_time_in_all() -> None:
    """However long each piece gives hope of the next one."""
    now = [100.0]
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not over.wait(0.001):
                    connection.sendall(b"x")

        def pass_time() -> float:
            now[0] += 0.5
            return now[0]

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        asked = Question(host="127.0.0.1", port=server.getsockname()[1], path="/", timeout_s=30.0)
        assert fetch(asked, pass_time) == WebAnswer(status=0, problem="no answer within 30 s")
        over.set()
        thread.join(10.0)


def test_a_port_nobody_listens_on_answers_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert fetch(Question(host="127.0.0.1", port=port, path="/")) == WebAnswer(status=0, problem="Connection refused")


def test_a_host_without_descriptors_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    web = SocketWeb()
    heard: list[WebAnswer] = []
    try:
        monkeypatch.setattr(socket, "socket", exhausted)
        web.ask(Question(host="127.0.0.1", port=1, path="/"), heard.append)
        web.turn(1.0)
    finally:
        monkeypatch.undo()
        web.close()
    assert heard == [WebAnswer(status=0, problem="Too many open files")]


def exhausted(*arguments: object) -> socket.socket:
    raise OSError(24, "Too many open files")


def test_one_that_hangs_costs_nobody_else_anything() -> None:
    now = [100.0]
    web = SocketWeb(lambda: now[0])
    answers: dict[str, WebAnswer] = {}
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    try:
        with listening(None) as (silent, _), listening(good, good, good) as (port, _):
            web.ask(Question(host="127.0.0.1", port=silent, path="/"), partial(answers.__setitem__, "silent"))
            for name in ("a", "b", "c"):
                asked = Question(host="127.0.0.1", port=port, path="/")
                web.ask(asked, partial(answers.__setitem__, name))
            while len(answers) < 3:
                web.turn(1.0)
            assert set(answers) == {"a", "b", "c"}
            now[0] += 1.0
            web.turn(1.0)
    finally:
        web.close()
    assert answers["silent"] == WebAnswer(status=0, problem="no answer within 1 s")


def test_answers_may_ask_again() -> None:
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    web = SocketWeb()
    heard: list[WebAnswer] = []
    try:
        with listening(good, good) as (port, _):
            asked = Question(host="127.0.0.1", port=port, path="/")
            web.ask(asked, lambda first: web.ask(asked, heard.append))
            while not heard:
                web.turn(1.0)
    finally:
        web.close()
    assert heard == [WebAnswer(status=200)]


def test_a_turn_is_ended_from_elsewhere() -> None:
    web = SocketWeb()
    try:
        web.wake()
        web.turn(60.0)
        web.wake()
        web.wake()
        web.turn(60.0)
    finally:
        web.close()
    web.wake()
