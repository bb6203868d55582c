"""Both HTTP clients: what they send, how they page and retry, and which exception an answer becomes."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from app import kinds
from headroom_client import ApiError, AsyncClient, Client, UnreachableError, WrongUseError, key_of
from tests.unit.app.client.awaited import Awaited

Handler = Callable[[httpx.Request], httpx.Response]
Maker = Callable[[Handler], Any]


@pytest.fixture(params=[Client, AsyncClient])
def client_of(request: pytest.FixtureRequest) -> Maker:
    """Clients of either kind whose requests go to a function."""

    def made(handler: Handler) -> Any:
        transport = httpx.MockTransport(handler)
        if request.param is Client:
            return Client("http://control.test/", "secret", transport=transport)
        return Awaited(AsyncClient("http://control.test/", "secret", transport=transport))

    return made


def test_whom_the_system_trusts_is_read_for_encrypted_servers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: read.append(True))
    for kind in (Client, AsyncClient):
        read.clear()
        for server, times in (("http://127.0.0.1:1", 0), ("https://127.0.0.1:1", 1)):
            kind(server, "secret")
            assert len(read) == times, server


def test_a_put_goes_to_the_route_of_its_key_with_the_token(client_of: Maker) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(201, json={"project": "p", "name": "a.b"}, headers={"ETag": '"7"'})

    with client_of(answer) as client:
        made = client.put("service", {"project": "p", "name": "a.b"}, only_create=True)
    assert (made.status, made.etag) == (201, '"7"')
    (request,) = seen
    assert (request.method, request.url.path) == ("PUT", "/v1/services/p/a.b")
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["If-None-Match"] == "*"
    assert json.loads(request.content) == {"project": "p", "name": "a.b"}


def test_a_key_cannot_climb_out_of_its_route(client_of: Maker) -> None:
    paths: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return httpx.Response(200, json={})

    with client_of(answer) as client:
        for ask in (
            lambda: client.get("node", "../tokens"),
            lambda: client.delete("node", "n/identity"),
            lambda: client.drain("a/b"),
            lambda: list(client.logs("a", "..")),
            lambda: list(client.logs("a", "b/c")),
            lambda: client.get("service", "..", "plans"),
            lambda: client.get("node", "."),
            lambda: client.revoke_node(".."),
        ):
            with pytest.raises(WrongUseError, match="would ask for something else"):
                ask()
    assert paths == []


def test_items_follow_cursors_to_the_end(client_of: Maker) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        first = "cursor" not in request.url.params
        assert request.url.params["project"] == "p"
        return httpx.Response(200, json={"items": [1, 2] if first else [3], "next_cursor": "c" if first else None})

    with client_of(answer) as client:
        assert list(client.items("services", project="p", node=None)) == [1, 2, 3]


def test_a_problem_becomes_an_error_with_its_code_and_pointers(client_of: Maker) -> None:
    problem = {
        "status": 422,
        "title": "A field is invalid",
        "detail": "1 field is invalid",
        "code": "field-invalid",
        "request_id": "r1",
        "errors": [{"pointer": "/slo/latency_ms", "code": "x", "detail": "must be greater than 0"}],
    }
    with client_of(lambda _: httpx.Response(422, json=problem)) as client, pytest.raises(ApiError) as caught:
        client.put("project", {"name": "p"})
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (422, "field-invalid", "r1")
    assert caught.value.pointers == (("/slo/latency_ms", "must be greater than 0"),)


def test_an_error_without_a_problem_still_says_what_was_asked(client_of: Maker) -> None:
    with client_of(lambda _: httpx.Response(500, text="<html>")) as client, pytest.raises(ApiError) as caught:
        client.fleet()
    assert caught.value.message == "GET /v1/fleet answered 500"
    assert caught.value.code == "http-500"


def test_a_busy_server_is_asked_again_with_the_same_idempotency_key(client_of: Maker) -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        return (
            httpx.Response(429, headers={"Retry-After": "0"}, json={})
            if len(keys) < 3
            else httpx.Response(200, json={})
        )

    with client_of(answer) as client:
        client.plan()
        client.plan()
    assert len(keys) == 4
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]


def test_retries_are_bounded(client_of: Maker) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(503, headers={"Retry-After": "0"}, json={"detail": "later", "code": "transient"})

    with client_of(answer) as client, pytest.raises(ApiError, match="later"):
        client.fleet()
    assert len(asked) == 4


@pytest.mark.parametrize("status", [301, 302, 308])
def test_nothing_is_taken_for_done_where_the_server_leads_elsewhere(client_of: Maker, status: int) -> None:
    there = {"Location": "https://control.test/v1", "Content-Type": "text/html"}
    with client_of(lambda _: httpx.Response(status, text="<html>moved</html>", headers=there)) as client:
        for ask in (
            lambda: client.revoke_token("7"),
            lambda: client.delete("service", "p", "a"),
            lambda: client.put("service", {"project": "p", "name": "a"}),
            lambda: list(client.items("services")),
            lambda: list(client.logs("p", "a")),
        ):
            with pytest.raises(ApiError, match=rf"answered {status}, which leads to https://control\.test/v1$"):
                ask()


def test_a_page_that_is_no_list_is_an_error(client_of: Maker) -> None:
    strange = pytest.raises(ApiError, match="GET /v1/services did not answer with an object")
    with client_of(lambda _: httpx.Response(200, text="<html>another program</html>")) as client, strange:
        list(client.items("services"))


def _once_lost(refused: int, lost: int | None) -> Handler:
    """Does what is asked, says nothing or little of it, and refuses to do it again."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        if len(asked) > 1:
            return httpx.Response(refused, json={"status": refused, "code": "x", "detail": "not as it was"})
        if lost is None:
            raise httpx.ReadError("reset by peer", request=request)
        return httpx.Response(lost, headers={"Retry-After": "0"})

    return answer


