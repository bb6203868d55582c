"""The state directory: modes, atomic replacement, one user at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.errors import StateFileError
from agents.state import StateDirectory


def test_files_are_for_their_owner_only_and_replaced_whole(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "a" / "b")
    state.write_text("token", "one\n")
    state.write_text("token", "two\n")
    assert state.read_text("token") == "two\n"
    assert (state.path / "token").stat().st_mode & 0o777 == 0o600
    assert state.path.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in state.path.iterdir()] == ["token"]


def test_what_is_not_there_is_none_and_what_is_broken_is_said(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    assert state.read_text("target.json") is None
    assert state.read_json("target.json") is None
    state.write_text("target.json", '{"half')
    with pytest.raises(StateFileError, match="not JSON"):
        state.read_json("target.json")
    (tmp_path / "target.json").write_bytes(b"\xff\xfe")
    with pytest.raises(StateFileError, match="cannot read"):
        state.read_text("target.json")


def test_json_comes_back_as_it_went_in(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.write_json("devices.json", {"boards": [1, 2.5, None]})
    assert state.read_json("devices.json") == {"boards": [1, 2.5, None]}


def test_one_agent_at_a_time(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    with state.lock(), pytest.raises(StateFileError, match="another agent"), StateDirectory(tmp_path).lock():
        pass
    with state.lock():
        pass


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StateFileError):
        StateDirectory(tmp_path / "file")


def test_a_lock_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StateFileError, match="cannot write"), StateDirectory(tmp_path).lock():
        pass
