"""Commands that run processes: what they refuse, hand on and say, without starting any."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import processes
from app.cli.output import Exit
from app.client.connection import Connection, write_connection
from app.demo.home import Home, SupervisedProcess, SupervisorState
from app.demo.process import MARK, holder, identify
from solvers.errors import StateError
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
    assert became == [[sys.executable, "-P", "-m", "agents", "--node", "n1", "--help", "-x", "--devices=fake:T4"]]


def test_agent_helper_becomes_the_helper_with_its_options(headroom: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, arguments: became.append(arguments))
    headroom("agent-helper", "--allow-uid", "990", "--help")
    assert became == [[sys.executable, "-P", "-m", "agents.helper", "--allow-uid", "990", "--help"]]


def test_no_code_of_the_folder_is_run_that_is_called_like_ours(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "__main__.py").write_text("print('of the folder')")
    headroom = Path(sys.executable).with_name("headroom")
    told = subprocess.run([headroom, "agent", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("usage: headroom agent")


def state_of(supervisor: SupervisedProcess | None) -> SupervisorState:
    assert supervisor is not None
    return SupervisorState(
        supervisor=supervisor, address="http://127.0.0.1:9", ready=True, owns_database=False, processes=()
    )


def test_up_beside_a_living_supervisor_says_where_it_is(headroom: Headroom, home: Home) -> None:
    own = identify("supervisor", os.getpid())
    home.write_state(state_of(own))
    handle = home.lock()
    assert handle is not None
    with handle:
        said = headroom("up")
    assert said.status == Exit.OK
    where = f"http://127.0.0.1:9 (process {os.getpid()})"
    assert said.out == f"headroom is already running at {where}; stop it with: headroom down\n"


def test_up_that_comes_second_says_where_the_first_one_is(
    headroom: Headroom, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are told to start at once: both see nobody, and the loser's supervisor meets the other's."""
    home.write_state(state_of(identify("supervisor", os.getpid())))
    monkeypatch.setattr("app.demo.process.holder", lambda _: (home.path / "nobody").open("w"))
    handle = home.lock()
    assert handle is not None
    with handle:
        said = headroom("up", "--no-demo")
    assert (said.status, said.err) == (Exit.OK, "")
    assert said.out.startswith(f"headroom is already running at http://127.0.0.1:9 (process {os.getpid()})")


STARTING = """
import signal, sys
from pathlib import Path
from app.demo.home import Home
home = Home(Path(sys.argv[1]))
lock = home.lock()
print(flush=True)
signal.pause()
"""


def test_down_waits_until_who_starts_has_told_of_itself_and_ends_that_one(headroom: Headroom, home: Home) -> None:
    """What one that was killed told before stands meanwhile: its number may be anybody's by now."""
    stranger = identify("supervisor", os.getpid())
    assert stranger is not None
    home.write_state(state_of(replace(stranger, started_ticks=stranger.started_ticks - 1)))
    command = [sys.executable, "-c", STARTING, str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starting:
        assert starting.stdout is not None
        starting.stdout.readline()
        told = threading.Timer(0.3, lambda: home.write_state(state_of(identify("supervisor", starting.pid))))
        told.start()
        said = headroom("down")
        told.join()
        assert starting.wait() == -signal.SIGTERM
    assert said.status == Exit.OK
    assert said.out.startswith("headroom has stopped")


@pytest.mark.parametrize("told", ["{", None])
def test_a_supervisor_that_was_stopped_is_named_at_once(headroom: Headroom, home: Home, told: str | None) -> None:
    """It tells nothing any more, and nobody has to wait for it."""
    if told is not None:
        (home.path / "state.json").write_text(told)
    with subprocess.Popen([sys.executable, "-c", STARTING, str(home.path)], stdout=subprocess.PIPE) as stopped:
        assert stopped.stdout is not None
        stopped.stdout.readline()
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        said = [headroom("up"), headroom("down")]
        stopped.kill()
    want = f"headroom: process {stopped.pid}, which holds {home.path}, was stopped: kill -CONT {stopped.pid} "
    assert [(each.status, each.err.startswith(want)) for each in said] == [(Exit.CONFLICT, True)] * 2


def test_down_ends_a_supervisor_that_was_stopped_and_what_it_would_leave(headroom: Headroom, home: Home) -> None:
    command = [sys.executable, "-c", STARTING, str(home.path)]
    mark = {**os.environ, MARK: f"api {home.logs}"}
    forever = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as stopped,
        subprocess.Popen(forever, env=mark, start_new_session=True) as child,
    ):
        assert stopped.stdout is not None
        stopped.stdout.readline()
        home.write_state(state_of(identify("supervisor", stopped.pid)))
        stopped.send_signal(signal.SIGSTOP)
        said = headroom("down")
        assert (stopped.wait(), child.wait()) == (-signal.SIGTERM, -signal.SIGTERM)
    assert (said.status, said.out.startswith("headroom has stopped")) == (Exit.OK, True)


def test_who_never_tells_of_itself_is_told_after_a_while(home: Home) -> None:
    handle = home.lock()
    assert handle is not None
    with handle, pytest.raises(StateError, match="does not tell who"):
        holder(home, 0.1)


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
