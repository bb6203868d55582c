"""Where pipes may lie, and how many clients fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.mps import client_slots, default_pipe_base


@pytest.mark.parametrize(
    ("version", "part", "slots"),
    [
        (12040, 1.0, 48),
        (13000, 1.0, 48),
        (13010, 1.0, 60),
        (13040, 1.0, 60),
        (13040, 3 / 7, 25),
        (12040, 1 / 100, 1),
    ],
)
def test_clients_that_fit_depend_on_driver_and_slice(version: int, part: float, slots: int) -> None:
    assert client_slots(version, device_part=part) == slots


def test_pipes_lie_in_a_runtime_directory_or_else_in_the_state_directory(tmp_path: Path) -> None:
    state, runtime, system = tmp_path / "state", tmp_path / "run", tmp_path / "system"
    runtime.mkdir()
    assert default_pipe_base({"XDG_RUNTIME_DIR": str(runtime)}, state, system) == runtime / "hr" / "mps"
    assert default_pipe_base({"XDG_RUNTIME_DIR": str(tmp_path / "gone")}, state, system) == state / "mps"
    assert default_pipe_base({}, state, system) == state / "mps"
    system.mkdir()
    assert default_pipe_base({"XDG_RUNTIME_DIR": str(runtime)}, state, system) == system / "mps"
