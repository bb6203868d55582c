"""How the application is served: uvicorn with limits on what a peer may cost before anybody knows who it is.

A head is bounded in bytes, fields and seconds, a body in bytes on the wire and in its pace, an answer in how long its
reader may stand still. Connections are bounded, in all and of one peer: a new one displaces the one that has been
without a request for longest, so that silence, however much there is of it, ends nobody's service. A TLS handshake is
bounded like a head, and who the peer proved to be is part of each request's scope.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from asyncio import BaseTransport, Protocol, TimerHandle, Transport
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Send
from uvicorn._types import ASGI3Application, HTTPScope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.admission import Errand, Meet, replayed
from app.api.auth import CERTIFICATE, NOTED_MS
from app.api.deps import ApiContext
from app.api.problems import MEDIA_TYPE, problem
from app.authority import Contexts, Presented, presented
from app.clock import new_id
from app.errors import FRAMEWORK_STATUSES
from app.settings import DESCRIPTORS_SPARE, Settings

HEAD_BYTES_MAX = 32 * 1024
HEAD_FIELDS_MAX = 100
HEAD_S = 10.0
"""From the connection, or a request's first byte, to the end of its head."""
BODY_STEP_S = 10.0
BODY_STEP_BYTES = 32 * 1024
"""So much of a body at least comes in each step, unless it ends."""
STALLED_S = 30.0
"""How long a peer may leave unread what it is sent."""
KEEP_ALIVE_S = 75
"""Longer than the interval at which agents report, so that each keeps one connection."""
FINISH_S = 20
"""How long a process that ends may go on with requests that it has begun."""
LINGER_S = 2.0
LINGER_BYTES = 256 * 1024
"""What a refused peer may go on sending while it reads why."""


class Connections:
    """Who is connected. On the event loop only."""

    def __init__(self, total_max: int, per_peer_max: int) -> None:
        self._total_max = total_max
        self._per_peer_max = per_peer_max
        self._open: Counter[str] = Counter()
        self._idle: dict[str, OrderedDict[Http | Handshake, None]] = {}

    def admit(self, peer: str) -> bool:
        """Count one more, for which an idle one ends where there are too many; False when none is idle."""
        if self._open[peer] >= self._per_peer_max:
            admitted = self._displace(peer)
        elif self._open.total() >= self._total_max:
            admitted = bool(self._idle) and self._displace(max(self._idle, key=lambda name: len(self._idle[name])))
        else:
            admitted = True
        self._open[peer] += 1
        return admitted

    def left(self, peer: str) -> None:
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]

    def rest(self, peer: str, connection: Http | Handshake) -> None:
        """It waits for a request from now on."""
        self._idle.setdefault(peer, OrderedDict()).setdefault(connection)

    def work(self, peer: str, connection: Http | Handshake) -> None:
        """It has a request now, or is no more."""
        idle = self._idle.get(peer)
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[peer]

    def begin(self, peer: str, connection: Handshake) -> bool:
        """Admit one that has to agree on TLS first; it rests until it has."""
        admitted = self.admit(peer)
        self.rest(peer, connection)
        return admitted

    def end(self, peer: str, connection: Handshake) -> None:
        self.work(peer, connection)
        self.left(peer)

    def _displace(self, peer: str) -> bool:
        idle = self._idle.get(peer)
        if not idle:
            return False
        oldest = next(iter(idle))
        self.work(peer, oldest)
        oldest.abort()
        return True


_EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doorman:
    """What a connection needs before it is one."""

    contexts: Contexts
    admit: Callable[[str, Handshake], bool]
    leave: Callable[[str, Handshake], None]
    refused: Callable[[str, str], None]
    """Told of peers whose certificate is not good, by address and code."""
    handshake_s: float
    linger_s: float


