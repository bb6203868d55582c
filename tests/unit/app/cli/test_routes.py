"""Commands for gateways against canned answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.output import Exit
from app.routing.haproxy import HaproxyFollower
from tests.unit.app.cli.conftest import Api, Headroom


def route(service: str, *ports: int) -> dict[str, Any]:
    return {
        "service": service,
        "generation": 3,
        "ready_path": None,
        "replicas": [
            {
                "replica": f"{service}#{ordinal}",
                "endpoint": f"http://10.0.0.{ordinal}:{port}",
                "host": f"10.0.0.{ordinal}",
                "port": port,
                "weight": 12.5,
                "state": "ready",
                "generation": 3,
            }
            for ordinal, port in enumerate(ports)
        ],
    }


@pytest.fixture
def told(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    # Logging is the process's, not one command's of this one.
    monkeypatch.setattr("app.cli.routes.configure_logs", lambda level: None)
    labels, faces = route("vision/labels", 9001, 9002), route("default/faces")
    api.answers |= {
        "GET /v1/routes": {"items": [labels, faces]},
        "GET /v1/routes/vision/labels": labels,
        "GET /v1/routes/default/faces": faces,
    }
    return api


def test_routes_are_listed(told: Api, headroom: Headroom) -> None:
    lines = headroom("routes", "list").out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["vision/labels", "vision/labels#0", "http://10.0.0.0:9001", "12.5", "ready", "3"],
        ["vision/labels", "vision/labels#1", "http://10.0.0.1:9002", "12.5", "ready", "3"],
        ["default/faces", "-", "-", "-", "-", "-"],
    ]
    assert headroom("routes", "list", "--service", "faces", "-o", "json").json == [route("default/faces")]


def test_gateways_are_rendered_to_standard_output_or_a_file(told: Api, headroom: Headroom, tmp_path: Path) -> None:
    haproxy = headroom("routes", "render", "haproxy", "--service", "vision/labels", "--slots", "2")
    assert haproxy.status == Exit.OK
    assert "backend vision:labels\n" in haproxy.out
    assert haproxy.out.count("    server slot") == 2
    out = tmp_path / "upstreams.conf"
    first = headroom("routes", "render", "nginx", "--out", str(out))
    assert (first.status, first.out) == (Exit.OK, f"{out}: 2 services, 2 servers\n")
    assert "upstream default.faces {" in out.read_text()
    assert headroom("routes", "render", "nginx", "--out", str(out)).out == f"{out}: 2 services, 2 servers, unchanged\n"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("render", "haproxy", "--slots", "1"), Exit.USAGE, "vision/labels has 2 servers, but --slots is 1"),
        (("render", "traefik"), Exit.USAGE, "gateway"),
        (("list", "--service", "a/b/c"), Exit.USAGE, "a service is named PROJECT/NAME, got 'a/b/c'"),
        (("list", "--service", "vision/none"), Exit.NOT_FOUND, "nothing at /v1/routes/vision/none"),
        (("render", "nginx", "--out", "/nowhere/file"), Exit.USAGE, "/nowhere/file: there is no folder /nowhere"),
        (("follow", "nginx", "--out", "/nowhere/file", "--reload-command", "true"), Exit.USAGE, "no folder /nowhere"),
        (("follow", "haproxy", "--socket", "/nowhere/s"), Exit.FAILED, "/nowhere/s: no such file or directory"),
        (("follow", "nginx", "--out", "f", "--reload-command", " "), Exit.USAGE, "--reload-command names no program"),
        (("follow", "nginx", "--out", "f", "--reload-command", "a 'b"), Exit.USAGE, "--reload-command: No closing"),
        (("follow", "nginx", "--out", "f", "--reload-command", "a", "--service", "b"), Exit.NOT_FOUND, "default/b"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    told: Api, headroom: Headroom, arguments: tuple[str, ...], status: Exit, words: str
) -> None:
    said = headroom("routes", *arguments)
    assert said.status == status
    assert said.err.startswith("headroom: ")
    assert said.err.count("\n") == 1
    assert words in said.err


def test_a_reload_command_that_is_not_there_ends_the_follower(told: Api, headroom: Headroom, tmp_path: Path) -> None:
    out = tmp_path / "upstreams.conf"
    said = headroom("routes", "follow", "nginx", "--out", str(out), "--reload-command", "/nowhere/nginx -s reload")
    assert said.status == Exit.FAILED
    assert "/nowhere/nginx: No such file or directory" in said.err
    assert "upstream vision.labels {" in out.read_text()


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        (403, "this token is for gateway edge, the message is of edge-2"),
        (422, "this lies 3600 s in the future of the server's clock; 60 s are allowed"),
    ],
)
def test_who_may_not_report_hears_so_at_once(
    told: Api, headroom: Headroom, tmp_path: Path, status: int, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HaproxyFollower, "check", lambda self: None)
    told.answers["POST /v1/agent/edge-reports"] = httpx.Response(status, json={"code": "x", "detail": detail})
    said = headroom("routes", "follow", "haproxy", "--socket", str(tmp_path / "s"), "--gateway", "edge-2")
    assert said.status in (Exit.REFUSED, Exit.USAGE)
    assert detail in said.err
    assert said.err.count("\n") == 1
    assert told.body()["gateway"] == "edge-2"
