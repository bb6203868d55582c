"""The same bytes to two servers, of which one takes reports the short way: both answer, count and store the same.

Each has a database of its own that began as the other's, and both hear all cases of a run, so that they go on alike.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from psycopg import sql
from sqlalchemy import text

from agents.wire import Report, encode
from app import kinds
from app.api import reports, server
from app.api.auth import RateLimiter, _Known
from app.services.seen import telemetry
from app.store.engine import Database
from app.store.ledger import account
from app.store.tokens import secret_hash
from tests import builders
from tests.integration.api.serving import DEADLINE_S, serving, short_ways
from tests.integration.api.world import NODE, OWN, World, build_world, settled_clone
from tests.integration.availability.proxy import balancing
from tests.integration.postgres import Server
from tests.integration.store.samples import device_report, replica_report, report, tell
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
OTHER = "n2"
STEP_S = 0.4
"""How long a body may stand still here."""
TABLES = ("report_log", "report_heads", "device_samples", "replica_samples", "node_states", "events")
OWN_TO_EACH = {
    "id", "at", "received_at", "shaped_at", "behind_s", "shape", "request_id", "created_at", "updated_at", "changed_at",
    "joined_at", "seen_at", "last_report_at", "actor",
}  # fmt: skip
"""Columns that say when, or which of two."""
FIELD = b"%b: %b\r\n"
HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_numbers = count(10)


@dataclass(frozen=True, slots=True)
class Told:
    """One answer, but for what no two have in common."""

    status: int
    fields: tuple[tuple[str, str], ...]
    content: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What goes over one connection: pieces, of which each waits for so many answers before it."""

    pieces: Sequence[bytes]
    after: Sequence[int] = ()
    hangs_up: bool = False
    between: Callable[[Way], object] | None = None
    """Done before the last piece, when the server has taken a head and waits for a body."""


