"""Commands that run processes: what they refuse, hand on and say, without starting any."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from app.cli import processes
from app.cli.output import Exit
from app.client.connection import Connection, write_connection
from app.demo.home import Home, SupervisedProcess, SupervisorState
from tests.unit.app.cli.conftest import Headroom


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HEADROOM_HOME", str(tmp_path / "home"))
    made = Home(tmp_path / "home")
    made.prepare()
    return made


def test_agent_becomes_the_agent_with_its_options(headroom: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, arguments: became.append(arguments))
    headroom("agent", "--node", "n1", "--help", "-x", "--devices=fake:T4")
    assert became == [[sys.executable, "-m", "agents", "--node", "n1", "--help", "-x", "--devices=fake:T4"]]


def test_agent_helper_becomes_the_helper_with_its_options(headroom: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, arguments: became.append(arguments))
    headroom("agent-helper", "--allow-uid", "990", "--help")
    assert became == [[sys.executable, "-m", "agents.helper", "--allow-uid", "990", "--help"]]


def test_up_beside_a_living_supervisor_says_where_it_is(headroom: Headroom, home: Home) -> None:
    state = SupervisorState(
        supervisor=SupervisedProcess(name="supervisor", pid=123, started_ticks=1),
        address="http://127.0.0.1:9",
        ready=True,
        owns_database=True,
        processes=(),
    )
    home.write_state(state)
    handle = home.lock()
    assert handle is not None
    with handle:
        said = headroom("up")
    assert said.status == Exit.OK
    assert said.out == "headroom is already running at http://127.0.0.1:9 (process 123); stop it with: headroom down\n"


def test_down_where_nothing_runs_is_no_error(
    headroom: Headroom, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADROOM_HOME", str(tmp_path / "nowhere"))
    said = headroom("down")
    assert (said.status, said.out) == (Exit.OK, "headroom is not running\n")
    assert not (tmp_path / "nowhere").exists()


def test_serve_on_a_port_in_use_is_one_line(headroom: Headroom, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.processes._configure_logs", lambda _: None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        said = headroom("serve", "--port", str(other.getsockname()[1]))
    assert said.status == Exit.CONFLICT
    assert said.err.count("\n") == 1
    assert "cannot listen" in said.err


def test_traffic_with_a_wrong_file_is_one_line(headroom: Headroom, home: Home, tmp_path: Path) -> None:
    said = headroom("traffic", "-f", str(tmp_path / "gone.yaml"), "--server", "http://x.test", "--token", "t")
    assert said.status == Exit.USAGE
    assert "gone.yaml: no such file" in said.err


def test_what_up_says_to_try_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever somebody stands, with a checkout or without."""
    write_connection(tmp_path, Connection(server="http://127.0.0.1:9", token="t"))
    for place in (tmp_path, Path(__file__).parents[4]):
        monkeypatch.chdir(place)
        processes._say_welcome(Home(tmp_path), demo=False)
        (line,) = (line for line in capsys.readouterr().out.splitlines() if " apply -f " in line)
        assert (Path(line.rpartition(" ")[2]) / "services.yaml").is_file()
    assert line.endswith(" examples/demo")