class Handshake(asyncio.Protocol):
    """A connection until both sides have agreed; then the protocol that it is for gets it."""

    def __init__(self, doorman: Doorman, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._doorman = doorman
        self._protocol = protocol
        self._peer = "-"
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket over before anything is read from it, for what agrees on TLS reads from the beginning."""
        name = transport.get_extra_info("peername")
        self._peer = str(name[0]) if isinstance(name, tuple) else "-"
        plain = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        plain.setblocking(False)
        cast("asyncio.Transport", transport).abort()
        if self._doorman.admit(self._peer, self):
            self._task = asyncio.get_running_loop().create_task(self._agree(plain))
            self._task.add_done_callback(partial(self._ended, plain))
        else:
            self._doorman.leave(self._peer, self)
            plain.close()

    def abort(self) -> None:
        """It gives way to another."""
        if self._task is not None:
            self._task.cancel()

    async def _agree(self, plain: socket.socket) -> None:
        doorman = self._doorman
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                plain,
                ssl=doorman.contexts.current(),
                ssl_handshake_timeout=doorman.handshake_s,
                ssl_shutdown_timeout=doorman.linger_s,
            )
        except ssl.SSLCertVerificationError as error:
            code = "certificate-expired" if error.verify_code == _EXPIRED else "certificate-foreign"
            doorman.refused(self._peer, code)
        except OSError:
            # Gone, too slow, or no TLS at all.
            plain.close()

    def _ended(self, plain: socket.socket, task: asyncio.Task[None]) -> None:
        self._doorman.leave(self._peer, self)
        if task.cancelled():
            plain.close()


class _Awaits(StrEnum):
    HEAD = "head"
    BODY = "body"
    REQUESTED = "requested"
    """What was asked is known; the next head has not begun."""


class Http(HttpToolsProtocol):
    """One connection. uvicorn's own has no limit on heads, nor any on time but for kept connections."""

    def __init__(
        self, limits: Connections, body_bytes_max: int, meet: Meet = lambda *_: None, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._limits = limits
        self._meet = meet
        self._turned: bytes | None = None
        """What to answer to this request, of which nothing else is made."""
        self._errand: Errand | None = None
        """Who takes this request when its body is there."""
        self._is_turning = False
        """Whether such an answer is about to be sent."""
        # Framing of small chunks may weigh as much as what they carry.
        self._message_bytes_max = HEAD_BYTES_MAX + 2 * body_bytes_max
        self._peer = "-"
        self._phase = self._watched = _Awaits.REQUESTED
        self._alarm: TimerHandle | None = None
        self._stalled: TimerHandle | None = None
        self._bytes = self._step_bytes = self._head_bytes = 0
        """Of this message on the wire, since the last look at its body, and in fields that are complete."""
        self._has_ended = False
        self._fault = HTTPStatus.BAD_REQUEST
        self._is_refused = False
        self._presented: Presented | None = None

    # --- What the event loop tells

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))
        self._peer = self.client[0] if self.client else "-"
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        shown = secured.getpeercert(binary_form=True) if secured is not None else None
        self._presented = presented(shown) if shown else None
        if self._limits.admit(self._peer):
            self._phase = _Awaits.HEAD
            self._limits.rest(self._peer, self)
            self._watch()
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = _Awaits.REQUESTED
        self._watch()
        self.resume_writing()
        self._limits.work(self._peer, self)
        self._limits.left(self._peer)
        super().connection_lost(exc)
        self._leave_errand()

    def abort(self) -> None:
        """It gives way to another."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._bytes += len(data)
            if self._bytes > LINGER_BYTES:
                self.transport.abort()
            return
        self._has_ended = False
        super().data_received(data)
        if not self._is_refused:
            self._judge(len(data))

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is sent to."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def timeout_keep_alive_handler(self) -> None:
        """End a kept connection, also one whose last answer is still unread."""
        self.transport.abort()

    # --- What the parser tells

    def on_message_begin(self) -> None:
        self._bytes = self._head_bytes = 0
        self._phase = _Awaits.HEAD
        super().on_message_begin()
        self.scope["state"][CERTIFICATE] = self._presented

    def on_url(self, url: bytes) -> None:
        self._weigh(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._weigh(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._phase = _Awaits.BODY
        self._limits.work(self._peer, self)
        if not self._is_busy() and self.parser.should_keep_alive() and not self.expect_100_continue:
            met = self._meet(self.parser.get_method().decode(), self.url.decode("latin-1"), self.headers)
            if isinstance(met, bytes):
                self._turned = met
                return
            self._errand = met
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        # An errand waits for the body.
        if self._errand is None:
            super()._start_asgi_task(cycle, app)

    def _leave_errand(self) -> None:
        """Nobody sends the rest of its body: the application counts who hung up."""
        if self._errand is not None:
            self._errand = None
            self._start_asgi_task(self.cycle, self.app)

    def on_body(self, body: bytes) -> None:
        if self._turned is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = _Awaits.REQUESTED
        self._has_ended = True
        if self._turned is not None:
            self.loop.call_soon(self._answer_turned, self._turned)
            self._turned, self._is_turning = None, True
            return
        super().on_message_complete()
        if self._errand is not None:
            errand, self._errand = self._errand, None
            self._start_asgi_task(self.cycle, partial(self._run, self.cycle, errand))

    def _answer_turned(self, answer: bytes) -> None:
        self._is_turning = False
        if not self.transport.is_closing():
            self._say(HTTPStatus.TOO_MANY_REQUESTS, answer)

    async def _run(
        self, cycle: RequestResponseCycle, errand: Errand, scope: HTTPScope, receive: Receive, send: Send
    ) -> None:
        message = await receive()
        gone = message["type"] == "http.disconnect"
        found = None if gone else await errand(message["body"], receive, self._presented)
        if found is None:
            await self.app(scope, replayed(message, receive), send)
        elif not cycle.disconnected:
            cycle.response_started = cycle.response_complete = True
            self._say(found.status, found.told, closes=found.closes or not cycle.keep_alive)

    def _say(self, status: int, told: bytes, *, closes: bool = False) -> None:
        """Answer, past what applications answer with; `told` is all but the server's fields."""
        fields = b"".join(b"%b: %b\r\n" % field for field in self.server_state.default_headers)
        self.transport.write(STATUS_LINE[status] + fields + b"connection: close\r\n" * closes + told)
        if closes:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase is _Awaits.REQUESTED and not self.transport.is_closing():
            self._limits.rest(self._peer, self)

    def send_400_response(self, msg: str) -> None:
        """The parser stopped, by itself or because of a limit."""
        self._refuse(self._fault, msg)

    # --- Limits

    def _judge(self, count: int) -> None:
        """See what the parser made of so many bytes."""
        self._step_bytes += count
        if not self._has_ended:
            # What the end of a message shares with the begin of the next counts for neither.
            self._bytes += count
        if self._phase is _Awaits.REQUESTED and not self._is_busy() and self.timeout_keep_alive_task is None:
            self._await_next()
        if self._phase is _Awaits.HEAD and self._bytes > HEAD_BYTES_MAX:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._bytes > self._message_bytes_max:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            self._watch()

    def _weigh(self, count: int) -> None:
        """Stop the parser, inside whose callback this is, when the head is too large."""
        self._head_bytes += count
        if self._head_bytes > HEAD_BYTES_MAX or len(self.headers) >= HEAD_FIELDS_MAX:
            self._fault = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise ValueError(self._fault.phrase)

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _is_busy(self) -> bool:
        return self._is_turning or self._is_answering()

    def _await_next(self) -> None:
        """A body has ended whose answer was early: of it nothing counts for the head that comes, in as long as any."""
        self._bytes = 0
        self._limits.rest(self._peer, self)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _watch(self) -> None:
        if self._phase is self._watched:
            return
        self._watched = self._phase
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._phase is not _Awaits.REQUESTED:
            self._step_bytes = 0
            delay_s, judge = (HEAD_S, self._late) if self._phase is _Awaits.HEAD else (BODY_STEP_S, self._judge_body)
            self._alarm = self.loop.call_later(delay_s, judge)

    def _late(self) -> None:
        if self._bytes:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.transport.abort()

    def _judge_body(self) -> None:
        if self._step_bytes < BODY_STEP_BYTES and not self.flow.read_paused:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self._step_bytes = 0
            self._alarm = self.loop.call_later(BODY_STEP_S, self._judge_body)

    def _refuse(self, status: HTTPStatus, detail: str = "") -> None:
        """Say why, where nothing else is being said, and end; what still comes is dropped."""
        self._is_refused, self._bytes, self._phase = True, 0, _Awaits.REQUESTED
        self._watch()
        self._limits.work(self._peer, self)
        answering = self._is_answering()
        if self.transport.is_closing() or (answering and self.cycle.response_started):
            self.transport.abort()
            return
        code, title = FRAMEWORK_STATUSES[status]
        told = problem(new_id(), status=status, code=code, title=title, detail=detail or title).body
        fields = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + fields % (MEDIA_TYPE.encode(), len(told)) + told)
        if answering:
            # To the application its client has hung up.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._leave_errand()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)


