"""Signing in by an identity provider, which these tests run: what it takes to get in, and what a provider, a browser or
somebody between them may say that is not so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.admission import AT_ONCE_MAX
from app.api.auth import RateLimiter
from app.api.console import door
from app.services.declared import oidc
from app.services.declared.oidc import OidcGrant, OidcProvider, oidc_order
from app.settings import Settings
from app.store.engine import Database
from app.store.tokens import Role
from solvers.errors import InputError, TransientError
from tests.integration.api.provider import CLIENT, ROLES, SECRET, Provider, b64, pair
from tests.integration.api.world import OWN, World, build_world
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.end()


@pytest.fixture
def site(database: Database, provider: Provider, tmp_path: Path) -> World:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    world = build_world(
        database, oidc_issuer=provider.issuer, oidc_client=CLIENT, oidc_secret_file=str(file), oidc_roles=ROLES,
        public_url="http://127.0.0.1:8000",
    )  # fmt: skip
    world.client.follow_redirects = False
    return world


def begin(site: World, back: str = "/") -> str:
    """Where a browser is sent."""
    sent = site.client.get("/session/oidc", params={"back": back})
    assert sent.status_code == 303, sent.text
    kept = sent.headers["set-cookie"].lower()
    assert all(word in kept for word in ("httponly", "samesite=lax", "path=/session/oidc"))
    return str(sent.headers["location"])


def finish(site: World, brought: dict[str, str]) -> httpx.Response:
    answer: httpx.Response = site.client.get("/session/oidc/back", params=brought)
    return answer


def reasons(site: World) -> list[str]:
    events = site.call("GET", "/v1/events?subject=oidc").json()["items"]
    return [event["facts"]["what"] for event in events]


def refused(site: World, answer: httpx.Response, words: str, status: int = 401) -> None:
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert door.COOKIE not in answer.headers.get("set-cookie", "")
    assert site.call("GET", "/v1/tokens").json()["items"] == [] or not any(
        "sign-in" in token["name"] for token in site.call("GET", "/v1/tokens?limit=500").json()["items"]
    )


@pytest.mark.parametrize("header", [{"alg": "RS256", "kid": "r1"}, {"alg": "ES256", "kid": "e1"}])
def test_whom_the_provider_names_is_signed_in_with_what_their_groups_grant(
    site: World, provider: Provider, header: dict[str, str]
) -> None:
    provider.header = header
    assert "/session/oidc?back=" in site.call("GET", "/", None).text
    answer = finish(site, provider.authorize(begin(site, "/services?sort=name")))
    assert answer.status_code == 200, answer.text
    # A redirect from another site would go without the strict cookie.
    assert 'http-equiv="refresh" content="0;url=/services?sort=name"' in answer.text
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    assert 'action="/session"' not in site.client.get("/").text
    (token,) = [each for each in site.call("GET", "/v1/tokens").json()["items"] if "sign-in" in each["name"]]
    assert (token["name"], token["role"], token["project"]) == ("ada@example.org by sign-in", "operator", None)
    assert token["expires_at"] is not None
    events = site.call("GET", f"/v1/events?subject=tokens/{token['id']}").json()["items"]
    assert [event["actor"] for event in events] == [f"token:{token['id']}", "oidc:u-1"]
    # Revoked like any other, and gone at once.
    assert site.call("DELETE", f"/v1/tokens/{token['id']}").status_code == 204
    assert 'action="/session"' in site.client.get("/").text


@pytest.mark.parametrize(
    ("groups", "role", "project"),
    [(["everybody", "sre"], "admin", None), ("everybody", "viewer", None), (["team-a"], "operator", OWN),
     (["team-a", "everybody"], "viewer", None)],
)  # fmt: skip
def test_groups_grant_roles(site: World, provider: Provider, groups: object, role: str, project: str | None) -> None:
    provider.claims["groups"] = groups
    assert finish(site, provider.authorize(begin(site))).status_code == 200
    found = [each for each in site.call("GET", "/v1/tokens").json()["items"] if "sign-in" in each["name"]]
    assert [(each["role"], each["project"]) for each in found] == [(role, project)]


@pytest.mark.parametrize("groups", [[], None, "", ["SRE"], ["sre,ml"], [["sre"]], {"sre": 1}, 7])
def test_who_has_no_group_that_counts_is_told_so(site: World, provider: Provider, groups: object) -> None:
    provider.claims["groups"] = groups
    refused(site, finish(site, provider.authorize(begin(site))), "lets you look here", 403)


NOW = int(time.time())
LIES: dict[str, tuple[dict[str, Any], str]] = {
    "another nonce": ({"nonce": "other"}, "another attempt"),
    "no nonce": ({"nonce": None}, "another attempt"),
    "another audience": ({"aud": "somebody"}, "somebody else"),
    "several audiences, not for us": ({"aud": [CLIENT, "somebody"]}, "for several"),
    "asked for by another": ({"azp": "somebody"}, "somebody else"),
    "expired": ({"exp": NOW - 120}, "expired"),
    "never expires": ({"exp": None}, "does not say exp"),
    "expires, in words": ({"exp": "2100-01-01"}, "does not say exp"),
    "from the future": ({"iat": NOW + 86_400}, "from the future"),
    "not yet": ({"nbf": NOW + 86_400}, "not valid yet"),
    "another issuer": ({"iss": "https://evil.example"}, "another issuer"),
    "nobody": ({"sub": ""}, "names nobody"),
}


@pytest.mark.parametrize("lie", LIES)
def test_claims_that_are_not_so_let_nobody_in(site: World, provider: Provider, lie: str) -> None:
    changed, words = LIES[lie]
    provider.claims |= changed
    refused(site, finish(site, provider.authorize(begin(site))), words)
    assert words in reasons(site)[0]


def test_signatures_that_are_not_the_providers_let_nobody_in(site: World, provider: Provider) -> None:
    def tried(words: str, **lies: Any) -> None:
        before = {name: getattr(provider, name) for name in lies}
        for name, value in lies.items():
            setattr(provider, name, value)
        refused(site, finish(site, provider.authorize(begin(site))), words)
        for name, value in before.items():
            setattr(provider, name, value)

    tried("not believed", header={"alg": "none", "kid": "r1"}, signature="")
    tried("not believed", header={"alg": "NONE"}, signature="")
    # The public key as a shared secret.
    tried("not believed", header={"alg": "HS256", "kid": "r1"}, signature=b64(b"x" * 32))
    tried("signature is wrong", signer=provider.foreign)
    tried("signature is wrong", signature="")
    tried("id token is none", signature="!!")
    # A key of another kind than the header says.
    tried("signature is wrong", header={"alg": "RS256", "kid": "e1"}, signature=b64(b"x" * 256))
    tried("signature is wrong", header={"alg": "ES256", "kid": "e1"}, signature=b64(b"\0" * 64))
    tried("key that the provider does not have", header={"alg": "RS256", "kid": "../../keys"})
    tried("not believed", header={"alg": "RS256", "kid": "r1", "crit": ["b64"]})
    for answer in ({}, {"id_token": 7}, {"id_token": "a.b"}, {"id_token": "a.b.c"}, {"id_token": "bnVsbA.bnVsbA."}):
        tried("id token", answer=answer)


@pytest.mark.parametrize("methods", [None, ["client_secret_basic"], ["private_key_jwt", "client_secret_post"]])
def test_the_clients_secret_goes_the_way_that_the_provider_takes(
    site: World, provider: Provider, methods: list[str] | None
) -> None:
    provider.methods = methods
    assert finish(site, provider.authorize(begin(site))).status_code == 200


def test_a_secret_that_the_provider_does_not_take_is_told_as_such(site: World, provider: Provider) -> None:
    own = site.app.state.services.oidc
    own._provider = OidcProvider(replace(own._order, secret="another"))
    refused(site, finish(site, provider.authorize(begin(site))), "does not take this server")
    assert "does not take this server's secret" in reasons(site)[0]


def test_a_refusal_without_json_is_a_refusal(site: World, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "redeem", lambda _: (401, "<h1>Unauthorized</h1>"))
    refused(site, finish(site, provider.authorize(begin(site))), "does not take the code: it answers 401")
    assert "it answers 401" in reasons(site)[0]


def test_a_project_that_is_not_there_is_told_and_noted(site: World, provider: Provider) -> None:
    own = site.app.state.services.oidc
    own._order = replace(own._order, grants=(OidcGrant(value="ml", role=Role.VIEWER, project="visoin"),))
    refused(site, finish(site, provider.authorize(begin(site))), "there is no project visoin", 403)
    assert reasons(site) == ["there is no project visoin"]


def test_the_next_key_of_a_provider_that_names_none_is_found(
    site: World, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "KEYS_AGAIN_S", 0.0)
    provider.header = {"alg": "RS256"}
    named = provider.keys
    monkeypatch.setattr(provider, "keys", lambda: {"keys": [{**named()["keys"][0], "kid": None}]})
    for key in ("its own", "its next"):
        provider.rsa = pair(key)
        assert finish(site, provider.authorize(begin(site))).status_code == 200


def test_an_attempt_is_one_browsers_and_is_used_once(site: World, provider: Provider) -> None:
    brought = provider.authorize(begin(site))
    kept = dict(site.client.cookies)
    # Another browser, with what somebody else began: it would be signed in as them.
    site.client.cookies.clear()
    refused(site, finish(site, brought), "began no such attempt")
    for name, value in kept.items():
        site.client.cookies.set(name, value, path="/session/oidc")
    assert finish(site, brought).status_code == 200
    site.client.cookies.clear()
    for name, value in kept.items():
        site.client.cookies.set(name, value, path="/session/oidc")
    assert "began no such attempt" in finish(site, brought).text
    assert "began no such attempt" in finish(site, {"state": "x" * 43, "code": "y"}).text


def test_an_old_attempt_is_over_and_so_is_one_that_the_provider_refused(
    site: World, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = provider.authorize(begin(site))
    refused(site, finish(site, {"state": brought["state"], "error": "access_denied"}), "did not sign you in")
    refused(site, finish(site, brought), "began no such attempt")
    refused(site, finish(site, {**provider.authorize(begin(site)), "code": "stolen"}), "does not take the code")
    monkeypatch.setattr(oidc, "ATTEMPT_S", -1.0)
    refused(site, finish(site, provider.authorize(begin(site))), "began no such attempt")


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_nobody_is_led_elsewhere(site: World, provider: Provider, back: str) -> None:
    answer = finish(site, provider.authorize(begin(site, back)))
    assert 'content="0;url=/"' in answer.text


def test_a_provider_that_is_away_or_lies_about_itself_is_told_in_words(site: World, provider: Provider) -> None:
    honest = provider.discovery
    for changed in ({"issuer": "https://evil.example"}, {"authorization_endpoint": "http://evil.example/a"}, {"x": 1}):
        told = {**honest(), **changed} if "x" not in changed else {}
        provider.discovery = lambda told=told: told
        forget(site)
        answer = site.client.get("/session/oidc")
        assert (answer.status_code, "identity provider" in answer.text) == (503, True), changed
    provider.end()
    forget(site)
    assert site.client.get("/session/oidc").status_code == 503


def forget(site: World) -> None:
    """As a process that starts."""
    own = site.app.state.services.oidc
    own._provider = OidcProvider(own._order)


def test_a_provider_that_is_away_is_not_asked_for_each_who_comes(
    site: World, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, honest = [], provider.discovery

    def away() -> str:
        asked.append(1)
        return "none"

    provider.discovery = away  # type: ignore[assignment]
    assert {site.client.get("/session/oidc").status_code for _ in range(5)} == {503}
    assert len(asked) == 1
    provider.discovery = honest
    monkeypatch.setattr(oidc, "AWAY_AGAIN_S", 0.0)
    begin(site)


def test_a_provider_that_says_nothing_of_itself_is_away_and_refuses_nobody(site: World, provider: Provider) -> None:
    own = site.app.state.services.oidc
    own._provider = OidcProvider(replace(own._order, issuer=f"{provider.issuer}/elsewhere"))
    provider.lost = ("/elsewhere",)
    answer = site.client.get("/session/oidc")
    assert (answer.status_code, "answers 404" in answer.text) == (503, True), answer.text


def test_who_begins_without_end_leaves_the_newest_attempts_and_has_to_wait(
    site: World, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "ATTEMPTS_MAX", 3)
    first = provider.authorize(begin(site))
    kept = dict(site.client.cookies)
    for _ in range(3):
        brought = provider.authorize(begin(site))
    with site.database.raw() as connection:
        assert connection.execute("SELECT count(*) FROM oidc_attempts").fetchone() == (3,)
    assert finish(site, brought).status_code == 200
    for name, value in kept.items():
        site.client.cookies.set(name, value, path="/session/oidc")
    assert "began no such attempt" in finish(site, first).text
    monkeypatch.setattr(site.app.state.authenticator, "_people", RateLimiter(1.0))
    statuses = [site.client.get("/session/oidc").status_code for _ in range(4)]
    assert statuses == [303, 303, 429, 429]


def test_strangers_share_one_part_of_what_is_worked_on(site: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly the provider answers, threads are left for who has a token."""
    here, free = threading.Semaphore(0), threading.Event()

    def slow(back: str) -> None:
        here.release()
        assert free.wait(30.0)
        raise TransientError("the identity provider cannot be asked")

    monkeypatch.setattr(site.app.state.services.oidc, "begin", slow)
    with ThreadPoolExecutor(AT_ONCE_MAX + 4) as pool:
        come = [pool.submit(site.client.get, "/session/oidc") for _ in range(AT_ONCE_MAX + 4)]
        assert all(here.acquire(timeout=10.0) for _ in range(AT_ONCE_MAX))
        assert site.call("GET", "/v1/nodes").status_code == 200
        wait_until(lambda: len(site.app.state.shares._lines[door.WITHOUT_TOKEN]) == 4)
        assert not here.acquire(blocking=False)
        free.set()
        assert {each.result().status_code for each in come} == {503}


