"""The HTTP client: what it sends, how it pages and retries, and which exception an answer becomes."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable

import httpx
import pytest

from app import kinds
from headroom_client import ApiError, Client, UnreachableError, WrongUseError, key_of

Handler = Callable[[httpx.Request], httpx.Response]


def client_of(handler: Handler) -> Client:
    return Client("http://control.test/", "secret", transport=httpx.MockTransport(handler))


def test_whom_the_system_trusts_is_read_for_encrypted_servers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: read.append(True))
    for server, times in (("http://127.0.0.1:1", 0), ("https://127.0.0.1:1", 1)):
        Client(server, "secret").close()
        assert len(read) == times, server


def test_a_put_goes_to_the_route_of_its_key_with_the_token() -> None:
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


def test_a_key_cannot_climb_out_of_its_route() -> None:
    paths: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return httpx.Response(200, json={})

    with client_of(answer) as client:
        client.get("node", "../tokens")
    assert paths == [b"/v1/nodes/..%2Ftokens"]


def test_items_follow_cursors_to_the_end() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        first = "cursor" not in request.url.params
        assert request.url.params["project"] == "p"
        return httpx.Response(200, json={"items": [1, 2] if first else [3], "next_cursor": "c" if first else None})

    with client_of(answer) as client:
        assert list(client.items("services", project="p", node=None)) == [1, 2, 3]


def test_a_problem_becomes_an_error_with_its_code_and_pointers() -> None:
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


def test_an_error_without_a_problem_still_says_what_was_asked() -> None:
    with client_of(lambda _: httpx.Response(500, text="<html>")) as client, pytest.raises(ApiError) as caught:
        client.fleet()
    assert caught.value.message == "GET /v1/fleet answered 500"
    assert caught.value.code == "http-500"


def test_a_busy_server_is_asked_again_with_the_same_idempotency_key() -> None:
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


def test_retries_are_bounded() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(503, headers={"Retry-After": "0"}, json={"detail": "later", "code": "transient"})

    with client_of(answer) as client, pytest.raises(ApiError, match="later"):
        client.fleet()
    assert len(asked) == 4


def test_no_answer_is_unreachable() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    with client_of(refuse) as client, pytest.raises(UnreachableError, match=r"cannot reach http://control\.test"):
        client.health()
    with client_of(refuse) as client:
        assert client.ready() is False


def test_an_answer_that_is_no_object_is_an_error() -> None:
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


def test_a_server_needs_a_scheme() -> None:
    with pytest.raises(WrongUseError, match="http://"):
        Client("localhost:8080", "t")