def server_of(app: ASGIApp, settings: Settings) -> uvicorn.Server:
    """A server of the application that has not started; raises this process's limit on open files where it may. Raises
    InputError for certificates that cannot be used.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.connections_max + DESCRIPTORS_SPARE
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    total_max = max(1, min(settings.connections_max, soft - DESCRIPTORS_SPARE))
    limits = Connections(total_max, min(total_max, settings.connections_per_peer_max))
    protocol: Callable[..., Protocol] = partial(Http, limits, settings.body_bytes_max)
    if isinstance(app, FastAPI):
        protocol = partial(protocol, meet=app.state.door.meet)
    if settings.tls:
        protocol = _secured(cast("FastAPI", app), settings, limits, protocol)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=cast("Any", protocol),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=FINISH_S,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=4096,
        )
    )


def _secured(
    app: FastAPI, settings: Settings, limits: Connections, protocol: Callable[..., Protocol]
) -> Callable[..., Protocol]:
    """The same protocol for connections that have agreed on TLS."""
    context = cast("ApiContext", app.state.context)
    told_ms: dict[str, float] = {}

    def refused(peer: str, code: str) -> None:
        now_ms = context.clock.elapsed_ms()
        if now_ms - told_ms.get(code, -NOTED_MS) >= NOTED_MS:
            told_ms[code] = now_ms
            asyncio.get_running_loop().run_in_executor(None, app.state.services.identities.note_untrusted, peer, code)

    doorman = Doorman(
        contexts=Contexts(settings, context.authority, context.log),
        admit=limits.begin,
        leave=limits.end,
        refused=refused,
        handshake_s=HEAD_S,
        linger_s=LINGER_S,
    )
    return lambda **told: Handshake(doorman, partial(protocol, **told))
