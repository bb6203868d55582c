"""Which of several servers a node prefers, leaves and comes back to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from agents import servers as module
from agents.errors import ConfigError
from agents.servers import AWAY_S_MAX, AWAY_S_MIN, Servers
from agents.transport import HttpAnswer, StatusError, UnreachableError
from tests.unit.agents.builders import FakeClock

URLS = tuple(f"http://api-{number}:8080" for number in (1, 2, 3))
NAMES = [f"gpu-{number:04d}" for number in range(1000)]


def test_a_fleet_spreads_evenly_by_its_names_whatever_the_order_of_the_addresses() -> None:
    first = {name: Servers(URLS, name).chosen() for name in NAMES}
    assert first == {name: Servers(URLS[::-1], name).chosen() for name in NAMES}
    for url, count in Counter(first.values()).items():
        assert abs(count - 1000 / 3) <= 0.15 * 1000 / 3, (url, count)


def test_who_leaves_moves_only_its_own_and_spreads_them_too() -> None:
    before = {name: Servers(URLS, name).chosen() for name in NAMES}
    after = {name: Servers(URLS[:2], name).chosen() for name in NAMES}
    moved = [name for name in NAMES if before[name] != after[name]]
    assert moved == [name for name in NAMES if before[name] == URLS[2]]
    for count in Counter(after[name] for name in moved).values():
        assert abs(count - len(moved) / 2) <= 0.25 * len(moved) / 2


class Site:
    """Three servers, of which some are there; every call is one of `HttpConnection`'s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.away: set[str] = set()
        self.status = dict.fromkeys(URLS, 200)
        self.asked: list[tuple[str, str]] = []
        self.line: Callable[[], None] = lambda: None
        site = self

        class Wire:
            def __init__(self, url: str, timeout_s: float = 10.0, tls: object = None) -> None:
                self.url, self.token = url, ""

            def call(self, method: str, path: str, body: object = None, headers: object = None) -> HttpAnswer:
                site.asked.append((self.url, path))
                if self.url in site.away:
                    raise UnreachableError("gone")
                return HttpAnswer(site.status[self.url], {}, b"")

            def lines(self, path: str, silence_s: float) -> Iterator[bytes]:
                if self.url in site.away:
                    raise UnreachableError("gone")
                if site.status[self.url] != 200:
                    raise StatusError(site.status[self.url])
                while True:
                    site.line()
                    yield b"line"

            def close(self) -> None:
                """Nothing is open."""

        monkeypatch.setattr(module, "HttpConnection", Wire)
        self.servers = Servers(URLS, "gpu-0001", self.clock)
        self.own, self.second, self.third = self.servers.addresses


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def test_a_node_falls_over_to_its_next_and_comes_back_once_its_own_is_ready(site: Site) -> None:
    connection = site.servers.connection()
    site.away.add(site.own)
    with pytest.raises(UnreachableError):
        connection.call("POST", "/x")
    assert connection.call("POST", "/x").ok
    assert connection.url == site.second
    site.clock.pass_s(1.5 * AWAY_S_MIN)
    connection.call("POST", "/x")
    assert site.asked[-2:] == [(site.own, "/v1/ready"), (site.second, "/x")], "asked, and not used"
    site.away.clear()
    connection.call("POST", "/x")
    assert connection.url == site.second, "it is not asked again at once"
    site.clock.pass_s(1.5 * AWAY_S_MAX)
    connection.call("POST", "/x")
    assert (connection.url, site.asked[-1]) == (site.own, (site.own, "/x"))


def test_the_pause_doubles_up_to_a_minute(site: Site) -> None:
    site.away.add(site.own)
    site.servers.failed(site.own)
    for _ in range(3600):
        site.clock.pass_s(1.0)
        site.servers.chosen()
    probes = len(site.asked)
    assert 3600 / (1.5 * AWAY_S_MAX) - 1 <= probes <= 3600 / (0.5 * AWAY_S_MAX) + 5


@pytest.mark.parametrize("status", [502, 503, 504])
def test_who_cannot_serve_is_passed_over_and_who_has_too_much_to_do_is_not(site: Site, status: int) -> None:
    connection = site.servers.connection()
    site.status[site.own] = 429
    assert connection.call("POST", "/x").status == 429
    assert site.servers.chosen() == site.own
    site.status[site.own] = status
    assert connection.call("POST", "/x").status == status
    assert connection.call("POST", "/x").ok
    assert connection.url == site.second


def test_where_all_are_away_the_first_that_answers_is_used(site: Site) -> None:
    connection = site.servers.connection()
    site.away |= set(URLS)
    for _ in range(20):
        with pytest.raises(UnreachableError):
            connection.call("POST", "/x")
        site.clock.pass_s(30.0)
    site.away.remove(site.third)
    for _ in range(20):
        site.clock.pass_s(30.0)
        try:
            assert connection.call("POST", "/x").ok
        except UnreachableError:
            continue
        break
    assert connection.url == site.third


def test_one_server_is_used_whatever_it_says(site: Site) -> None:
    alone = Servers(URLS[:1], "gpu-0001", site.clock)
    connection = alone.connection()
    site.away.add(URLS[0])
    for _ in range(5):
        with pytest.raises(UnreachableError):
            connection.call("POST", "/x")
        site.clock.pass_s(60.0)
    site.away.clear()
    assert connection.call("POST", "/x").ok
    assert {path for _, path in site.asked} == {"/x"}


def test_a_stream_comes_back_to_its_own_server_too(site: Site) -> None:
    site.servers.failed(site.own)
    connection = site.servers.connection()
    lines = connection.lines("/v1/doorbell", 90.0)
    assert next(lines) == b"line"
    assert connection.url == site.second
    site.servers.back(site.own)
    with pytest.raises(UnreachableError, match="another"):
        next(lines)
    assert next(connection.lines("/v1/doorbell", 90.0)) == b"line"
    assert connection.url == site.own


def test_a_stream_that_spoke_and_ended_says_nothing_of_its_server(site: Site) -> None:
    def ends() -> None:
        raise UnreachableError("the stream ended")

    connection = site.servers.connection()
    lines = connection.lines("/v1/doorbell", 90.0)
    next(lines)
    site.line = ends
    with pytest.raises(UnreachableError):
        next(lines)
    assert site.servers.chosen() == site.own
    with pytest.raises(UnreachableError):
        next(connection.lines("/v1/doorbell", 90.0))
    assert site.servers.chosen() == site.second


def test_what_is_no_address_is_refused_at_once() -> None:
    with pytest.raises(ConfigError):
        Servers(("http://ok:1", "nonsense"), "gpu-0001").connection()
