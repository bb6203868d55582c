"""Which control plane a command talks to, and that a stored token stays with its user and its server."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from app.cli.options import connect
from app.cli.output import CommandError, Exit
from app.client.connection import CLIENT_FILE, Connection, read_connection, write_connection
from solvers.errors import InputError

STORED = Connection(server="http://127.0.0.1:8080", token="stored")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADROOM_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_what_up_stored_is_private_and_used(home: Path) -> None:
    (home / CLIENT_FILE).touch(mode=0o644)
    write_connection(home, STORED)
    assert stat.S_IMODE((home / CLIENT_FILE).stat().st_mode) == 0o600
    assert read_connection(home) == STORED
    with connect(None, None) as client:
        assert client.server == STORED.server


def test_options_come_first(home: Path) -> None:
    write_connection(home, STORED)
    with connect("http://other.test", "mine") as client:
        assert client.server == "http://other.test"


def test_the_stored_token_is_shown_to_no_other_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_connection(home, STORED)
    monkeypatch.setattr("app.cli.options.Client.health", lambda _: True)
    with pytest.raises(CommandError, match=r"no token for http://other\.test") as caught:
        connect("http://other.test", None)
    assert caught.value.exit_code is Exit.REFUSED


def test_without_a_server_the_way_out_is_named(home: Path) -> None:
    with pytest.raises(CommandError, match="headroom up") as caught:
        connect(None, None)
    assert caught.value.exit_code is Exit.USAGE


def test_a_broken_file_is_named(home: Path) -> None:
    (home / CLIENT_FILE).write_text("{}")
    with pytest.raises(InputError, match=r"client\.json"):
        connect(None, None)
