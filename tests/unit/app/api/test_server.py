"""One connection's limits, without a socket: a loop and a transport that only note what they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.api import server
from app.api.admission import Answer, Errand
from app.api.server import (
    BODY_STEP_BYTES,
    BODY_STEP_S,
    HEAD_BYTES_MAX,
    HEAD_FIELDS_MAX,
    HEAD_S,
    KEEP_ALIVE_S,
    LINGER_BYTES,
    STALLED_S,
    Connections,
    Http,
)
from app.authority import Presented

BODY_BYTES_MAX = 1_000_000
HEAD = b"POST /v1/x HTTP/1.1\r\nHost: x\r\n"


class _Alarm:
    def __init__(self, delay_s: float, call: Callable[[], None]) -> None:
        self.delay_s, self.call, self.is_set = delay_s, call, True

    def cancel(self) -> None:
        self.is_set = False


class _Loop:
    """Time stands still; what was started is run when a test says so."""

    def __init__(self) -> None:
        self.alarms: list[_Alarm] = []
        self.started: list[Coroutine[Any, Any, None]] = []

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> _Alarm:
        self.alarms.append(_Alarm(delay_s, lambda: call(*arguments)))
        return self.alarms[-1]

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        async def soon() -> None:
            call(*arguments)

        self.started.append(soon())

    def create_task(self, work: Coroutine[Any, Any, None], **_: Any) -> Mock:
        self.started.append(work)
        return Mock()

    def due(self) -> list[float]:
        return [alarm.delay_s for alarm in self.alarms if alarm.is_set]

    def ring(self, delay_s: float) -> None:
        (alarm,) = (alarm for alarm in self.alarms if alarm.is_set and alarm.delay_s == delay_s)
        alarm.is_set = False
        alarm.call()

    def run(self) -> None:
        while self.started:
            asyncio.run(self.started.pop(0))


class _Transport:
    def __init__(self, peer: str) -> None:
        self.peer, self.written, self.is_ended, self.is_aborted = peer, b"", False, False

    def get_extra_info(self, name: str) -> Any:
        return (self.peer, 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_ended = True

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _House:
    """A server for connections made by hand."""

    def __init__(self, total_max: int = 100, per_peer_max: int = 100) -> None:
        self.loop = _Loop()
        self.heard: list[bytes] = []
        self.turned: list[str] = []
        self.taken: list[bytes] = []
        self.says: Answer | None = Answer(200, b"content-length: 5\r\n\r\ntaken")
        self.is_full = self.is_early = self.is_short = False
        self._limits = Connections(total_max, per_peer_max)
        self._config = uvicorn.Config(
            self._answer, log_config=None, timeout_keep_alive=KEEP_ALIVE_S, interface="asgi3", ws="none"
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, message = b"", {"more_body": True}
        while message.get("more_body") and not self.is_early:
            message = await receive()
            body += message.get("body", b"")
        self.heard.append(scope["path"].encode() + b" " + body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    def _meet(self, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> bytes | Errand | None:
        self.turned += [f"{method} {path} {len(headers)}"] * self.is_full
        if self.is_full:
            return b"content-length: 4\r\n\r\nfull"
        return self._take if self.is_short else None

    async def _take(self, body: bytes, _receive: Receive, _shown: Presented | None) -> Answer | None:
        self.taken.append(body)
        return self.says

    def connect(self, peer: str = "1.2.3.4") -> tuple[Http, _Transport]:
        made = Http(
            self._limits,
            BODY_BYTES_MAX,
            self._meet,
            config=self._config,
            server_state=ServerState(),
            app_state={},
            _loop=self.loop,
        )
        transport = _Transport(peer)
        made.connection_made(transport)  # type: ignore[arg-type]
        return made, transport


MakeHouse = Callable[..., _House]


@pytest.fixture
def make_house() -> Iterator[MakeHouse]:
    """Houses whose work is over with the test, also what nobody ran."""
    houses: list[_House] = []

    def make(**limits: int) -> _House:
        houses.append(_House(**limits))
        return houses[-1]

    yield make
    for house in houses:
        for work in house.loop.started:
            work.close()


def _status(transport: _Transport) -> int:
    return int(transport.written.split()[1])


def test_an_endless_header_is_read_no_further_than_a_head_may_be_long(make_house: MakeHouse) -> None:
    connection, transport = make_house().connect()
    connection.data_received(HEAD + b"X-Long: ")
    fed = 0
    while not transport.is_aborted:
        connection.data_received(b"a" * 4096)
        fed += 4096
        assert fed <= (HEAD_BYTES_MAX + LINGER_BYTES + 2 * 4096 if transport.written else HEAD_BYTES_MAX)
    assert _status(transport) == 431
    assert transport.is_ended


@pytest.mark.parametrize(
    "fields",
    [b"".join(b"X-%d: 1\r\n" % number for number in range(HEAD_FIELDS_MAX)), b"X-Long: " + b"a" * HEAD_BYTES_MAX],
    ids=["fields", "bytes"],
)
def test_a_complete_head_may_be_too_large_as_well(make_house: MakeHouse, fields: bytes) -> None:
    house = make_house()
    connection, transport = house.connect()
    connection.data_received(HEAD + fields + b"\r\n")
    assert _status(transport) == 431
    assert b'"code":"head-too-large"' in transport.written
    assert not house.loop.started


def test_a_body_that_is_mostly_framing_ends(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    connection.data_received(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;")
    sent = 0
    while not transport.written:
        connection.data_received(b"x" * 65_536)
        sent += 65_536
        assert sent <= HEAD_BYTES_MAX + 2 * BODY_BYTES_MAX + 65_536
    assert _status(transport) == 413


def test_requests_behind_one_another_and_behind_bodies_are_not_counted_together(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    request = HEAD + b"Content-Length: 20000\r\n\r\n" + b"b" * 20_000
    for at in range(0, 8 * len(request), 30_000):
        connection.data_received((8 * request)[at : at + 30_000])
    house.loop.run()
    assert len(house.heard) == 8
    assert transport.written.count(b" 200 OK") == 8
    assert house.loop.due() == [KEEP_ALIVE_S]


def test_a_body_that_comes_after_its_answer_counts_for_no_head(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    house.is_early = True
    for _ in range(2):
        connection.data_received(HEAD + b"Content-Length: 80000\r\n\r\n" + b"b" * 40_000)
        house.loop.run()
        connection.data_received(b"b" * 40_000)
        # Nor has the next one to come any sooner.
        assert house.loop.due() == [KEEP_ALIVE_S]
    assert transport.written.count(b"HTTP/1.1") == transport.written.count(b" 200 OK") == 2
    assert not transport.is_ended


def test_a_silent_connection_ends_without_a_word_and_half_a_head_with_one(make_house: MakeHouse) -> None:
    house = make_house()
    _, transport = house.connect()
    house.loop.ring(HEAD_S)
    assert (transport.is_aborted, transport.written) == (True, b"")
    connection, transport = house.connect()
    for byte in HEAD:
        connection.data_received(bytes([byte]))
    house.loop.ring(HEAD_S)
    assert _status(transport) == 408


def test_a_second_head_has_its_own_time(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    connection.data_received(HEAD + b"\r\n")
    house.loop.run()
    connection.data_received(b"GET")
    assert house.loop.due() == [HEAD_S]
    house.loop.ring(HEAD_S)
    assert transport.written.count(b" 408 ") == 1


def test_a_body_goes_on_or_ends(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    connection.data_received(HEAD + b"Content-Length: 900000\r\n\r\n")
    connection.data_received(b"b" * BODY_STEP_BYTES)
    house.loop.ring(BODY_STEP_S)
    assert not transport.written
    connection.data_received(b"b")
    house.loop.ring(BODY_STEP_S)
    assert _status(transport) == 408
    assert connection.cycle.disconnected


def test_who_does_not_read_is_let_go(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    connection.pause_writing()
    connection.resume_writing()
    assert STALLED_S not in house.loop.due()
    connection.pause_writing()
    house.loop.ring(STALLED_S)
    assert transport.is_aborted


def test_a_new_connection_displaces_the_longest_silent_of_its_peer_or_of_the_busiest(make_house: MakeHouse) -> None:
    house = make_house(total_max=4, per_peer_max=3)
    crowd = [house.connect("crowd") for _ in range(3)]
    crowd[0][0].data_received(HEAD + b"\r\n")
    house.connect("crowd")
    assert [transport.is_aborted for _, transport in crowd] == [False, True, False]
    crowd[1][0].connection_lost(None)
    house.connect("other")
    house.connect("another")
    assert [transport.is_aborted for _, transport in crowd] == [False, True, True]


def test_none_is_let_in_where_all_work(make_house: MakeHouse) -> None:
    house = make_house(per_peer_max=2)
    for connection, _ in (house.connect(), house.connect()):
        connection.data_received(HEAD + b"\r\n")
    late, transport = house.connect()
    assert transport.is_aborted
    late.connection_lost(None)
    first = next(iter(house.connect("else")))
    assert not first.transport.is_closing()
    house.loop.run()
    assert not house.connect()[1].is_aborted


def test_the_limit_on_open_files_is_raised_and_kept(make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = []
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(server.resource, "setrlimit", lambda _, limits: raised.append(limits))
    made = []
    monkeypatch.setattr(server, "Connections", lambda total, peer: made.append((total, peer)))
    server.server_of(make_house()._answer, server.Settings())
    assert raised == [(4096, 4096)]
    assert made == [(3840, 3840)]


def test_who_is_turned_away_keeps_the_connection_and_nothing_is_made_of_the_body(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    house.is_full = True
    connection.data_received(HEAD + b"Content-Length: 10\r\n\r\n01234")
    assert (house.turned, transport.written) == (["POST /v1/x 2"], b"")
    # A body that stops is ended as any other.
    assert house.loop.due() == [BODY_STEP_S]
    connection.data_received(b"56789")
    house.loop.run()
    assert transport.written == b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nfull"
    assert house.loop.due() == [KEEP_ALIVE_S]
    house.is_full = False
    connection.data_received(HEAD + b"Content-Length: 2\r\n\r\nhi")
    house.loop.run()
    assert house.heard == [b"/v1/x hi"]
    assert (transport.is_aborted, house.loop.due()) == (False, [KEEP_ALIVE_S])


def test_who_is_shown_the_short_way_is_taken_with_a_whole_body_and_keeps_the_connection(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    house.is_short = True
    connection.data_received(HEAD + b"Content-Length: 10\r\n\r\n01234")
    assert (house.loop.started, house.loop.due()) == ([], [BODY_STEP_S])
    connection.data_received(b"56789")
    assert transport.written == b""
    house.loop.run()
    assert transport.written == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\ntaken"
    assert (house.taken, house.heard, house.loop.due()) == ([b"0123456789"], [], [KEEP_ALIVE_S])
    # Whoever cannot be taken so goes to the application with all of it.
    house.says = None
    connection.data_received(HEAD + b"Content-Length: 2\r\n\r\nhi")
    house.loop.run()
    assert (house.taken[1:], house.heard) == ([b"hi"], [b"/v1/x hi"])
    assert (transport.is_aborted, transport.is_ended, house.loop.due()) == (False, False, [KEEP_ALIVE_S])


@pytest.mark.parametrize("who", ["the errand", "the server"])
def test_the_short_way_says_so_where_a_connection_is_to_end(make_house: MakeHouse, who: str) -> None:
    house = make_house()
    connection, transport = house.connect()
    house.is_short = True
    connection.data_received(HEAD + b"Content-Length: 1\r\n\r\na")
    if who == "the errand":
        house.says = Answer(200, b"content-length: 0\r\n\r\n", closes=True)
    else:
        connection.shutdown()
    house.loop.run()
    assert b"\r\nconnection: close\r\n" in transport.written
    assert transport.is_ended


def test_nothing_is_said_to_who_has_hung_up_on_the_short_way(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    house.is_short = True
    connection.data_received(HEAD + b"Content-Length: 2\r\n\r\nab")
    connection.connection_lost(None)
    house.loop.run()
    assert (house.taken, transport.written) == ([], b"")


def test_the_short_way_keeps_the_order_of_answers(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    house.is_short = True
    request = HEAD + b"Content-Length: 1\r\n\r\n"
    connection.data_received(request + b"a" + request + b"b")
    house.loop.run()
    assert (house.taken, house.heard) == ([b"a"], [b"/v1/x b"])
    assert transport.written.index(b"taken") < transport.written.index(b"content-length: 0")


def test_answers_keep_their_order_where_some_are_turned_away(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    request = HEAD + b"Content-Length: 1\r\n\r\n"
    house.is_full = True
    connection.data_received(request + b"a" + request + b"b" + request + b"c")
    house.loop.run()
    assert (house.heard, len(house.turned)) == ([b"/v1/x b", b"/v1/x c"], 1)
    statuses = [int(part.split()[0]) for part in transport.written.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [429, 200, 200]
    # Behind one that is being answered the edge decides; whoever waits for leave to send is told at once.
    connection.data_received(HEAD + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n")
    assert len(house.turned) == 1


def test_one_whose_body_is_too_large_is_refused_though_turned_away(make_house: MakeHouse) -> None:
    house = make_house()
    connection, transport = house.connect()
    house.is_full = True
    connection.data_received(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    sent = 0
    while not transport.written:
        connection.data_received(b"1\r\na\r\n" * 10_000)
        sent += 60_000
        assert sent <= HEAD_BYTES_MAX + 2 * BODY_BYTES_MAX + 60_000
    assert _status(transport) == 413
    connection.connection_lost(None)
    house.loop.run()
    assert house.heard == []
