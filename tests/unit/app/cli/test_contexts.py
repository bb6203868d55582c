"""Signing in, choosing among control planes, and which one a command talks to."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import httpx
import pytest

from app.cli import options
from app.cli.output import Exit
from app.client.connection import Connection, write_connection
from app.client.contexts import contexts_file
from tests.unit.app.cli.conftest import SERVER, Api, Headroom

pytestmark = pytest.mark.usefixtures("nowhere")
OTHER = "http://other.test"


@pytest.fixture
def nowhere(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server in options, environment or folder; a configuration folder of the test's own."""
    api.answers |= {"GET /v1/fleet": {}, "GET /v1/health": {}, "GET /v1/services": {"items": [], "next_cursor": None}}
    monkeypatch.setattr("app.cli.access.Client", options.Client)
    for name in ("HEADROOM_SERVER", "HEADROOM_TOKEN", "HEADROOM_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def asked(api: Api) -> tuple[str, str]:
    """Where the last request went, and with which token."""
    url = api.asked[-1].url
    return f"{url.scheme}://{url.host}", api.asked[-1].headers["Authorization"].removeprefix("Bearer ")


def test_signing_in_keeps_a_token_that_works_for_this_user_alone(api: Api, headroom: Headroom) -> None:
    assert headroom("get", "services").status == Exit.USAGE
    assert headroom("login", SERVER + "/", "--token", "one").out == f"signed in to {SERVER} as context control.test\n"
    assert stat.S_IMODE(contexts_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(contexts_file().parent.stat().st_mode) == 0o700
    assert headroom("get", "services").status == Exit.OK
    assert asked(api) == (SERVER, "one")
    api.answers["GET /v1/fleet"] = httpx.Response(401, json={"code": "unauthenticated", "detail": "who are you"})
    before = contexts_file().read_text()
    assert headroom("login", SERVER, "--token", "bad").status == Exit.REFUSED
    assert contexts_file().read_text() == before
    assert "one" not in headroom("context", "list", "-o", "json").out


def test_a_token_may_come_through_a_pipe(api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("piped\n"))
    assert headroom("login", SERVER, "--name", "lab").status == Exit.OK
    assert asked(api) == (SERVER, "piped")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert headroom("login", SERVER).status == Exit.USAGE


def test_contexts_are_chosen_and_forgotten(api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    headroom("login", SERVER, "--token", "one", "--name", "lab")
    headroom("login", OTHER, "--token", "two", "--name", "live")
    assert headroom("context", "list", "-o", "name").out == "lab\nlive\n"
    assert headroom("context", "use", "lab").status == Exit.OK
    headroom("get", "services")
    assert asked(api) == (SERVER, "one")
    monkeypatch.setenv("HEADROOM_CONTEXT", "live")
    headroom("get", "services")
    assert asked(api) == (OTHER, "two")
    monkeypatch.setenv("HEADROOM_CONTEXT", "liv")
    assert headroom("get", "services").err == "headroom: there is no context liv; did you mean live?\n"
    monkeypatch.delenv("HEADROOM_CONTEXT")
    assert headroom("context", "use", "x").err == "headroom: there is no context x; known are lab, live\n"
    assert headroom("context", "remove", "lab").status == Exit.OK
    assert headroom("get", "services").status == Exit.USAGE


def test_options_environment_and_folder_win_over_the_context(
    api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    headroom("login", SERVER, "--token", "one")
    (tmp_path / "home").mkdir()
    write_connection(tmp_path / "home", Connection(server="http://here.test", token="local"))
    headroom("get", "services")
    assert asked(api) == ("http://here.test", "local")
    # A token goes to its own server and to no other, whoever named that.
    headroom("get", "services", "--server", SERVER)
    assert asked(api) == (SERVER, "one")
    said = headroom("get", "services", "--server", OTHER)
    assert (said.status, "no token" in said.err) == (Exit.REFUSED, True)
    assert "Authorization" not in api.asked[-1].headers
    monkeypatch.setenv("HEADROOM_CONTEXT", "control.test")
    headroom("get", "services")
    assert asked(api) == (SERVER, "one")
    monkeypatch.setenv("HEADROOM_TOKEN", "given")
    headroom("get", "services")
    assert asked(api) == (SERVER, "given")


def test_a_server_that_is_not_there_is_told_before_a_token_is_missed(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/health"] = httpx.ConnectError("nobody listens")
    said = headroom("get", "services", "--server", OTHER)
    assert (said.status, "cannot reach" in said.err) == (Exit.UNREACHABLE, True)


def test_a_file_that_is_something_else_is_left_alone(headroom: Headroom) -> None:
    contexts_file().parent.mkdir(parents=True)
    for text in ("[]", json.dumps({"contexts": {"a": 1}}), "{"):
        contexts_file().write_text(text)
        assert "is not readable as contexts" in headroom("login", SERVER, "--token", "one").err
        assert contexts_file().read_text() == text
