"""The demo's processes as they will be run: no secret on any command line, and a seeding that takes nothing back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
import pytest

from app.api.server import FINISH_S
from app.demo.fleet import NODES, seed
from app.demo.home import Home
from app.demo.rooms import LocalRooms, Order
from app.settings import Settings
from headroom_client import Client
from solvers.errors import InvariantError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path)
    made.prepare()
    made.write_secret("join", "join-secret")
    made.write_secret("gateway", "gateway-secret")
    return made


def rooms_of(home: Home, *, demo: bool = True, database_url: str = "") -> LocalRooms:
    settings = Settings(home=home.path, host="0.0.0.0", port=18081, database_url=database_url)
    return LocalRooms(Order(settings=settings, demo=demo), home, lambda _: None)


def test_an_api_is_not_killed_while_it_finishes(home: Home) -> None:
    assert rooms_of(home).api().stop_deadline_s > Settings().drain_s + FINISH_S


def test_no_secret_is_on_a_command_line(home: Home) -> None:
    rooms = rooms_of(home, database_url="postgresql://u:password@h/d")
    specs = [rooms.api(), rooms.planner(), *rooms.agents(), rooms.traffic()]
    assert len(specs) == 3 + len(NODES)
    words = " ".join(word for spec in specs for word in spec.command)
    assert not [secret for secret in ("join-secret", "gateway-secret", "password") if secret in words]
    assert specs[0].environment["HEADROOM_DATABASE_URL"] == "postgresql://u:password@h/d"
    assert {spec.environment["HEADROOM_TOKEN"] for spec in rooms.agents()} == {"join-secret"}
    assert rooms.traffic().environment["HEADROOM_TOKEN"] == "gateway-secret"


def test_nothing_is_taken_from_the_folder_that_one_stands_in(home: Home) -> None:
    rooms = rooms_of(home)
    specs = [rooms.api(), rooms.planner(), *rooms.agents(), rooms.traffic()]
    assert {spec.command[:3] for spec in specs} == {(sys.executable, "-P", "-m")}


def test_everybody_is_told_the_address_of_this_machine(home: Home) -> None:
    rooms = rooms_of(home)
    assert rooms.traffic().environment["HEADROOM_SERVER"] == "http://127.0.0.1:18081"
    assert rooms.api().environment["HEADROOM_HOST"] == "0.0.0.0"
    for spec, node in zip(rooms.agents(), NODES, strict=True):
        assert spec.command[spec.command.index("--node") + 1] == node.name
        assert spec.command[spec.command.index("--server") + 1] == "http://127.0.0.1:18081"


def test_the_demo_reports_often_unless_the_user_says_otherwise(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADROOM_REPORT_INTERVAL_S", raising=False)
    assert rooms_of(home).api().environment["HEADROOM_REPORT_INTERVAL_S"] == "1"
    assert "HEADROOM_REPORT_INTERVAL_S" not in rooms_of(home, demo=False).api().environment
    monkeypatch.setenv("HEADROOM_REPORT_INTERVAL_S", "9")
    assert "HEADROOM_REPORT_INTERVAL_S" not in rooms_of(home).api().environment


def test_calls_need_tokens_first(tmp_path: Path) -> None:
    rooms = rooms_of(Home(tmp_path))
    with pytest.raises(InvariantError):
        rooms.api_ready()
    with pytest.raises(InvariantError):
        rooms.agents()


class Plane:
    """Remembers what is put; knows GPU types already, or not."""

    def __init__(self, *, blank: bool) -> None:
        self.blank = blank
        self.put: dict[str, str | None] = {}
        self.imported = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"items": [] if self.blank else [{"name": "t4"}], "next_cursor": None})
        if request.method == "POST":
            self.imported += request.content.count(b"\n") - 1
            return httpx.Response(200, json={})
        condition = request.headers.get("If-None-Match")
        self.put[request.url.path] = condition
        if condition and request.url.path == "/v1/projects/vision":
            return httpx.Response(412, json={"code": "precondition-failed", "detail": "it exists"})
        return httpx.Response(201, json=json.loads(request.content))


def test_a_blank_control_plane_takes_the_whole_demo() -> None:
    plane = Plane(blank=True)
    with Client("http://x.test", "t", transport=httpx.MockTransport(plane)) as client:
        made = seed(client)
    assert made == len(plane.put) > 30
    assert set(plane.put.values()) == {None}
    assert plane.imported > 100
    paths = list(plane.put)
    assert paths.index("/v1/projects/vision") < paths.index("/v1/services/vision/resnet50")


def test_what_is_there_already_is_left_alone() -> None:
    plane = Plane(blank=False)
    with Client("http://x.test", "t", transport=httpx.MockTransport(plane)) as client:
        made = seed(client)
    assert made == len(plane.put) - 1
    assert set(plane.put.values()) == {"*"}
