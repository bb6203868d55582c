"""Who comes without a token, or with one that nobody gave out, is slowed down: each costs a look into the database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fastapi.security import HTTPAuthorizationCredentials
from starlette.requests import Request

from app.api.auth import BODY_BYTES_PER_S, CACHE_TTL_MS, Authenticator, identify
from app.errors import JoinTokenExpiredError, RateLimitedError, UnauthenticatedError
from app.services.declared.tokens import Actor
from app.store.tokens import Purpose, Role

ENDED = Actor(token_id="join", role=Role.AGENT, purpose=Purpose.JOIN, subject=None, has_expired=True)


@pytest.mark.parametrize(
    ("secret", "refused", "looked_up"),
    [("hr_unknown", UnauthenticatedError, 2), ("", UnauthenticatedError, 0), ("hr_ended", JoinTokenExpiredError, 2)],
)
def test_who_is_refused_again_and_again_has_to_wait(secret: str, refused: type[Exception], looked_up: int) -> None:
    asked: list[str] = []

    def actors_of(secrets: Sequence[str]) -> Sequence[Actor | None]:
        asked.extend(secrets)
        return [ENDED if each.startswith("hr_ended") else None for each in secrets]

    authenticator = Authenticator(actors_of, lambda: 0.0, rate_limit_per_s=1.0)
    app = SimpleNamespace(state=SimpleNamespace(authenticator=authenticator))

    def come(number: int, host: str = "10.0.0.1") -> None:
        request = Request({"type": "http", "app": app, "client": (host, 1), "headers": []})
        told = HTTPAuthorizationCredentials(scheme="Bearer", credentials=secret and f"{secret}{number}")
        asyncio.run(identify(request, told))

    for number in range(2):
        with pytest.raises(refused):
            come(number)
    with pytest.raises(RateLimitedError):
        come(2)
    assert len(asked) == looked_up, "nobody is looked up once too many were refused"
    with pytest.raises(refused):
        come(3, "10.0.0.2")


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:0:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("-", "-", True),
    ],
)
def test_whoever_has_many_addresses_is_one(first: str, second: str, is_one: bool) -> None:
    """Of IPv6 everybody has more than anybody could count."""
    authenticator = Authenticator(lambda _: (), lambda: 0.0, rate_limit_per_s=1.0)
    for _ in range(2):
        authenticator.throttle_stranger(first)
    if is_one:
        with pytest.raises(RateLimitedError):
            authenticator.throttle_stranger(second)
    else:
        authenticator.throttle_stranger(second)


def test_what_had_expired_is_looked_up_again_though_it_is_tried_all_the_time() -> None:
    """Where the database's clock was set back it is good again, for every process after the same time."""
    now_ms = [0.0]
    found = [ENDED]
    authenticator = Authenticator(lambda _: found, lambda: now_ms[0], ended=lambda _: (), rate_limit_per_s=0.0)
    assert asyncio.run(authenticator.look_up("hr_ended")) is ENDED
    found = [replace(ENDED, has_expired=False)]
    for later_ms in (0.6 * CACHE_TTL_MS, 1.2 * CACHE_TTL_MS):
        now_ms[0] = later_ms
        holds, _ = authenticator.remembered("hr_ended")
        asyncio.run(authenticator.refresh())
    assert not holds
    assert asyncio.run(authenticator.look_up("hr_ended")) == found[0]


def test_a_nodes_own_token_may_come_less_often_and_long_bodies_cost_more() -> None:
    """One node leaves the others room, however much it says; who joins shares a token with many."""
    authenticator = Authenticator(lambda _: (), lambda: 0.0, rate_limit_per_s=20.0)

    def most(actor: Actor, body_bytes: int) -> int:
        for number in range(1000):
            try:
                authenticator.throttle(actor, body_bytes)
            except RateLimitedError:
                return number
        return 1000

    def of(name: str, purpose: Purpose | None, role: Role = Role.AGENT) -> Actor:
        return replace(ENDED, token_id=name, role=role, purpose=purpose, has_expired=False)

    assert [most(of("a", Purpose.NODE), 0), most(of("b", Purpose.JOIN), 0)] == [10, 200]
    assert most(of("c", None, Role.OPERATOR), 0) == 40
    assert most(of("d", Purpose.NODE), BODY_BYTES_PER_S) == 2
    assert most(of("e", None, Role.OPERATOR), BODY_BYTES_PER_S) == 2