LOST = pytest.mark.parametrize("lost", [None, 502, 504])


@LOST
def test_what_a_lost_attempt_deleted_is_deleted(client_of: Maker, lost: int | None) -> None:
    with client_of(_once_lost(404, lost)) as client:
        client.delete("service", "p", "a")
    with client_of(_once_lost(403, lost)) as client, pytest.raises(ApiError):
        client.delete("service", "p", "a")


@LOST
def test_a_lost_attempt_is_not_taken_for_somebody_elses_change(client_of: Maker, lost: int | None) -> None:
    document = {"project": "p", "name": "a"}
    for ask in (
        lambda client: client.put("service", document, if_match='"1"'),
        lambda client: client.put("service", document, only_create=True),
        lambda client: client.patch("service", ("p", "a"), {}, if_match='"1"'),
    ):
        with client_of(_once_lost(412, lost)) as client, pytest.raises(UnreachableError, match="may have done it"):
            ask(client)
    with client_of(lambda _: httpx.Response(412, json={})) as client, pytest.raises(ApiError):
        client.put("service", document, if_match='"1"')


def test_no_answer_is_unreachable(client_of: Maker) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    with client_of(refuse) as client, pytest.raises(UnreachableError, match=r"cannot reach http://control\.test"):
        client.health()
    with client_of(refuse) as client:
        assert client.ready() is False


def test_an_answer_that_is_no_object_is_an_error(client_of: Maker) -> None:
    with client_of(lambda _: httpx.Response(200, json=[])) as client, pytest.raises(ApiError, match="object"):
        client.fleet()


@pytest.mark.parametrize(
    ("word", "name"), [("service", "service"), ("Services", "service"), ("gpu_types", "gpu-type"), (" node ", "node")]
)
def test_kinds_are_named_freely(word: str, name: str) -> None:
    assert kinds.named(word).name == name


def test_unknown_kinds_and_missing_keys_are_refused() -> None:
    with pytest.raises(WrongUseError, match="unknown kind 'pod'"):
        key_of("pod", {"name": "a"})
    with pytest.raises(WrongUseError, match="'project'"):
        key_of("service", {"name": "a"})


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_server_needs_a_scheme(kind: type[Client | AsyncClient]) -> None:
    with pytest.raises(WrongUseError, match="http://"):
        kind("localhost:8080", "t")


class Beating(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Lines without end, until somebody lets go."""

    def __init__(self) -> None:
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield b'{"line": "a"}\n\n'

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b'{"line": "a"}\n\n'

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def test_whoever_stops_to_follow_lets_go_of_the_stream() -> None:
    told = Beating()
    with Client(
        "http://control.test", "t", transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=told))
    ) as client:
        for line in client.logs("p", "a"):
            assert (line, told.closed) == ({"line": "a"}, False)
            break
        assert told.closed

    async def follow() -> None:
        told = Beating()
        transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=told))
        async with (
            AsyncClient("http://control.test", "t", transport=transport) as client,
            aclosing(client.logs("p", "a")) as lines,
        ):
            async for line in lines:
                assert (line, told.closed) == ({"line": "a"}, False)
                break
        assert told.closed

    asyncio.run(follow())


def test_a_stream_that_is_refused_or_breaks_off_says_so(client_of: Maker) -> None:
    def breaks(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    refused = httpx.Response(404, json={"detail": "no such service", "code": "not-found"})
    with client_of(lambda _: refused) as client, pytest.raises(ApiError, match="no such service"):
        list(client.logs("p", "a"))
    with client_of(breaks) as client, pytest.raises(UnreachableError, match="did not answer in time"):
        list(client.watch_routes())


def test_others_of_the_loop_go_on_while_a_call_waits() -> None:
    async def both() -> list[str]:
        heard = asyncio.Event()
        said: list[str] = []

        async def answer(_: httpx.Request) -> httpx.Response:
            await heard.wait()
            said.append("answered")
            return httpx.Response(200, json={})

        async def other() -> None:
            said.append("went on")
            heard.set()

        async with AsyncClient("http://control.test", "t", transport=httpx.MockTransport(answer)) as client:
            await asyncio.gather(client.fleet(), client.target(), other())
        return said

    assert asyncio.run(both()) == ["went on", "answered", "answered"]
