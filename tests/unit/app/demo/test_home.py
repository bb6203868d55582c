"""The home folder: one supervisor at a time, secrets for one user, state that is whole or absent."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from app.demo.home import Home, SupervisedProcess, SupervisorState
from solvers.errors import InputError

STATE = SupervisorState(
    supervisor=SupervisedProcess(name="supervisor", pid=1, started_ticks=2),
    address="http://127.0.0.1:1",
    ready=True,
    owns_database=True,
    processes=(SupervisedProcess(name="api", pid=3, started_ticks=4),),
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.prepare()
    return made


def test_one_supervisor_holds_the_lock_and_leaves_it_with_its_handle(home: Home) -> None:
    held = home.lock()
    assert held is not None
    assert home.lock() is None
    held.close()
    again = home.lock()
    assert again is not None
    again.close()


def test_state_and_secrets_are_private_and_read_back(home: Home) -> None:
    home.write_state(STATE)
    home.write_secret("join", "s3cret")
    assert home.read_state() == STATE
    assert home.read_secret("join") == "s3cret"
    for name in ("state.json", "join.token"):
        assert stat.S_IMODE((home.path / name).stat().st_mode) == 0o600
    home.forget_state()
    assert home.read_state() is None
    assert home.read_secret("gateway") is None


@pytest.mark.parametrize("text", ["", "{", "{}", '{"supervisor": {"pid": 1}}', "[]"])
def test_a_state_that_makes_no_sense_is_none(home: Home, text: str) -> None:
    (home.path / "state.json").write_text(text)
    assert home.read_state() is None


def test_a_state_that_cannot_be_read_is_none(home: Home) -> None:
    (home.path / "state.json").mkdir()
    assert home.read_state() is None


def test_logs_and_locks_are_for_nobody_else(home: Home) -> None:
    home.logs.mkdir(exist_ok=True)
    earlier = home.logs / "api.log"
    earlier.touch(0o644)
    home.prepare()
    handle = home.lock()
    assert handle is not None
    modes = {path.name: path.stat().st_mode & 0o777 for path in (home.logs, earlier, home.path / "supervisor.lock")}
    assert modes == {"logs": 0o700, "api.log": 0o600, "supervisor.lock": 0o600}
    handle.close()


def test_a_home_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot use"):
        Home(tmp_path / "file" / "home").prepare()
