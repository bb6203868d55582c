"""Admission: what a whole fleet sends by itself, reports and joins, takes turns before anybody decodes it.

Each kind has a lane of its own, so that none starves another or what people ask. So many are worked on, so many wait as
they came; who comes with a token that is new here is asked about first, apart. Where the oldest has been here for long,
or too many wait, whoever comes next is told to come again, while its head is read: nothing is made of its body, its
connection stays, and what was let in is answered to who still waits. Nothing is done for who has hung up.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import Authenticator
from app.api.problems import of_error
from app.authority import Presented
from app.errors import RateLimitedError
from app.store.ingest import ALIVE_S

LATE_S = 1.0
"""Where somebody has been here for so long, no more are let in than are stored in that time, however fast the database
is: agents give up after ten.
"""
PACE_S = 2.0
"""Over so long it is seen how much that is: reports are stored in groups."""
WAIT_S_MAX = 8.0
"""Where it got slow since, who waits is told after this time."""
WAITING_BYTES_MAX = 64 * 2**20
AGAIN_S_MAX = ALIVE_S / 1.5
"""Agents wait up to half as long again as they are told, and nobody believes in who is not heard for longer."""


T = TypeVar("T")


def replayed(message: Message, receive: Receive) -> Receive:
    """What was received already comes once more, and then what follows."""
    unread = [message]

    async def replay() -> Message:
        return unread.pop() if unread else await receive()

    return replay


class TurnQueue:
    """Requests of one kind. On the event loop only."""

    def __init__(
        self, workers: int, waiting_max: int, retry_after_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._free = workers
        self._waiting_max = waiting_max
        self._now_s = now_s
        # A plain one that loses its first again and again is walked through for the next.
        self._here: OrderedDict[object, float] = OrderedDict()
        """Who is worked on or waits, the oldest first, since when."""
        self.waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        """Turns, the oldest first, and the bytes that wait for each."""
        self._bytes = self._held = 0
        """Of those who wait, and of all who are here."""
        self._pace, self._done, self._since_s = 0.0, 0, now_s()
        """Bytes a second that were worked on lately, and those since."""
        self._retry_after_s = retry_after_s
        self._due_s = now_s()
        """When those that were told to come again have had their turn, one after the other."""

    @property
    def is_full(self) -> bool:
        if len(self.waiting) >= self._waiting_max or self._bytes >= WAITING_BYTES_MAX:
            return True
        now_s = self._now_s()
        if not self._here or now_s - next(iter(self._here.values())) <= LATE_S:
            return False
        # Nobody waits until all who came before are gone: then nothing would be left to do.
        return self._held >= LATE_S * max(self._pace, self._done / max(now_s - self._since_s, PACE_S))

    def refuse(self) -> RateLimitedError:
        """What to tell who finds no place: come again in your turn behind those that were told before, each of which
        takes as long as one of those that are here does; and not before there is something new to say.
        """
        now_s = self._now_s()
        turn_s = (now_s - next(iter(self._here.values()), now_s)) / max(1, len(self._here))
        self._due_s = min(max(now_s, self._due_s) + turn_s, now_s + max(AGAIN_S_MAX, self._retry_after_s))
        told = "more of this than can be worked on in time; it was not stored, send it again"
        return RateLimitedError(told, max(self._retry_after_s, self._due_s - now_s))

    def age_s(self) -> float:
        """How long the oldest has been here; from any thread."""
        now_s = self._now_s()
        return now_s - min(tuple(self._here.values()), default=now_s)

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application when it is this request's turn. Raises RateLimitedError when that never comes,
        ClientDisconnect when nobody waits for the answer.
        """
        if self.is_full:
            # Before it is read: who asked for leave to send keeps it.
            raise self.refuse()
        body = await Request(scope, receive).body()
        unread: Message = {"type": "http.request", "body": body, "more_body": False}
        await self.work(len(body), receive, lambda: app(scope, replayed(unread, receive), send))

    async def work(self, size: int, receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
        """What somebody whose body is here is answered, when it is their turn. What they send after it is that they
        have gone. Raises as `serve` does.
        """
        if self.is_full:
            raise self.refuse()
        me = object()
        self._here[me] = self._now_s()
        self._held += size
        try:
            if self._free:
                self._free -= 1
            else:
                await self._take_turn(size, receive)
            try:
                found = await work()
                self._count(size)
            finally:
                self._pass_on()
        finally:
            del self._here[me]
            self._held -= size
        return found

    def _count(self, size: int) -> None:
        self._done += size
        taken_s = self._now_s() - self._since_s
        if taken_s >= PACE_S:
            self._pace, self._done, self._since_s = self._done / taken_s, 0, self._now_s()

    async def _take_turn(self, size: int, receive: Receive) -> None:
        gone = asyncio.ensure_future(receive())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[turn] = size
        self._bytes += size
        try:
            await asyncio.wait((turn, gone), timeout=WAIT_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if turn in self.waiting:
                self._leave(turn)
            else:
                self._pass_on()
            raise
        finally:
            gone.cancel()
        if turn in self.waiting:
            self._leave(turn)
            raise ClientDisconnect if gone.done() else self.refuse()
        if gone.done():
            self._pass_on()
            raise ClientDisconnect
        turn.result()

    def _leave(self, turn: asyncio.Future[None]) -> asyncio.Future[None]:
        self._bytes -= self.waiting.pop(turn)
        return turn

    def _pass_on(self) -> None:
        if self.waiting:
            self._leave(next(iter(self.waiting))).set_result(None)
        else:
            self._free += 1


AT_ONCE_MAX, IN_LINE_MAX = 8, 256
"""Of one token: fewer than there are threads and connections to the database, so that slow questions of one leave both
to others.
"""


class Shares:
    """Of what is worked on at once, the part of each token; what is more of it waits. On the event loop only."""

    def __init__(self) -> None:
        self._going: dict[str, int] = {}
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}

    def is_full(self, who: str) -> bool:
        return self._going.get(who, 0) >= AT_ONCE_MAX

    async def enter(self, who: str) -> None:
        """Wait for a place. Raises RateLimitedError where none comes free in time, or too many wait."""
        line = self._lines.setdefault(who, deque())
        if not self.is_full(who):
            self._going[who] = self._going.get(who, 0) + 1
            return
        if len(line) >= IN_LINE_MAX:
            raise RateLimitedError("too many requests of this token wait already", 1.0)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await asyncio.wait((turn,), timeout=WAIT_S_MAX)
        except asyncio.CancelledError:
            if turn.done():
                self.leave(who)
            else:
                line.remove(turn)
            raise
        if not turn.done():
            line.remove(turn)
            raise RateLimitedError(f"{AT_ONCE_MAX} requests of this token are being worked on, and take long", 1.0)

    def leave(self, who: str) -> None:
        """Give the place to whoever waits first."""
        if line := self._lines[who]:
            line.popleft().set_result(None)
            return
        self._going[who] -= 1
        if not self._going[who]:
            del self._going[who], self._lines[who]


class RequestPlace:
    """One request's; kept until it is left, once."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._who: str | None = None

    async def take(self, who: str) -> bool:
        """Wait for a place of theirs; whether it had to. Raises RateLimitedError."""
        if self._who is not None:
            return False
        waited = self._shares.is_full(who)
        await self._shares.enter(who)
        self._who = who
        return waited

    def leave(self) -> None:
        if self._who is not None:
            self._shares.leave(self._who)
            self._who = None


LANES = {"/v1/agent/reports": (256, 256), "/v1/agent/join": (4, 64)}
"""Workers and places by path. Together they leave threads and connections to all else."""
STRANGERS = {"/v1/agent/reports": (128, 128), "/v1/agent/join": (32, 1024)}
"""The same for who comes with a token that was never a good one here: after a start everybody."""


class Lanes:
    """The lanes of a process."""

    def __init__(self, authenticator: Authenticator, retry_after_s: float, elapsed_ms: Callable[[], float]) -> None:
        def now_s() -> float:
            return elapsed_ms() / 1000.0

        self._authenticator = authenticator
        self._lanes = {path: TurnQueue(*size, retry_after_s, now_s) for path, size in LANES.items()}
        self._strangers = {path: TurnQueue(*size, retry_after_s, now_s) for path, size in STRANGERS.items()}

    def ages_s(self) -> dict[str, float]:
        """How long the oldest of each lane has been here."""
        named = {path.rpartition("/")[2]: lane.age_s() for path, lane in self._lanes.items()}
        return {**named, "strangers": max(lane.age_s() for lane in self._strangers.values())}

    def is_strange(self, lane: TurnQueue) -> bool:
        return lane in self._strangers.values()

    def lane_of(self, method: str, path: str, authorization: str) -> TurnQueue | None:
        """Where a request waits; None: nowhere."""
        if method != "POST" or path not in self._lanes:
            return None
        known = self._authenticator.remembered(authorization.partition(" ")[2].strip())[1]
        return (self._strangers if known is None else self._lanes)[path]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a connection answers by itself: fields and content, but for the server's own fields."""

    status: int
    told: bytes
    closes: bool = False

    @classmethod
    def of(cls, response: Response, request_id: str, *, closes: bool) -> Answer:
        fields = [*response.raw_headers, (b"x-request-id", request_id.encode())]
        told = b"".join(b"%b: %b\r\n" % field for field in fields)
        return cls(response.status_code, told + b"\r\n" + bytes(response.body), closes)


Errand = Callable[[bytes, Receive, Presented | None], Awaitable[Answer | None]]
"""Takes a whole body, with who has shown which certificate; None: the application is to take it."""
Meet = Callable[[str, str, Sequence[tuple[bytes, bytes]]], bytes | Errand | None]
"""By method, path and fields of a head: the answer to a request that has to come again, or who takes it once its body
is there; None: the application.
"""
ErrandOf = Callable[[TurnQueue, Mapping[bytes, bytes], str], Errand | None]


class Door:
    """Answers for lanes that are full, while a head is read, which costs a small part of what a report does; and shows
    who is known the short way.
    """

    def __init__(
        self,
        lanes: Lanes,
        is_ending: Callable[[], bool],
        new_id: Callable[[], str],
        counted: Callable[[str, str, int, float], None],
        errands: Mapping[str, ErrandOf] = MappingProxyType({}),
    ) -> None:
        """`errands` by path."""
        self._lanes = lanes
        self._is_ending = is_ending
        self._name, self._numbers = new_id(), itertools.count(1)
        self._counted = counted
        self._errands = errands
        self._told: dict[int, AskedAgain] = {}

    def meet(self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes | Errand | None:
        """The answer to a request that has to come again, whole but for the server's fields, or who takes it; None: the
        application.
        """
        if path not in LANES or self._is_ending():
            return None
        said = dict(reversed(headers))
        lane = self._lanes.lane_of(method, path, said.get(b"authorization", b"").decode("latin-1"))
        if lane is None:
            return None
        if not lane.is_full:
            errand_of = self._errands.get(path)
            # A field that stands twice is the application's to judge.
            if errand_of is None or len(said) < len(headers) or self._lanes.is_strange(lane):
                return None
            return errand_of(lane, said, self._request_id(said))
        self._counted(method, path, 429, 0.0)
        refusal = lane.refuse()
        after_s = math.ceil(refusal.retry_after_s)
        if after_s not in self._told:
            self._told[after_s] = AskedAgain(refusal)
        return self._told[after_s].told(self._request_id(said))

    def _request_id(self, said: Mapping[bytes, bytes]) -> str:
        return request_id_of(said, lambda: f"{self._name}-{next(self._numbers)}")


class AskedAgain:
    """An answer of which only the request's id changes."""

    def __init__(self, error: RateLimitedError) -> None:
        answer = of_error(_ID, error)
        fields = b"".join(b"%b: %b\r\n" % field for field in answer.raw_headers if field[0] != b"content-length")
        self._fields = fields + b"x-request-id: "
        self._before, _, self._after = bytes(answer.body).partition(_ID.encode())

    def told(self, request_id: str) -> bytes:
        """Its fields and content."""
        content = self._before + request_id.encode() + self._after
        return b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (self._fields, request_id.encode(), len(content), content)


_ID = "@request-id@"
_REQUEST_ID = re.compile(r"^[A-Za-z0-9._:-]{8,80}$")


def request_id_of(headers: Mapping[bytes, bytes], new_id: Callable[[], str]) -> str:
    """The id that a request brings, or one of its own."""
    brought = headers.get(b"x-request-id", b"").decode("latin-1")
    return brought if _REQUEST_ID.match(brought) else new_id()