@dataclass(slots=True)
class Way:
    world: World
    port: int
    server: uvicorn.Server
    known: dict[bytes, _Known] = field(default_factory=dict)
    """What it remembers of everybody's tokens when a test begins."""

    def send(self, sent: Sent) -> tuple[list[Told], bool]:
        """What is answered until the connection ends, and whether it was still good for another request."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S) as peer:
            heard = peer.makefile("rb")
            told: list[Told] = []
            try:
                for number, piece in enumerate(sent.pieces):
                    while number < len(sent.after) and len(told) < sent.after[number]:
                        told.append(_answer(heard))
                    if sent.between is not None and number == len(sent.pieces) - 1:
                        wait_until(self.awaits_body)
                        sent.between(self)
                    peer.sendall(piece)
                if sent.hangs_up:
                    peer.shutdown(socket.SHUT_WR)
                while True:
                    told.append(_answer(heard))
            except (EOFError, ConnectionError):
                pass
        lasted = bool(told) and told[-1].content == {"status": "ok"}
        return told, lasted

    @property
    def connections(self) -> list[Any]:
        return list(self.server.server_state.connections)

    def awaits_body(self) -> bool:
        return any(each._phase is server._Awaits.BODY for each in self.connections)

    def tables(self) -> dict[str, list[str]]:
        found = {}
        with self.world.database.raw() as connection:
            for name in TABLES:
                query = sql.SQL("SELECT (to_jsonb(t) - %s::text[])::text FROM {} AS t ORDER BY 1")
                rows = connection.execute(query.format(sql.Identifier(name)), (sorted(OWN_TO_EACH),)).fetchall()
                # Tokens have names of their own on each.
                found[name] = sorted(re.sub(r'"tokens/[0-9a-f-]+"', '"tokens/"', text) for (text,) in rows)
        return found

    def counts(self) -> dict[str, float]:
        """Requests and reports by what became of them."""
        registry = self.world.app.state.metrics
        return {
            f"{sample.name} {sorted(sample.labels.items())}": sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name in COUNTED
        }


COUNTED = {"headroom_http_requests_total", "headroom_ingest_reports_total", "headroom_ingest_rows_total"}


def _answer(heard: Any) -> Told:
    line = heard.readline()
    if not line:
        raise EOFError
    status = int(line.split()[1])
    if status == 100:
        assert heard.readline() == b"\r\n"
        return Told(100, (), None)
    fields = []
    while line := heard.readline().strip():
        name, _, text = line.decode("latin-1").partition(":")
        fields.append((name.lower(), text.strip()))
    length = int(dict(fields).get("content-length", "0"))
    body = heard.read(length)
    assert len(body) == length
    content = json.loads(body) if body else None
    return Told(status, _without_ids(fields, content), _settled(content))


def _without_ids(fields: list[tuple[str, str]], content: Any) -> tuple[tuple[str, str], ...]:
    named = dict(fields)
    if isinstance(content, dict) and "request_id" in content:
        stated = content.pop("request_id")
        assert named.get("x-request-id", stated) == stated
        # Its length is told.
        named.pop("content-length", None)
    if not named.get("x-request-id", "mine-").startswith("mine-"):
        named["x-request-id"] = "one of its own"
    named.pop("date", None)
    return tuple(sorted(named.items()))


def _settled(content: Any) -> Any:
    # How far a clock is ahead is told in whole seconds, and each database is a cluster.
    told = re.sub(r"\b(999999|1000000) s", "about 1000000 s", json.dumps(content))
    return json.loads(re.sub(r"of cluster [0-9a-f-]{36}", "of this cluster", told))


class Ways:
    """Both, the short way first."""

    def __init__(self, ways: tuple[Way, Way], taken: list[bool]) -> None:
        self.ways = ways
        self.taken = taken

    @property
    def world(self) -> World:
        return self.ways[0].world

    def token(self, who: str = NODE) -> bytes:
        return self.world.secrets[who].encode()

    def compare(self, sent: Sent, *, tables: bool = True) -> list[Told]:
        """What both answer, if it is the same and leaves the same; whoever sends much may look at tables at its end."""
        before = [way.counts() for way in self.ways]
        self.taken.clear()
        short, long = (way.send(sent) for way in self.ways)
        assert short == long

        def deltas() -> list[dict[str, float]]:
            return [
                {name: value - held.get(name, 0.0) for name, value in way.counts().items() if value != held.get(name)}
                for way, held in zip(self.ways, before, strict=True)
            ]

        # Who hung up is counted when that is noticed.
        wait_until(lambda: deltas()[0] == deltas()[1], lambda: f"the same counts: {deltas()}", 10.0)
        if tables:
            assert self.ways[0].tables() == self.ways[1].tables()
        return short[0]

    def do(self, deed: Callable[[World], object]) -> None:
        for way in self.ways:
            deed(way.world)


def _pair(stack: ExitStack, server_of: Server, **settings: Any) -> tuple[Way, Way]:
    ways = []
    for which in ("short", "long"):
        name = f"ways_{which}_{next(_numbers)}"
        database = Database(settled_clone(server_of, name), pool_size=8)
        stack.callback(server_of.drop, name)
        stack.callback(database.dispose)
        world = build_world(database, **settings)
        stack.callback(world.client.close)
        # Whether the database is to be asked again for everybody is a matter of time.
        world.app.state.authenticator._asked_ms = 1e15
        for node in (NODE, OTHER):
            world.joined(node)
            if ways:
                # The same token for both.
                secret = ways[0].world.secrets[node]
                hashes = (secret_hash(secret), secret_hash(world.secrets[node]))
                with database.raw() as connection:
                    connection.execute("UPDATE tokens SET secret_hash = %s WHERE secret_hash = %s", hashes)
                world.secrets[node] = secret
        if which == "long":
            world.app.state.door._errands = {}
        port, running = stack.enter_context(serving(world))
        for who in (NODE, OTHER):
            assert world.call("GET", f"/v1/agent/nodes/{who}/target", who).status_code == 200
        for who in ("admin", "viewer", "join", "gateway", "own operator", "reporter"):
            world.call("GET", "/v1/routes", who)
        ways.append(Way(world, port, running, {**world.app.state.authenticator._known}))
    return ways[0], ways[1]


@pytest.fixture(scope="module")
def taken() -> Iterator[list[bool]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server, "BODY_STEP_S", STEP_S)
        # Nobody else is here: each look at what is remembered finds it.
        patched.setattr("app.api.auth.CACHE_TTL_MS", 1e9)
        yield short_ways(patched)


@pytest.fixture(scope="module")
def both(template_server: Server, taken: list[bool]) -> Iterator[Ways]:
    with ExitStack() as stack:
        yield Ways(_pair(stack, template_server), taken)


@pytest.fixture
def ways(both: Ways) -> Ways:
    """Both remember who is known, whatever was revoked before."""
    for way in both.ways:
        with way.world.database.raw() as connection:
            connection.execute("UPDATE tokens SET revoked_at = NULL WHERE revoked_at IS NOT NULL")
        way.world.app.state.authenticator._known = OrderedDict(way.known)
        way.world.app.state.authenticator._asked_ms = 1e15
        way.world.app.state.ending.clear()
    return both


def _report(**changes: Any) -> Report:
    device = device_report(f"GPU-{NODE}-0")
    made = report(NODE, next(_numbers), boot_id="boot-1", observed_at_s=time.time(), devices=[device])
    return replace(made, **changes)


def _body(*said: Report) -> bytes:
    plain = [encode(one) for one in said or (_report(),)]
    return json.dumps(plain[0] if len(plain) == 1 else plain).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A request line and its fields."""

    method: bytes = b"POST"
    target: bytes = reports.PATH.encode()
    version: bytes = b"HTTP/1.1"
    token: bytes | None = b"Bearer {token}"
    media: bytes | None = b"application/json"
    length: bytes | None = b"{length}"
    more: tuple[tuple[bytes, bytes], ...] = ()
    request_id: bytes | None = b"mine-12345678"

    def bytes(self, token: bytes, length: int) -> bytes:
        fields: list[tuple[bytes, bytes | None]] = [
            (b"Host", b"x"),
            (b"Authorization", self.token and self.token.replace(b"{token}", token)),
            (b"Content-Type", self.media),
            (b"Content-Length", self.length and self.length.replace(b"{length}", b"%d" % length)),
            (b"X-Request-Id", self.request_id),
            *self.more,
        ]
        told = b"".join(FIELD % (name, text) for name, text in fields if text is not None)
        return b"%b %b %b\r\n%b\r\n" % (self.method, self.target, self.version, told)


