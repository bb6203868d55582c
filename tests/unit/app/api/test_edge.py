"""The small parts of the edge: rates, tags, identities, the middleware's last resort, moments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.security import HTTPAuthorizationCredentials
from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect, Request

from app.api.admission import AT_ONCE_MAX, Shares
from app.api.app import Edge, EdgeOptions
from app.api.auth import CACHE_TTL_MS, LATE_MS, PLACE, Authenticator, RateLimiter, Rule, bearer, identify
from app.api.console.door import COOKIE
from app.api.forms import precondition, utc
from app.api.metrics import RequestMetrics
from app.errors import FieldsError, RateLimitedError, UnauthenticatedError
from app.logs import EventLog
from app.services.declared.tokens import SIGN_IN_PREFIX, Actor
from app.store.tokens import Purpose, Role
from solvers.errors import FieldError, TransientError

VIEWER = Actor(token_id="t", role=Role.VIEWER)


def test_a_bucket_allows_a_burst_and_then_its_rate() -> None:
    limiter = RateLimiter(10.0)
    for _ in range(20):
        limiter.take("a", 0.0)
    with pytest.raises(RateLimitedError) as caught:
        limiter.take("a", 0.0)
    assert caught.value.retry_after_s == pytest.approx(0.1)
    limiter.take("b", 0.0)
    limiter.take("a", 100.0)
    with pytest.raises(RateLimitedError):
        limiter.take("a", 100.0)


def test_no_rate_limits_nothing() -> None:
    limiter = RateLimiter(0.0)
    for _ in range(10_000):
        limiter.take("a", 0.0)


def _request(authenticator: Authenticator) -> Any:
    state = SimpleNamespace(authenticator=authenticator)
    return SimpleNamespace(app=SimpleNamespace(state=state), client=SimpleNamespace(host="h"), scope={}, headers={})


def _bearer(secret: str) -> HTTPAuthorizationCredentials:
    return HTTPAuthorizationCredentials(scheme="Bearer", credentials=secret)


def test_who_guesses_too_often_is_refused_before_the_database_is_asked() -> None:
    identities = _Identities()
    authenticator = Authenticator(identities.actors_of, lambda: 0.0, 1.0)

    def ask(secret: str) -> Actor:
        return asyncio.run(identify(_request(authenticator), _bearer(secret)))

    assert ask("good") is VIEWER
    identities.actor = None
    for guess in range(2):
        with pytest.raises(UnauthenticatedError):
            ask(f"guess-{guess}")
    with pytest.raises(RateLimitedError):
        ask("guess-2")
    assert identities.asked == 3
    assert ask("good") is VIEWER


@pytest.mark.parametrize(("header", "version"), [(None, None), ('"7"', 7), ('W/"7"', -1), ('"x"', -1), ('"²"', -1)])
def test_if_match_names_a_version(header: str | None, version: int | None) -> None:
    assert precondition(header).version == version


def test_if_match_takes_whatever_stands() -> None:
    found = precondition(" * ")
    assert (found.present, found.version, found.absent) == (True, None, False)


@pytest.mark.parametrize("header", ["7", "**", '"1", "2"', ""])
def test_if_match_takes_one_tag(header: str) -> None:
    with pytest.raises(FieldsError):
        precondition(header)


def test_if_none_match_only_creates() -> None:
    assert precondition(None, "*").absent
    with pytest.raises(FieldsError):
        precondition(None, '"7"')


class _Identities:
    def __init__(self) -> None:
        self.asked = 0
        self.actor: Actor | None = VIEWER
        self.away = False

    def actors_of(self, secrets: Sequence[str]) -> list[Actor | None]:
        self.asked += 1
        if self.away:
            raise TransientError("away")
        return [self.actor for _ in secrets]


def test_identities_are_remembered_for_seconds_only() -> None:
    now = [0.0]
    identities = _Identities()
    authenticator = Authenticator(identities.actors_of, lambda: now[0], 0.0)
    assert authenticator.remembered("s") == (False, None)
    asyncio.run(authenticator.look_up("s"))
    assert authenticator.remembered("s") == (True, VIEWER)
    now[0] = CACHE_TTL_MS + 1
    assert authenticator.remembered("s") == (False, VIEWER)
    assert CACHE_TTL_MS <= 5000
    asyncio.run(authenticator.look_up("s"))
    authenticator.forget()
    assert authenticator.remembered("s") == (False, VIEWER)


def test_of_all_who_came_of_late_the_database_is_asked_at_once() -> None:
    now = [10_000.0]
    identities = _Identities()
    asked: list[tuple[str, ...]] = []
    gone: list[str] = []

    def ended(actors: Sequence[Actor]) -> list[Actor]:
        asked.append(tuple(sorted(actor.token_id for actor in actors)))
        return [actor for actor in actors if actor.token_id in gone]

    authenticator = Authenticator(identities.actors_of, lambda: now[0], 0.0, ended)

    def ask(secret: str) -> Actor:
        return asyncio.run(identify(_request(authenticator), _bearer(secret)))

    for number in range(3):
        identities.actor = Actor(token_id=f"t{number}", role=Role.VIEWER)
        ask(f"s{number}")
    identities.actor = None
    # Each comes every five seconds, later than what was said of it holds; one asks for all.
    for _ in range(4):
        for number in range(3):
            now[0] += 5000 / 3
            assert ask(f"s{number}").token_id == f"t{number}"
    assert identities.asked == 3
    assert asked == [("t0", "t1", "t2")] * 12
    # Who was revoked elsewhere is out when that time is over, whoever comes first.
    gone.append("t1")
    now[0] += CACHE_TTL_MS + 1
    with pytest.raises(UnauthenticatedError):
        ask("s1")
    assert ask("s0").token_id == "t0"
    assert identities.asked == 4
    # Who did not come of late is not asked for.
    now[0] += LATE_MS + 1
    ask("s2")
    assert asked[-1] == ("t2",)


def test_without_the_database_what_is_remembered_runs_out() -> None:
    now, identities = [10_000.0], _Identities()

    def away(*_: object) -> list[Actor]:
        raise TransientError("away")

    authenticator = Authenticator(identities.actors_of, lambda: now[0], 0.0, away)
    asyncio.run(authenticator.look_up("s"))
    now[0] += CACHE_TTL_MS - 1
    assert asyncio.run(identify(_request(authenticator), _bearer("s"))) is VIEWER
    now[0] += 2
    identities.away = True
    with pytest.raises(TransientError):
        asyncio.run(identify(_request(authenticator), _bearer("s")))


def test_unknown_secrets_are_remembered_as_well() -> None:
    identities = _Identities()
    identities.actor = None
    authenticator = Authenticator(identities.actors_of, lambda: 0.0, 0.0)
    asyncio.run(authenticator.look_up("guess"))
    assert authenticator.remembered("guess") == (True, None)
    assert identities.asked == 1


def test_roles_form_a_ladder_with_two_stands_beside_it() -> None:
    write = Rule(least=Role.OPERATOR)
    admitted = [role for role in Role if role is not Role.AGENT and write.admits(Actor(token_id="t", role=role))]
    assert admitted == [Role.ADMIN, Role.OPERATOR]
    agent = Actor(token_id="t", role=Role.AGENT, purpose=Purpose.NODE, subject="a")
    assert not write.admits(agent)
    assert Rule(agents=(Purpose.NODE,)).admits(agent)
    assert not Rule(agents=(Purpose.JOIN,)).admits(agent)
    own = Actor(token_id="t", role=Role.OPERATOR, project="demo")
    assert not write.admits(own)
    assert Rule(least=Role.OPERATOR, shared=True).admits(own)


def _exchange(
    failure: Exception, started: bool = False, registry: CollectorRegistry | None = None
) -> list[dict[str, Any]]:
    """What leaves the middleware when the application fails."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise failure

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    options = _options(registry=registry)
    asyncio.run(Edge(application, options)(_scope(), receive, send))  # type: ignore[arg-type]
    return sent