def test_without_a_provider_there_is_no_such_door(world: World) -> None:
    assert "/session/oidc" not in world.call("GET", "/", None).text
    assert [world.call("GET", path, None).status_code for path in ("/session/oidc", "/session/oidc/back")] == [404, 404]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"oidc_client": ""}, "also needs"),
        ({"public_url": ""}, "also needs"),
        ({"oidc_issuer": "http://idp.example"}, "OIDC_ISSUER must be an https"),
        ({"public_url": "http://headroom.example"}, "PUBLIC_URL must be an https"),
        ({"oidc_roles": "sre"}, "'sre' is not VALUE=ROLE"),
        ({"oidc_roles": "sre=root"}, "'sre=root' is not"),
        ({"oidc_roles": "bots=agent"}, "'bots=agent' is not"),
        ({"oidc_secret_file": "/nowhere"}, "cannot be read"),
    ],
)
def test_half_a_configuration_does_not_start(changed: dict[str, str], words: str) -> None:
    whole = {
        "oidc_issuer": "https://idp.example", "oidc_client": CLIENT, "oidc_roles": ROLES,
        "public_url": "https://headroom.example",
    }  # fmt: skip
    assert oidc_order(Settings(**whole)) is not None
    with pytest.raises(InputError, match=words):
        oidc_order(Settings(**(whole | changed)))