def _whole(ways: Ways, head: Head, body: bytes, who: str = NODE) -> bytes:
    return head.bytes(ways.token(who), len(body)) + body


PLAIN = Head()
CHUNKED = ((b"Transfer-Encoding", b"chunked"),)
HEADS: dict[str, tuple[Head, bool]] = {
    # What is usual goes the short way; all else by the application.
    "usual": (PLAIN, True),
    "names of fields in small letters": (replace(PLAIN, more=((b"x-forwarded-for", b"10.0.0.1"),)), True),
    "of no type": (replace(PLAIN, media=None), True),
    "of an empty type": (replace(PLAIN, media=b""), False),
    "of another type": (replace(PLAIN, media=b"text/plain"), False),
    "of a type with parameters": (replace(PLAIN, media=b"application/json; charset=utf-8"), False),
    "of a type in capitals": (replace(PLAIN, media=b"APPLICATION/JSON"), False),
    "of two types": (replace(PLAIN, more=((b"Content-Type", b"text/plain"),)), False),
    "without an id": (replace(PLAIN, request_id=None), True),
    "with an id that is none": (replace(PLAIN, request_id=b"a b"), True),
    "with an id of other letters": (replace(PLAIN, request_id="grün-grün".encode()), True),
    "with an id that is too long": (replace(PLAIN, request_id=b"x" * 500), True),
    "with two ids": (replace(PLAIN, more=((b"X-Request-Id", b"mine-87654321"),)), False),
    "scheme in small letters": (replace(PLAIN, token=b"bearer {token}"), True),
    "scheme in capitals": (replace(PLAIN, token=b"BEARER {token}"), True),
    "two blanks": (replace(PLAIN, token=b"Bearer  {token}"), False),
    "a tab": (replace(PLAIN, token=b"Bearer\t{token}"), False),
    "a blank after it": (replace(PLAIN, token=b"Bearer {token} "), False),
    "another scheme": (replace(PLAIN, token=b"Basic {token}"), False),
    "no token": (replace(PLAIN, token=None), False),
    "an empty token": (replace(PLAIN, token=b"Bearer "), False),
    "an unknown token": (replace(PLAIN, token=b"Bearer hr_nobody"), False),
    "a token of other letters": (replace(PLAIN, token="Bearer grün".encode()), False),
    "a token that is too long": (replace(PLAIN, token=b"Bearer " + b"x" * 4000), False),
    "the token in a cookie": (replace(PLAIN, token=None, more=((b"Cookie", b"headroom={token}"),)), False),
    "leave to send": (replace(PLAIN, more=((b"Expect", b"100-continue"),)), False),
    "leave in capitals": (replace(PLAIN, more=((b"Expect", b"100-Continue"),)), False),
    "leave for something else": (replace(PLAIN, more=((b"Expect", b"the-unexpected"),)), True),
    "the last": (replace(PLAIN, more=((b"Connection", b"close"),)), False),
    "a kept connection": (replace(PLAIN, more=((b"Connection", b"keep-alive"),)), True),
    "another protocol": (replace(PLAIN, more=((b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"))), True),
    "another HTTP": (replace(PLAIN, more=((b"Connection", b"Upgrade, HTTP2-Settings"), (b"Upgrade", b"h2c"))), True),
    "HTTP/1.0": (replace(PLAIN, version=b"HTTP/1.0"), False),
    "HTTP/1.0, kept": (replace(PLAIN, version=b"HTTP/1.0", more=((b"Connection", b"keep-alive"),)), True),
    "HTTP/2.0": (replace(PLAIN, version=b"HTTP/2.0"), False),
    "HTTP/9": (replace(PLAIN, version=b"HTTP/9"), False),
    "whole address": (replace(PLAIN, target=b"http://x" + PLAIN.target), False),
    "whole address elsewhere": (replace(PLAIN, target=b"https://elsewhere:1" + PLAIN.target), False),
    "two slashes": (replace(PLAIN, target=b"/" + PLAIN.target), False),
    "a slash at the end": (replace(PLAIN, target=PLAIN.target + b"/"), False),
    "written in per cent": (replace(PLAIN, target=b"/v1/agent/%72eports"), False),
    "slashes in per cent": (replace(PLAIN, target=b"/v1%2Fagent%2Freports"), False),
    "a round-about path": (replace(PLAIN, target=b"/v1/./agent/../agent/reports"), False),
    "capitals": (replace(PLAIN, target=PLAIN.target.upper()), False),
    "an empty query": (replace(PLAIN, target=PLAIN.target + b"?"), False),
    "a query": (replace(PLAIN, target=PLAIN.target + b"?a=b"), False),
    "a fragment": (replace(PLAIN, target=PLAIN.target + b"#a"), False),
    "no path": (replace(PLAIN, target=b"*"), False),
    "other letters in the path": (replace(PLAIN, target=PLAIN.target + "ü".encode()), False),
    "PUT": (replace(PLAIN, method=b"PUT"), False),
    "GET": (replace(PLAIN, method=b"GET"), False),
    "OPTIONS": (replace(PLAIN, method=b"OPTIONS"), False),
    "no method": (replace(PLAIN, method=b"post"), False),
    "two hosts": (replace(PLAIN, more=((b"Host", b"y"),)), False),
    "two tokens": (replace(PLAIN, more=((b"Authorization", b"Bearer hr_nobody"),)), False),
    "said to be gzip": (replace(PLAIN, more=((b"Content-Encoding", b"gzip"),)), True),
    "wants gzip": (replace(PLAIN, more=((b"Accept-Encoding", b"gzip"),)), True),
    "wants no JSON": (replace(PLAIN, more=((b"Accept", b"text/html"),)), True),
    "of a browser": (replace(PLAIN, more=((b"Origin", b"http://evil.example"),)), True),
    "under a key": (replace(PLAIN, more=((b"Idempotency-Key", b"once"),)), True),
    "a field without a name": (replace(PLAIN, more=((b"", b"x"),)), False),
    "a blank before the colon": (replace(PLAIN, more=((b"X-A ", b"x"),)), False),
    "U+0000 in a field": (replace(PLAIN, more=((b"X-A", b"a\0b"),)), False),
    "a folded field": (replace(PLAIN, more=((b"X-A", b"a\r\n b"),)), False),
    "a large field": (replace(PLAIN, more=((b"X-A", b"a" * server.HEAD_BYTES_MAX),)), False),
    "many fields": (replace(PLAIN, more=((b"X-A", b"a"),) * server.HEAD_FIELDS_MAX), False),
    "many other fields": (replace(PLAIN, more=tuple((b"X-%d" % each, b"a") for each in range(90))), True),
    # How long is it?
    "no length": (replace(PLAIN, length=None), False),
    "an empty length": (replace(PLAIN, length=b""), False),
    "a length with a sign": (replace(PLAIN, length=b"+{length}"), False),
    "less than nothing": (replace(PLAIN, length=b"-1"), False),
    "a length in words": (replace(PLAIN, length=b"many"), False),
    "a hexadecimal length": (replace(PLAIN, length=b"0x{length}"), False),
    "zeros before the length": (replace(PLAIN, length=b"000000{length}"), True),
    "a hundred zeros before it": (replace(PLAIN, length=b"0" * 100 + b"{length}"), True),
    "a length of two": (replace(PLAIN, length=b"{length}, {length}"), False),
    "a blank in the length": (replace(PLAIN, length=b"1 {length}"), False),
    "an endless length": (replace(PLAIN, length=b"9" * 30), False),
    "a length beyond all": (replace(PLAIN, length=b"9" * 15), False),
    "the same length twice": (replace(PLAIN, more=((b"Content-Length", b"{length}"),)), False),
    "two lengths": (replace(PLAIN, more=((b"Content-Length", b"1"),)), False),
    "too short": (replace(PLAIN, length=b"10"), False),
    "nothing, and more": (replace(PLAIN, length=b"0"), False),
    "chunked and of a length": (replace(PLAIN, more=CHUNKED), False),
    "another coding": (replace(PLAIN, length=None, more=((b"Transfer-Encoding", b"gzip"),)), False),
    "another coding and a length": (replace(PLAIN, more=((b"Transfer-Encoding", b"identity"),)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_any_head_is_answered_alike(ways: Ways, name: str) -> None:
    head, is_short = HEADS[name]
    body = _body()
    more = tuple((key, text.replace(b"{length}", b"%d" % len(body))) for key, text in head.more)
    # What is sent behind a wish for another protocol is lost.
    told = ways.compare(Sent(pieces=[_whole(ways, replace(head, more=more), body), HEALTH], after=(0, 1)))
    assert told
    assert any(ways.taken) is is_short


BODIES: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "blanks": lambda: b" \r\n\t ",
    "blanks around": lambda: b"\n " + _body() + b" \n",
    "no JSON": lambda: b"{",
    "a mark of order": lambda: b"\xef\xbb\xbf" + _body(),
    "no UTF-8": lambda: _body().replace(b"boot-1", b"boot-\xff"),
    "wide letters": lambda: _body().decode().encode("utf-16"),
    "gzip": lambda: gzip.compress(_body()),
    "a hundred thousand brackets": lambda: b"[" * 60_000,
    "a number without end": lambda: _body().replace(b'"sequence": ', b'"sequence": ' + b"9" * 5_000),
    "infinite": lambda: _body().replace(b'"interval_s": ', b'"interval_s": 1e999'),
    "the same key twice": lambda: _body().replace(b"{", b'{"sequence": 1, ', 1),
    "a list": lambda: _body(_report(), _report()),
    "a list of one twice": lambda: b"[%b, %b]" % ((_body(),) * 2),
    "an empty list": lambda: b"[]",
    "too many": lambda: b"[%b]" % b",".join([b"1"] * (telemetry.REPORTS_PER_CALL_MAX + 1)),
    "of another node": lambda: _body(_report(node=OTHER)),
    "of nobody": lambda: _body(_report(node="nobody")),
    "one's own and another's": lambda: _body(_report(), _report(node=OTHER)),
    "a device of another": lambda: _body(_report(devices=(device_report(f"GPU-{OTHER}-0"),))),
    "a replica that nobody told": lambda: _body(_report(replicas=(replica_report("vision/a#0", f"GPU-{NODE}-0"),))),
    "from the future": lambda: _body(_report(observed_at_s=time.time() + 1e6)),
    "from long ago": lambda: _body(_report(observed_at_s=5.0)),
    "of another history": lambda: _body(_report(cluster_id="elsewhere", epoch=3)),
    "of a generation to come": lambda: _body(_report(generation_applied=10**6)),
    "of another start": lambda: _body(_report(boot_id=f"boot-{next(_numbers)}")),
    "as long as the short way takes": lambda: _body().ljust(reports.SHORT_BYTES_MAX),
    "longer than it takes": lambda: _body().ljust(reports.SHORT_BYTES_MAX + 1),
}


@pytest.mark.parametrize("name", BODIES)
def test_any_body_is_answered_alike(ways: Ways, name: str) -> None:
    body = BODIES[name]()
    first, second, health = ways.compare(Sent(pieces=[_whole(ways, PLAIN, body) * 2 + HEALTH]))
    assert health.status == 200
    assert any(ways.taken) is (name != "longer than it takes")
    # The second is a repeat, or as wrong as the first.
    if first.status == 200:
        first.content.update(accepted=0, duplicates=sum(first.content.values()))
    assert second == first


@pytest.mark.parametrize("who", ["admin", "viewer", "join", "gateway", "own operator", "reporter", OTHER])
def test_whose_token_it_is_is_judged_alike(ways: Ways, who: str) -> None:
    told = ways.compare(Sent(pieces=[_whole(ways, PLAIN, _body(), who) + HEALTH]))
    assert (told[0].status, told[0].content["code"]) == (403, "forbidden")


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_revoked_token_is_judged_alike(ways: Ways, forgotten: bool) -> None:
    def revoke(world: World) -> None:
        with world.database.raw() as connection:
            connection.execute("UPDATE tokens SET revoked_at = now() WHERE subject = %s", (NODE,))
        if forgotten:
            world.app.state.authenticator.forget()

    ways.do(revoke)
    told = ways.compare(Sent(pieces=[_whole(ways, PLAIN, _body()) + HEALTH]))
    # What is remembered holds for seconds, whichever way.
    assert told[0].status == (401 if forgotten else 200)


@pytest.mark.parametrize("code", ["certificate-required", "certificate-foreign", "certificate-expired"])
def test_what_the_connection_shows_is_judged_alike(ways: Ways, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    for way in ways.ways:
        monkeypatch.setattr(way.world.app.state.authenticator, "doubt", lambda *_: code)
    told = ways.compare(Sent(pieces=[_whole(ways, PLAIN, _body()) + HEALTH]))
    assert (told[0].status, told[0].content["code"]) == (401, code)


def _framed(body: bytes, *ends: bytes) -> bytes:
    head, tail = body[:7], body[7:]
    return b"%x\r\n%b\r\n%x;more=1\r\n%b\r\n%b" % (len(head), head, len(tail), tail, b"".join(ends) or b"0\r\n\r\n")


EXCHANGES: dict[str, Callable[[Ways, bytes], Sent]] = {
    "one after the other": lambda ways, one: Sent(
        pieces=[one, HEALTH.replace(b"Connection: close\r\n", b""), one, HEALTH], after=(0, 1, 2, 3)
    ),
    "all at once": lambda ways, one: Sent(
        pieces=[one + HEALTH.replace(b"Connection: close\r\n", b"") + one + one + HEALTH]
    ),
    "the ordinary first": lambda ways, one: Sent(pieces=[HEALTH.replace(b"Connection: close\r\n", b"") + one + HEALTH]),
    "many at once": lambda ways, one: Sent(pieces=[one * 30 + HEALTH]),
    "byte by byte": lambda ways, one: Sent(pieces=[bytes([each]) for each in one + HEALTH]),
    "head and body apart": lambda ways, one: Sent(pieces=_halves(one, HEALTH), between=lambda _: None),
    "the last, and more": lambda ways, one: Sent(
        pieces=[one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) + one + HEALTH]
    ),
    "a body that stalls": lambda ways, one: Sent(pieces=[one[:-10]]),
    "a body that stalls behind another": lambda ways, one: Sent(pieces=[one + one[:-10]]),
    "nothing but a head": lambda ways, one: Sent(pieces=[one.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"]),
    "hangs up in a body": lambda ways, one: Sent(pieces=[one[:-10]], hangs_up=True),
    "hangs up before a body": lambda ways, one: Sent(
        pieces=[one.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"], hangs_up=True
    ),
    "hangs up in a head": lambda ways, one: Sent(pieces=[one[:40]], hangs_up=True),
    "hangs up behind another": lambda ways, one: Sent(pieces=[one, one[:-10]], after=(0, 1), hangs_up=True),
    "rubbish behind it": lambda ways, one: Sent(pieces=[one + b"rubbish\r\n\r\n"]),
    "rubbish in place of it": lambda ways, one: Sent(pieces=[b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]),
    "empty lines before it": lambda ways, one: Sent(pieces=[b"\r\n\r\n" + one + b"\r\n" + one + HEALTH]),
    "bare line feeds": lambda ways, one: Sent(pieces=[one.replace(b"\r\n", b"\n") + HEALTH]),
    "bare carriage returns": lambda ways, one: Sent(pieces=[one.replace(b"\r\n", b"\r") + HEALTH]),
    "HTTP/0.9": lambda ways, one: Sent(pieces=[b"POST /v1/agent/reports\r\n\r\n"]),
    "in chunks": lambda ways, one: Sent(pieces=[_chunked(ways, _framed(_body())) + HEALTH]),
    "in chunks with a trailer": lambda ways, one: Sent(
        pieces=[_chunked(ways, _framed(_body(), b"0\r\nAuthorization: Bearer x\r\n\r\n")) + HEALTH]
    ),
    "in chunks without an end": lambda ways, one: Sent(pieces=[_chunked(ways, _framed(_body(), b"5\r\n"))]),
    "in chunks of no size": lambda ways, one: Sent(pieces=[_chunked(ways, b"zz\r\n{}\r\n0\r\n\r\n") + HEALTH]),
    "in chunks of a size below": lambda ways, one: Sent(pieces=[_chunked(ways, b"-1\r\n{}\r\n0\r\n\r\n") + HEALTH]),
    "in chunks and of a length": lambda ways, one: Sent(
        pieces=[_whole(ways, replace(PLAIN, length=b"5", more=CHUNKED), _framed(_body())) + HEALTH]
    ),
    "smuggled": lambda ways, one: Sent(
        pieces=[_whole(ways, replace(PLAIN, length=b"5", more=CHUNKED), b"0\r\n\r\n" + one) + HEALTH]
    ),
    "smuggled by a strange coding": lambda ways, one: Sent(
        pieces=[_whole(ways, replace(PLAIN, more=((b"Transfer-Encoding", b"xchunked"),)), b"0\r\n\r\n" + one) + HEALTH]
    ),
    "smuggled by a blank": lambda ways, one: Sent(
        pieces=[
            _whole(ways, replace(PLAIN, more=((b"Transfer-Encoding", b"\x0bchunked"),)), b"0\r\n\r\n" + one) + HEALTH
        ]
    ),
    "leave, and then the body": lambda ways, one: Sent(
        pieces=_halves(_whole(ways, replace(PLAIN, more=((b"Expect", b"100-continue"),)), _body()), HEALTH),
        after=(0, 1),
    ),
}


def _halves(request: bytes, more: bytes = b"") -> list[bytes]:
    """Its head, and its body."""
    head, end, body = request.partition(b"\r\n\r\n")
    return [head + end, body + more]


def _chunked(ways: Ways, framed: bytes) -> bytes:
    return _whole(ways, replace(PLAIN, length=None, more=CHUNKED), framed)


@pytest.mark.parametrize("name", EXCHANGES)
def test_any_exchange_goes_alike(ways: Ways, name: str) -> None:
    ways.compare(EXCHANGES[name](ways, _whole(ways, PLAIN, _body())))


@pytest.mark.parametrize("is_late", [True, False])
def test_a_process_that_drains_answers_alike(ways: Ways, is_late: bool) -> None:
    """Before the head, and while the body is on its way."""
    if not is_late:
        ways.do(_drain)
    pieces = _halves(_whole(ways, PLAIN, _body()), HEALTH)
    (told,) = ways.compare(Sent(pieces=pieces, between=lambda way: _drain(way.world)))
    assert (told.status, dict(told.fields)["connection"]) == (200, "close")
    assert any(ways.taken) is is_late


def _drain(world: World) -> None:
    world.app.state.ending.set()


def test_a_server_that_stops_answers_alike(template_server: Server, taken: list[bool]) -> None:
    with ExitStack() as stack:
        ways = Ways(_pair(stack, template_server), taken)
        pieces = _halves(_whole(ways, PLAIN, _body()), HEALTH)

        def stop(way: Way) -> None:
            way.server.should_exit = True
            wait_until(lambda: not any(each.cycle.keep_alive for each in way.connections))

        (told,) = ways.compare(Sent(pieces=pieces, between=stop))
        assert (told.status, dict(told.fields)["connection"]) == (200, "close")


def test_whoever_sends_too_much_is_told_alike(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ways.ways:
        authenticator = way.world.app.state.authenticator
        now_ms = authenticator._elapsed_ms()
        monkeypatch.setattr(authenticator, "_nodes", RateLimiter(0.5))
        monkeypatch.setattr(authenticator, "_elapsed_ms", lambda now_ms=now_ms: now_ms)
    told = ways.compare(Sent(pieces=[_whole(ways, PLAIN, _body()) * 3 + HEALTH]))
    assert [each.status for each in told] == [200, 429, 429, 200]
    assert dict(told[1].fields)["retry-after"] == "3"


HELD = f"{OWN}/vision#0"
MEASURED_MIN = range(20, 32)
"""Minutes of the hour in which a device is measured, so that no report names what runs there."""


def test_an_hour_is_billed_alike(template_server: Server, taken: list[bool]) -> None:
    """With a profile run in it: what is reported comes to the same ledger, to the last digit, and that to the bills."""
    with ExitStack() as stack:
        ways = Ways(_pair(stack, template_server), taken)
        ways.do(_hold)
        began_s = time.time() - 3700.0
        for minute in range(1, 61):
            at_s = began_s + 60.0 * minute
            replica = replica_report(HELD, f"GPU-{NODE}-0", held_s=60.0, model="resnet50", energy_j=20.0 * minute)
            mine = _report(
                sequence=minute,
                observed_at_s=at_s,
                interval_s=60.0,
                devices=(device_report(f"GPU-{NODE}-0", 40.0 + minute),),
                replicas=() if minute in MEASURED_MIN else (replica,),
            )
            idle = (device_report(f"GPU-{OTHER}-0", 11.0),)
            other = replace(mine, node=OTHER, devices=idle, replicas=())
            for who, said in ((NODE, mine), (OTHER, other)):
                sent = Sent(pieces=[_whole(ways, PLAIN, _body(said), who) + HEALTH])
                told = ways.compare(sent, tables=minute == 60)
                assert told[0].content == {"accepted": 1, "duplicates": 0}
        assert ways.taken == [True]
        now = datetime.now(UTC)
        books = [_books(way.world, now) for way in ways.ways]
        assert books[0] == books[1]
        bills, ledger, differences = books[0]
        assert (len(bills) > 100, differences) == (True, [])
        served = {row["minute"] for row in ledger if row["kind"] == "replica"}
        assert 0 <= len(served) - (60 - len(MEASURED_MIN)) <= 2


def _hold(world: World) -> None:
    """The node was told to hold a replica, and its devices have been paid for since hours."""
    world.put(kinds.SERVICE, builders.service())
    told = replica_report(HELD, f"GPU-{NODE}-0", model="resnet50")
    with world.database.transaction() as session:
        tell(session, NODE, told)
        session.execute(text("UPDATE devices SET billed_from = date_trunc('hour', now()) - interval '3 hours'"))
    world.app.state.services.telemetry.registry.forget(NODE)


def _books(world: World, now: datetime) -> list[list[dict[str, Any]]]:
    """Bills, the ledger and where they differ, as if each report had taken a tenth of a second."""
    with world.database.transaction() as session:
        for table in ("report_log", "node_samples"):
            late = "received_at = observed_at + interval '0.1 s'"
            session.execute(text(f"UPDATE {table} SET {late}"))
        shapes = "UPDATE sample_shapes s SET received_at = n.shaped_at FROM node_samples n WHERE n.shape = s.shape"
        session.execute(text(shapes))
    with world.database.transaction() as session:
        account(session, now, minutes_max=240)
        queries = (
            "SELECT * FROM device_bills ORDER BY minute, device_uuid",
            "SELECT * FROM ledger ORDER BY minute, device_uuid, kind, subject",
            "SELECT * FROM ledger_check WHERE difference_usd <> 0",
        )
        return [[dict(row) for row in session.execute(text(query)).mappings()] for query in queries]


def test_a_proxy_before_it_changes_nothing(ways: Ways, tmp_path: Path) -> None:
    fronts = []
    with ExitStack() as stack:
        for way in ways.ways:
            folder = tmp_path / str(way.port)
            folder.mkdir()
            port = free_port()
            stack.enter_context(balancing(folder, port, [way.port]))
            fronts.append(replace(way, port=port))
        behind = Ways((fronts[0], fronts[1]), ways.taken)
        one = _whole(ways, PLAIN, _body())
        for sent in (Sent(pieces=[one * 2 + HEALTH]), Sent(pieces=[_chunked(ways, _framed(_body())) + HEALTH])):
            told = behind.compare(sent)
            assert [each.status for each in told] == [200] * len(told)