def _options(shares: Shares | None = None, registry: CollectorRegistry | None = None) -> EdgeOptions:
    return EdgeOptions(
        body_bytes_max=100,
        new_id=lambda: "request-1",
        elapsed_ms=lambda: 0.0,
        metrics=RequestMetrics(registry or CollectorRegistry()),
        log=EventLog("test.quiet"),
        shares=shares or Shares(),
    )


def _scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": "/x", "headers": list(headers), "query_string": b""}


@pytest.mark.parametrize("by_cookie", [False, True])
def test_a_tokens_places_are_its_own_however_it_is_written(by_cookie: bool) -> None:
    """Beside other fields, in other letters and blanks: whose it is counts, and not what stands there."""
    secret = f"{SIGN_IN_PREFIX}_good" if by_cookie else "good"
    identities, here, most = _Identities(), [0], [0]
    authenticator = Authenticator(identities.actors_of, lambda: 0.0, 0.0)

    def headers(number: int) -> list[tuple[bytes, bytes]]:
        other = (b"authorization", b"Bearer other-%d" % number)
        if by_cookie:
            return [other, (b"cookie", b"%b=%b" % (COOKIE.encode(), secret.encode()))]
        return [(b"authorization", b"bearer " + b" " * number + secret.encode()), other]

    async def life() -> None:
        free = asyncio.Event()

        async def application(scope: Any, receive: Any, send: Any) -> None:
            request = Request({**scope, "app": SimpleNamespace(state=SimpleNamespace(authenticator=authenticator))})
            told = _bearer(request.cookies[COOKIE]) if by_cookie else await bearer(request)
            await identify(request, told, by_cookie=by_cookie)
            here[0] += 1
            most[0] = max(most[0], here[0])
            await free.wait()
            here[0] -= 1

        async def nothing(*_: Any) -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        edge = Edge(application, _options(shares := Shares()))
        come = [
            asyncio.ensure_future(edge(_scope(*headers(number)), nothing, nothing)) for number in range(AT_ONCE_MAX + 2)
        ]
        done, _ = await asyncio.wait(come, timeout=0.1)
        assert (len(done), here[0]) == (0, AT_ONCE_MAX)
        free.set()
        await asyncio.gather(*come)
        assert (here[0], most[0], shares._going) == (0, AT_ONCE_MAX, {})

    asyncio.run(life())


def test_of_two_tokens_the_one_that_is_looked_up_finds_the_lane() -> None:
    """Or who is known here would take the places of those that are asked about first."""
    asked: list[str] = []

    def lane_of(_: str, __: str, authorization: str) -> None:
        asked.append(authorization)

    async def life() -> None:
        async def application(scope: Any, receive: Any, send: Any) -> None:
            found = await bearer(Request(scope))
            asked.append(f"Bearer {found.credentials if found is not None else ''}")

        async def nothing(*_: Any) -> Any:
            return {}

        headers = ((b"authorization", b"Bearer good"), (b"authorization", b"Bearer other"))
        await Edge(application, replace(_options(), lane_of=lane_of))(_scope(*headers), nothing, nothing)

    asyncio.run(life())
    assert asked == ["Bearer good"] * 2


def test_who_waited_for_a_place_with_a_token_that_ended_meanwhile_is_refused() -> None:
    identities = _Identities()
    authenticator = Authenticator(identities.actors_of, lambda: 0.0, 0.0)

    class Line:
        async def take(self, who: str) -> bool:
            identities.actor = None
            authenticator._known.clear()
            return who == VIEWER.token_id

        def leave(self) -> None: ...

    request = _request(authenticator)
    request.scope["state"] = {PLACE: Line()}
    with pytest.raises(UnauthenticatedError):
        asyncio.run(identify(request, _bearer("good")))


def test_what_nobody_expected_becomes_a_problem_without_a_trace() -> None:
    start, body = _exchange(RuntimeError("the secret path /etc/passwd"))
    assert start["status"] == 500
    assert (b"x-request-id", b"request-1") in start["headers"]
    assert b"secret" not in body["body"]
    assert b'"request_id":"request-1"' in body["body"]


def test_our_own_errors_keep_their_status_there() -> None:
    assert _exchange(TransientError("away"))[0]["status"] == 503


def test_who_hangs_up_in_a_body_is_no_failure_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    assert _exchange(ClientDisconnect(), registry=registry) == []
    labels = {"method": "GET", "route": "unmatched", "status": "499"}
    assert registry.get_sample_value("headroom_http_requests_total", labels) == 1.0
    assert not caplog.records


def test_an_answer_that_began_is_not_begun_again() -> None:
    assert len(_exchange(RuntimeError("late"), started=True)) == 1


def test_moments_get_a_zone_and_a_sane_year() -> None:
    assert utc("from", None) is None
    assert utc("from", datetime(2026, 1, 1)) == datetime(2026, 1, 1, tzinfo=UTC)  # noqa: DTZ001 - the point
    with pytest.raises(FieldError):
        utc("from", datetime(1, 1, 1, tzinfo=UTC))
